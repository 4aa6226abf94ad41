"""``mlp``, ``fused_dense``, ``multi_tensor_apply``, ``RNN`` and ``reparameterization``."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import amp_migrate.apex.fused_dense as dense
import amp_migrate.apex.mlp as mlp
import amp_migrate.apex.multi_tensor_apply as multi
import amp_migrate.apex.reparameterization as reparam
import amp_migrate.apex.RNN as rnn
from amp_migrate.apex import _native
from amp_migrate.apex.fused_dense import fused_dense as dense_functions
from amp_migrate.apex.RNN import cells, models
from amp_migrate.apex.RNN.RNNBackend import RNNCell, bidirectionalRNN, flatten_list, stackedRNN

needs_autocast = pytest.mark.skipif(
    not _native.autocast_works("cpu", torch.bfloat16), reason=f"torch {torch.__version__} has no autocast on a CPU"
)


# --- mlp

ACTIVATIONS = {"none": nn.Identity, "relu": nn.ReLU, "sigmoid": nn.Sigmoid}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_mlp_activates_after_every_layer(activation: str, bias: bool) -> None:
    torch.manual_seed(0)
    model = mlp.MLP([3, 5, 4, 2], bias=bias, activation=activation)
    linears = [nn.Linear(i, o, bias=bias) for i, o in ((3, 5), (5, 4), (4, 2))]
    native = nn.Sequential(*(m for linear in linears for m in (linear, ACTIVATIONS[activation]())))
    for i, linear in enumerate(linears):
        linear.weight.data.copy_(getattr(model, f"weight_{i}"))
        if bias:
            linear.bias.data.copy_(getattr(model, f"bias_{i}"))
    x = torch.randn(7, 3)
    assert torch.equal(model(x), native(x))
    model(x).sum().backward()
    native(x).sum().backward()
    assert torch.equal(model.weight_0.grad, linears[0].weight.grad)


def test_mlp_names_and_defaults() -> None:
    model = mlp.MLP([3, 5, 2])
    assert sorted(model.state_dict()) == ["bias_0", "bias_1", "weight_0", "weight_1"]
    assert model.activation == 1 and model.bias == 1 and model.num_layers == 2
    assert repr(model) == "MLP(MLP sizes: [3, 5, 2], Bias=1, activation=1)"
    with pytest.raises(TypeError, match="'relu'"):
        mlp.MLP([3, 2], activation="tanh")


def test_mlp_draws_its_parameters_as_apex_did() -> None:
    torch.manual_seed(3)
    model = mlp.MLP([3, 5, 2])
    torch.manual_seed(3)
    for name, shape, std in (
        ("weight_0", (5, 3), math.sqrt(2 / 8)),
        ("weight_1", (2, 5), math.sqrt(2 / 7)),
        ("bias_0", (5,), math.sqrt(1 / 5)),
        ("bias_1", (2,), math.sqrt(1 / 2)),
    ):
        assert torch.equal(getattr(model, name), torch.empty(shape).normal_(0, std))


def test_a_copy_of_an_mlp_uses_its_own_parameters() -> None:
    model = mlp.MLP([3, 2])
    other = copy.deepcopy(model)
    other.weight_0.data.zero_()
    other.bias_0.data.zero_()
    assert other(torch.ones(1, 3)).abs().sum() == 0 and model.weights[0] is model.weight_0


# --- fused_dense


def test_fused_dense_is_a_linear_layer() -> None:
    for bias in (True, False):
        native, layer = nn.Linear(3, 2, bias=bias), dense.FusedDense(3, 2, bias=bias)
        layer.load_state_dict(native.state_dict())
        x = torch.randn(4, 5, 3)
        assert torch.equal(layer(x), native(x))
    assert torch.equal(dense._dense_no_bias(x, native.weight), native(x))


def test_fused_dense_gelu_dense() -> None:
    torch.manual_seed(0)
    layer = dense.FusedDenseGeluDense(3, 6, 2)
    assert sorted(layer.state_dict()) == ["bias1", "bias2", "weight1", "weight2"]
    for param in layer.parameters():
        nn.init.normal_(param)
    x = torch.randn(4, 3)
    hidden = F.linear(x, layer.weight1, layer.bias1)
    tanh_form = 0.5 * hidden * (1 + torch.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
    assert torch.allclose(layer(x), F.linear(tanh_form, layer.weight2, layer.bias2), atol=1e-5)
    assert torch.allclose(layer(x), F.linear(F.gelu(hidden), layer.weight2, layer.bias2), atol=5e-3)
    with pytest.raises(AssertionError):
        dense.FusedDenseGeluDense(3, 6, 2, bias=False)


def test_gelu_before_torch_1_12_is_the_same() -> None:
    x = torch.linspace(-4, 4, 100)
    written_out = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    assert torch.allclose(dense_functions._gelu(x), written_out, atol=1e-6)


def test_dense_layers_take_no_random_numbers_and_hold_no_nan() -> None:
    before = torch.get_rng_state()
    layer = dense.FusedDenseGeluDense(3, 6, 2)
    assert torch.equal(before, torch.get_rng_state())
    assert all(bool(torch.isfinite(p).all()) for p in layer.parameters())


@needs_autocast
def test_dense_layers_and_mlp_follow_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for layer in (
            mlp.MLP([3, 2], activation="sigmoid"),
            dense.FusedDense(3, 2),
            dense.FusedDenseGeluDense(3, 4, 2),
        ):
            assert layer(torch.randn(2, 3)).dtype == torch.bfloat16


# --- multi_tensor_apply


def test_multi_tensor_apply_says_that_it_is_not_there() -> None:
    applier = multi.multi_tensor_applier
    assert applier.available is False and isinstance(applier.import_err, ImportError)
    assert multi.MultiTensorApply(4).chunk_size == 4 and multi.MultiTensorApply.available is False
    for use in (lambda: applier(None, None, [[]], 1.0), applier.check_avail):
        with pytest.raises(RuntimeError, match="_foreach"):
            use()
    with pytest.raises(ImportError):
        import amp_C  # noqa: F401


# --- RNN

NATIVE = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "ReLU": lambda *args, **options: nn.RNN(*args, nonlinearity="relu", **options),
    "Tanh": lambda *args, **options: nn.RNN(*args, nonlinearity="tanh", **options),
}


def copied(name: str, bias: bool) -> tuple[Any, Any]:
    ours = getattr(rnn, name)(3, 4, 2, bias=bias)
    native = NATIVE[name](3, 4, 2, bias=bias)
    for layer in range(2):
        for part in ("ih", "hh"):
            getattr(native, f"weight_{part}_l{layer}").data.copy_(getattr(ours.rnns[layer], f"w_{part}"))
            if bias:
                getattr(native, f"bias_{part}_l{layer}").data.copy_(getattr(ours.rnns[layer], f"b_{part}"))
    return ours, native


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", sorted(NATIVE))
def test_networks_compute_what_torch_computes(name: str, bias: bool) -> None:
    torch.manual_seed(0)
    ours, native = copied(name, bias)
    x = torch.randn(5, 2, 3, requires_grad=True)
    out, hiddens = ours(x)
    expected, states = native(x)
    states = states if isinstance(states, tuple) else (states,)
    assert torch.allclose(out, expected, atol=1e-6)
    assert len(hiddens) == len(states) and all(torch.allclose(h, s, atol=1e-6) for h, s in zip(hiddens, states))
    got, wanted = torch.autograd.grad(out.sum(), x)[0], torch.autograd.grad(expected.sum(), x)[0]
    assert torch.allclose(got, wanted, atol=1e-5)


def test_mlstm_by_its_formula() -> None:
    torch.manual_seed(0)
    cell = rnn.mLSTM(3, 4, 1).rnns[0]
    x = torch.randn(2, 2, 3)
    hx, cx = torch.zeros(2, 4), torch.zeros(2, 4)
    for step in range(2):
        m = (x[step] @ cell.w_mih.t()) * (hx @ cell.w_mhh.t())
        i, f, g, o = (x[step] @ cell.w_ih.t() + cell.b_ih + m @ cell.w_hh.t() + cell.b_hh).chunk(4, 1)
        cx = f.sigmoid() * cx + i.sigmoid() * g.tanh()
        hx = o.sigmoid() * cx.tanh()
        out, state = cell(x[step])
        assert torch.allclose(out, hx, atol=1e-6) and torch.allclose(state, cx, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("LSTM", {"w_ih": (16, 3), "w_hh": (16, 5), "w_ho": (5, 4), "b_ih": (16,), "b_hh": (16,)}),
        ("ReLU", {"w_ih": (4, 3), "w_hh": (4, 5), "w_ho": (5, 4), "b_ih": (4,), "b_hh": (4,)}),
        (
            "mLSTM",
            {"w_ih": (16, 3), "w_hh": (16, 5), "w_ho": (5, 4), "b_ih": (16,), "b_hh": (16,), "w_mih": (5, 3)},
        ),
    ],
)
def test_an_output_size_projects(name: str, shapes: dict[str, Any]) -> None:
    model = getattr(rnn, name)(3, 4, 2, output_size=5)
    found = {
        key[len("rnns.0.") :]: tuple(v.shape) for key, v in model.state_dict().items() if key.startswith("rnns.0.")
    }
    assert shapes.items() <= found.items()
    assert model.rnns[1].w_ih.shape[1] == 5
    out, hiddens = model(torch.randn(6, 2, 3))
    assert out.shape == (6, 2, 5) and hiddens[0].shape == (2, 2, 5)
    assert len(hiddens) == 1 or hiddens[1].shape == (2, 2, 4)


def test_parameters_are_drawn_as_apex_did() -> None:
    torch.manual_seed(1)
    cell = rnn.GRU(3, 4, 1).rnns[0]
    torch.manual_seed(1)
    for name in ("w_ih", "w_hh", "b_ih", "b_hh"):
        assert torch.equal(getattr(cell, name), torch.empty(getattr(cell, name).shape).uniform_(-0.5, 0.5))


def test_hidden_states_carry_over_until_they_are_reset_or_cut() -> None:
    torch.manual_seed(0)
    model = rnn.LSTM(3, 4, 1)
    x = torch.randn(2, 5, 3)
    first, _ = model(x)
    assert not torch.equal(model(x)[0], first)
    model.reset_hidden(5)
    assert torch.equal(model(x)[0], first)
    model.detach_hidden()
    assert not model.rnns[0].hidden[0].requires_grad
    model(torch.randn(2, 7, 3))  # another batch size starts anew
    model.init_hidden(7)
    assert model.rnns[0].hidden[0].requires_grad
    model.init_inference(7)
    assert model.rnns[0].hidden[0].abs().sum() == 0
    with pytest.raises(RuntimeError, match="init_hidden"):
        rnn.LSTM(3, 4, 1).detach_hidden()


def test_collect_hidden_gives_every_step() -> None:
    torch.manual_seed(0)
    model = rnn.LSTM(3, 4, 2)
    x = torch.randn(5, 2, 3)
    out, hiddens = model(x, collect_hidden=True)
    assert len(hiddens) == 2 and len(hiddens[0]) == 5 and hiddens[1][0].shape == (2, 2, 4)
    assert all(torch.equal(hiddens[0][step][1], out[step]) for step in range(5))


def test_both_directions() -> None:
    torch.manual_seed(0)
    model = rnn.GRU(3, 4, 1, bidirectional=True)
    assert isinstance(model, bidirectionalRNN)
    assert {"fwd.rnns.0.w_ih", "bckwrd.rnns.0.w_ih", "rnns.1.rnns.0.w_ih"} <= set(model.state_dict())
    x = torch.randn(5, 2, 3)
    out, (hidden,) = model(x)
    model.reset_hidden(2)
    forward, (last,) = model.fwd(x)
    backward, _ = model.bckwrd(x.flip(0))
    assert torch.allclose(out, torch.cat([forward, backward.flip(0)], -1), atol=1e-6)
    # as in Apex: the state of the backward stack at the last step, which is the first it ran
    assert torch.allclose(hidden, torch.cat([last, backward[:1]], -1), atol=1e-6)
    model.detach_hidden()
    model.reset_hidden(2)
    _, (steps,) = model(x, collect_hidden=True)
    assert len(steps) == 5 and torch.allclose(steps[4], hidden, atol=1e-6)


def test_cells_can_be_given_one_for_each_layer() -> None:
    cell = RNNCell(1, 3, 4, cells.RNNTanhCell, 1)
    assert cell.b_ih is None and sorted(cell.state_dict()) == ["w_hh", "w_ih"]
    model = stackedRNN([cell, cell.new_like(4)], num_layers=2)
    assert model(torch.randn(2, 2, 3))[0].shape == (2, 2, 4)
    with pytest.raises(AssertionError):
        stackedRNN([cell], num_layers=2)
    with pytest.raises(RuntimeError, match="RNNCell"):
        stackedRNN(nn.Linear(2, 2))  # type: ignore[arg-type]
    assert models.RNNCell is RNNCell and flatten_list([torch.ones(2), torch.ones(2)]).shape == (2, 2)


# --- reparameterization


def test_weight_norm_is_that_of_torch() -> None:
    torch.manual_seed(0)
    for dim in (0, 1, None):
        linear = nn.Linear(3, 4)
        native = torch.nn.utils.weight_norm(copy.deepcopy(linear), dim=dim)
        x = torch.randn(2, 3)
        before = linear(x)
        assert reparam.apply_weight_norm(linear, name="weight", dim=dim) is linear
        assert sorted(linear.state_dict()) == ["bias", "weight_g", "weight_v"]
        assert linear.weight_g.shape == native.weight_g.shape and torch.equal(linear.weight_v, native.weight_v)
        assert torch.allclose(linear(x), before, atol=1e-6)
        for each in (linear, native):
            each.weight_g.data.mul_(1.5)
            each.weight_v.data.add_(0.25)
            each(x).sum().backward()
        assert torch.allclose(linear(x), native(x), atol=1e-6)
        assert torch.allclose(linear.weight_v.grad, native.weight_v.grad, atol=1e-6)
        assert torch.allclose(linear.weight_g.grad, native.weight_g.grad, atol=1e-6)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(5, 3), nn.LSTM(3, 4), nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2))


def test_all_weights_but_those_of_embeddings_and_vectors() -> None:
    model = reparam.apply_weight_norm(network())
    names = set(model.state_dict())
    assert {"0.weight", "1.weight_ih_l0_g", "1.weight_hh_l0_v", "1.bias_ih_l0", "2.weight_g", "3.weight"} <= names
    assert not {"1.weight_ih_l0", "2.weight", "0.weight_g"} & names


def test_a_network_computes_the_same_with_and_without() -> None:
    model, plain = network()[1], network()[1]
    x = torch.randn(5, 2, 3)
    reparam.apply_weight_norm(model)
    assert torch.allclose(model(x)[0], plain(x)[0], atol=1e-6)
    assert set(dict(model.named_parameters())) > {"weight_ih_l0_g", "weight_hh_l0_g"}
    reparam.remove_weight_norm(model)
    assert set(model.state_dict()) == set(plain.state_dict())
    assert torch.allclose(model(x)[0], plain(x)[0], atol=1e-6)
    model.weight_ih_l0.data.zero_()
    model.weight_hh_l0.data.zero_()
    model.bias_ih_l0.data.zero_()
    model.bias_hh_l0.data.zero_()
    assert model(x)[0].abs().sum() == 0


def test_a_changed_parameter_counts_in_the_next_forward() -> None:
    """Apex computed the weight anew only after a backward."""
    linear = reparam.apply_weight_norm(nn.Linear(3, 4, bias=False))
    x = torch.randn(2, 3)
    before = linear(x)
    linear.load_state_dict({"weight_g": linear.weight_g * 2, "weight_v": linear.weight_v})
    assert torch.allclose(linear(x), before * 2, atol=1e-5)


def test_the_hook_can_sit_on_the_top() -> None:
    model = nn.Sequential(nn.Linear(3, 4))
    copied = copy.deepcopy(model)
    reparam.apply_weight_norm(model, name="0.weight", hook_child=False)
    assert len(model._forward_pre_hooks) == 1 and not model[0]._forward_pre_hooks
    x = torch.randn(2, 3)
    assert torch.allclose(model(x), copied(x), atol=1e-6)
    reparam.remove_weight_norm(model, name="0.weight")
    assert not model._forward_pre_hooks and torch.allclose(model[0].weight, copied[0].weight, atol=1e-6)


def test_removing_what_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="apply_weight_norm"):
        reparam.remove_weight_norm(nn.Linear(2, 2), name="weight")


def test_a_normalized_module_can_be_copied() -> None:
    model = copy.deepcopy(reparam.apply_weight_norm(nn.Linear(3, 4)))
    model.weight_v.data.zero_().add_(1.0)
    model.weight_g.data.fill_(2.0)
    model(torch.ones(1, 3))
    assert torch.allclose(model.weight, torch.full((4, 3), 2.0 / math.sqrt(3.0)))


def test_own_reparameterizations() -> None:
    class Doubled(reparam.Reparameterization):
        def compute_weight(self, module: Any = None, name: Any = None) -> torch.Tensor:
            return 2 * getattr(module, f"{name}_half")

        def reparameterize(self, name: str, weight: torch.Tensor, dim: Any) -> Any:
            return [f"{name}_half"], [nn.Parameter(weight.data / 2)]

    linear, x = nn.Linear(3, 4), torch.randn(2, 3)
    before = linear(x)
    reparam.apply_reparameterization(linear, Doubled, "weight")
    assert torch.allclose(linear(x), before, atol=1e-6) and "weight_half" in linear.state_dict()
    reparam.remove_reparameterization(linear, Doubled)
    assert "weight" in linear.state_dict()
    for method, args in (("compute_weight", ()), ("reparameterize", ("w", x, 0))):
        with pytest.raises(NotImplementedError):
            getattr(reparam.Reparameterization("w", 0, linear), method)(*args)
