"""Live Python and torch objects as a tree of records, and back.

What the conversion doesn't touch comes back as the same object: tensors, containers, objects of any class. A tensor
that is a part of another one shares its memory. Records that came from a file are loaded, on the CPU.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch

from .errors import CannotConvert, Unsafe
from .opening.known_globals import BUILDERS, CONSTANTS
from .records import Call, Global, PickledObject, Storage, Tensor
from .torch_tensors import Loading, is_strided, recorded, recorded_storage


@dataclass
class Live:
    """The two ways between live objects and records, and what was which."""

    #: id of a record or container of the tree → it, and the live object that it stands for
    originals: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    _seen: dict[int, Any] = field(default_factory=dict)
    _storages: dict[Any, Storage] = field(default_factory=dict)
    _kept: list[Any] = field(default_factory=list)
    _made: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    _loading: Loading = field(default_factory=Loading)

    def records(self, value: Any) -> Any:
        """Return the tree that stands for a live object.

        Raises:
            CannotConvert: if it nests too deeply.
        """
        try:
            return self._recorded(value)
        except RecursionError as error:
            raise CannotConvert("the checkpoint nests containers too deeply") from error

    def _recorded(self, value: Any) -> Any:
        if id(value) in self._seen:
            return self._seen[id(value)]
        made = self._copied(value)
        if made is not value:
            self._remember(value, made)
        return made

    def _remember(self, value: Any, made: Any) -> None:
        self._seen[id(value)] = made
        self._kept.append(value)
        self.originals[id(made)] = (made, value)

    def _copied(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value) if is_strided(value) else value
        if isinstance(value, (dict, list)):
            return self._container(value)
        if isinstance(value, tuple) and not isinstance(value, torch.Size):
            items = [self._recorded(item) for item in value]
            if all(new is old for new, old in zip(items, value)):
                return value
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if is_scaler_object(value):
            cls = type(value)
            return PickledObject(Global(cls.__module__, cls.__qualname__), state=self._recorded(vars(value)))
        return value

    def _container(self, value: Any) -> Any:
        made = copy.copy(value)
        made.clear()
        self._remember(value, made)
        if isinstance(value, dict):
            for key, item in value.items():
                made[key] = self._recorded(item)
        else:
            made.extend(self._recorded(item) for item in value)
        return made

    def _tensor(self, value: torch.Tensor) -> Tensor:
        identity, storage = recorded_storage(value)
        return recorded(value, self._storages.setdefault(identity, storage))

    def objects(self, tree: Any) -> Any:
        """Return the live object that a tree stands for.

        Raises:
            CannotConvert: if it nests too deeply, or needs what this torch doesn't have.
            Unsafe: for an object that nobody may build.
        """
        try:
            return self._live(tree)
        except RecursionError as error:
            raise CannotConvert("the checkpoint nests containers too deeply") from error

    def _live(self, node: Any) -> Any:
        if id(node) in self.originals:
            return self.originals[id(node)][1]
        if id(node) in self._made:
            return self._made[id(node)][1]
        made = self._built(node)
        if made is not node:
            self._made[id(node)] = (node, made)
        return made

    def _built(self, node: Any) -> Any:
        if isinstance(node, Tensor):
            return self._loading.tensor(node)
        if isinstance(node, Storage):
            return self._loading.storage(node)
        if isinstance(node, (dict, list)):
            return self._filled(node)
        if isinstance(node, (tuple, set, frozenset)):
            items = [self._live(item) for item in node]
            if all(new is old for new, old in zip(items, node)):
                return node
            return type(node)(*items) if hasattr(node, "_fields") else type(node)(items)
        if isinstance(node, Call):
            return self._called(node)
        if isinstance(node, Global):
            return _named(node)
        if isinstance(node, PickledObject):
            raise Unsafe(f"an object of class {node.cls} isn't built: convert it, drop_unknown, or trust the file")
        return node

    def _called(self, call: Call) -> Any:
        args = [self._live(arg) for arg in call.args]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own functions take storages that it deprecates
            return _named(call.function)(*args)

    def _filled(self, node: Any) -> Any:
        made = copy.copy(node)
        made.clear()
        # before its items: a container may hold itself
        self._made[id(node)] = (node, made)
        if isinstance(node, dict):
            for key, item in node.items():
                made[self._live(key)] = self._live(item)
        else:
            made.extend(self._live(item) for item in node)
        return made


def is_scaler_object(value: Any) -> bool:
    """Whether this is an instance of a loss scaler class of Apex, or of one with the same attributes."""
    attributes = getattr(value, "__dict__", None)
    named = "scaler" in type(value).__name__.lower()
    return named and isinstance(attributes, dict) and bool({"_loss_scale", "cur_scale"} & set(attributes))


def _named(name: Global) -> Any:
    """A class, function or dtype of torch's.

    Raises:
        Unsafe: for anybody else's.
        CannotConvert: if this torch doesn't have it.
    """
    if str(name) not in CONSTANTS and str(name) not in BUILDERS or not name.module.startswith("torch"):
        raise Unsafe(f"{name} isn't built: drop_unknown, or trust the file")
    found: Any = import_module(name.module)
    for part in name.name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise CannotConvert(f"this torch ({torch.__version__}) has no {name}: use a newer one")
    return found
