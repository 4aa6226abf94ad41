"""Which device types a model computes on, without touching any device."""

from __future__ import annotations

import os
from itertools import chain
from typing import Iterable

import torch
from torch import nn

#: set by ``amp_migrate.run --device-type``, and read by the processes it starts
DEVICE_TYPE_VARIABLE = "AMP_MIGRATE_DEVICE_TYPE"


def device_types_of(models: Iterable[nn.Module]) -> tuple[str, ...]:
    """The device types of the models' parameters and buffers, or what ``--device-type`` says."""
    asked = os.environ.get(DEVICE_TYPE_VARIABLE)
    if asked:
        return (asked,)
    found: list[str] = []
    for model in models:
        for tensor in chain(model.parameters(), model.buffers()):
            if tensor.device.type not in found and tensor.device.type != "meta":
                found.append(tensor.device.type)
    return tuple(found) or (likely_device_type(),)


def likely_device_type() -> str:
    """The device type of a program that has shown no tensor yet: CUDA if there is one, else the CPU."""
    asked = os.environ.get(DEVICE_TYPE_VARIABLE)
    if asked:
        return asked
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None and accelerator.is_available():
        return str(accelerator.current_accelerator().type)
    return "cuda" if torch.cuda.is_available() else "cpu"
