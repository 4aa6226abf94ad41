"""Whole models that were pickled as objects: their state dict takes their place, and no class is built."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Iterator

from ..errors import CannotConvert, Unsafe
from ..foreign import find_foreign
from ..records import PickledObject, Tensor
from .editing import Edits, Spot, Tree
from .kinds import is_module
from .layout import Layout, Work

_PARTS = ("_parameters", "_buffers", "_modules")
#: names that a module's other attributes may speak of: torch's modules and functions, and Apex's, do no harm unbuilt
HARMLESS = ("torch.nn.", "apex.")


def _convert(tree: Tree, work: Work) -> Edits:
    edits: Edits = {}
    for spot in tree.spots:
        if is_module(spot.node) and not work.options.trust:  # else its classes are built
            edits[id(spot.node)] = _state_of(spot, work)
        elif isinstance(spot.node, PickledObject):
            _explain_ddp(spot)
    return edits


def _state_of(spot: Spot, work: Work) -> OrderedDict[str, Any]:
    modules = list(_modules(spot.node, "", []))
    classes = {str(module.cls) for _, module in modules}
    state: OrderedDict[str, Any] = OrderedDict()
    plain: dict[int, Tensor] = {}
    for prefix, module in modules:
        _look_into(spot.place, prefix, module, classes, work)
        state.update(_tensors(prefix, module, plain))
    work.changed(
        spot.place,
        f"a pickled model of {len(classes)} classes ({', '.join(sorted(classes))}): none is built, its state "
        "dict takes its place",
    )
    return state


def _modules(module: PickledObject, prefix: str, around: list[PickledObject]) -> Iterator[tuple[str, PickledObject]]:
    """A module and those inside, as ``named_modules`` walks; one that is registered twice comes twice."""
    if any(module is outer for outer in around):
        raise CannotConvert(f"the pickled model's module {prefix.rstrip('.')} holds itself")
    yield prefix, module
    for name, child in module.attributes["_modules"].items():
        if is_module(child):
            yield from _modules(child, f"{prefix}{name}.", [*around, module])
        elif child is not None:
            raise Unsafe(f"the pickled model's {prefix}{name} is no nn.Module, but {_called(child)}")


def _called(value: Any) -> str:
    return str(value.cls) if isinstance(value, PickledObject) else type(value).__name__


def _tensors(prefix: str, module: PickledObject, plain: dict[int, Tensor]) -> Iterator[tuple[str, Any]]:
    """What ``Module._save_to_state_dict`` saves (torch/nn/modules/module.py): no None, no passing buffers."""
    attributes = module.attributes
    passing = attributes.get("_non_persistent_buffers_set") or ()
    buffers = {key: value for key, value in attributes["_buffers"].items() if key not in passing}
    for key, value in [*attributes["_parameters"].items(), *buffers.items()]:
        if value is not None:
            yield prefix + key, plain.setdefault(id(value), value.detached()) if isinstance(value, Tensor) else value


def _look_into(place: str, prefix: str, module: PickledObject, classes: set[str], work: Work) -> None:
    """Refuse a module that hides foreign objects among its other attributes; nothing else is lost unseen."""
    rest = {key: value for key, value in module.attributes.items() if key not in _PARTS}
    hidden = [rest, list(module.args), module.kwargs, module.list_items, module.dict_items]
    foreign = {
        name: places
        for name, places in find_foreign(hidden).items()
        if name not in classes and not name.startswith(HARMLESS)
    }
    if not foreign:
        return
    where = f"{place or 'the file'}: the pickled model's module {prefix.rstrip('.') or 'itself'} ({module.cls})"
    if not work.options.drop_unknown:
        raise Unsafe(
            f"{where} holds {', '.join(foreign)}, which isn't known to be harmless. Use --drop-unknown to leave it "
            "out, or --trust to execute the file if you trust whoever wrote it."
        )
    work.lost(
        place, f"{', '.join(foreign)} in module {prefix.rstrip('.') or 'itself'} isn't known to be harmless: dropped"
    )


def _explain_ddp(spot: Spot) -> None:
    node = spot.node
    if str(node.cls) == "apex.parallel.distributed.DistributedDataParallel" and not node.attributes:
        raise CannotConvert(
            f"{spot.place or 'the file'} is Apex's DistributedDataParallel, whose pickles hold nothing (its "
            "__getstate__ returns None): the weights aren't in this file"
        )


WHOLE_MODEL = Layout(
    name="pickled nn.Module",
    writer="torch.save(model), yolov5 before 2020-07",
    years="2016 to today",
    source="torch/nn/modules/module.py (state_dict); apex/normalization/fused_layer_norm.py; apex/parallel/",
    convert=_convert,
)
