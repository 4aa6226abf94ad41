"""Half models, float32 master weights, and the copies between them.

Source: apex/fp16_utils/fp16util.py.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import Tensor, nn
from torch import _utils as _torch_utils
from torch.nn.modules.batchnorm import _BatchNorm

clip_grad_norm = torch.nn.utils.clip_grad_norm_
_flatten_dense_tensors: Any = _torch_utils._flatten_dense_tensors
_unflatten_dense_tensors: Any = _torch_utils._unflatten_dense_tensors


class tofp16(nn.Module):
    """A module that returns its input in float16."""

    def forward(self, input: Tensor) -> Tensor:
        return input.half()


def BN_convert_float(module: nn.Module) -> nn.Module:
    """Put every BatchNorm with parameters below ``module`` in float32; returns ``module``."""
    for layer in module.modules():
        if isinstance(layer, _BatchNorm) and layer.affine:
            layer.float()
    return module


def network_to_half(network: nn.Module) -> nn.Sequential:
    """Return ``network`` in float16, its BatchNorm in float32, behind a cast of its input.

    The network becomes item 1 of a Sequential: the keys of its state dict start with "1.".
    """
    return nn.Sequential(tofp16(), BN_convert_float(network.half()))


def convert_module(module: nn.Module, dtype: torch.dtype) -> None:
    """Put the module's own floating point parameters, gradients and buffers in ``dtype``, not its children's."""
    for param in module.parameters(recurse=False):
        if param.is_floating_point():
            param.data = param.data.to(dtype)
        if param.grad is not None and param.grad.is_floating_point():
            param.grad.data = param.grad.data.to(dtype)
    for buffer in module.buffers(recurse=False):
        if buffer.is_floating_point():
            buffer.data = buffer.data.to(dtype)


def convert_network(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Put ``network`` in ``dtype``, except BatchNorm with parameters; returns ``network``."""
    for module in network.modules():
        if isinstance(module, _BatchNorm) and module.affine:
            continue
        convert_module(module, dtype)
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()
    return network


class FP16Model(nn.Module):
    """``network`` in float16 with BatchNorm in float32, called with inputs that are cast to float16.

    The keys of its state dict start with "network.".
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = convert_network(network, dtype=torch.half)

    def forward(self, *inputs: Tensor) -> Any:
        return self.network(*(tensor.half() for tensor in inputs))


def prep_param_lists(model: nn.Module, flat_master: bool = False) -> tuple[list[nn.Parameter], list[Any]]:
    """Return the model's trainable parameters and float32 master copies of them.

    Args:
        model: the model, usually in float16.
        flat_master: one flat master (with a gradient) for all parameters, which must have one dtype then.

    Raises:
        Exception: whatever torch raises for ``flat_master`` on mixed dtypes, after a line on what to do.
    """
    model_params = [param for param in model.parameters() if param.requires_grad]
    if not flat_master:
        return model_params, [_master_of(param) for param in model_params]
    try:
        flat = _flatten_dense_tensors([param.data for param in model_params]).float()
    except Exception:
        print("prep_param_lists can't join parameters of several dtypes: use flat_master=False, or FP16_Optimizer.")
        raise
    master = nn.Parameter(flat)
    master.grad = torch.zeros_like(master)
    return model_params, [master]


def _master_of(param: Tensor) -> Tensor:
    # clone first: float() of a float32 parameter is the parameter itself
    return param.detach().clone().float().requires_grad_(True)


def model_grads_to_master_grads(
    model_params: Sequence[Tensor], master_params: Sequence[Tensor], flat_master: bool = False
) -> None:
    """Copy the gradients of ``model_params`` to ``master_params`` (both from :func:`prep_param_lists`)."""
    if flat_master:
        grads = [torch.zeros_like(p) if p.grad is None else p.grad.data for p in model_params]
        flat_grad = master_params[0].grad
        assert flat_grad is not None
        flat_grad.data.copy_(_flatten_dense_tensors(grads))
        return
    for model, master in zip(model_params, master_params):
        if model.grad is None:
            master.grad = None
            continue
        if master.grad is None:
            master.grad = torch.empty_like(master)
        master.grad.data.copy_(model.grad.data)


def master_params_to_model_params(
    model_params: Sequence[Tensor], master_params: Sequence[Tensor], flat_master: bool = False
) -> None:
    """Copy the values of ``master_params`` to ``model_params``, in the dtype of the latter."""
    masters: Sequence[Tensor] = master_params
    if flat_master:
        masters = _unflatten_dense_tensors(master_params[0].data, model_params)
    for model, master in zip(model_params, masters):
        model.data.copy_(master.data)


def to_python_float(t: Any) -> Any:
    """The number in a one-element tensor, or the first element of a sequence."""
    return t.item() if hasattr(t, "item") else t[0]
