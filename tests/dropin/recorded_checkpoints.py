"""The net and the batches with which Apex's python code wrote the files in ``fixtures/checkpoints``, and the
files.

Weights and batches come from formulas. Those of the batches were found again from the recorded gradients, and give the
recorded losses to the last bit.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "checkpoints"
SAMPLES = json.loads((Path(__file__).parent / "fused_optimizers.json").read_text())["samples"]


class TinyNet(nn.Module):
    def __init__(self, batchnorm=True):
        super().__init__()
        self.fc1 = nn.Linear(3, 4)
        if batchnorm:
            self.bn = nn.BatchNorm1d(4)
        self.fc2 = nn.Linear(4, 2)
        firsts = {"fc1.weight": 0, "fc1.bias": 12, "bn.weight": 16, "bn.bias": 20, "fc2.weight": 24, "fc2.bias": 32}
        for name, p in self.named_parameters():
            at = torch.arange(firsts[name], firsts[name] + p.numel(), dtype=torch.float64)
            p.data.copy_((0.5 * torch.sin(0.7311 * at)).float().reshape(p.shape))

    def forward(self, x):
        hidden = self.fc1(x)
        return self.fc2(torch.tanh(self.bn(hidden) if hasattr(self, "bn") else hidden))


def batch(i):
    inputs = torch.sin(torch.arange(24).float() * 0.37 + i).reshape(8, 3)
    return inputs, torch.cos(torch.arange(16).float() * 0.91 + i).reshape(8, 2)


def load(sample):
    return torch.load(FOLDER / sample["file"], map_location="cpu")


def groups_of(net):
    """Weights with decay, then biases and BatchNorm without."""
    named = list(net.named_parameters())
    decay = [p for n, p in named if n in ("fc1.weight", "fc2.weight")]
    return [
        {"params": decay, "weight_decay": 0.01},
        {"params": [p for n, p in named if n not in ("fc1.weight", "fc2.weight")], "weight_decay": 0.0},
    ]
