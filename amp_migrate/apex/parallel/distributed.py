"""Gradients averaged over processes: automatically (DistributedDataParallel) or on demand (Reducer).

Source: apex/parallel/distributed.py.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...notices import notice_once
from ._gradient_reduction import GradientReduction, reduce_bucket

imported_flatten_impl = True


def import_flatten_impl() -> None:
    """Apex's name; there is nothing to import."""


def flatten(bucket: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors of one dtype into one of one dimension."""
    return torch._utils._flatten_dense_tensors(bucket)  # type: ignore[no-any-return,no-untyped-call,unused-ignore]


def unflatten(coalesced: Tensor, bucket: Sequence[Tensor]) -> Sequence[Tensor]:
    """Views into ``coalesced`` in the shapes of ``bucket``."""
    return torch._utils._unflatten_dense_tensors(coalesced, bucket)  # type: ignore[no-any-return,no-untyped-call,unused-ignore]


def apply_flat_dist_call(bucket: Sequence[Tensor], call: Callable[..., Any], extra_args: Any = None) -> None:
    """Run ``call(flat, *extra_args)`` on the tensors of ``bucket``, which are of one type, flattened into one; copy
    the result back. The result of ``torch.distributed.all_reduce`` is divided by the number of processes."""
    with torch.no_grad():
        coalesced = flatten(bucket)
        call(coalesced, *(extra_args or ()))
        if call is dist.all_reduce:
            coalesced /= dist.get_world_size()
        for target, synced in zip(bucket, unflatten(coalesced, bucket)):
            target.copy_(synced)


def split_half_float_double(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Those of float16, of float32 and of float64, as lists; empty ones are left out, and other types."""
    tensors = list(tensors)
    buckets = ([t for t in tensors if t.dtype == dtype] for dtype in (torch.float16, torch.float32, torch.float64))
    return [bucket for bucket in buckets if bucket]


def split_by_type(tensors: Iterable[Tensor]) -> dict[str, list[Tensor]]:
    """By ``tensor.type()``, in order of appearance."""
    buckets: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        buckets.setdefault(tensor.type(), []).append(tensor)
    return buckets


def flat_dist_call(tensors: Iterable[Tensor], call: Callable[..., Any], extra_args: Any = None) -> None:
    """:func:`apply_flat_dist_call` for tensors of any types, once per type."""
    for bucket in split_by_type(tensors).values():
        apply_flat_dist_call(bucket, call, extra_args)


def extract_tensors(maybe_tensor: Any, tensor_list: list[Tensor]) -> None:
    """Append the tensors in nested iterables to ``tensor_list``."""
    if torch.is_tensor(maybe_tensor):
        tensor_list.append(maybe_tensor)
    elif hasattr(maybe_tensor, "__iter__") and not isinstance(maybe_tensor, str):
        for item in maybe_tensor:
            extract_tensors(item, tensor_list)


class Reducer:
    """Average gradients over the processes when asked to.

    Args:
        module_or_grads_list: a module, whose parameters are copied from the first process right away; or gradients,
            in any nested iterable.

    Source: apex/parallel/distributed.py.
    """

    def __init__(self, module_or_grads_list: Any) -> None:
        self.module: nn.Module | None = None
        if isinstance(module_or_grads_list, nn.Module):
            self.module = module_or_grads_list
            flat_dist_call([param.data for param in self.module.parameters()], dist.broadcast, (0,))
        else:
            self.grads: list[Tensor] = []
            extract_tensors(module_or_grads_list, self.grads)

    def reduce(self) -> None:
        """Replace the gradients by their mean over the processes. All processes must have the same ones."""
        if self.module is not None:
            grads = [param.grad.detach() for param in self.module.parameters() if param.grad is not None]
            flat_dist_call(grads, dist.all_reduce)
        else:
            flat_dist_call(self.grads, dist.all_reduce)


#: arguments that choose how Apex communicated, and Apex's defaults
_WITHOUT_MEANING: dict[str, Any] = {
    "message_size": 10000000,
    "allreduce_trigger_params": None,
    "retain_allreduce_buffers": False,
    "num_allreduce_streams": 1,
    "allreduce_communicators": None,
    "gradient_average_split_factor": None,
    "prof": False,
}


_TAKES = inspect.signature(nn.parallel.DistributedDataParallel.__init__).parameters
#: never exchange buffers in forward, in the words of this torch
_NO_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _TAKES else "broadcast_buffers": False,
}


class DistributedDataParallel(nn.parallel.DistributedDataParallel):
    """torch's DistributedDataParallel under Apex's signature: the gradients of ``module``, on one device, are averaged
    over the processes during backward, and parameters start out as those of the first process. Buffers are never
    exchanged.

    Args:
        module: the model, after ``amp.initialize``.
        delay_allreduce: parameters may go without a gradient (torch's ``find_unused_parameters``). Without it, those
            that get none in the first backward may go without.
        shared_param: must be None.
        allreduce_always_fp32: add up float16 and bfloat16 gradients in float32.
        gradient_average: divide by the number of processes.
        gradient_predivide_factor: divide by it before adding up (also without ``gradient_average``); what is left of
            the average is divided afterwards.
        message_size, allreduce_trigger_params, retain_allreduce_buffers, num_allreduce_streams,
            allreduce_communicators, gradient_average_split_factor, prof: no effect; named once if given.

    Raises:
        ValueError: for ``shared_param``, or if ``delay_allreduce`` meets an argument that it excludes.
        RuntimeError: without a process group; if gradients aren't to be simply averaged and torch is older than 1.8.

    Source: apex/parallel/distributed.py.
    """

    def __init__(
        self,
        module: nn.Module,
        message_size: int = 10000000,
        delay_allreduce: bool = False,
        shared_param: Any = None,
        allreduce_trigger_params: Any = None,
        retain_allreduce_buffers: bool = False,
        allreduce_always_fp32: bool = False,
        num_allreduce_streams: int = 1,
        allreduce_communicators: Any = None,
        gradient_average: bool = True,
        gradient_predivide_factor: float = 1.0,
        gradient_average_split_factor: Any = None,
        prof: bool = False,
    ) -> None:
        given = dict(locals())
        _check_arguments(given)
        ignored = [name for name, default in _WITHOUT_MEANING.items() if given[name] != default]
        if ignored:
            notice_once(
                f"apex.parallel.DistributedDataParallel: {', '.join(ignored)} chose how Apex communicated. torch's own "
                "DistributedDataParallel does that now; results are the same."
            )
        reduction = GradientReduction(gradient_average, gradient_predivide_factor, allreduce_always_fp32)
        self._start(module, delay_allreduce, reduction)
        self.world_size = float(dist.get_world_size())
        for name in (*_WITHOUT_MEANING, *_MEANINGFUL):
            setattr(self, name, given[name])

    def _start(self, module: nn.Module, find_unused_parameters: bool, reduction: GradientReduction) -> None:
        """Let torch set itself up, which it can't for a model without anything to train."""
        if not any(param.requires_grad for param in module.parameters()):
            nn.Module.__init__(self)
            flat_dist_call([param.data for param in module.parameters()], dist.broadcast, (0,))
            self.module, self.require_backward_grad_sync, self._has_reducer = module, True, False
        else:
            before = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
            super().__init__(module, find_unused_parameters=find_unused_parameters, **_NO_BUFFERS)
            with torch.no_grad():
                for buffer, value in before:  # torch copies them from the first process, Apex didn't
                    buffer.copy_(value)
            self._has_reducer = True
        self._reduction = reduction
        self._uses_hook = False
        self._ran_forward = False
        self._all_get_gradients: bool | None = True if find_unused_parameters else None
        if not reduction.is_plain_mean:
            self._use_hook()

    def _use_hook(self) -> None:
        if not self._uses_hook:
            self._uses_hook = True
            self.register_comm_hook(self._reduction, reduce_bucket)

    def _parent(self) -> Any:
        """Where methods come from: torch's class, or plain ``nn.Module`` if there was nothing for it to set up."""
        return super() if self._has_reducer else super(nn.parallel.DistributedDataParallel, self)

    def __getstate__(self) -> dict[str, Any]:
        return self._parent().__getstate__() if self._has_reducer else dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._has_reducer = state["_has_reducer"]
        self._parent().__setstate__(state)
        if self._has_reducer:
            uses_hook, self._uses_hook = self._uses_hook, False
            if uses_hook:
                self._use_hook()

    def train(self, mode: bool = True) -> DistributedDataParallel:
        """Set the training flag; return the model (torch 1.6 forgets to)."""
        self._parent().train(mode)
        return self

    def enable_allreduce(self) -> None:
        """Average gradients again, from the next forward on."""
        self._disable_allreduce = False

    def disable_allreduce(self) -> None:
        """Leave gradients to this process, from the next backward on. Before torch 1.8 a backward whose forward has
        run still averages: what has been accumulated at the end is the same."""
        self._disable_allreduce = True

    @property
    def _disable_allreduce(self) -> bool:
        """Apex's attribute."""
        return not self.require_backward_grad_sync

    @_disable_allreduce.setter
    def _disable_allreduce(self, value: bool) -> None:
        self.require_backward_grad_sync = not value
        self._reduction.enabled = not value
        # torch decided in forward; Apex asks in backward
        if value and self._ran_forward and hasattr(self, "register_comm_hook"):
            self._use_hook()

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the module; the backward of what it returns averages gradients.

        Raises:
            RuntimeError: if parameters didn't get gradients in the backward before that had them in the first one.
        """
        if not self._has_reducer:
            return self.module(*inputs, **kwargs)
        averages = torch.is_grad_enabled() and self.require_backward_grad_sync
        if averages and self._all_get_gradients is False:
            self._tolerate_unused()
        try:
            output = self._parent().forward(*inputs, **kwargs)
        except RuntimeError as error:
            if "finished reduction" in str(error):
                raise RuntimeError(_UNUSED_PARAMETERS) from error
            raise
        if averages:
            self._ran_forward = True
            if self._all_get_gradients is None:
                self._watch_backward(output)
        return output

    def _watch_backward(self, output: Any) -> None:
        """Look at the end of the backward of ``output`` which parameters got gradients.

        Apex learned in the first backward which parameters to wait for. torch waits for all.
        """
        started: list[bool] = []

        def at_start(_: Tensor) -> None:
            if not started and self._all_get_gradients is None:
                started.append(True)
                torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)

        tensors: list[Any] = _tensors_in(output)
        for tensor in tensors:
            if tensor.requires_grad:
                tensor.register_hook(at_start)

    def _after_backward(self) -> None:
        grads = [param.grad for param in self.module.parameters() if param.requires_grad]
        there = [grad.detach() for grad in grads if grad is not None]
        if not there or not self.require_backward_grad_sync:
            return  # a gradient penalty, or accumulation: try the next one
        self._all_get_gradients = len(there) == len(grads)
        if not self._all_get_gradients:
            self._average_by_hand(there)

    def _average_by_hand(self, grads: list[Tensor]) -> None:
        """torch still waits for the others and leaves these as they are."""
        for bucket in split_by_type(grads).values():
            flat = flatten(bucket)
            self._reduction.reduce_now(flat)
            for grad, averaged in zip(bucket, unflatten(flat, bucket)):
                grad.copy_(averaged)

    def _tolerate_unused(self) -> None:
        """Start over, now letting parameters go without a gradient."""
        kept = {name: vars(self)[name] for name in vars(nn.Module()) if name not in _CONTENTS}
        for name in ("reducer", "logger"):
            vars(self).pop(name, None)
        self._start(self.module, True, self._reduction)
        vars(self).update(kept)


#: arguments that are kept as attributes as they are, beside those without meaning
_MEANINGFUL = ("delay_allreduce", "allreduce_always_fp32", "gradient_average", "gradient_predivide_factor")
_CONTENTS = ("_parameters", "_buffers", "_modules")
_UNUSED_PARAMETERS = (
    "Some parameters got no gradient in the backward before, so gradients weren't averaged. If parameters may stay "
    "unused, pass delay_allreduce=True to apex.parallel.DistributedDataParallel."
)


def _check_arguments(given: dict[str, Any]) -> None:
    """Raise what Apex raised, and for what this torch can't do."""
    streams, communicators = given["num_allreduce_streams"], given["allreduce_communicators"]
    if communicators:
        assert len(communicators[0]) == streams == len(communicators[1]), (
            f"allreduce_communicators needs {streams} groups and {streams} streams: as many as num_allreduce_streams."
        )
        assert streams > 1, "allreduce_communicators needs num_allreduce_streams of 2 or more."
    if streams > 1 and given["delay_allreduce"]:
        raise ValueError("num_allreduce_streams above 1 needs delay_allreduce=False: pass one of the two.")
    if given["shared_param"] is not None:
        raise ValueError(
            "shared_param is no longer supported as an option: shared parameters need none. Leave it out; to "
            "communicate at the end of backward, pass delay_allreduce=True."
        )
    if given["allreduce_trigger_params"] is not None and given["delay_allreduce"]:
        raise ValueError("Setting allreduce_trigger_params is only valid if delay_allreduce=False.")
    reduction = GradientReduction(*(given[name] for name in ("gradient_average", "gradient_predivide_factor")))
    reduction.always_fp32 = given["allreduce_always_fp32"]
    if not reduction.is_plain_mean and not hasattr(nn.parallel.DistributedDataParallel, "register_comm_hook"):
        raise RuntimeError(
            "gradient_average=False, gradient_predivide_factor and allreduce_always_fp32 need torch 1.8 or newer "
            f"(this is {torch.__version__}). Leave them out, or use apex.parallel.Reducer."
        )


def _tensors_in(output: Any) -> list[Tensor]:
    """The tensors in nested lists, tuples and dicts."""
    if torch.is_tensor(output):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, (list, tuple)):
        return [tensor for item in output for tensor in _tensors_in(item)]
    return []
