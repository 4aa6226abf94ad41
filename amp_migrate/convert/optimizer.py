"""An optimizer's state by itself, for a class of torch's or Apex's."""

from __future__ import annotations

from typing import Any

from .errors import CannotConvert
from .layouts.editing import Tree
from .layouts.fp16_optimizer import FP16_OPTIMIZER
from .layouts.kinds import is_optimizer_state
from .layouts.layout import Work
from .layouts.optimizers import SAME, TARGETS, TO_TORCH, Family, family_of, fused_from_adam, with_numbered_keys
from .notes import Report
from .options import Options


def optimizer_state(state: Any, target: Any = "AdamW", **options: Any) -> dict[str, Any]:
    """Return a state that ``target.load_state_dict`` takes.

    Args:
        state: ``state_dict()`` of one of Apex's optimizers, of FP16_Optimizer around one, or of torch's.
        target: the class that is to load it, or its name: torch.optim.AdamW, Adam, SGD, Adagrad, or Apex's FusedAdam,
            FusedSGD, FusedLAMB, FusedNovoGrad, FusedAdagrad.
        options: see ``Options``.

    Raises:
        CannotConvert: if it is the state of another kind of optimizer, which can't be continued by ``target``.

    A state that comes without one of the two fits as it is (SGD) comes back unchanged. ``state`` isn't changed.
    """
    from .live import Live

    live = Live()
    name = target if isinstance(target, str) else getattr(target, "__name__", repr(target))
    tree = live.records(state)
    report = Report()
    work = Work(_settings(name, options), report)
    tree = _unwrapped(tree, work)
    if not is_optimizer_state(tree):
        raise CannotConvert(
            f"this is no optimizer's state_dict(): it has no state and param_groups, but {_keys(state)}"
        )
    tree = with_numbered_keys(tree) or tree
    result: dict[str, Any] = live.objects(_for(tree, name, work))
    return result


def _settings(name: str, options: dict[str, Any]) -> Options:
    if name in ("Adam", "AdamW") and options.get("adam_w_mode") is None:
        options = {**options, "adam_w_mode": name == "AdamW"}
    return Options(**options)


def _unwrapped(tree: Any, work: Work) -> Any:
    """The state inside FP16_Optimizer's."""
    if not isinstance(tree, dict) or "optimizer_state_dict" not in tree:
        return tree
    whole = Tree(tree)
    return whole.replaced(FP16_OPTIMIZER.convert(whole, work))


def _for(state: dict[str, Any], name: str, work: Work) -> Any:
    family = family_of(state)
    if name in TARGETS.get(family, ()):
        return TO_TORCH[family](state, "the state", work) or state
    if family is Family.ADAM and name == "FusedAdam":
        return fused_from_adam(state, "the state", work)
    if name in SAME.get(family, ()):
        return state
    known = sorted({*TARGETS.get(family, ()), *SAME.get(family, ())})
    raise CannotConvert(f"this is the state of {family.value}, which {name} can't continue; these can: {known}")


def _keys(state: Any) -> str:
    return f"the keys {sorted(map(str, state))}" if isinstance(state, dict) else f"a {type(state).__name__}"
