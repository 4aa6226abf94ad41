"""Whether an import of Apex may move to the drop-in, decided for all imports of a file together.

They are decided together because a program must see *one* ``apex.amp``: if ``import apex`` has to stay, then so does
everything that this name also reaches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Union

import libcst as cst

from .dropin import SERVES_WHOLE_TREE, instead_of, is_served
from .dynamic_imports import DynamicImport
from .imports import STAR, ApexImport
from .scopes import Names, Use

#: where the module itself may stand without being handed on: tests, and a name that stands alone
_TESTS = (
    cst.Assert,
    cst.BooleanOperation,
    cst.Comparison,
    cst.ComparisonTarget,
    cst.Expr,
    cst.If,
    cst.UnaryOperation,
    cst.While,
)


AnyImport = Union[ApexImport, DynamicImport]


@dataclass(frozen=True)
class Reason:
    """Why an import stays on Apex, what to do about it, and the place that decided it, if that's another one."""

    message: str
    advice: str
    because: cst.CSTNode | None = None


@dataclass(frozen=True)
class Verdict:
    """An import of Apex, and why it stays; None if it moves to the drop-in."""

    site: AnyImport
    stays: Reason | None


def decide(
    found: tuple[ApexImport, ...], dynamic: tuple[DynamicImport, ...], names: Names, own_apex: str
) -> tuple[Verdict, ...]:
    """Return a verdict for each import, in the order given."""
    if own_apex:
        everything: list[AnyImport] = [*found, *dynamic]
        return tuple(Verdict(site, _own_module(site, own_apex)) for site in everything)
    reasons = {site: _reason_of_its_own(site, names) for site in found}
    pinned = _pin_the_package(found, reasons, names)
    for site in found:
        reasons[site] = reasons[site] or _shares_a_module(site, pinned)
    verdicts = [Verdict(site, reasons[site]) for site in found]
    verdicts += [Verdict(call, _dynamic_reason(call) or _shares_a_module(call, pinned)) for call in dynamic]
    return tuple(verdicts)


def _reason_of_its_own(site: ApexImport, names: Names) -> Reason | None:
    """Return why ``site`` stays, looking only at it and at the uses of the name that it binds."""
    if site.imported == STAR:
        return Reason(
            f"`{site.text}` stays on Apex: which names it brings in can't be seen",
            "import the names that are used (`from apex import amp`) and run this again",
        )
    if not is_served(site.imported):
        return _not_served(site.text, site.imported)
    for use in uses_of(site, names):
        path = ".".join(filter(None, (site.stands_for, *use.attributes)))
        if not is_served(path) and not _is_dunder(use):
            return _used_but_not_served(site, path, use)
        if not path and not SERVES_WHOLE_TREE and not _is_test(use):
            return Reason(
                f"`{site.text}` stays on Apex: the module itself is handed on, so which parts are used can't be seen",
                "import what is used by name (`from apex import amp`) and run this again",
                use.node,
            )
    return None


def uses_of(site: ApexImport, names: Names) -> Iterator[Use]:
    """Yield the uses of the name that ``site`` binds, where Python would find this binding."""
    home = names.owner(site.binds, site.scope)
    for use in names.uses.get(site.binds, ()):
        if names.owner(use.name, use.scope) is home:
            yield use


def _is_test(use: Use) -> bool:
    is_condition = isinstance(use.parent, cst.IfExp) and use.parent.test is use.node
    return is_condition or isinstance(use.parent, _TESTS)


def _is_dunder(use: Use) -> bool:
    """Return whether ``use`` reads what every module has (``__file__``, ``__version__``)."""
    return bool(use.attributes) and use.attributes[0].startswith("__")


def _pin_the_package(
    found: tuple[ApexImport, ...], reasons: dict[ApexImport, Reason | None], names: Names
) -> dict[str, cst.CSTNode]:
    """If one name for the whole package stays, let all of them stay.

    Return the parts of Apex that these names reach, each with a place where one does.
    """
    package = [site for site in found if not site.stands_for]
    first = next((site for site in package if reasons[site]), None)
    if first is None:
        return {}
    for site in package:
        reasons[site] = reasons[site] or Reason(
            f"`{site.text}` stays on Apex, with the other names that this file has for the whole package",
            f"see what is said about `{first.text}`",
            first.node,
        )
    pinned: dict[str, cst.CSTNode] = {}
    for site in package:
        if site.imported:
            pinned.setdefault(_top(site.imported), site.node)
        for use in uses_of(site, names):
            if use.attributes:
                pinned.setdefault(use.attributes[0], use.node)
    return pinned


def _shares_a_module(site: AnyImport, pinned: dict[str, cst.CSTNode]) -> Reason | None:
    part = _top(site.imported)
    if part not in pinned:
        return None
    what = f"`{site.text}`" if isinstance(site, ApexImport) else f"the import of apex.{site.imported}"
    return Reason(
        f"{what} stays on Apex: the file also reaches apex.{part} through `import apex`, which stays",
        f"use {part} by one name only (`from apex import {part}`) and run this again",
        pinned[part],
    )


def _not_served(text: str, path: str) -> Reason:
    other = instead_of(path)
    return Reason(
        f"`{text}` stays on Apex: the drop-in doesn't have apex.{path}",
        f"keep Apex installed, or use {other}" if other else "keep Apex installed, or replace it by hand",
    )


def _used_but_not_served(site: ApexImport, path: str, use: Use) -> Reason:
    other = instead_of(path)
    by_hand = f"use {other}" if other else "replace that part by hand"
    return Reason(
        f"`{site.text}` stays on Apex: the drop-in doesn't have apex.{path}, which is used",
        f"import what the drop-in has by name (`from apex import amp`), or {by_hand}, and run this again",
        use.node,
    )


def _own_module(site: AnyImport, own_apex: str) -> Reason:
    what = f"`{site.text}`" if isinstance(site, ApexImport) else "the import by name"
    return Reason(
        f"{what} stays: the project has a module of that name, {own_apex}",
        "if that is a copy of NVIDIA's Apex, move it away and run this again",
    )


def _dynamic_reason(call: DynamicImport) -> Reason | None:
    path = f"apex.{call.imported}" if call.imported else "apex"
    if not call.imports:
        return Reason(
            f"this asks whether {path} is installed",
            "nothing needs Apex once its imports have moved: ask for amp_migrate.apex, or drop the question",
        )
    if call.literal is None:
        return Reason(f"{path} is imported in a way that isn't rewritten", "write it as an import statement")
    if not call.imported and not SERVES_WHOLE_TREE:
        return Reason("which parts of apex are used can't be seen", "write it as `from apex import amp`")
    return None if is_served(call.imported) else _not_served(f"import_module({call.literal.value})", call.imported)


def _top(path: str) -> str:
    return path.partition(".")[0]
