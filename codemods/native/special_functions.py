"""What autocast treats in a way of its own: binary cross entropy on probabilities, and users' autograd Functions."""

from __future__ import annotations

from typing import Iterator

import libcst as cst

from ..target import Target
from ..torch_names import TorchNames
from ..tree import decorator_name
from .computing import Computing
from .draft import Draft
from .index import Index, code_of
from .problem import CannotFollow
from .solve import Solved
from .spelling import Spelling
from .values import Imported, Made

BCE, FUNCTION = "AMP112", "AMP111"
_BCE_FUNCTIONS = {"torch.nn.functional.binary_cross_entropy", "torch.binary_cross_entropy"}
_BCE_MODULES = {"torch.nn.BCELoss", "torch.nn.modules.loss.BCELoss"}
CUSTOM_FWD_ANY_DEVICE = (2, 4)


class SpecialFunctions:
    """Writes both for one file."""

    def __init__(self, solved: Solved, computing: Computing, spelling: Spelling, draft: Draft) -> None:
        self.solved = solved
        self.index: Index = solved.index
        self.computing = computing
        self.spelling = spelling
        self.target: Target = spelling.target
        self.torch: TorchNames = spelling.torch
        self.draft = draft

    def emit(self) -> None:
        """Write everything."""
        for call in self._bce_calls():
            self._without_casts(call)
        for node in self.solved.classes.all:
            if self._is_function(node):
                self._custom(node)

    # -- binary cross entropy ----------------------------------------------------------------------------------------

    def _bce_calls(self) -> Iterator[cst.Call]:
        for node in self.index.nodes:
            if isinstance(node, cst.Call) and self._is_bce(node):
                yield node

    def _is_bce(self, call: cst.Call) -> bool:
        for value in self.solved.of(call.func):
            if isinstance(value, Imported) and value.path in _BCE_FUNCTIONS:
                return True
            if isinstance(value, Made):
                made = self.solved.of(value.call.func)
                if any(isinstance(each, Imported) and each.path in _BCE_MODULES for each in made):
                    return True
        return False

    def _without_casts(self, call: cst.Call) -> None:
        """CUDA's autocast refuses it: it runs without casts, on float32."""
        line = self.index.statement(call)
        if self._is_under_no_grad(line) and not self.target.autocast_eval:
            return
        simple = isinstance(line, (cst.Assign, cst.Return, cst.Expr)) and line.value is call
        in_block = isinstance(self.index.parent[line], cst.SimpleStatementLine)
        if not simple or not in_block or len(self.index.parent[line].body) != 1:  # type: ignore[attr-defined]
            raise CannotFollow(
                "autocast refuses binary_cross_entropy, which stands in a larger expression here", call, 21
            )
        if any(self.computing.computes(arg.value) for arg in call.args):
            raise CannotFollow(
                "autocast refuses binary_cross_entropy, whose arguments are computed in the call", call, 21
            )
        args = [arg.with_changes(value=_as_float(arg.value)) if n < 2 else arg for n, arg in enumerate(call.args)]
        new = line.with_changes(value=call.with_changes(args=args))
        assert isinstance(new, cst.BaseSmallStatement)
        header = cst.parse_expression(
            f'{code_of(self.torch.expression("torch.autocast"))}("{self.target.device_type}", enabled=False)'
        )
        body = cst.IndentedBlock([cst.SimpleStatementLine([new])])
        self.draft.replace(BCE, line, cst.With([cst.WithItem(header)], body))

    def _is_under_no_grad(self, line: cst.CSTNode) -> bool:
        for outer in self.index.ancestors(line):
            if isinstance(outer, cst.With) and "no_grad" in code_of(outer.items[0].item):
                return True
        return False

    # -- autograd Functions ------------------------------------------------------------------------------------------

    def _is_function(self, node: cst.ClassDef) -> bool:
        return any(
            isinstance(value, Imported) and value.path.endswith("autograd.Function")
            for base in node.bases
            for value in self.solved.of(base.value)
        )

    def _custom(self, node: cst.ClassDef) -> None:
        methods = {name: self.solved.classes.method(node, name) for name in ("forward", "backward")}
        if not any(each is not None and self._needs_care(each) for each in methods.values()):
            return
        for name, method in methods.items():
            if method is None:
                raise CannotFollow(f"`{node.name.value}` has no `{name}` of its own", node, 22)
            names = [decorator_name(each) for each in method.decorators]
            if any("custom_" in each for each in names):
                continue
            if any(
                each not in ("staticmethod", "torch.autograd.function.once_differentiable", "once_differentiable")
                for each in names
            ):
                raise CannotFollow(f"`{name}` of the autograd Function `{node.name.value}` is decorated", method, 22)
            self.draft.append(
                FUNCTION, method, cst.Decorator(self._decorator("fwd" if name == "forward" else "bwd", method))
            )

    def _needs_care(self, method: cst.FunctionDef) -> bool:
        if self.computing.lowers(method.body):
            return True
        return any(
            isinstance(each, cst.Call) and self.computing.slices.is_object(each.func)
            for each in self.index.walk(method.body)
        )

    def _decorator(self, which: str, method: cst.FunctionDef) -> cst.BaseExpression:
        if self.target.torch >= CUSTOM_FWD_ANY_DEVICE:
            name = code_of(self.torch.expression(f"torch.amp.custom_{which}"))
            return cst.parse_expression(f'{name}(device_type="{self.target.device_type}")')
        if self.target.device_type == "cuda":
            return self.torch.expression(f"torch.cuda.amp.custom_{which}")
        version = ".".join(map(str, self.target.torch))
        raise CannotFollow(
            f"an autograd Function needs custom_{which}, which torch {version} has for cuda alone", method, 22
        )


def _as_float(node: cst.BaseExpression) -> cst.BaseExpression:
    text = code_of(node)
    simple = isinstance(node, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)) or node.lpar
    return cst.parse_expression(f"{text}.float()" if simple else f"({text}).float()")
