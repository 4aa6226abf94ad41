"""The operations of a pickle that name, call and fill objects: where a file could execute something, and doesn't."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Mapping

from ..errors import Damaged, Unsafe
from ..records import Global, PickledObject
from ..tree import short_repr
from .known_globals import BUILDERS, current_name, is_known
from .pickle_machine import Machine, Opcode
from .plain_opcodes import SMALL

OBJECT = 640
_LONGEST_NAME = 500


def _named(machine: Machine, module: Any, name: Any) -> Global:
    if not isinstance(module, str) or not isinstance(name, str):
        raise Damaged(f"a class is named by {short_repr(module)} and {short_repr(name)}, which are no names")
    if max(len(module), len(name)) > _LONGEST_NAME:
        raise Damaged(f"the name of a class is longer than {_LONGEST_NAME} characters")
    result = current_name(module, name)
    if not is_known(result):
        machine.has_strangers = True
        machine.limits.strangers.add(str(result))
    return result


def _global(machine: Machine) -> None:
    module, name = machine.stream.line(), machine.stream.line()
    machine.stack.append(_named(machine, module.decode("utf-8"), name.decode("utf-8")))


def _stack_global(machine: Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(_named(machine, module, name))


def _extension(size: int) -> Opcode:
    def refuse(machine: Machine) -> None:
        code = int.from_bytes(machine.stream.read(size), "little")
        raise Unsafe(f"the pickle names a class by extension code {code}, which only its writer's program knows")

    return refuse, SMALL


def _call(machine: Machine, function: Any, args: Any, kwargs: Any = None) -> Any:
    """Return what stands for ``function(*args, **kwargs)``."""
    if not isinstance(args, tuple):
        raise Damaged(f"a {type(args).__name__} is used as the arguments of a call")
    if kwargs is not None and (type(kwargs) is not dict or not all(type(key) is str for key in kwargs)):
        raise Damaged("the keyword arguments of a call aren't named by strings")
    if isinstance(function, PickledObject):
        # the result of one call is called: the inner object says what the file wanted, as the first argument
        return PickledObject(function.cls, (function, *args), kwargs)
    if not isinstance(function, Global):
        raise Damaged(f"the pickle calls a {type(function).__name__}")
    build = BUILDERS.get(str(function)) if not kwargs else None
    return PickledObject(function, args, kwargs) if build is None else build(machine, args)


def _reduce(machine: Machine) -> None:
    args, function = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(_call(machine, function, args))


def _new_with_keywords(machine: Machine) -> None:
    kwargs, args, cls = machine.stack.pop(), machine.stack.pop(), machine.stack.pop()
    machine.stack.append(_call(machine, cls, args, kwargs))


def _inst(machine: Machine) -> None:
    module, name = machine.stream.line(), machine.stream.line()
    args = tuple(machine.pop_mark())
    machine.stack.append(_call(machine, _named(machine, module.decode("utf-8"), name.decode("utf-8")), args))


def _obj(machine: Machine) -> None:
    cls, *args = machine.pop_mark() or [None]
    machine.stack.append(_call(machine, cls, tuple(args)))


def _build(machine: Machine) -> None:
    state = machine.stack.pop()
    target = machine.stack[-1]
    if isinstance(target, PickledObject):
        if target.state is not None:
            raise Damaged(f"the pickle sets the state of a {target.cls} twice")
        target.state = state
    elif type(target) is OrderedDict:
        _set_attributes(target, state)
    else:
        raise Damaged(f"the pickle sets attributes of a {type(target).__name__}")


def _set_attributes(target: OrderedDict[Any, Any], state: Any) -> None:
    """A model's state dict is an OrderedDict with an attribute ``_metadata``."""
    if type(state) is not dict:
        raise Damaged("the attributes of an OrderedDict are no dictionary")
    for name in state:
        if type(name) is not str or hasattr(OrderedDict, name):
            raise Damaged(f"the pickle sets the attribute {short_repr(name)} of an OrderedDict, which is taken")
    vars(target).update(state)


def _persistent_id(machine: Machine) -> None:
    saved = machine.stack.pop()
    machine.stack.append(machine.persistent_load(saved))


def _text_persistent_id(machine: Machine) -> None:
    machine.stack.append(machine.persistent_load(machine.stream.line().decode("ascii")))


OBJECT_OPCODES: Mapping[bytes, Opcode] = {
    b"c": (_global, OBJECT),
    b"\x93": (_stack_global, OBJECT),
    b"\x82": _extension(1),
    b"\x83": _extension(2),
    b"\x84": _extension(4),
    b"R": (_reduce, OBJECT),
    b"\x81": (_reduce, OBJECT),
    b"\x92": (_new_with_keywords, OBJECT),
    b"i": (_inst, OBJECT),
    b"o": (_obj, OBJECT),
    b"b": (_build, SMALL),
    b"P": (_text_persistent_id, SMALL),
    b"Q": (_persistent_id, OBJECT),
}
