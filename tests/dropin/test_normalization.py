"""``normalization``: values, output dtypes, and what else is built on the layers."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import amp_migrate.apex.normalization as N
from amp_migrate.apex import _native
from amp_migrate.apex._autocast_utils import _cast_if_autocast_enabled, _get_autocast_dtypes, _get_current_dtype
from amp_migrate.apex.normalization import fused_layer_norm as functions

from .test_fp16_utils import CHECKPOINTS, as_apex, load  # noqa: F401  # as_apex is a fixture

LAYERS = ("FusedLayerNorm", "MixedFusedLayerNorm", "FusedRMSNorm", "MixedFusedRMSNorm")
needs_autocast = pytest.mark.skipif(
    not _native.autocast_works("cpu", torch.bfloat16), reason=f"torch {torch.__version__} has no autocast on a CPU"
)


def reference(name: str, x: torch.Tensor, weight: Any, bias: Any, dims: int, eps: float) -> torch.Tensor:
    """The formula, in float64."""
    axes = tuple(range(-dims, 0))
    x = x.double()
    if "Layer" in name:
        x = x - x.mean(axes, keepdim=True)
    x = x / (x.pow(2).mean(axes, keepdim=True) + eps).sqrt()
    x = x if weight is None else x * weight.double()
    return x if bias is None else x + bias.double()


def randomized(layer: Any) -> Any:
    for param in layer.parameters():
        param.data.normal_()
    return layer


@pytest.mark.parametrize("shape", [8, [8], (3, 8), torch.Size([3, 8])], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_compute_the_formula(name: str, shape: Any) -> None:
    torch.manual_seed(0)
    layer = randomized(getattr(N, name)(shape, eps=0.5))
    x = torch.randn(5, 3, 8, requires_grad=True)
    dims = len(layer.normalized_shape)
    expected = reference(name, x, layer.weight, getattr(layer, "bias", None), dims, 0.5)
    out = layer(x)
    assert out.dtype == torch.float32 and torch.allclose(out.double(), expected, atol=1e-5)
    weights = torch.randn(5, 3, 8)
    leaves = [x, *layer.parameters()]
    got = torch.autograd.grad((out * weights).sum(), leaves)
    wanted = torch.autograd.grad((expected * weights).sum(), leaves)
    for a, b in zip(got, wanted):
        assert a.dtype == torch.float32 and torch.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("name", ["FusedLayerNorm", "FusedRMSNorm"])
def test_layers_without_parameters(name: str) -> None:
    layer = getattr(N, name)((3, 8), elementwise_affine=False)
    x = torch.randn(2, 3, 8)
    assert layer.weight is None and not layer.state_dict()
    assert torch.allclose(layer(x).double(), reference(name, x, None, None, 2, 1e-5), atol=1e-5)


@pytest.mark.parametrize("name", ["MixedFusedLayerNorm", "MixedFusedRMSNorm"])
def test_mixed_layers_refuse_to_be_without_parameters(name: str) -> None:
    with pytest.warns(UserWarning, match="elementwise_affine"), pytest.raises(RuntimeError, match=name[len("Mixed") :]):
        getattr(N, name)(8, elementwise_affine=False)
    with pytest.warns(UserWarning, match="elementwise_affine"):
        assert getattr(N, name)(8, elementwise_affine=True).weight is not None


@pytest.mark.parametrize("name", ["MixedFusedLayerNorm", "MixedFusedRMSNorm"])
def test_mixed_layers_take_memory_efficient_by_keyword_only(name: str) -> None:
    assert getattr(N, name)(8, 1e-5, memory_efficient=True).memory_efficient is True
    with pytest.raises(TypeError):
        getattr(N, name)(8, 1e-5, True)


@pytest.mark.parametrize("name", ["FusedLayerNorm", "FusedRMSNorm"])
def test_memory_efficient_changes_no_value(name: str) -> None:
    x = torch.randn(4, 8)
    plain, efficient = getattr(N, name)(8), getattr(N, name)(8, 1e-5, True, True)
    assert efficient.memory_efficient and torch.equal(plain(x), efficient(x))


@pytest.mark.parametrize("name", LAYERS[:2])
def test_the_state_dict_is_that_of_layer_norm(name: str) -> None:
    torch.manual_seed(0)
    native = randomized(torch.nn.LayerNorm((3, 8)))
    layer = getattr(N, name)((3, 8))
    assert not layer.load_state_dict(native.state_dict()).missing_keys
    x = torch.randn(2, 3, 8)
    assert torch.equal(layer(x), native(x))
    native.load_state_dict(layer.state_dict())


def test_the_defaults_of_eps_are_apex_own() -> None:
    x = torch.full((1, 4), 1e-3) * torch.tensor([1.0, -1.0, 1.0, -1.0])
    one, zero = torch.ones(4), torch.zeros(4)
    for eps, out in {
        1e-5: N.FusedLayerNorm(4)(x),
        1e-6: functions.fused_layer_norm(x, 4),
        1.0001e-6: functions.fused_layer_norm_affine(x, one, zero, (4,), 1.0001e-6),
    }.items():
        assert torch.allclose(out.double(), reference("Layer", x, None, None, 1, eps), atol=1e-5)
    assert N.FusedRMSNorm(4).eps == 1e-5
    for out in (
        functions.fused_rms_norm(x, 4),
        functions.fused_rms_norm_affine(x, one, 4),
        functions.mixed_dtype_fused_rms_norm_affine(x, one, 4),
    ):
        assert torch.allclose(out.double(), reference("RMS", x, None, None, 1, 1e-6), atol=1e-5)
    assert torch.equal(functions.mixed_dtype_fused_layer_norm_affine(x, one, zero, 4), functions.fused_layer_norm(x, 4))


HALF, FULL = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("name", "weight", "input", "output"),
    [
        ("FusedLayerNorm", FULL, HALF, HALF),
        ("FusedLayerNorm", HALF, FULL, FULL),
        ("FusedLayerNorm", HALF, HALF, HALF),
        ("MixedFusedLayerNorm", FULL, HALF, FULL),
        ("MixedFusedLayerNorm", HALF, FULL, HALF),
        ("FusedRMSNorm", FULL, HALF, HALF),
        ("FusedRMSNorm", HALF, HALF, HALF),
        ("FusedRMSNorm", HALF, FULL, HALF),  # Apex's kernel refuses; T5 in half needs it
        ("MixedFusedRMSNorm", FULL, HALF, FULL),
        ("MixedFusedRMSNorm", HALF, FULL, HALF),
    ],
)
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
def test_output_dtypes(name: str, weight: Any, input: Any, output: Any, half: torch.dtype) -> None:
    weight, input, output = (half if dtype is HALF else dtype for dtype in (weight, input, output))
    torch.manual_seed(0)
    layer = randomized(getattr(N, name)(8)).to(weight)
    x = torch.randn(4, 8).to(input)
    try:
        out = layer(x)
        out.sum().backward()
    except RuntimeError as error:
        if not _native.computes_in("cpu", half) and "Half" in str(error):
            pytest.skip(f"this torch can't compute it in {half} on a CPU")
        raise
    assert out.dtype == output
    expected = reference(name, x, layer.weight, getattr(layer, "bias", None), 1, 1e-5)
    assert torch.allclose(out.double(), expected, atol=0.05, rtol=0.02)
    assert layer.weight.grad.dtype == weight


def test_float64_stays() -> None:
    for name in LAYERS:
        x = torch.randn(2, 8, dtype=torch.float64)
        layer = getattr(N, name)(8).double()
        expected = reference(name, x, None, None, 1, 1e-5)
        assert layer(x).dtype == torch.float64 and torch.allclose(layer(x), expected, atol=1e-12)


@needs_autocast
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("input", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_under_autocast_the_output_has_its_dtype(name: str, input: torch.dtype) -> None:
    layer = getattr(N, name)(8)
    x = torch.randn(4, 8, dtype=input)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x)
        assert _native.is_autocast_on("cpu")
    if input != torch.float64:  # which autocast leaves alone
        assert out.dtype == torch.bfloat16
    layer(x.float()).sum().backward()
    assert layer.weight.grad.dtype == torch.float32


@needs_autocast
def test_autocast_is_on_again_after_an_error_in_the_layer() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(RuntimeError):
            N.FusedLayerNorm(8)(torch.randn(2, 7))
        assert _native.is_autocast_on("cpu")


@needs_autocast
def test_cast_if_autocast_enabled() -> None:
    x = torch.ones(2)
    args = (x, 3, None, [x], (x, 1), {"k": x}, torch.ones(2, dtype=torch.int64), x.double(), torch.Size([2]))
    assert _cast_if_autocast_enabled(*args)[0] is x
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = _cast_if_autocast_enabled(*args)
    assert [out[0].dtype, out[3][0].dtype, out[4][0].dtype, out[5]["k"].dtype] == [torch.bfloat16] * 4
    assert out[1:3] == (3, None) and out[4][1] == 1 and out[8] == torch.Size([2])
    assert (out[6].dtype, out[7].dtype) == (torch.int64, torch.float64)


def test_questions_about_autocast() -> None:
    assert _get_current_dtype() == torch.float32
    assert torch.half in _get_autocast_dtypes()


def test_rms_norm_refuses_another_shape() -> None:
    for shape in (8, (2, 8)):
        with pytest.raises(RuntimeError):
            N.FusedRMSNorm(shape)(torch.randn(3, 1))


@pytest.mark.parametrize("name", LAYERS)
def test_layers_can_be_scripted_and_traced(name: str) -> None:
    x = torch.randn(4, 8)
    layer = randomized(getattr(N, name)(8))
    assert torch.allclose(torch.jit.script(layer)(x), layer(x), atol=1e-6)
    traced = torch.jit.trace(layer, x)
    assert torch.equal(traced(x), layer(x))
    assert torch.equal(traced(torch.cat([x, x])), layer(torch.cat([x, x])))


def test_layers_without_parameters_can_be_scripted() -> None:
    x = torch.randn(4, 8)
    for name in ("FusedLayerNorm", "FusedRMSNorm"):
        layer = getattr(N, name)(8, elementwise_affine=False)
        assert torch.allclose(torch.jit.script(layer)(x), layer(x), atol=1e-6)


@pytest.mark.skipif(
    not hasattr(torch, "compiler"),
    reason="this torch has no torch.compile, or dynamo of torch 2.0, which breaks graphs at what later ones trace",
)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_can_be_compiled_in_one_graph(name: str) -> None:
    x = torch.randn(4, 8)
    layer = randomized(getattr(N, name)(8))
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    assert torch.allclose(compiled(x), layer(x), atol=1e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(x).dtype == layer(x).dtype == torch.bfloat16


@pytest.mark.parametrize("name", LAYERS)
def test_layers_copy_and_pickle(name: str) -> None:
    x = torch.randn(4, 8)
    layer = randomized(getattr(N, name)(8))
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), layer(x))


def test_pickles_from_before_memory_efficient_still_run() -> None:
    layer = N.FusedLayerNorm(8)
    del layer.__dict__["memory_efficient"]
    file = io.BytesIO(pickle.dumps(layer))
    assert pickle.load(file)(torch.randn(2, 8)).shape == (2, 8)


@pytest.mark.parametrize("path", sorted(CHECKPOINTS.glob("wholemodel_fusedlayernorm*.pt")), ids=lambda path: path.stem)
def test_whole_models_of_real_apex_open(path: Path, as_apex: None) -> None:  # noqa: F811
    model = load(str(path))
    model = (
        next(iter(v for v in model.values() if isinstance(v, torch.nn.Module))) if isinstance(model, dict) else model
    )
    layers = [m for m in model.modules() if type(m) is N.FusedLayerNorm]
    assert layers
    for layer in layers:
        x = torch.randn(2, *layer.normalized_shape)
        expected = F.layer_norm(x, layer.normalized_shape, layer.weight, layer.bias, layer.eps)
        assert torch.equal(layer(x), expected)


def test_the_printed_form_is_apex_own() -> None:
    assert repr(N.FusedLayerNorm(8)) == "FusedLayerNorm(torch.Size([8]), eps=1e-05, elementwise_affine=True)"


def test_manual_rms_norm_promotes() -> None:
    x = torch.randn(3, 8)
    weight = torch.rand(8)
    expected = reference("RMS", x, weight, None, 1, 1e-6)
    out = functions.manual_rms_norm(x, torch.Size([8]), weight, 1e-6)
    assert torch.allclose(out.double(), expected, atol=1e-6)
    if not _native.computes_in("cpu", torch.bfloat16):
        return
    assert functions.manual_rms_norm(x.bfloat16(), (8,), None, 1e-6).dtype == torch.float32
    assert functions.manual_rms_norm(x, (8,), weight.bfloat16(), 1e-6).dtype == torch.bfloat16


def test_the_autograd_functions_can_be_called_by_name() -> None:
    x, weight, bias = torch.randn(3, 8), torch.rand(8), torch.rand(8)
    layer = F.layer_norm(x, (8,), weight, bias, 1e-5)
    assert torch.equal(functions.FusedLayerNormAffineFunction.apply(x, weight, bias, (8,), 1e-5), layer)
    assert torch.equal(
        functions.FusedLayerNormAffineMixedDtypesFunction.apply(x, weight, bias, (8,), 1e-5, True), layer
    )
    assert torch.equal(functions.FusedLayerNormFunction.apply(x, (8,), 1e-5), F.layer_norm(x, (8,)))
    rms = functions.fused_rms_norm_affine(x, weight, 8)
    assert torch.equal(functions.FusedRMSNormAffineFunction.apply(x, weight, 8, 1e-6), rms)
    assert torch.equal(functions.FusedRMSNormAffineMixedDtypesFunction.apply(x, weight, 8, 1e-6), rms)
    assert torch.equal(functions.FusedRMSNormFunction.apply(x, 8, 1e-6) * weight, rms)


@needs_autocast
def test_a_layer_does_not_drop_the_weights_that_autocast_keeps(monkeypatch: Any) -> None:
    """The drop-in's O1 switches autocast on without a block: leaving a block in the layer would clear the cache."""
    dropped: list[int] = []
    monkeypatch.setattr(torch, "clear_autocast_cache", lambda: dropped.append(1))
    before = _native.get_autocast("cpu")
    _native.set_autocast("cpu", _native.AutocastState(True, torch.bfloat16))
    try:
        assert N.FusedLayerNorm(8)(torch.randn(2, 8)).dtype == torch.bfloat16
    finally:
        _native.set_autocast("cpu", before)
    assert not dropped


def test_under_o1_the_output_is_half(amp: Any) -> None:
    if not _native.autocast_works("cpu", torch.float16):
        pytest.skip("no float16 autocast on a CPU")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), N.FusedLayerNorm(8))
    model, _ = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), opt_level="O1", verbosity=0)
    assert model(torch.randn(4, 8)).dtype == torch.float16
