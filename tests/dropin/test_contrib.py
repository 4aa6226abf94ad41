"""``contrib`` but its optimizers, and the modules whose names raise on use."""

from __future__ import annotations

import importlib
import math
import pickle
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import amp_migrate.apex.contrib.clip_grad as clip
import amp_migrate.apex.contrib.focal_loss as focal
import amp_migrate.apex.contrib.group_norm as group
import amp_migrate.apex.contrib.layer_norm as layer
import amp_migrate.apex.contrib.xentropy as xentropy
from amp_migrate.aliases import AliasFinder
from amp_migrate.apex import _native
from amp_migrate.apex._name_only_table import ADVICE, NAMES
from amp_migrate.apex.contrib.group_norm import group_norm as group_functions

# --- xentropy


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, smoothing: float, padding: int) -> torch.Tensor:
    """The definition: label smoothing over all classes, and nothing for padding."""
    log_p = torch.log_softmax(logits, -1)
    picked = log_p.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return (-(1 - smoothing) * picked - smoothing * log_p.mean(-1)).masked_fill(labels == padding, 0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("padding", [0, 3, -100])
def test_cross_entropy(smoothing: float, padding: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 2, 3, 4, padding])
    weights = torch.rand(6, dtype=torch.float64)
    losses = xentropy.SoftmaxCrossEntropyLoss.apply(logits, labels, smoothing, padding)
    expected = cross_entropy(logits, labels, smoothing, padding)
    assert torch.allclose(losses, expected)
    got, wanted = (torch.autograd.grad((x * weights).sum(), logits)[0] for x in (losses, expected))
    assert torch.allclose(got, wanted) and (got[labels == padding] == 0).all()


def test_cross_entropy_takes_label_0_for_padding_by_default() -> None:
    losses = xentropy.SoftmaxCrossEntropyLoss.apply(torch.randn(2, 3), torch.tensor([0, 1]))
    assert losses[0] == 0 and losses[1] > 0


def test_cross_entropy_of_large_logits_is_finite() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    loss = xentropy.SoftmaxCrossEntropyLoss.apply(logits, torch.tensor([1]), 0.1, -1)
    loss.sum().backward()
    assert torch.isfinite(loss).all() and torch.isfinite(logits.grad).all()


def test_cross_entropy_dtypes() -> None:
    logits, labels = torch.randn(2, 3).half().requires_grad_(True), torch.tensor([1, 2])
    apply = xentropy.SoftmaxCrossEntropyLoss.apply
    assert apply(logits, labels).dtype == torch.float16
    losses = apply(logits, labels, 0.0, 0, True)
    assert losses.dtype == torch.float32
    losses.sum().backward()
    assert logits.grad.dtype == torch.float16
    with pytest.raises(RuntimeError, match="float16"):
        apply(logits.float(), labels, 0.0, 0, True)


# --- clip_grad


@pytest.mark.parametrize("norm_type", [2.0, 1.0, math.inf])
def test_clipping_is_that_of_torch(norm_type: float) -> None:
    torch.manual_seed(0)
    ours, native = ([nn.Parameter(torch.zeros(s)) for s in (3, 4, 5)] for _ in range(2))
    for a, b in zip(ours[:2], native[:2]):
        a.grad = torch.randn_like(a)
        b.grad = a.grad.clone()
    norm = clip.clip_grad_norm_((p for p in ours), 0.5, norm_type)
    assert torch.equal(norm, torch.nn.utils.clip_grad_norm_(native, 0.5, norm_type))
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours[:2], native[:2])) and ours[2].grad is None


def test_clipping_a_single_tensor_or_nothing() -> None:
    param = nn.Parameter(torch.zeros(2))
    assert clip.clip_grad_norm_(param, 1.0) == 0.0 and clip.clip_grad_norm_([], 1.0) == 0.0
    param.grad = torch.tensor([3.0, 4.0])
    assert clip.clip_grad_norm_(param, 1) == 5.0 and torch.allclose(param.grad, torch.tensor([0.6, 0.8]))


def test_a_norm_that_is_not_finite_is_an_error_if_asked() -> None:
    param = nn.Parameter(torch.zeros(2))
    param.grad = torch.tensor([1.0, math.inf])
    with pytest.raises(RuntimeError, match="error_if_nonfinite"):
        clip.clip_grad_norm_(param, 1.0, error_if_nonfinite=True)
    assert param.grad[0] == 1.0
    assert math.isinf(clip.clip_grad_norm_(param, 1.0))


# --- layer_norm


def test_fast_layer_norm() -> None:
    torch.manual_seed(0)
    native, fast = nn.LayerNorm(8, eps=1e-3), layer.FastLayerNorm(8, eps=1e-3, memory_efficient=True)
    native.weight.data.normal_()
    native.bias.data.normal_()
    fast.load_state_dict(native.state_dict())
    x = torch.randn(2, 3, 8)
    assert torch.equal(fast(x), native(x)) and fast.epsilon == 1e-3
    assert torch.equal(layer.layer_norm._fast_layer_norm(x, fast.weight, fast.bias, 1e-3), native(x))
    assert torch.equal(layer.layer_norm.FastLayerNormFN.apply(x, fast.weight, fast.bias, 1e-3), native(x))
    assert fast(x.half()).dtype == torch.float32  # the weight's


# --- group_norm


@pytest.mark.parametrize("act", [None, "silu", "SWISH"])
def test_group_norm(act: Any) -> None:
    torch.manual_seed(0)
    native, ours = nn.GroupNorm(2, 4, eps=1e-3), group.GroupNorm(2, 4, eps=1e-3, act=act)
    native.weight.data.normal_()
    ours.load_state_dict(native.state_dict())
    x = torch.randn(3, 4, 5, 6)
    expected = native(x) if act is None else native(x) * torch.sigmoid(native(x))
    assert torch.allclose(ours(x), expected, atol=1e-6)
    nhwc = x.contiguous(memory_format=torch.channels_last)
    assert torch.allclose(ours(nhwc), expected, atol=1e-6)
    assert ours(nhwc).is_contiguous(memory_format=torch.channels_last)
    assert ours(x.double()).dtype == torch.float64
    assert group.GroupNorm(2, 4, affine=False)(x).shape == x.shape
    assert ("act=silu" in repr(ours)) == (act == "silu")


def test_group_norm_functions_and_errors() -> None:
    x, weight, bias = torch.randn(3, 4, 2), torch.randn(4), torch.randn(4)
    expected = F.group_norm(x, 2, weight, bias, 1e-5)
    for name in ("one_pass", "two_pass"):
        assert torch.equal(getattr(group_functions, f"cuda_group_norm_nhwc_{name}")(x, 2, weight, bias, 1e-5), expected)
    assert torch.equal(group_functions.cuda_group_norm_v2_nhwc(x, 2, weight, bias, 1e-5), expected)
    with pytest.raises(ValueError, match="divisible"):
        group.GroupNorm(3, 4)


# --- focal_loss


def focal_by_hand(logits: torch.Tensor, targets: torch.Tensor, classes: int, a: float, g: float, s: float) -> Any:
    total: Any = 0.0
    for row, target in zip(logits, targets.tolist()):
        for index in range(0 if target == -2 else classes):
            p = torch.sigmoid(row[index])
            if index == target:
                y, weight, distance = 1 - s / 2, a, 1 - p
            else:
                y, weight, distance = s / 2, 1 - a, p
            total = total - weight * distance**g * (y * torch.log(p) + (1 - y) * torch.log(1 - p))
    return total


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_focal_loss(smoothing: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, 5, -1, -2, 7])
    count = torch.tensor([2.0])
    loss = focal.focal_loss.focal_loss(logits, targets, count, 6, 0.25, 2.0, smoothing)
    expected = focal_by_hand(logits, targets, 6, 0.25, 2.0, smoothing) / 2.0
    assert loss.dtype == torch.float32 and loss.dim() == 0
    assert torch.allclose(loss.double(), expected, rtol=1e-6)
    got, wanted = (torch.autograd.grad(x, logits)[0] for x in (loss, expected))
    assert torch.allclose(got, wanted, rtol=1e-5) and (got[3] == 0).all() and (got[:, 6:] == 0).all()
    again = focal.focal_loss.FocalLoss.apply(logits, targets, count, 6, 0.25, 2.0, smoothing)
    assert torch.equal(again, loss)


def test_focal_loss_of_half_logits_is_float32_and_finite() -> None:
    logits = torch.tensor([[30.0, -30.0, 0.0, 1.0]]).half().requires_grad_(True)
    loss = focal.focal_loss.focal_loss(logits, torch.tensor([1]), torch.ones(1), 4, 0.25, 2.0)
    loss.backward()
    assert loss.dtype == torch.float32 and torch.isfinite(loss) and torch.isfinite(logits.grad.float()).all()


# --- names that raise on use

MODULES = [path for path, names in NAMES.items() if names]


@pytest.mark.parametrize("package", sorted(ADVICE))
def test_every_package_of_names_imports(package: str) -> None:
    assert package in NAMES and importlib.import_module(f"amp_migrate.apex.{package}").__doc__


@pytest.mark.parametrize("path", MODULES)
def test_names_import_and_raise_on_use(path: str) -> None:
    top = next(package for package in ADVICE if (path + ".").startswith(package + "."))
    module = importlib.import_module(f"amp_migrate.apex.{path}")
    for name in NAMES[path].split():
        found = getattr(module, name)
        assert found.__name__ == name and isinstance(found, type) == name.lstrip("_")[0].isupper()
        with pytest.raises(NotImplementedError) as caught:
            found(1, key=2)
        assert f".{name} has no equivalent" in str(caught.value) and ADVICE[top] in str(caught.value)


def test_placeholders_can_be_inherited_from_asked_and_compared() -> None:
    sparsity = importlib.import_module("amp_migrate.apex.contrib.sparsity")

    class Own(sparsity.ASP):  # type: ignore[misc,name-defined]
        pass

    with pytest.raises(NotImplementedError, match="ASP"):
        Own()
    with pytest.raises(NotImplementedError, match="ASP.*to_sparse_semi_structured"):
        sparsity.ASP.prune_trained_model(None, None)
    assert not isinstance(1, sparsity.ASP) and not hasattr(sparsity.ASP, "__fspath__")
    assert sparsity.ASP is sys.modules["amp_migrate.apex.contrib.sparsity.asp"].ASP
    assert pickle.loads(pickle.dumps(sparsity.ASP)) is sparsity.ASP


def test_a_name_that_apex_never_had_is_missing() -> None:
    module = importlib.import_module("amp_migrate.apex.contrib.fmha")
    assert not hasattr(module, "Flash")


def test_submodules_import_in_every_form_and_under_apex_name() -> None:
    import amp_migrate.apex.transformer.tensor_parallel.layers as layers

    from amp_migrate.apex.contrib.index_mul_2d import index_mul_2d
    from amp_migrate.apex.transformer import parallel_state, tensor_parallel

    assert tensor_parallel.ColumnParallelLinear is layers.ColumnParallelLinear
    assert callable(index_mul_2d) and callable(parallel_state.initialize_model_parallel)
    finder = AliasFinder("apex_of_this_test", "amp_migrate.apex")
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    try:
        module = importlib.import_module("apex_of_this_test.transformer.tensor_parallel.layers")
        assert module is layers
        assert importlib.util.find_spec("apex_of_this_test.pyprof.nvtx") is not None
        assert importlib.import_module("apex_of_this_test.contrib.multihead_attn").SelfMultiheadAttn
    finally:
        sys.meta_path.remove(finder)  # type: ignore[arg-type]
        for name in [name for name in sys.modules if name.startswith("apex_of_this_test")]:
            del sys.modules[name]


def test_the_enums_of_transformer_are_real() -> None:
    from amp_migrate.apex.transformer.enums import AttnMaskType, ModelType

    assert AttnMaskType.padding.value == 1 and AttnMaskType["causal"].value == 2
    assert ModelType.encoder_and_decoder.value == 2 and pickle.loads(pickle.dumps(AttnMaskType.causal)).name == "causal"


@pytest.mark.skipif(
    not _native.autocast_works("cpu", torch.bfloat16), reason=f"torch {torch.__version__} has no autocast on a CPU"
)
def test_fast_layer_norm_follows_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer.FastLayerNorm(8)(torch.randn(2, 8)).dtype == torch.bfloat16
