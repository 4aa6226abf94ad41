"""What Python's own classes in a pickle build, as far as they are values: called here on checked arguments only."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any

from ..errors import Damaged, Unsafe
from ..records import Global, PickledObject
from ..tree import short_repr

if TYPE_CHECKING:
    from .pickle_machine import Machine

_LATIN1 = ("latin1", "latin-1", "iso-8859-1")


def _at_most_one(args: tuple[Any, ...], kind: type | tuple[type, ...], default: Any) -> Any:
    if not args:
        return default
    if len(args) != 1 or not isinstance(args[0], kind):
        raise Damaged(f"{', '.join(map(short_repr, args[:3]))} can't be the argument of a container or of bytes")
    return args[0]


def ordered_dict(machine: Machine, args: tuple[Any, ...]) -> Any:
    """Empty, or with pairs: ``OrderedDict([[key, value], …])`` is what Python 2 wrote."""
    result: OrderedDict[Any, Any] = OrderedDict()
    pairs = _at_most_one(args, (list, tuple, dict), ())
    for pair in pairs.items() if isinstance(pairs, dict) else pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise Damaged(f"an OrderedDict is made of {short_repr(pair)} instead of pairs")
        machine.keys.check(pair[0])
        result[pair[0]] = pair[1]
    machine.spend(128 * len(result))
    return result


def counter(machine: Machine, args: tuple[Any, ...]) -> Any:
    counts = _at_most_one(args, dict, {})
    machine.spend(128 * len(counts))
    return Counter(counts)


def _members(machine: Machine, args: tuple[Any, ...]) -> Any:
    members = _at_most_one(args, (list, tuple), ())
    machine.spend(64 * len(members))
    for each in members:
        machine.keys.check(each)
    return members


def set_of(machine: Machine, args: tuple[Any, ...]) -> Any:
    return set(_members(machine, args))


def frozenset_of(machine: Machine, args: tuple[Any, ...]) -> Any:
    return frozenset(_members(machine, args))


def complex_of(machine: Machine, args: tuple[Any, ...]) -> Any:
    if len(args) != 2 or not all(type(part) in (int, float) for part in args):
        raise Damaged("a complex number is made of something else than two numbers")
    return complex(*args)


def encode(machine: Machine, args: tuple[Any, ...]) -> Any:
    """``_codecs.encode(text, "latin1")`` is how protocol 2 writes bytes."""
    if len(args) != 2 or type(args[0]) is not str or args[1] not in _LATIN1:
        raise Unsafe("the pickle asks for an encoding that isn't latin1, the one that stands for bytes")
    machine.spend(len(args[0]))
    return args[0].encode("latin1")


def bytes_of(machine: Machine, args: tuple[Any, ...]) -> Any:
    """Protocol 2 writes empty bytes as ``bytes()``."""
    return bytes(_at_most_one(args, bytes, b""))


def bytearray_of(machine: Machine, args: tuple[Any, ...]) -> Any:
    """``bytearray(b"…")``, or with Python 2's ``bytearray("…", "latin-1")``."""
    data = encode(machine, args) if len(args) == 2 else _at_most_one(args, bytes, b"")
    machine.spend(len(data))
    return bytearray(data)


def new_object(machine: Machine, args: tuple[Any, ...]) -> Any:
    """``copyreg.__newobj__(cls, *args)``."""
    return _instance(args[0], args[1:])


def new_object_with_keywords(machine: Machine, args: tuple[Any, ...]) -> Any:
    """``copyreg.__newobj_ex__(cls, args, kwargs)``."""
    cls, inner, kwargs = args
    if not isinstance(inner, tuple) or type(kwargs) is not dict:
        raise Damaged("the arguments of a call are neither a tuple nor a dictionary")
    return _instance(cls, inner, kwargs)


def reconstructed(machine: Machine, args: tuple[Any, ...]) -> Any:
    """``copyreg._reconstructor(cls, base, value)``: an instance of a subclass of ``base``, from protocols 0 and 1."""
    cls, base, value = args
    result = _instance(cls, () if value is None or isinstance(value, (dict, list)) else (value,))
    if type(value) is dict:
        result.dict_items = value
    elif type(value) is list:
        result.list_items = value
    if not isinstance(base, Global) or base.module != "builtins":
        result.args = (*result.args, base)  # so that an odd base is seen, and refused, like everything else
    return result


def _instance(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> PickledObject:
    if not isinstance(cls, Global):
        raise Damaged(f"the pickle makes an instance of {short_repr(cls)}, which is no class")
    return PickledObject(cls, args, kwargs)
