"""The operations of a pickle that build plain data, and those that move it on the stack."""

from __future__ import annotations

import codecs
import struct
from collections import Counter, OrderedDict
from typing import Any, Callable, Mapping

from ..errors import Damaged, Unsafe
from ..records import PickledObject
from .pickle_machine import HIGHEST_PROTOCOL, Machine, Opcode

#: an int of this many bytes has about 10,000 digits; nothing in a checkpoint is that big
MAX_INT_BYTES = 4096
_MAX_INT_DIGITS = 10_000

#: what a stack slot, a memo entry or a small object takes; for what holds others, with what is noted while walking it
SMALL = 64
TUPLE = 512
CONTAINER = 512


def _constant(value: Any) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(value)


def _packed(layout: str) -> Callable[[Machine], None]:
    form = struct.Struct(layout)
    return lambda machine: machine.stack.append(form.unpack(machine.stream.read(form.size))[0])


def _length(machine: Machine, size: int, *, signed: bool = False) -> int:
    length = int.from_bytes(machine.stream.read(size), "little", signed=signed)
    if length < 0:
        raise Damaged(f"a length is {length}")
    return length


# numbers


def _text_int(machine: Machine) -> None:
    line = machine.stream.line()
    machine.stack.append({b"00": False, b"01": True}[line] if line in (b"00", b"01") else _decimal(line))


def _text_long(machine: Machine) -> None:
    line = machine.stream.line()
    machine.stack.append(_decimal(line[:-1] if line.endswith(b"L") else line))


def _decimal(line: bytes) -> int:
    if len(line) > _MAX_INT_DIGITS:
        raise Damaged(f"an int has {len(line)} digits, more than {_MAX_INT_DIGITS}")
    if len(line) < 4300:  # what int() takes on every Python
        return int(line)
    value, sign = 0, -1 if line[:1] == b"-" else 1
    digits = line.lstrip(b"-")
    for start in range(0, len(digits), 4000):
        part = digits[start : start + 4000]
        if not part.isdigit():
            raise Damaged("an int has something else than digits")
        value = value * 10 ** len(part) + int(part)
    return sign * value


def _long(length_size: int) -> Callable[[Machine], None]:
    def read(machine: Machine) -> None:
        length = _length(machine, length_size, signed=length_size == 4)
        if length > MAX_INT_BYTES:
            raise Damaged(f"an int has {length} bytes, more than {MAX_INT_BYTES}")
        machine.stack.append(int.from_bytes(machine.stream.read(length), "little", signed=True))

    return read


def _text_float(machine: Machine) -> None:
    machine.stack.append(float(machine.stream.line()))


# strings


def _from_python2(data: bytes) -> str | bytes:
    """Python 2's str: text if it is UTF-8, as torch.load reads it, or else bytes."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


def _quoted(machine: Machine) -> None:
    line = machine.stream.line().strip()
    if len(line) < 2 or line[:1] not in (b"'", b'"') or line[-1:] != line[:1]:
        raise Damaged("a string has no quotes around it")
    machine.spend(len(line))
    machine.stack.append(_from_python2(codecs.escape_decode(line[1:-1])[0]))


def _old_string(length_size: int) -> Callable[[Machine], None]:
    def read(machine: Machine) -> None:
        length = _length(machine, length_size, signed=length_size == 4)
        machine.stack.append(_from_python2(machine.read_text(length)))

    return read


def _text_unicode(machine: Machine) -> None:
    line = machine.stream.line()
    machine.spend(len(line))
    machine.stack.append(line.decode("raw-unicode-escape"))


def _unicode(length_size: int) -> Callable[[Machine], None]:
    def read(machine: Machine) -> None:
        machine.stack.append(machine.read_text(_length(machine, length_size)).decode("utf-8", "surrogatepass"))

    return read


def _bytes(length_size: int) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(machine.read_text(_length(machine, length_size)))


def _bytearray(machine: Machine) -> None:
    machine.stack.append(bytearray(machine.read_text(_length(machine, 8))))


# containers


def _new(make: Callable[[], Any]) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(make())


def _small_tuple(count: int) -> Callable[[Machine], None]:
    def build(machine: Machine) -> None:
        if len(machine.stack) < count:
            raise IndexError
        machine.stack[-count:] = [tuple(machine.stack[-count:])]

    return build


def _marked(build: Callable[[Machine, list[Any]], Any]) -> Callable[[Machine], None]:
    def run(machine: Machine) -> None:
        items = machine.pop_mark()
        machine.stack.append(build(machine, items))

    return run


def _dict_of(machine: Machine, items: list[Any]) -> dict[Any, Any]:
    result: dict[Any, Any] = {}
    _put_all(machine, result, items)
    return result


def _frozenset_of(machine: Machine, items: list[Any]) -> frozenset[Any]:
    for each in items:
        machine.keys.check(each)
    return frozenset(items)


def _put_all(machine: Machine, target: Any, items: list[Any]) -> None:
    if len(items) % 2:
        raise Damaged("a dictionary has a key without a value")
    if isinstance(target, PickledObject):
        target = target.dict_items
    elif type(target) not in (dict, OrderedDict, Counter):
        raise Damaged(f"the pickle sets a key of a {type(target).__name__}")
    for index in range(0, len(items), 2):
        machine.keys.check(items[index])
        target[items[index]] = items[index + 1]


def _set_item(machine: Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _put_all(machine, machine.stack[-1], [key, value])


def _set_items(machine: Machine) -> None:
    items = machine.pop_mark()
    _put_all(machine, machine.stack[-1], items)


def _append_all(target: Any, items: list[Any]) -> None:
    if isinstance(target, PickledObject):
        target.list_items.extend(items)
    elif type(target) is list:
        target.extend(items)
    else:
        raise Damaged(f"the pickle appends to a {type(target).__name__}")


def _append(machine: Machine) -> None:
    item = machine.stack.pop()
    _append_all(machine.stack[-1], [item])


def _appends(machine: Machine) -> None:
    items = machine.pop_mark()
    _append_all(machine.stack[-1], items)


def _add_items(machine: Machine) -> None:
    items = machine.pop_mark()
    target = machine.stack[-1]
    if isinstance(target, PickledObject):
        target.list_items.extend(items)
        return
    if type(target) is not set:
        raise Damaged(f"the pickle adds members to a {type(target).__name__}")
    for each in items:
        machine.keys.check(each)
    target.update(items)


# the stack, the memo, and the frame around it all


def _mark(machine: Machine) -> None:
    machine.outer.append(machine.stack)
    machine.stack = []


def _pop(machine: Machine) -> None:
    if machine.stack:
        machine.stack.pop()
    else:
        machine.pop_mark()


def _pop_mark(machine: Machine) -> None:
    machine.pop_mark()


def _dup(machine: Machine) -> None:
    machine.stack.append(machine.stack[-1])


def _put(index: Callable[[Machine], int]) -> Callable[[Machine], None]:
    def put(machine: Machine) -> None:
        machine.memo[index(machine)] = machine.stack[-1]

    return put


def _get(index: Callable[[Machine], int]) -> Callable[[Machine], None]:
    def get(machine: Machine) -> None:
        wanted = index(machine)
        if wanted not in machine.memo:
            raise Damaged(f"the pickle refers to its object number {wanted}, and has none")
        machine.stack.append(machine.memo[wanted])

    return get


def _line_index(machine: Machine) -> int:
    return _decimal(machine.stream.line())


def _binary_index(size: int) -> Callable[[Machine], int]:
    return lambda machine: _length(machine, size)


def _memoize(machine: Machine) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _protocol(machine: Machine) -> None:
    machine.protocol = machine.stream.read(1)[0]
    if machine.protocol > HIGHEST_PROTOCOL:
        raise Damaged(f"the pickle has protocol {machine.protocol}; {HIGHEST_PROTOCOL} is the highest there is")


def _frame(machine: Machine) -> None:
    length = _length(machine, 8)
    if length > machine.stream.end - machine.stream.position:
        raise Damaged(f"a frame has {length} bytes, more than the file")


def _out_of_band(machine: Machine) -> None:
    raise Unsafe("the pickle asks its reader for a buffer that isn't in the file; save it without buffer_callback")


PLAIN_OPCODES: Mapping[bytes, Opcode] = {
    b"N": (_constant(None), SMALL),
    b"\x88": (_constant(True), SMALL),
    b"\x89": (_constant(False), SMALL),
    b"I": (_text_int, SMALL),
    b"L": (_text_long, SMALL),
    b"J": (_packed("<i"), SMALL),
    b"K": (_packed("<B"), SMALL),
    b"M": (_packed("<H"), SMALL),
    b"\x8a": (_long(1), SMALL),
    b"\x8b": (_long(4), SMALL),
    b"F": (_text_float, SMALL),
    b"G": (_packed(">d"), SMALL),
    b"S": (_quoted, SMALL),
    b"T": (_old_string(4), SMALL),
    b"U": (_old_string(1), SMALL),
    b"V": (_text_unicode, SMALL),
    b"X": (_unicode(4), SMALL),
    b"\x8c": (_unicode(1), SMALL),
    b"\x8d": (_unicode(8), SMALL),
    b"B": (_bytes(4), SMALL),
    b"C": (_bytes(1), SMALL),
    b"\x8e": (_bytes(8), SMALL),
    b"\x96": (_bytearray, SMALL),
    b")": (_constant(()), SMALL),
    b"\x85": (_small_tuple(1), TUPLE),
    b"\x86": (_small_tuple(2), TUPLE),
    b"\x87": (_small_tuple(3), TUPLE),
    b"t": (_marked(lambda _, items: tuple(items)), TUPLE),
    b"]": (_new(list), CONTAINER),
    b"l": (_marked(lambda _, items: items), CONTAINER),
    b"a": (_append, SMALL),
    b"e": (_appends, SMALL),
    b"}": (_new(dict), CONTAINER),
    b"d": (_marked(_dict_of), CONTAINER),
    b"s": (_set_item, SMALL),
    b"u": (_set_items, SMALL),
    b"\x8f": (_new(set), CONTAINER),
    b"\x90": (_add_items, SMALL),
    b"\x91": (_marked(_frozenset_of), CONTAINER),
    b"(": (_mark, 2 * SMALL),
    b"0": (_pop, SMALL),
    b"1": (_pop_mark, SMALL),
    b"2": (_dup, SMALL),
    b"p": (_put(_line_index), SMALL),
    b"q": (_put(_binary_index(1)), SMALL),
    b"r": (_put(_binary_index(4)), SMALL),
    b"\x94": (_memoize, SMALL),
    b"g": (_get(_line_index), SMALL),
    b"h": (_get(_binary_index(1)), SMALL),
    b"j": (_get(_binary_index(4)), SMALL),
    b"\x80": (_protocol, SMALL),
    b"\x95": (_frame, SMALL),
    b"\x97": (_out_of_band, SMALL),
    b"\x98": (_out_of_band, SMALL),
}
