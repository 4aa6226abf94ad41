"""Hugging Face's Trainer (4.28.1) with ``half_precision_backend="apex"``."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

import amp_migrate

transformers = pytest.importorskip("transformers", reason="run by `nox -s packages`")
if not hasattr(transformers.utils, "is_apex_available"):
    pytest.skip("this transformers has no Apex branch any more", allow_module_level=True)


class Words(torch.utils.data.Dataset):
    """Eight sentences of six tokens; the label is whether the first token is even."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(6) * 7 + index * 3) % 30
        return {"input_ids": tokens, "labels": tokens[0] % 2}


def tiny_bert() -> Any:
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(config)


def train(folder: Path, *, apex: bool, level: str = "O1", **options: Any) -> tuple[Any, Any]:
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=12, per_device_train_batch_size=4, learning_rate=1e-2, logging_steps=1, no_cuda=True,
        report_to=[], seed=1, half_precision_backend="apex" if apex else "auto", fp16_opt_level=level, **options,
    )  # fmt: skip
    arguments.fp16 = apex  # its constructor refuses fp16 off CUDA: the one stand-in for a GPU
    trainer = transformers.Trainer(tiny_bert(), arguments, train_dataset=Words())
    trainer.train()
    return trainer, [row["loss"] for row in trainer.state.log_history if "loss" in row]


@pytest.fixture
def apex_installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The drop-in as ``apex``, also in the name that the Trainer's module bound when it was imported."""
    amp_migrate.install()
    from apex import amp

    monkeypatch.setattr(importlib.import_module("transformers.trainer"), "amp", amp, raising=False)
    yield amp
    amp_migrate.uninstall()


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_trainer_trains_through_its_apex_branch(
    tmp_path: Path, apex_installed: Any, level: str, accumulation: int
) -> None:
    trainer, losses = train(tmp_path, apex=True, level=level, gradient_accumulation_steps=accumulation)
    assert trainer.use_apex
    assert len(losses) == 12 and losses[-1] < losses[0]
    assert apex_installed.state_dict()["loss_scaler0"]["unskipped"] > 0
    assert type(trainer.model).__name__ == "BertForSequenceClassification"


def test_it_trains_as_float32_does_but_for_rounding(tmp_path: Path, apex_installed: Any) -> None:
    _, mixed = train(tmp_path / "a", apex=True)
    amp_migrate.uninstall()
    _, full = train(tmp_path / "b", apex=False)
    assert mixed == pytest.approx(full, rel=0.05, abs=0.02)
    assert mixed != full


def test_the_saved_model_loads_without_us(tmp_path: Path, apex_installed: Any) -> None:
    trainer, _ = train(tmp_path / "a", apex=True, level="O2")
    trainer.save_model(str(tmp_path / "saved"))
    amp_migrate.uninstall()
    loaded = transformers.BertForSequenceClassification.from_pretrained(str(tmp_path / "saved"))
    assert all(p.dtype == torch.float32 for p in loaded.parameters())
