"""SyncBatchNorm in one process is batchnorm; conversion keeps everything that a layer has."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch
from torch import nn

import amp_migrate.apex.parallel as parallel
from amp_migrate.apex.parallel import SyncBatchNorm, convert_syncbn_model, create_syncbn_process_group, sync_batchnorm

SHAPES = {1: (6, 4), 2: (6, 4, 5, 3), 3: (2, 4, 2, 3, 3)}


def inputs(dimensions: int) -> torch.Tensor:
    return torch.randn(*SHAPES[dimensions], generator=torch.Generator().manual_seed(dimensions))


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"momentum": None}, {"track_running_stats": False}])
@pytest.mark.parametrize("dimensions", list(SHAPES))
def test_one_process_gives_batchnorm_bit_by_bit(dimensions, options) -> None:
    ours, plain = SyncBatchNorm(4, **options), getattr(nn, f"BatchNorm{dimensions}d")(4, **options)
    for layer in (ours, plain):
        layer.grads = []
        for step in range(3):
            x = (inputs(dimensions) * (step + 1)).requires_grad_()
            layer(x).pow(3).sum().backward()
            layer.grads.append(x.grad)
        layer.eval()
        layer.out = layer(inputs(dimensions)).detach()
    assert list(ours.state_dict()) == list(plain.state_dict())
    theirs = [plain.out, *plain.grads, *plain.state_dict().values(), *(p.grad for p in plain.parameters())]
    for a, b in zip([ours.out, *ours.grads, *ours.state_dict().values(), *(p.grad for p in ours.parameters())], theirs):
        assert torch.equal(a, b)


@pytest.mark.parametrize("training", [True, False])
def test_channel_last_is_channel_first_moved(training) -> None:
    x = inputs(2)
    first, last = SyncBatchNorm(4).train(training), SyncBatchNorm(4, channel_last=True).train(training)
    moved = last(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    assert torch.allclose(moved, first(x), atol=1e-6)
    assert torch.allclose(last.running_var, first.running_var)
    last._specify_channel_last(False)
    assert last(x).shape == x.shape


@pytest.mark.parametrize("training", [True, False])
def test_z_is_added_before_relu(training) -> None:
    x, z = inputs(2), inputs(2).flip(0)
    plain = nn.BatchNorm2d(4).train(training)(x)
    assert torch.equal(SyncBatchNorm(4, fuse_relu=True).train(training)(x, z), torch.relu(plain + z))
    assert torch.equal(SyncBatchNorm(4, fuse_relu=True).train(training)(x), torch.relu(plain))
    assert torch.equal(SyncBatchNorm(4).train(training)(x, z), plain + z)


@pytest.mark.parametrize("training", [True, False])
def test_half_inputs_beside_float32_parameters_give_half(training) -> None:
    x = inputs(2).half()
    out = SyncBatchNorm(4).train(training)(x)
    assert out.dtype == torch.float16
    assert torch.equal(out, nn.BatchNorm2d(4).train(training)(x.float()).half())


def test_one_value_per_channel_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        SyncBatchNorm(4)(torch.ones(1, 4))


def test_signature_is_that_of_Apex() -> None:
    defaults = {
        "eps": 1e-5,
        "momentum": 0.1,
        "affine": True,
        "track_running_stats": True,
        "process_group": None,
        "channel_last": False,
    }
    seen = {p.name: p.default for p in inspect.signature(SyncBatchNorm).parameters.values()}
    assert list(seen.items())[1:] == [*defaults.items(), ("fuse_relu", False)]
    seen = {p.name: p.default for p in inspect.signature(sync_batchnorm.SyncBatchNorm).parameters.values()}
    assert list(seen.items())[1:] == list(defaults.items())


def test_the_class_of_builds_without_extensions_loads_and_refuses_channel_last() -> None:
    with pytest.raises(AttributeError, match="channel_last"):
        sync_batchnorm.SyncBatchNorm(4, channel_last=True)
    layer = sync_batchnorm.SyncBatchNorm(4)
    for name in ("channel_last", "fuse_relu"):  # as Apex's class pickled itself
        del vars(layer)[name]
    assert torch.equal(pickle.loads(pickle.dumps(layer))(inputs(2)), nn.BatchNorm2d(4)(inputs(2)))


def model() -> nn.Sequential:
    inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, eps=1e-3, momentum=0.3))
    result = nn.Sequential(
        nn.BatchNorm2d(3, affine=False), nn.InstanceNorm2d(3, affine=True), inner, nn.BatchNorm3d(2), nn.GroupNorm(1, 2)
    )
    result[3].eval()
    result[3].running_mean.fill_(5.0)
    inner[1].weight.requires_grad_(False)
    nn.init.uniform_(inner[1].weight)
    return result


def test_conversion_changes_batchnorm_only_and_keeps_what_it_has() -> None:  # S45
    before = model()
    after = convert_syncbn_model(copy.deepcopy(before), process_group="some", channel_last=True)
    kinds = [type(m).__name__ for m in after.modules()]
    assert kinds == [
        "Sequential", "SyncBatchNorm", "InstanceNorm2d", "Sequential", "Linear", "SyncBatchNorm", "SyncBatchNorm",
        "GroupNorm",
    ]  # fmt: skip
    old, new = before.state_dict(), after.state_dict()
    assert list(old) == list(new) and all(torch.equal(a, b) for a, b in zip(old.values(), new.values()))
    for a, b in zip(before.modules(), after.modules()):
        assert a.training is b.training
        if isinstance(b, SyncBatchNorm):
            for name in ("num_features", "eps", "momentum", "affine", "track_running_stats"):
                assert getattr(a, name) == getattr(b, name)
            assert (b.process_group, b.channel_last, b.fuse_relu) == ("some", True, False)
    assert [p.requires_grad for p in before.parameters()] == [p.requires_grad for p in after.parameters()]


def test_conversion_keeps_containers_and_parameters() -> None:
    before = model()
    params = list(before.parameters())
    after = convert_syncbn_model(before)
    assert after is before
    assert all(a is b for a, b in zip(params, after.parameters()))
    layer = nn.BatchNorm1d(4)
    assert isinstance(convert_syncbn_model(layer), SyncBatchNorm) and type(layer) is nn.BatchNorm1d
    without = convert_syncbn_model(nn.BatchNorm1d(4, track_running_stats=False))
    assert without.running_mean is None and not without.track_running_stats


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_amp_leaves_it_in_float32(amp, level) -> None:
    net = convert_syncbn_model(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    amp.initialize(net, opt_level=level, verbosity=0)
    assert net[1].weight.dtype == torch.float32
    assert net(torch.randn(8, 4)).shape == (8, 4)


def test_no_group_for_size_zero() -> None:
    assert create_syncbn_process_group(0) is None


def test_names_are_those_of_Apex() -> None:
    for name in ("DistributedDataParallel", "Reducer", "SyncBatchNorm", "LARC", "ReduceOp"):
        assert hasattr(parallel, name)
    import amp_migrate.apex.parallel.distributed as distributed

    for name in ("flat_dist_call", "apply_flat_dist_call", "split_by_type", "extract_tensors", "flatten", "unflatten"):
        assert callable(getattr(distributed, name))
    half, double = torch.ones(2, dtype=torch.float16), torch.ones(3, dtype=torch.float64)
    assert distributed.split_half_float_double([double, half, torch.ones(1, dtype=torch.int32)]) == [[half], [double]]
