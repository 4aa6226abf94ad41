"""What can become of a use of Apex's library: it is converted, it stays on the drop-in, or there is nothing to say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Optional, Sequence, Union

import libcst as cst

from .edits import Edit
from .findings import Level
from .library_calls import Keep, Signature, Untranslated, translated
from .library_file import LibraryFile
from .library_uses import Item
from .torch_names import TorchNames


@dataclass(frozen=True)
class Make:
    """An edit to be made: what it replaces, and by what, once it's known how the file says torch."""

    node: cst.CSTNode
    by: Callable[[TorchNames], Sequence[cst.CSTNode]]

    def edit(self, torch: TorchNames) -> Edit:
        """Return the edit."""
        return Edit(self.node, tuple(self.by(torch)))


@dataclass(frozen=True)
class Converts:
    """It becomes torch's own: how, how far that can be trusted, and what is different then."""

    make: Make
    level: Level = Level.SAFE
    note: str = ""
    advice: str = ""
    #: False for an edit that leaves the Apex name in it
    is_done: bool = True
    also: Make | None = None
    #: True where it is right whatever becomes of the other uses, and whatever else gives the name a value
    stands_alone: bool = False


@dataclass(frozen=True)
class Stays:
    """It stays on the drop-in, and why. ``holds``: then so do the other uses of the same name in this file."""

    message: str
    advice: str = ""
    because: cst.CSTNode | None = None
    holds: bool = False


#: None: it stays, and nobody needs to hear of it
Outcome = Optional[Union[Converts, Stays]]
Decide = Callable[[Item, LibraryFile], Outcome]


def name_of(item: Item) -> str:
    """Return the name of what ``item`` uses, as a message says it."""
    return f"`{item.path.rpartition('.')[2]}`"


def called_as(dotted: str, call: cst.Call, args: Sequence[cst.Arg]) -> Make:
    """Return the edit that calls ``dotted`` with ``args``; only the name changes where they are the call's own."""
    if len(args) == len(call.args) and all(new is old for new, old in zip(args, call.args)):
        return named(dotted, call.func)
    return Make(call, lambda torch: (call.with_changes(func=torch.expression(dotted), args=list(args)),))


def named(dotted: str, node: cst.CSTNode) -> Make:
    """Return the edit that puts ``dotted`` in the place of a name."""
    return Make(node, lambda torch: (torch.expression(dotted),))


def translate_call(
    item: Item, call: cst.Call, dotted: str, signature: Signature, added: Sequence[tuple[str, str]] = ()
) -> Make | Stays:
    """Return the edit of a call to torch's ``dotted``, or why it stays."""
    args = translated(call, signature, added)
    if isinstance(args, Untranslated):
        return Stays(f"{name_of(item)} stays on the drop-in: {args.why}", because=args.node)
    return called_as(dotted, call, args)


def handed_on(item: Item) -> Stays:
    """Return why a name that isn't called right here stays, and all its other uses with it."""
    return Stays(
        f"{name_of(item)} stays on the drop-in: it is handed on here, so how it's called can't be seen",
        "call it by its name, or replace it by hand",
        holds=True,
    )


def inherited(item: Item, file: LibraryFile) -> Stays | None:
    """Return why a base class stays: what the subclass relies on can't be seen."""
    if not isinstance(item.use.parent, cst.ClassDef):
        return None
    return Stays(
        f"{name_of(item)} stays on the drop-in: a class inherits from it, and what that relies on can't be seen",
        "inherit from torch's class instead and compare the two constructors",
        item.use.parent.name,
        holds=True,
    )


@dataclass(frozen=True)
class TypeCheck:
    """``isinstance(x, NAME)``, or ``isinstance(x, (…, NAME, …))`` with the tuple that it stands in."""

    call: cst.Call
    options: cst.Tuple | None


def type_check(item: Item, file: LibraryFile) -> TypeCheck | None:
    """Return the ``isinstance`` whose second argument ``item`` is, or is part of."""
    parent: cst.CSTNode | None = item.use.parent
    options: cst.Tuple | None = None
    if isinstance(parent, cst.Element):
        around = file.parent(parent)
        if not isinstance(around, cst.Tuple):
            return None
        options, arg = around, file.parent(around)
        parent = file.parent(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(parent, cst.Call) or len(parent.args) != 2 or not isinstance(parent.func, cst.Name):
        return None
    if parent.func.value != "isinstance" or file.names.binders("isinstance", item.use.scope):
        return None
    second = parent.args[1].value
    return TypeCheck(parent, options) if second is (options or item.node) else None


def names_also(check: TypeCheck, file: LibraryFile, item: Item, *paths: str) -> bool:
    """Return whether the tuple of a type check names torch's class too (one of ``paths``)."""
    if check.options is None:
        return False
    return any(file.meaning(each.value, item.use.scope) in paths for each in check.options.elements)


def keeps(*names: str) -> tuple[Keep, ...]:
    """Return the parameters that torch has too, under the same names and in the same places."""
    return tuple(Keep(name, place) for place, name in enumerate(names))
