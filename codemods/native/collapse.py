"""``if fp16: A else: B``: whether B is A without scaling, so that one of them is enough."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Collection, Sequence

import libcst as cst

from .events import Events
from .half_calls import plain_backward, plain_clip
from .index import Index, code_of
from .sites import OtherCall, ScaleLoss

_PARAMETERS = "PARAMETERS"
#: however the function is reached, and by its old name
_CLIP = re.compile(r"[\w.]*\bclip_grad_norm_?\(")


@dataclass(frozen=True)
class Pair:
    """Two equal branches: the one under Apex and the plain one, as statements side by side."""

    node: cst.If
    scaled: cst.BaseSuite
    plain: cst.BaseSuite
    statements: tuple[tuple[cst.CSTNode, cst.CSTNode], ...]
    has_master_params: bool


class Branches:
    """Compares the branches of an ``if``."""

    def __init__(
        self,
        events: Events,
        masters: list[OtherCall],
        sites: Sequence[ScaleLoss] = (),
        clips: Collection[cst.Call] = (),
    ) -> None:
        self.events = events
        self.index: Index = events.index
        self.masters = {call.call for call in masters if call.name == "master_params"}
        self.calls = {site.block: site for site in sites if isinstance(site.block, cst.SimpleStatementLine)}
        self.clips = clips

    def pair(self, node: cst.If, truth: bool) -> Pair | None:
        """Return the branches of ``node`` if they do the same; ``truth`` is what its test is while amp is on."""
        if not isinstance(node.orelse, cst.Else):
            return None
        other = node.orelse.body
        scaled, plain = (node.body, other) if truth else (other, node.body)
        left, right = self._flat(scaled), self._flat(plain)
        if len(left) != len(right):
            return None
        for (a, site), (b, _) in zip(left, right):
            if self._scaled_text(a, site) != self._plain_text(b):
                return None
        has_masters = any(
            each in self.masters or each in self.clips for line in scaled.body for each in self.index.walk(line)
        )
        statements = tuple((a, b) for (a, _), (b, _) in zip(left, right))
        return Pair(node, scaled, plain, statements, has_masters)

    def _flat(self, suite: cst.BaseSuite) -> list[tuple[cst.CSTNode, ScaleLoss | None]]:
        """Return the statements of a branch, those of a scale_loss block in its place."""
        found: list[tuple[cst.CSTNode, ScaleLoss | None]] = []
        for line in suite.body:
            site = self.events.blocks.get(line) if isinstance(line, cst.With) else None
            if site is not None and isinstance(line, cst.With):
                found += [(each, site) for each, _ in self._flat(line.body)]
            elif isinstance(line, cst.SimpleStatementLine) and line in self.calls:
                found += [(each, self.calls[line]) for each in line.body]
            elif isinstance(line, cst.SimpleStatementLine):
                found += [(each, None) for each in line.body]
            else:
                found.append((line, None))
        return found

    def _scaled_text(self, node: cst.CSTNode, site: ScaleLoss | None) -> str:
        text = _bare(node)
        if site is not None and site.call is getattr(node, "value", None):
            return code_of(plain_backward(site, _as_receiver(site.loss)))
        if site is not None:
            backward = f"{site.alias}.backward("
            if text.startswith(backward):
                text = f"{_as_receiver(site.loss)}.backward(" + text[len(backward) :]
        for each in self.index.walk(node):
            if isinstance(each, cst.Call) and each in self.masters:
                text = text.replace(code_of(each), _PARAMETERS)
            if isinstance(each, cst.Call) and each in self.clips:
                text = text.replace(code_of(each), code_of(plain_clip(each, "clip_grad_norm_", _PARAMETERS)))
        return _CLIP.sub("clip_grad_norm_(", text) if self.clips else text

    def _plain_text(self, node: cst.CSTNode) -> str:
        text = _bare(node)
        for each in self.index.walk(node):
            if "clip" in text and _takes_parameters(each) and self._owns(each):
                text = text.replace(code_of(each), _PARAMETERS)
        return _CLIP.sub("clip_grad_norm_(", text) if self.clips else text

    def _owns(self, parameters: cst.CSTNode) -> bool:
        """Return whether ``model.parameters()`` are those of the optimizers under amp."""
        assert isinstance(parameters, cst.Call) and isinstance(parameters.func, cst.Attribute)
        models = self.events.objects.values(parameters.func.value)
        return any(self.events.reach.has_all(each, models) for each in self.events.optimizers)


def _takes_parameters(node: cst.CSTNode) -> bool:
    """``model.parameters()``"""
    if not isinstance(node, cst.Call) or node.args:
        return False
    return isinstance(node.func, cst.Attribute) and node.func.attr.value == "parameters"


def _bare(node: cst.CSTNode) -> str:
    """Return the code of a statement without comments and blank lines."""
    if isinstance(node, cst.BaseCompoundStatement):
        node = node.with_changes(leading_lines=[])
        text = code_of(node)
        return "\n".join(
            line.split("  #")[0].rstrip() for line in text.splitlines() if line.strip()[:1] not in ("#", "")
        )
    if isinstance(node, cst.BaseSmallStatement):
        node = node.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
    return code_of(node)


def _as_receiver(loss: cst.BaseExpression) -> str:
    text = code_of(loss)
    simple = isinstance(loss, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)) or loss.lpar
    return text if simple else f"({text})"
