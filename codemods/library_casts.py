"""``amp.disable_casts``, ``amp.register_*_function`` and the decorators that cast arguments."""

from __future__ import annotations

from typing import Sequence

import libcst as cst

from .findings import Level
from .library_calls import literal
from .library_file import LibraryFile
from .library_outcomes import Converts, Make, Outcome, Stays, handed_on, name_of
from .library_uses import Item
from .target import FLOAT16
from .torch_names import TorchNames
from .tree import walk

#: decorator → the dtype it casts to
_CASTS_TO = {"float_function": "torch.float32", "half_function": "torch.float16", "bfloat16_function": "torch.bfloat16"}
_FUNCTION = ("torch.autograd.Function", "torch.autograd.function.Function")
_ONLY_WITH_AMP = "it casts only after amp.initialize of the drop-in, so a loop that calls this stays there too"


def decide_disable_casts(item: Item, file: LibraryFile) -> Outcome:
    """Decide about ``amp.disable_casts()``: an autocast block that is off."""
    call = item.call
    if call is None or call.args:
        return handed_on(item)
    spelled = _autocast(file)
    if spelled is None:
        return Stays(f"{name_of(item)} stays on the drop-in: torch.autocast is there from torch 1.10 on")
    dotted, args = spelled
    return Converts(Make(call, lambda torch: (_called(torch, dotted, args),)))


def _autocast(file: LibraryFile) -> tuple[str, str] | None:
    if file.target.torch >= (1, 10):
        return "torch.autocast", f'("{file.target.device_type}", enabled=False)'
    return ("torch.cuda.amp.autocast", "(enabled=False)") if file.target.device_type == "cuda" else None


def _called(torch: TorchNames, dotted: str, args: str) -> cst.Call:
    call = cst.parse_expression(f"f{args}")
    assert isinstance(call, cst.Call)
    return call.with_changes(func=torch.expression(dotted))


def decide_register(item: Item, file: LibraryFile) -> Outcome:
    """Decide about ``amp.register_*_function``: only ``register_half_function(torch, "einsum")`` is torch's own."""
    statement = file.parent(item.use.parent)
    if item.path == "amp.register_half_function" and _is_einsum(item, file) and isinstance(statement, cst.Expr):
        return Converts(Make(statement, lambda torch: ()), note="CUDA's autocast casts torch.einsum by itself")
    return Stays(f"{name_of(item)} stays on the drop-in: {_ONLY_WITH_AMP}", "cast in the function itself")


def _is_einsum(item: Item, file: LibraryFile) -> bool:
    """Whether torch.einsum is registered where autocast has it on its list: not on a CPU, and not before torch 2.0."""
    target, call = file.target, item.call
    if call is None or len(call.args) != 2 or any(arg.star or arg.keyword is not None for arg in call.args):
        return False
    module, name = (arg.value for arg in call.args)
    on_list = target.device_type == "cuda" and target.dtype == FLOAT16 and target.torch >= (2, 0)
    return on_list and literal(name) == "einsum" and file.meaning(module, item.use.scope) == "torch"


def decide_decorator(item: Item, file: LibraryFile) -> Outcome:
    """Decide about ``amp.float_function`` and its siblings."""
    backward = _backward_beside(item, file)
    dtype = _CASTS_TO.get(item.path.rpartition(".")[2])
    spelled = _custom(file)
    if backward is None or dtype is None or spelled is None or _uses_apex(backward, file):
        return Stays(f"{name_of(item)} stays on the drop-in: {_ONLY_WITH_AMP}", "cast in the function itself")
    prefix, device = spelled

    def forward(torch: TorchNames) -> Sequence[cst.CSTNode]:
        return [_decorator(torch, f"{prefix}.custom_fwd", {**device, "cast_inputs": dtype})]

    def whole_backward(torch: TorchNames) -> Sequence[cst.CSTNode]:
        new = cst.Decorator(_decorator(torch, f"{prefix}.custom_bwd", device))
        return [backward.with_changes(decorators=[*backward.decorators, new])]

    note = "forward and backward run without autocast now; under Apex only their arguments were cast"
    return Converts(Make(item.node, forward), Level.REVIEW, note, also=Make(backward, whole_backward))


def _custom(file: LibraryFile) -> tuple[str, dict[str, str]] | None:
    """Where ``custom_fwd`` is, and what it has to be told of the device."""
    if file.target.torch >= (2, 4):
        return "torch.amp", {"device_type": f'"{file.target.device_type}"'}
    return ("torch.cuda.amp", {}) if file.target.device_type == "cuda" else None


def _decorator(torch: TorchNames, dotted: str, keywords: dict[str, str]) -> cst.BaseExpression:
    """``dotted`` with keywords, of which those of torch are spelled as the file spells it."""
    if not keywords:
        return torch.expression(dotted)
    plain = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    args = [cst.Arg(_value(torch, text), keyword=cst.Name(name), equal=plain) for name, text in keywords.items()]
    return cst.Call(torch.expression(dotted), args)


def _value(torch: TorchNames, text: str) -> cst.BaseExpression:
    return torch.expression(text) if text.startswith("torch.") else cst.parse_expression(text)


def _backward_beside(item: Item, file: LibraryFile) -> cst.FunctionDef | None:
    """The static ``backward`` of the ``torch.autograd.Function`` whose static ``forward`` has this decorator."""
    decorator = item.use.parent
    forward = file.parent(decorator) if isinstance(decorator, cst.Decorator) else None
    body = file.parent(forward) if isinstance(forward, cst.FunctionDef) else None
    owner = file.parent(body) if body is not None else None
    if not isinstance(forward, cst.FunctionDef) or not isinstance(owner, cst.ClassDef) or len(owner.bases) != 1:
        return None
    if file.meaning(owner.bases[0].value, item.use.scope) not in _FUNCTION:
        return None
    methods = [node for node in walk(owner.body) if isinstance(node, cst.FunctionDef)]
    backward = [each for each in methods if each.name.value == "backward"]
    if forward.name.value != "forward" or len(backward) != 1 or len(forward.decorators) != 2:
        return None
    # custom_fwd can't take a staticmethod, which Apex's decorator can
    is_static = _is_static(forward.decorators[0]) and [_is_static(each) for each in backward[0].decorators] == [True]
    return backward[0] if is_static else None


def _uses_apex(function: cst.FunctionDef, file: LibraryFile) -> bool:
    inside = set(walk(function))
    return any(item.node in inside for item in file.items)


def _is_static(decorator: cst.Decorator) -> bool:
    return isinstance(decorator.decorator, cst.Name) and decorator.decorator.value == "staticmethod"
