"""``amp.initialize`` itself goes: its targets are its arguments, or become plain assignments of them."""

from __future__ import annotations

from typing import Iterator, Sequence

import libcst as cst

from .draft import Draft
from .half_sites import HalfUses
from .index import code_of
from .sites import Initialize
from .spelling import statement

_CODE = "AMP101"
#: the wrappers of a half model → what they put before the keys of its state dict (apex/fp16_utils/fp16util.py)
_PREFIXES = {"network_to_half": "1.", "FP16Model": "network."}


def take_out(site: Initialize, draft: Draft, beside: Sequence[str] = ()) -> None:
    """Write what stays of the statement with ``site``: native AMP returns the same objects that it got.

    ``beside`` are names of what is returned with them.
    """
    line = site.statement
    if site.handles is not None:
        _take_out_handle(site, draft)
        return
    if site.half is not None:
        _take_out_half(site, site.half, draft)
        return
    if isinstance(line, cst.Expr) and line.value is site.call:
        draft.remove(_CODE, line)
    elif isinstance(line, cst.Assign) and line.value is site.call and len(line.targets) == 1:
        _assignment(site, line, line.targets[0].target, draft)
    else:
        draft.replace(_CODE, site.call, _result(site, beside))


def _take_out_handle(site: Initialize, draft: Draft) -> None:
    draft.remove(_CODE, site.statement)
    for idle in site.handles.idle if site.handles is not None else ():
        draft.remove(_CODE, draft.index.statement(idle))
    for wrapped in site.handles.wrapped if site.handles is not None else ():
        _instead(wrapped.call, wrapped.optimizer, draft)


def _take_out_half(site: Initialize, half: HalfUses, draft: Draft) -> None:
    """The model is float32 again, and so are its inputs; the optimizer is the one that was wrapped."""
    assert site.optimizers is not None
    _instead(site.call, site.optimizers, draft)
    for idle in half.idle:
        draft.remove(_CODE, draft.index.statement(idle))
    for call, what in half.halves.items():
        if not any(each in half.halves for each in draft.index.ancestors(call)):
            _instead(call, _bare(what, half), draft)
        prefix = _PREFIXES.get(call.func.value) if isinstance(call.func, cst.Name) else None
        if prefix is not None:
            draft.note(
                "AMP108",
                call,
                f"the keys of the model's state dict began with `{prefix}`, and don't any more",
                f"convert old checkpoints with `python -m amp_migrate.convert --strip-prefix {prefix} OLD NEW`",
            )


def _bare(node: cst.BaseExpression, half: HalfUses) -> cst.BaseExpression:
    """Return ``model`` of ``BN_convert_float(model.half())``."""
    while isinstance(node, cst.Call) and node in half.halves:
        node = half.halves[node]
    return node


def _instead(call: cst.BaseExpression, value: cst.BaseExpression, draft: Draft) -> None:
    """Put ``value`` in the place of ``call``; a statement that says no more than that goes."""
    line = draft.index.statement(call)
    choice = draft.index.parent.get(call)
    if isinstance(choice, cst.IfExp) and code_of(choice.orelse if choice.body is call else choice.body) == code_of(
        value
    ):
        call = choice  # ``x.half() if fp16 else x``
    targets = line.targets if isinstance(line, cst.Assign) and line.value is call else ()
    is_alone = isinstance(line, cst.Expr) and line.value is call
    if is_alone or [code_of(each.target) for each in targets] == [code_of(value)]:
        draft.remove(_CODE, line)
    else:
        draft.replace(_CODE, call, value)


def _result(site: Initialize, beside: Sequence[str] = ()) -> cst.BaseExpression:
    assert site.models is not None
    if site.optimizers is None:
        return site.models
    is_returned = isinstance(site.statement, cst.Return) and site.statement.value is site.call
    parts = [site.models, site.optimizers, *map(cst.Name, beside)]
    return cst.Tuple([cst.Element(each) for each in parts], *(([], []) if is_returned else ()))


def _assignment(site: Initialize, line: cst.Assign, target: cst.BaseExpression, draft: Draft) -> None:
    assert site.models is not None
    if site.optimizers is None:
        pairs = list(_pairs(target, site.models))
    elif isinstance(target, (cst.Tuple, cst.List)) and len(target.elements) == 2:
        first, second = (element.value for element in target.elements)
        pairs = [*_pairs(first, site.models), *_pairs(second, site.optimizers)]
    else:
        pairs = [(target, _result(site))]
    different = [(code_of(a), code_of(b)) for a, b in pairs if code_of(a) != code_of(b)]
    if not different:
        draft.remove(_CODE, line)
        return
    left, right = (", ".join(side) for side in zip(*different))
    draft.replace(_CODE, line, statement(f"{left} = {right}"))


def _pairs(
    target: cst.BaseExpression, value: cst.BaseExpression
) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Yield what an assignment binds to what, display by display."""
    displays = (cst.Tuple, cst.List)
    if not (isinstance(target, displays) and isinstance(value, displays)) or len(target.elements) != len(
        value.elements
    ):
        yield target, value
        return
    for left, right in zip(target.elements, value.elements):
        yield from _pairs(left.value, right.value)
