"""Live models and optimizers in a checkpoint: Apex's layers become torch's, optimizers are explained."""

from __future__ import annotations

import copy
from typing import Any, Callable, Mapping

import torch
from torch import nn

from .errors import CannotConvert
from .layouts.editing import Edits, Spot, Tree, children
from .notes import Kind, Report
from .options import Options

#: Apex's, and the drop-in's in place of it
_OWNERS = ("apex.", "amp_migrate.apex.")


def with_native_objects(obj: Any, settings: Options, report: Report) -> Any:
    """Return ``obj`` with Apex's layers in live models replaced, and the states of live optimizers in their places.

    Raises:
        CannotConvert: for an optimizer object, unless the caller vouches for the file (``trust``); names key and class.
    """
    new = _native(Spot(obj), settings, report)
    if new is not obj:
        return new
    tree = Tree(obj)
    edits: Edits = {}
    for spot in tree.spots:
        for key, child in children(spot.node):
            made = _native(Spot(child, spot, key), settings, report)
            if made is not child:
                edits[id(spot.node)] = _with_item(edits.get(id(spot.node), spot.node), spot.node, key, made)
    return tree.replaced(edits) if edits else obj


def _with_item(container: Any, original: Any, key: Any, value: Any) -> Any:
    if isinstance(container, tuple):
        items = list(container)
        items[key] = value
        return type(container)(*items) if hasattr(container, "_fields") else type(container)(items)
    new = copy.copy(container) if container is original else container
    new[key] = value
    return new


def _native(spot: Spot, settings: Options, report: Report) -> Any:
    value = spot.node
    if isinstance(value, nn.Module):
        found: list[str] = []
        made = _native_module(value, {}, found)
        if found:
            report.layouts.append("live nn.Module")
            report.is_edited = True
            report.add(Kind.CHANGED, spot.place, f"{', '.join(sorted(set(found)))} are torch's own layers now")
        return made
    if isinstance(value, torch.optim.Optimizer):
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        if not settings.trust:
            raise CannotConvert(
                f"{spot.place or 'the checkpoint'} is an optimizer object ({name}), not its state_dict(). Its "
                "parameters are copies that no model uses. Save optimizer.state_dict(), or use "
                "trust=True to take it from here."
            )
        report.add(Kind.CHANGED, spot.place, f"the state of a {name} object takes its place")
        return value.state_dict()
    return value


def _native_module(module: nn.Module, done: dict[int, nn.Module], found: list[str]) -> nn.Module:
    """The module with Apex's layers replaced; itself, if none is inside. Parameters are shared."""
    if id(module) in done:
        return done[id(module)]
    done[id(module)] = module
    made = module
    inside = {key: _native_module(child, done, found) for key, child in module._modules.items() if child is not None}
    if any(module._modules[key] is not child for key, child in inside.items()):
        made = copy.copy(module)
        made._modules = copy.copy(module._modules)
        made._modules.update(inside)
    replace = _LAYERS.get(type(module).__name__) if type(module).__module__.startswith(_OWNERS) else None
    if replace is not None:
        found.append(f"{type(module).__module__}.{type(module).__name__}")
        made = replace(made)
    done[id(module)] = made
    return made


def _layer_norm(old: Any) -> nn.Module:
    return _taking_over(nn.LayerNorm(old.normalized_shape, old.eps, old.elementwise_affine), old)


def _rms_norm(old: Any) -> nn.Module:
    if not hasattr(nn, "RMSNorm"):
        return old  # type: ignore[no-any-return]
    return _taking_over(nn.RMSNorm(old.normalized_shape, old.eps, old.elementwise_affine), old)


def _sync_batchnorm(old: Any) -> nn.Module:
    made = nn.SyncBatchNorm(old.num_features, old.eps, old.momentum, old.affine, old.track_running_stats)
    return _taking_over(made, old)


def _wrapped(old: Any) -> nn.Module:
    inner: nn.Module = old.module
    return inner


def _taking_over(made: nn.Module, old: nn.Module) -> nn.Module:
    made._parameters, made._buffers = old._parameters, old._buffers
    made.training = old.training
    return made


#: name of a class of Apex → what makes torch's layer of an instance
_LAYERS: Mapping[str, Callable[[Any], nn.Module]] = {
    "FusedLayerNorm": _layer_norm,
    "MixedFusedLayerNorm": _layer_norm,
    "FusedRMSNorm": _rms_norm,
    "MixedFusedRMSNorm": _rms_norm,
    "SyncBatchNorm": _sync_batchnorm,
    "DistributedDataParallel": _wrapped,
}
