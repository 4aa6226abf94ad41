"""The forward of an initialized model: casts around it (O1), its inputs and outputs cast (O0, O2, O3).

The model gets a subclass of its own class that overrides ``forward``; of the ways tried, only this one survives
deepcopy, pickle, DataParallel, DDP, torch.compile, jit.trace, jit.script and direct calls of ``forward``
(docs/decisions.md). What to do stands in the instance, so copies and replicas carry it along.
"""

from __future__ import annotations

import copy
import functools
import weakref
from collections import deque
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch import nn

from ._casts import CastPlan, call_with_casts
from ._patches import patches

_PLAN = "_amp_forward_plan"
_OWN_FORWARD = "_amp_own_forward"
_OURS = (_PLAN, _OWN_FORWARD)


@dataclass(frozen=True)
class ForwardPlan:
    """What happens around a forward; None leaves that part as it is."""

    casts: CastPlan | None = None
    input_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None

    def run(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call ``forward`` as planned."""
        if self.input_dtype is not None:
            args = tuple(cast_floats(a, self.input_dtype) for a in args)
            kwargs = {k: cast_floats(v, self.input_dtype) for k, v in kwargs.items()}
        if self.casts is not None:
            output = call_with_casts(self.casts, forward, args, kwargs)
        else:
            output = forward(*args, **kwargs)
        return output if self.output_dtype is None else cast_floats(output, self.output_dtype)


def cast_floats(value: Any, dtype: torch.dtype) -> Any:
    """Cast floating tensors in ``value``, also inside containers; a batch object is asked with ``.to(dtype)``.

    Source: ``applier`` in apex/amp/_initialize.py. Better than there: mappings and named tuples keep their type.
    """
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, (str, bytes)):
        return value
    if hasattr(value, "to"):
        return value.to(dtype)
    if isinstance(value, Mapping):
        return _cast_mapping(value, dtype)
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return type(value)._make(cast_floats(v, dtype) for v in value)
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return type(value)(cast_floats(v, dtype) for v in value)
    return value


def _cast_mapping(value: Any, dtype: torch.dtype) -> Any:
    cast = {k: cast_floats(v, dtype) for k, v in value.items()}
    if type(value) is dict or not isinstance(value, MutableMapping):
        return cast
    same_kind = copy.copy(value)
    for key, item in cast.items():
        same_kind[key] = item
    return same_kind


def wrap_forward(model: nn.Module, plan: ForwardPlan) -> None:
    """Make ``model.forward`` follow ``plan``. The object stays the same; ScriptModules are left alone."""
    if isinstance(model, torch.jit.ScriptModule):
        return
    if _PLAN not in vars(model):
        _change_class(model)
    before = vars(model).get(_PLAN)
    vars(model)[_PLAN] = plan
    patches.record(_take_back(model, before))


def _change_class(model: nn.Module) -> None:
    own_forward = vars(model).pop("forward", None)
    if own_forward is not None:
        vars(model)[_OWN_FORWARD] = own_forward
    model.__class__ = _subclass(type(model))


def _take_back(model: nn.Module, plan: ForwardPlan | None) -> Callable[[], None]:
    reference = weakref.ref(model)

    def undo() -> None:
        alive = reference()
        if alive is None or _PLAN not in vars(alive):
            return
        if plan is not None:
            vars(alive)[_PLAN] = plan
            return
        del vars(alive)[_PLAN]
        if _OWN_FORWARD in vars(alive):
            vars(alive)["forward"] = vars(alive).pop(_OWN_FORWARD)
        _set_class(alive, type(alive).__mro__[1])

    return undo


def _set_class(model: nn.Module, cls: type) -> None:
    """Assign ``__class__`` past the property of our subclass."""
    object.__dict__["__class__"].__set__(model, cls)


def _subclass(cls: type[nn.Module]) -> type[nn.Module]:
    """A subclass of ``cls`` with our ``forward``. The user's metaclass and ``__init_subclass__`` don't run."""
    namespace: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__class__": property(lambda self: cls),
        "forward": _planned_forward(cls),
        "__reduce_ex__": functools.partialmethod(_reduce_plain, cls),
        "__deepcopy__": functools.partialmethod(_deepcopy, cls),
        "__copy__": functools.partialmethod(_shallow_copy, cls),
    }
    created: Any
    try:
        created = type.__new__(type(cls), cls.__name__, (nn.Module,), dict(namespace))
        created.__bases__ = (cls,)
    except TypeError:  # __slots__ or another layout: the ordinary way
        make: Any = type(cls)
        created = make(cls.__name__, (cls,), namespace)
    return created  # type: ignore[no-any-return]


def _planned_forward(cls: type[nn.Module]) -> Callable[..., Any]:
    @functools.wraps(cls.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        state = self.__dict__
        own = state.get(_OWN_FORWARD)
        inner = own if own is not None else functools.partial(cls.forward, self)
        plan = state.get(_PLAN)
        return inner(*args, **kwargs) if plan is None else plan.run(inner, args, kwargs)

    return forward


def _plain(model: nn.Module, cls: type) -> Any:
    """An object of the user's own class with the model's state, without ours."""
    plain: Any = object.__new__(cls)
    state = {k: v for k, v in vars(model).items() if k not in _OURS}
    if _OWN_FORWARD in vars(model):
        state["forward"] = vars(model)[_OWN_FORWARD]
    vars(plain).update(state)
    return plain


def _reduce_plain(model: nn.Module, cls: type, protocol: Any) -> Any:
    """Pickle as the user's own class: files hold no trace of the drop-in."""
    return _plain(model, cls).__reduce_ex__(protocol)


def _deepcopy(model: nn.Module, cls: type, memo: dict[int, Any]) -> Any:
    """A deep copy that follows the same plan on its own weights."""
    custom = getattr(cls, "__deepcopy__", None)
    if custom is not None:
        result = custom(_plain(model, cls), memo)
    else:
        result = copy._reconstruct(model, memo, *_plain(model, cls).__reduce_ex__(4))  # type: ignore[attr-defined]
    return _carry_over(model, result, cls)


def _shallow_copy(model: nn.Module, cls: type) -> Any:
    return _carry_over(model, copy.copy(_plain(model, cls)), cls)


def _carry_over(model: nn.Module, result: Any, cls: type) -> Any:
    if type(result) is cls:
        if "forward" in vars(result) and _OWN_FORWARD in vars(model):
            vars(result)[_OWN_FORWARD] = vars(result).pop("forward")
        vars(result)[_PLAN] = vars(model)[_PLAN]
        result.__class__ = type(model)
    return result
