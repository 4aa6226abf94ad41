"""Calls whose result is one of their arguments, by name."""

from __future__ import annotations

#: what ``amp.init()`` of 2018 returns, as if it were a part of Apex
HANDLE = "amp.init()"
INIT = {"apex.amp.init", "apex.amp.amp.init"}
#: half models with float32 masters (apex/fp16_utils)
HALF_OPTIMIZERS = {"apex.fp16_utils.FP16_Optimizer", "apex.fp16_utils.fp16_optimizer.FP16_Optimizer"}
_HALF_NAMES = ("network_to_half", "convert_network", "FP16Model", "BN_convert_float")
HALF_MODELS = {f"apex.fp16_utils.{module}{name}" for module in ("", "fp16util.") for name in _HALF_NAMES}
#: methods that return the object they are called on
SAME_OBJECT = {
    "to",
    "cuda",
    "cpu",
    "train",
    "eval",
    "float",
    "half",
    "double",
    "bfloat16",
    "requires_grad_",
    "apply",
    "xpu",
}
#: calls that return a model around (or made from) their first argument, with the same parameters
WRAPPERS = {
    f"apex.{HANDLE}.wrap_optimizer",
    "apex.parallel.DistributedDataParallel",
    "apex.parallel.convert_syncbn_model",
    "torch.compile",
    "torch.nn.DataParallel",
    "torch.nn.SyncBatchNorm.convert_sync_batchnorm",
    "torch.nn.parallel.DataParallel",
    "torch.nn.parallel.DistributedDataParallel",
    *HALF_MODELS,
    *HALF_OPTIMIZERS,
}
#: both return (models, optimizers), or models alone
INITIALIZE = {"apex.amp.initialize", "apex.amp.frontend.initialize"}
