"""Libraries that switch to Apex's layers when they see ``apex`` get the same numbers from the drop-in.

Each runs in two processes of its own, since the libraries decide while they are imported.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]

PREAMBLE = """
import sys, torch
torch.set_num_threads(1)
if sys.argv[1] == "drop-in":
    import amp_migrate
    amp_migrate.install()
try:
    import torchvision
except ImportError:
    pass
except RuntimeError:  # built for another device than torch, so without its operators: declare those it asks for
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
def run(model, *args, **kwargs):
    model.zero_grad()
    out = model(*args, **kwargs)
    out = out if isinstance(out, torch.Tensor) else out.logits
    out.float().pow(2).mean().backward()
    return out.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]
results = {}
"""

T5 = """
import transformers.models.t5.modeling_t5 as t5
switched = t5.T5LayerNorm.__name__ == "FusedRMSNorm"
torch.manual_seed(0)
config = t5.T5Config(
    vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0, dropout_rate=0.0
)
model = t5.T5ForConditionalGeneration(config)
batch = {"input_ids": torch.randint(1, 64, (2, 9)), "labels": torch.randint(1, 64, (2, 5))}
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    model.to(dtype)
    results[f"{dtype}"] = run(model, **batch)
    for name, module in model.named_modules():  # what from_pretrained does: hidden states become float32
        if name.endswith(".wo"):
            module.float()
    results[f"{dtype}, wo in float32"] = run(model, **batch)
    model.float()
with torch.autocast("cpu", dtype=torch.bfloat16):
    results["autocast"] = run(model, **batch)
"""

TIMM = """
import timm.layers.fast_norm as fast_norm
from timm.layers import RmsNorm, set_fast_norm
from timm.models.vision_transformer import VisionTransformer
switched = fast_norm.has_apex
set_fast_norm(True)
x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
for norm in ("layer", "rms"):
    torch.manual_seed(0)
    options = {"norm_layer": RmsNorm} if norm == "rms" else {}
    model = VisionTransformer(img_size=16, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=5, **options)
    results[f"{norm}, float32"] = run(model, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results[f"{norm}, autocast"] = run(model, x)
    results[f"{norm}, bfloat16"] = run(model.bfloat16(), x.bfloat16())
"""


def outcome(code: str, with_drop_in: bool, folder: Path) -> dict[str, Any]:
    script, file = folder / "script.py", folder / f"{with_drop_in}.pt"
    script.write_text(f"{PREAMBLE}{code}\ntorch.save((switched, results), {str(file)!r})\n")
    mode = "drop-in" if with_drop_in else "plain"
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run([sys.executable, script, mode], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    switched, results = torch.load(str(file))
    if with_drop_in and not switched:
        pytest.skip("this version of the library doesn't look for apex")
    assert switched == with_drop_in
    return results  # type: ignore[no-any-return]


def largest_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-30))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers isn't installed")
def test_t5_of_transformers_computes_the_same_with_fused_rms_norm(tmp_path: Path) -> None:
    ours, native = outcome(T5, True, tmp_path), outcome(T5, False, tmp_path)
    for case, (logits, grads) in native.items():
        print(case, largest_difference(ours[case][0], logits), max(map(largest_difference, ours[case][1], grads)))
        if case == "autocast":  # Apex's layer rounds its output to autocast's dtype, T5's own doesn't
            assert largest_difference(ours[case][0], logits) < 0.03
            continue
        assert torch.equal(ours[case][0], logits), case
        bound = 1e-6 if case.split(",")[0].split(".")[1] == "float32" else 0.02
        assert max(map(largest_difference, ours[case][1], grads)) < bound, case


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm isn't installed")
def test_fast_norm_of_timm_computes_the_same(tmp_path: Path) -> None:
    ours, native = outcome(TIMM, True, tmp_path), outcome(TIMM, False, tmp_path)
    for case, (logits, grads) in native.items():
        print(case, largest_difference(ours[case][0], logits), max(map(largest_difference, ours[case][1], grads)))
        assert ours[case][0].dtype == logits.dtype
        bound = 1e-5 if "float32" in case else 0.03
        assert largest_difference(ours[case][0], logits) < bound, case
        assert max(map(largest_difference, ours[case][1], grads)) < bound * 2, case
