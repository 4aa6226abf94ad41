"""Apex's lists of torch functions to cast. Programs edit them before ``initialize``; see ``_registry.py``."""

from . import functional_overrides, tensor_overrides, torch_overrides

__all__ = ["functional_overrides", "tensor_overrides", "torch_overrides"]
