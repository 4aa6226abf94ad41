"""What the fused optimizers have in common: gradients sorted into lists, half types computed in float32, ``zero_grad``,
copies and pickles that keep every setting, and state dicts in Apex's layout or torch's.

Source: apex/optimizers/*.py, which repeat these parts in every class.
"""

from __future__ import annotations

from typing import Any, Callable, ClassVar, Dict

import torch
from torch import Tensor

from .. import _native
from ._state_layout import in_apex_layout, restore_state_dtypes
from ._tensor_lists import in_float32

Closure = Callable[[], Any]
Group = Dict[str, Any]


class Bucket:
    """Parameters of one kind that have a gradient, with their gradients and their state, list by list."""

    def __init__(self, kind: Any, state_names: tuple[str, ...]) -> None:
        #: what they share: device, dtype, and what else the optimizer sorts by
        self.kind = kind
        self.params: list[Tensor] = []
        self.grads: list[Tensor] = []
        self.state: dict[str, list[Tensor]] = {name: [] for name in state_names}

    def in_float32(self) -> Bucket:
        """The same lists to compute with: half tensors as float32 copies, others themselves."""
        work = Bucket(self.kind, ())
        work.params, work.grads = in_float32(self.params), in_float32(self.grads)
        work.state = {name: in_float32(tensors) for name, tensors in self.state.items()}
        return work

    def store(self, work: Bucket, grads: bool = False) -> None:
        """Round what was computed on copies back into parameters and state (and gradients)."""
        pairs = [(self.params, work.params), *((self.state[name], work.state[name]) for name in self.state)]
        for targets, sources in pairs + ([(self.grads, work.grads)] if grads else []):
            changed = [(target, source) for target, source in zip(targets, sources) if target is not source]
            if changed:
                _native.copy_into([target for target, _ in changed], [source for _, source in changed])


class FusedOptimizer(torch.optim.Optimizer):
    """Base of the optimizers under Apex's names.

    Subclasses name their state and settings; a pickle of Apex's own class has no settings and gets the class's.
    """

    #: instance attributes that pickles and copies keep
    _settings: ClassVar[tuple[str, ...]] = ("set_grad_none",)
    #: per-parameter state
    _state_names: ClassVar[tuple[str, ...]] = ()
    #: where Apex had the step count: "group", "parameter" or "nowhere"
    _step_count_in: ClassVar[str] = "group"
    _dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float16, torch.float32)
    set_grad_none: bool = True

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Set gradients to None, or to zero in place if built with ``set_grad_none=False``.

        Args:
            set_to_none: overrides ``set_grad_none`` for this call (torch's argument; Apex had none).
        """
        to_none = self.set_grad_none if set_to_none is None else set_to_none
        for group in self.param_groups:
            for param in group["params"]:
                if to_none or param.grad is None:
                    param.grad = None
                    continue
                if param.grad.grad_fn is None:
                    param.grad.requires_grad_(False)  # a view into a DDP bucket can't be detached in place
                else:
                    param.grad.detach_()
                param.grad.zero_()

    def buckets(self, group: Group) -> list[Bucket]:
        """Sort a group's parameters that have gradients; make the state of those that lack it.

        Raises:
            RuntimeError: for a sparse gradient, or a dtype that Apex's class didn't take.
        """
        found: dict[Any, Bucket] = {}
        for param in group["params"]:
            if param.grad is None:
                continue
            self._check(param)
            state = self.state[param]
            kind = self._kind(param, state)
            bucket = found.get(kind)
            if bucket is None:
                bucket = found[kind] = Bucket(kind, self._state_names)
            bucket.params.append(param)
            bucket.grads.append(param.grad)
            for name in self._state_names:
                if state.get(name) is None:
                    dtype = self._state_dtype(param)
                    state[name] = torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)
                bucket.state[name].append(state[name])
        return list(found.values())

    def _kind(self, param: Tensor, state: dict[str, Any]) -> Any:
        """What the parameters of one bucket share."""
        return param.device, param.dtype

    def _state_dtype(self, param: Tensor) -> torch.dtype:
        return param.dtype

    def _check(self, param: Tensor) -> None:
        name = type(self).__name__
        if param.grad is not None and param.grad.is_sparse:
            raise RuntimeError(
                f"{name} does not support sparse gradients. Give that parameter to torch.optim.SparseAdam, or build "
                "the embedding with sparse=False."
            )
        if param.dtype not in self._dtypes:
            raise RuntimeError(
                f"{name} only support fp16 and fp32{' and bf16' if torch.bfloat16 in self._dtypes else ''}, but a "
                f"parameter is {param.dtype}. Convert the model, or use an optimizer of torch.optim."
            )

    def count_step(self, group: Group) -> None:
        """Add one to the group's step count."""
        group["step"] = group.get("step", 0) + 1

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what Apex's class saved, or a torch optimizer of the same kind (``step`` per parameter).

        Raises:
            RuntimeError: if the file's settings (amsgrad, maximize, lr_decay) have no equivalent here.
            ValueError: as in torch, if groups or their lengths differ.
        """
        translated = in_apex_layout(state_dict, self)
        super().load_state_dict(translated)
        restore_state_dtypes(self, translated)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())  # type: ignore[no-untyped-call,unused-ignore]
        state.update({name: vars(self)[name] for name in self._settings if name in vars(self)})
        return state


def evaluate(closure: Closure | None) -> Any:
    """Call the closure with gradients on; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def refuse_amsgrad(name: str, amsgrad: bool) -> None:
    """Raise Apex's RuntimeError for ``amsgrad=True``."""
    if amsgrad:
        raise RuntimeError(f"{name} does not support the AMSGrad variant. Use torch.optim.AdamW(amsgrad=True).")


def group_lists(optimizer: FusedOptimizer) -> list[tuple[Group, list[Bucket]]]:
    """All groups with their buckets."""
    return [(group, optimizer.buckets(group)) for group in optimizer.param_groups]
