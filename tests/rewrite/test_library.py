"""Apex's library as torch's own: what converts and trains the same, and what stays on the drop-in and why."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import libcst as cst
import pytest
import torch

import amp_migrate
from amp_migrate.codemods.apply import apply_edits
from amp_migrate.codemods.edits import Edit, Site
from amp_migrate.codemods.findings import Kind, Level
from amp_migrate.codemods.library_plan import LibraryPlan, library_plan, reports_of, with_edits
from amp_migrate.codemods.library_uses import library_items
from amp_migrate.codemods.source_file import SourceFile
from amp_migrate.codemods.target import SHIM, Target
from tests.conftest import clean_environment

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "library"
PAIRS = sorted(folder.parent for folder in FIXTURES.glob("*/before.py"))
UNCHANGED = sorted(folder.parent for folder in FIXTURES.glob("*/unchanged.py"))
REVIEW = {"level": Level.REVIEW}
HEAD = """import torch
from torch import nn
import apex.contrib.clip_grad
from apex import amp, fp16_utils, normalization, optimizers, parallel
"""
O1 = "model, optimizer = amp.initialize(model, optimizer, opt_level='O1')\n"

#: what is rewritten for new torch can't be run on an old one
NEEDS_NEW_TORCH = pytest.mark.skipif(
    tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 4), reason="the rewritten program needs torch 2.4"
)


def plan_of(text: str, **target: Any) -> tuple[str, LibraryPlan, SourceFile]:
    """The rewritten text (imports unchanged), the plan and the parsed file."""
    source = SourceFile(cst.parse_module(text), Target(**target))
    plan = library_plan(source)
    new = apply_edits(source.module, [edit for _, edit in plan.edits]).code
    compile(new, "after", "exec")
    return new, plan, source


def target_of(text: str) -> dict[str, Any]:
    """``# level: review``, ``# torch: 2.4`` and ``# device: cpu`` in a fixture say what it is rewritten to."""
    said = dict(re.findall(r"^# (level|torch|device): (\S+)$", text, re.M))
    target: dict[str, Any] = {"level": Level(said["level"])} if "level" in said else {}
    if "torch" in said:
        major, minor = said["torch"].split(".")
        target["torch"] = (int(major), int(minor))
    if "device" in said:
        target["device_type"] = said["device"]
    return target


@pytest.mark.parametrize("folder", PAIRS, ids=lambda folder: folder.name)
def test_before_becomes_after_and_stays_so(folder: Path) -> None:
    before, after = (folder / "before.py").read_text(), (folder / "after.py").read_text()
    assert plan_of(before, **target_of(before))[0] == after
    assert plan_of(after, **target_of(after))[0] == after


@pytest.mark.parametrize("folder", UNCHANGED, ids=lambda folder: folder.name)
def test_what_must_not_change_does_not(folder: Path) -> None:
    text = (folder / "unchanged.py").read_text()
    new, plan, _ = plan_of(text, **target_of(text))
    assert new == text
    assert not plan.converted


CHANGES = [
    # the third argument is bias_correction
    (
        O1 + "optimizers.FusedAdam(p, 1e-3, True, (0.9, 0.99))",
        "torch.optim.AdamW(p, 1e-3, betas=(0.9, 0.99), weight_decay=0.0)",
        {},
    ),
    (O1 + "optimizers.FusedAdam(p, weight_decay=wd)", "torch.optim.AdamW(p, weight_decay=wd)", {}),
    (O1 + "optimizers.FusedAdam(params=p)", "torch.optim.AdamW(params=p, weight_decay=0.0)", {}),
    (O1 + "optimizers.FusedAdam(p, adam_w_mode=False)", "torch.optim.Adam(p)", {}),
    (
        O1 + "optimizers.FusedAdam(p, adam_w_mode=True, amsgrad=False, set_grad_none=True)",
        "torch.optim.AdamW(p, weight_decay=0.0)",
        {},
    ),
    (O1 + "optimizers.fused_adam.FusedAdam(p)", "torch.optim.AdamW(p, weight_decay=0.0)", {}),
    ("optimizers.FusedAdam(p)", "torch.optim.AdamW(p, weight_decay=0.0)", REVIEW),
    ("optimizers.FusedSGD(p, 0.1, 0.9, 0, 1e-4, True)", "torch.optim.SGD(p, 0.1, 0.9, 0, 1e-4, True)", REVIEW),
    ("optimizers.FusedSGD(p, lr=0.1, wd_after_momentum=False)", "torch.optim.SGD(p, lr=0.1)", REVIEW),
    ("optimizers.FusedAdagrad(p, 0.1, 1e-8, 1e-3)", "torch.optim.Adagrad(p, 0.1, eps=1e-8, weight_decay=1e-3)", REVIEW),
    (
        O1 + "parallel.DistributedDataParallel(model, 2**23, True)",
        "torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True, broadcast_buffers=False)",
        REVIEW,
    ),
    (
        "step(model.parameters())\nparallel.DistributedDataParallel(module=model, delay_allreduce=True)",
        "torch.nn.parallel.DistributedDataParallel(module=model, find_unused_parameters=True, broadcast_buffers=False)",
        REVIEW,
    ),
    (
        "parallel.DistributedDataParallel(model, delay_allreduce=False)",
        "torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)",
        REVIEW,
    ),
    (
        "isinstance(model, parallel.DistributedDataParallel)",
        "isinstance(model, torch.nn.parallel.DistributedDataParallel)",
        REVIEW,
    ),
    (
        "isinstance(model, (parallel.DistributedDataParallel, nn.parallel.DistributedDataParallel))",
        "isinstance(model, (torch.nn.parallel.DistributedDataParallel, nn.parallel.DistributedDataParallel))",
        REVIEW,
    ),
    (
        "parallel.convert_syncbn_model(model, group)",
        "torch.nn.SyncBatchNorm.convert_sync_batchnorm(model, group)",
        REVIEW,
    ),
    (
        "parallel.convert_syncbn_model(model, channel_last=False)",
        "torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)",
        REVIEW,
    ),
    (
        "isinstance(m, parallel.SyncBatchNorm)",
        "isinstance(m, (parallel.SyncBatchNorm, torch.nn.SyncBatchNorm))",
        REVIEW,
    ),
    (
        "isinstance(m, (nn.Linear, parallel.SyncBatchNorm))",
        "isinstance(m, (nn.Linear, (parallel.SyncBatchNorm, torch.nn.SyncBatchNorm)))",
        REVIEW,
    ),
    ("parallel.SyncBatchNorm(8, fuse_relu=False)", "torch.nn.SyncBatchNorm(8)", REVIEW),
    ("parallel.create_syncbn_process_group(group_size=0)", "None", {}),
    ("dist.all_reduce(t, op=parallel.ReduceOp.SUM)", "dist.all_reduce(t, op=torch.distributed.ReduceOp.SUM)", {}),
    ("normalization.FusedLayerNorm(8)", "torch.nn.LayerNorm(8)", REVIEW),
    (
        "normalization.FusedRMSNorm(8, elementwise_affine=True)",
        "torch.nn.RMSNorm(8, elementwise_affine=True, eps=1e-5)",
        {**REVIEW, "torch": (2, 4)},
    ),
    (
        "normalization.fused_layer_norm.fused_layer_norm(x, [8], 1e-5)",
        "torch.nn.functional.layer_norm(x, [8], eps=1e-5)",
        REVIEW,
    ),
    (
        "normalization.fused_layer_norm.fused_layer_norm_affine(x, w, b, (8,), 1e-5)",
        "torch.nn.functional.layer_norm(x, weight=w, bias=b, normalized_shape=(8,), eps=1e-5)",
        REVIEW,
    ),
    ("clip = fp16_utils.clip_grad_norm", "clip = torch.nn.utils.clip_grad_norm_", {}),
    ("fp16_utils.to_python_float(loss.detach())", "loss.detach().item()", {}),
    ("clip = apex.contrib.clip_grad.clip_grad_norm_", "clip = torch.nn.utils.clip_grad_norm_", {}),
    ("with amp.disable_casts(): f()", 'with torch.autocast("xpu", enabled=False): f()', {"device_type": "xpu"}),
    ("with amp.handle.disable_casts(): f()", "with torch.cuda.amp.autocast(enabled=False): f()", {"torch": (1, 9)}),
    ("f()\namp.register_half_function(torch, 'einsum')", "f()", {}),
]


@pytest.mark.parametrize(("before", "after", "target"), CHANGES)
def test_a_use_becomes_torchs(before: str, after: str, target: dict[str, Any]) -> None:
    new, plan, source = plan_of(HEAD + before + "\n", **target)
    kept = before.rpartition("\n")[0]
    assert new.strip() == (HEAD + (kept + "\n" if kept and kept != after else "") + after).strip()
    again = plan_of(new, **target)
    assert again[0] == new
    mine = {item.node for item in library_items(source.names) if item.path.partition(".")[0] != "amp"}
    assert plan.converted >= mine or "isinstance(m" in before


STAYS = [
    # arguments that torch can't take, or that can't be seen
    (O1 + "optimizers.FusedAdam(p, bias_correction=False)", "bias correction"),
    (O1 + "optimizers.FusedAdam(p, 1e-3, flag)", "bias correction"),
    (O1 + "optimizers.FusedAdam(p, adam_w_mode=args.mode)", "Adam or AdamW"),
    (O1 + "optimizers.FusedAdam(p, set_grad_none=False)", "zero gradients in place"),
    (O1 + "optimizers.FusedAdam(p, capturable=True)", "capturable"),
    (O1 + "optimizers.FusedAdam(p, amsgrad=True)", "amsgrad"),
    (O1 + "optimizers.FusedAdam(p, **options)", "can't be seen"),
    (O1 + "optimizers.FusedAdam(*arguments)", "can't be seen"),
    (O1 + "optimizers.FusedAdam(p, max_grad_norm=1.0)", "max_grad_norm"),
    (O1 + "optimizers.FusedAdam(p, lr=1, params=p)", "given twice"),
    (O1 + "optimizers.FusedAdam(p, 1, True, b, e, True, 0, False, True, False, False, 1)", "more arguments"),
    (O1 + "optimizers.FusedSGD(p, 0.1, wd_after_momentum=True)", "before the momentum"),
    (O1 + "optimizers.FusedSGD(p)", "without lr"),
    (O1 + "optimizers.FusedAdagrad(p, adagrad_w_mode=True)", "decoupled"),
    (O1 + "optimizers.FusedLAMB(p)", "no LAMB"),
    (O1 + "optimizers.FusedNovoGrad(p)", "no NovoGrad"),
    # parameters, groups and attributes
    (O1 + "model.half()\noptimizers.FusedAdam(p)", "may be half"),
    ("model, o = amp.initialize(model, o, opt_level='O3')\noptimizers.FusedAdam(p)", "may be half"),
    (O1 + "optimizers.FusedAdam([{'params': p, 'bias_correction': False}])", "parameter group"),
    (O1 + "o = optimizers.FusedAdam(p)\nprint(o.param_groups[0]['step'])", "parameter group"),
    (O1 + "o = optimizers.FusedAdam(p)\nfor g in o.param_groups: print(g['step'])", "parameter group"),
    (O1 + "o = optimizers.FusedAdam(p)\no.set_grad_none = False", "torch's class lacks"),
    # types and names
    (O1 + "optimizers.FusedAdam(p)\nisinstance(o, optimizers.FusedAdam)", "another use of it"),
    (O1 + "optimizers.FusedAdam(p)\ncls = optimizers.FusedAdam", "another use of it"),
    (O1 + "optimizers.FusedAdam(p)\noptimizers.FusedAdam.step = None", "something else in its place"),
    (O1 + "optimizers.FusedAdam(p)\nsetattr(optimizers, 'FusedAdam', None)", "something else in its place"),
    (O1 + "optimizers.FusedAdam(p)\napex.optimizers = None", "something else in its place"),
    (O1 + "def f(torch): return optimizers.FusedAdam(p)", "name for torch"),
    (O1 + "optimizers.FusedAdam(amp.master_params(o))", "amp is called"),
    # several processes
    (O1 + "parallel.DistributedDataParallel(model, delay_allreduce=True, gradient_average=False)", "gradient_average"),
    (O1 + "parallel.DistributedDataParallel(model, gradient_predivide_factor=8.0)", "gradient_predivide_factor"),
    (O1 + "parallel.DistributedDataParallel(model, allreduce_always_fp32=True)", "allreduce_always_fp32"),
    (O1 + "parallel.DistributedDataParallel(model, delay_allreduce=args.delay)", "delay_allreduce"),
    (O1 + "parallel.DistributedDataParallel(model, device_ids=[0])", "device_ids"),
    (O1 + "parallel.DistributedDataParallel(model, message_size=f())", "computing `message_size`"),
    (O1 + "m = parallel.DistributedDataParallel(model)\nm.disable_allreduce()", "torch's lacks"),
    (
        O1 + "m = parallel.DistributedDataParallel(model)\ntype(m) is parallel.DistributedDataParallel",
        "another use of it",
    ),
    (
        "isinstance(m, parallel.DistributedDataParallel)\nnn.parallel.DistributedDataParallel(m)",
        "tells it from torch's",
    ),
    ("parallel.convert_syncbn_model(model, channel_last=True)", "second place"),
    ("parallel.convert_syncbn_model(model, None, flag)", "second place"),
    ("parallel.SyncBatchNorm(8, fuse_relu=True)", "fuse_relu"),
    ("parallel.convert_syncbn_model(m)\nx = type(l) == parallel.SyncBatchNorm", "another use of it"),
    ("isinstance(m, parallel.SyncBatchNorm)\nnn.SyncBatchNorm.convert_sync_batchnorm(m)", "tells it from torch's"),
    ("parallel.create_syncbn_process_group(4)", "makes these groups"),
    ("parallel.Reducer(model)", "no class"),
    ("parallel.LARC(o)", "no LARC"),
    # layers and functions
    ("normalization.FusedLayerNorm(8, memory_efficient=flag)", "saves memory"),
    ("normalization.MixedFusedLayerNorm(8)", "another dtype"),
    ("normalization.FusedLayerNorm(8)\nisinstance(m, normalization.FusedLayerNorm)", "another use of it"),
    ("normalization.FusedRMSNorm(8)", "from 2.4 on"),
    ("normalization.fused_layer_norm.fused_layer_norm(x, n)", "no int"),
    ("fp16_utils.to_python_float(loss)", "sequences"),
    ("apex.mlp.MLP([4, 4])", "parameters otherwise"),
    ("apex.contrib.xentropy.SoftmaxCrossEntropyLoss.apply(x, y)", "dtype under autocast"),
    # casts
    ("amp.register_float_function(torch, 'sigmoid')", "only after amp.initialize"),
    ("amp.register_half_function(torch, 'bmm')", "only after amp.initialize"),
    ("amp.register_half_function(mine, 'einsum')", "only after amp.initialize"),
    ("x = amp.register_half_function(torch, 'einsum')", "only after amp.initialize"),
    ("@amp.float_function\ndef f(x): pass", "only after amp.initialize"),
    ("nms = amp.float_function(nms)", "only after amp.initialize"),
    ("off = amp.disable_casts", "handed on"),
]


@pytest.mark.parametrize(("text", "reason"), STAYS)
def test_a_use_stays_and_the_plan_says_why(text: str, reason: str) -> None:
    new, plan, _ = plan_of(HEAD + text + "\n", **REVIEW)
    assert [site.message for _, site in plan.sites if reason in site.message and site.kind is Kind.DROPIN]
    assert new == HEAD + text + "\n"


@pytest.mark.parametrize(
    ("text", "target"),
    [
        (O1 + "optimizers.FusedAdam(p)", {"torch": (1, 13)}),
        ("parallel.convert_syncbn_model(model)", {"device_type": "cpu"}),
        ("parallel.convert_syncbn_model(model)", {"torch": (1, 13)}),
        (O1 + "parallel.DistributedDataParallel(model, delay_allreduce=True)", {"torch": (2, 0)}),
        ("apex.contrib.clip_grad.clip_grad_norm_(p, 1)", {"torch": (1, 8)}),
        ("with amp.disable_casts(): pass", {"torch": (1, 9), "device_type": "cpu"}),
        ("amp.register_half_function(torch, 'einsum')", {"device_type": "cpu"}),
        ("amp.register_half_function(torch, 'einsum')", {"dtype": "bfloat16"}),
        ("amp.register_half_function(torch, 'einsum')", {"torch": (1, 13)}),
        ("optimizers.FusedAdam(p)", {"to": SHIM}),
    ],
)
def test_what_an_older_torch_or_another_device_lacks_stays(text: str, target: dict[str, Any]) -> None:
    assert plan_of(HEAD + text + "\n", **REVIEW, **target)[0] == HEAD + text + "\n"


@pytest.mark.parametrize(
    "text",
    [
        "optimizers.FusedAdam(p)",  # nothing shows that parameters are float32
        "model, o = amp.initialize(model, o, opt_level=args.level)\noptimizers.FusedAdam(p)",
        "model, o = amp.initialize(model, o, opt_level='O2', master_weights=False)\noptimizers.FusedAdam(p)",
        O1 + "optimizers.FusedSGD(p, 0.1)",
        O1 + "optimizers.FusedAdagrad(p)",
        O1 + "parallel.DistributedDataParallel(model)",
        "parallel.DistributedDataParallel(model, delay_allreduce=True)",
        "isinstance(model, parallel.DistributedDataParallel)",
        "parallel.convert_syncbn_model(model)",
        "isinstance(layer, parallel.SyncBatchNorm)",
        "parallel.SyncBatchNorm(8)",
        "normalization.FusedLayerNorm(8)",
    ],
)
def test_what_changes_numbers_or_can_raise_waits_for_review(text: str) -> None:
    new, plan, _ = plan_of(HEAD + text + "\n")
    assert new == HEAD + text + "\n"
    assert [site.kind for _, site in plan.sites] == [Kind.REVIEW]
    reviewed, again, _ = plan_of(HEAD + text + "\n", **REVIEW)
    assert reviewed != new
    assert [site.kind for _, site in again.sites] == [Kind.NOTE]


def test_the_project_has_its_own_apex() -> None:
    source = SourceFile(cst.parse_module(HEAD + O1 + "optimizers.FusedAdam(p)\n"), Target(), "apex/__init__.py")
    assert library_plan(source) == LibraryPlan()


def test_a_type_check_is_right_even_where_the_name_has_a_fallback() -> None:
    before = textwrap.dedent(
        """
        import torch
        try:
            from apex.parallel import DistributedDataParallel as DDP
        except ImportError:
            from torch.nn.parallel import DistributedDataParallel as DDP
        if isinstance(model, DDP):
            model = model.module
        model = DDP(model)
        """
    )
    after, plan, _ = plan_of(before, **REVIEW)
    assert after == before.replace("(model, DDP)", "(model, (DDP, torch.nn.parallel.DistributedDataParallel))")
    assert not plan.converted
    assert plan_of(after, **REVIEW)[0] == after


def test_an_import_of_another_torch_is_not_torch() -> None:
    text = "import my.torch as torch\nfrom apex.fp16_utils import clip_grad_norm\nclip_grad_norm(p, 1)\n"
    assert plan_of(text)[0] == text


def test_uses_that_need_amp_are_named_until_they_are_gone() -> None:
    text = HEAD + "with amp.disable_casts(): pass\nf = amp.float_function(f)\namp.register_promote_function(m, 'f')\n"
    assert len(plan_of(text)[1].needs_amp) == 2
    assert len(plan_of(text, torch=(1, 9), device_type="cpu")[1].needs_amp) == 3


def test_old_checkpoints_are_pointed_to_the_converter() -> None:
    _, plan, source = plan_of(HEAD + O1 + "optimizers.FusedAdam(p)\n")
    reports = list(reports_of(source, "AMP203"))
    assert [type(each) for each in reports] == [Edit, Site]
    assert "python -m amp_migrate.convert" in plan.sites[0][1].advice


def test_a_statement_can_be_replaced_with_library_edits_in_it() -> None:
    text = HEAD + O1 + "f(parallel.convert_syncbn_model(m), fp16_utils.clip_grad_norm)\n"
    _, plan, source = plan_of(text, **REVIEW)
    line = source.module.body[-1]
    assert isinstance(line, cst.SimpleStatementLine) and isinstance(line.body[0], cst.Expr)
    new = with_edits(line.body[0].value, [edit for _, edit in plan.edits])
    text = "f(torch.nn.SyncBatchNorm.convert_sync_batchnorm(m), torch.nn.utils.clip_grad_norm_)"
    assert cst.Module([]).code_for_node(new) == text


# -- what converts trains the same ---------------------------------------------------------------------------------

TRAINING = """
import torch
from torch import nn
import apex.contrib.clip_grad
from apex import amp, fp16_utils, normalization, optimizers, parallel
torch.manual_seed(0)
{model}
{optimizer}
start = [p.detach().clone() for p in model.parameters()]
losses = []
for step in range(20):
    x = torch.randn(5, 6)
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    {before_step}
    optimizer.step()
    losses.append(float(loss))
"""
PLAIN = "model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))"
SGD = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)"


def run(text: str) -> dict[str, Any]:
    """Run a program with the drop-in as ``apex``; what it changed in torch is taken back after."""
    amp_migrate.install()
    program: dict[str, Any] = {"__name__": "program"}
    try:
        exec(compile(text, "program", "exec"), program)
    finally:
        amp_migrate.uninstall()
    return program


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """How far apart two runs ended, relative to the way that the first one went."""
    pairs = list(zip(one["start"], one["model"].parameters(), other["model"].parameters()))
    way = sum(float((p - s).pow(2).sum()) for s, p, _ in pairs)
    assert way > 1e-6
    return math.sqrt(sum(float((p - q).pow(2).sum()) for _, p, q in pairs) / way)


def trained_both_ways(model: str = PLAIN, optimizer: str = SGD, before_step: str = "", **target: Any) -> float:
    before = TRAINING.format(model=model, optimizer=optimizer, before_step=before_step)
    after = plan_of(before, **{**REVIEW, **target})[0]
    assert after != before
    return distance(run(before), run(after))


@NEEDS_NEW_TORCH
@pytest.mark.parametrize(
    "call",
    [
        "FusedAdam(model.parameters())",
        "FusedAdam(model.parameters(), 0.01, True, (0.8, 0.9), 1e-6)",
        "FusedAdam(model.parameters(), lr=0.01, weight_decay=0.1)",
        "FusedAdam(model.parameters(), lr=0.01, adam_w_mode=False, weight_decay=0.1)",
        "FusedAdam([{'params': model[0].parameters(), 'lr': 0.1}, {'params': model[2].parameters()}])",
        "FusedSGD(model.parameters(), 0.1)",
        "FusedSGD(model.parameters(), 0.1, 0.9, 0, 0.01, True)",
        "FusedSGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.5, weight_decay=0.1, set_grad_none=True)",
        "FusedAdagrad(model.parameters())",
        "FusedAdagrad(model.parameters(), 0.1, 1e-6, 0.1)",
    ],
)
def test_an_optimizer_takes_the_same_steps(call: str) -> None:
    assert trained_both_ways(optimizer=f"optimizer = optimizers.{call}") < 3e-5


def test_the_default_weight_decay_of_adamw_would_show() -> None:
    before = TRAINING.format(
        model=PLAIN, optimizer="optimizer = optimizers.FusedAdam(model.parameters())", before_step=""
    )
    wrong = plan_of(before, **REVIEW)[0].replace(", weight_decay=0.0", "")
    assert distance(run(before), run(wrong)) > 3e-4


@NEEDS_NEW_TORCH
@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
@pytest.mark.parametrize(
    "call", ["FusedAdam(model.parameters(), 0.01)", "FusedSGD(model.parameters(), 0.1, 0.9, set_grad_none=True)"]
)
def test_an_optimizer_takes_the_same_steps_under_amp(call: str, level: str) -> None:
    initialize = (
        f"model, optimizer = amp.initialize(model, optimizer, opt_level={level!r}, loss_scale=8.0, verbosity=0)"
    )
    text = TRAINING.format(model=PLAIN, optimizer=f"optimizer = optimizers.{call}\n{initialize}", before_step="")
    before = text.replace("loss.backward()", "\n    with amp.scale_loss(loss, optimizer) as scaled: scaled.backward()")
    after = plan_of(before)[0]
    assert "torch.optim" in after.replace("import", "")
    assert distance(run(before), run(after)) < (3e-5 if level != "O2" else 1e-3)


@NEEDS_NEW_TORCH
@pytest.mark.parametrize(
    ("layer", "limit"),
    [
        ("normalization.FusedLayerNorm(8)", 0.0),
        ("normalization.FusedLayerNorm((8,), 1e-3, memory_efficient=True)", 0.0),
        ("normalization.FusedLayerNorm(8, elementwise_affine=False)", 0.0),
        ("normalization.FusedRMSNorm(8)", 1e-5),
        ("normalization.FusedRMSNorm([8], eps=1e-2)", 1e-5),
    ],
)
def test_a_layer_trains_the_same(layer: str, limit: float) -> None:
    model = f"model = nn.Sequential(nn.Linear(6, 8), {layer}, nn.Tanh(), nn.Linear(8, 3))"
    assert trained_both_ways(model=model, torch=(2, 4)) <= limit


@pytest.mark.parametrize(
    "call",
    [
        "fused_layer_norm_affine(x, self.weight, self.bias, (6,))",
        "fused_layer_norm_affine(x, self.weight, self.bias, [6], 0.1)",
        "fused_layer_norm(x, (6,)) * self.weight + self.bias",
    ],
)
def test_a_function_of_normalization_trains_the_same(call: str) -> None:
    model = f"""
class Model(nn.Linear):
    def __init__(self):
        super().__init__(6, 1)
        self.bias = nn.Parameter(torch.zeros(6))
        self.weight = nn.Parameter(torch.ones(6))
    def forward(self, x):
        return normalization.fused_layer_norm.{call}
model = Model()"""
    assert trained_both_ways(model=model) <= 1e-6


@NEEDS_NEW_TORCH
def test_synchronised_batchnorm_of_one_process_trains_the_same() -> None:
    model = """
norms = nn.BatchNorm1d(8, momentum=None), nn.BatchNorm1d(8, affine=False)
model = nn.Sequential(nn.Linear(6, 8), norms[0], nn.Tanh(), norms[1], nn.Linear(8, 3))
weight = model[1].weight
model = parallel.convert_syncbn_model(model, channel_last=False)
assert model[1].weight is weight"""
    assert trained_both_ways(model=model) == 0.0
    assert (
        trained_both_ways(
            model="model = nn.Sequential(nn.Linear(6, 8), parallel.SyncBatchNorm(8, 1e-3), nn.Linear(8, 3))"
        )
        == 0.0
    )


@pytest.mark.parametrize(
    "clip",
    [
        "losses.append(float(apex.contrib.clip_grad.clip_grad_norm_(model.parameters(), 0.1)))",
        "apex.contrib.clip_grad.clip_grad_norm_(model.parameters(), max_norm=0.1, norm_type=float('inf'))",
        "fp16_utils.clip_grad_norm(model.parameters(), 0.1)",
        "losses.append(fp16_utils.to_python_float(loss.detach()))",
    ],
)
def test_clipping_is_the_same(clip: str) -> None:
    assert trained_both_ways(before_step=clip) == 0.0


AMP = """
import torch
from torch import nn
from apex import amp
torch.manual_seed(0)
{first}
class Model(nn.Linear):
    def forward(self, x):
{forward}
model = Model(6, 6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
model, optimizer = amp.initialize(model, optimizer, opt_level="O1", loss_scale=8.0, verbosity=0)
start = [p.detach().clone() for p in model.parameters()]
for step in range(20):
    optimizer.zero_grad()
    loss = model(torch.randn(5, 6)).float().pow(2).mean()
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    optimizer.step()
"""


def amp_program(forward: str, first: str = "") -> str:
    return AMP.format(first=first, forward=textwrap.indent(forward, " " * 8))


@NEEDS_NEW_TORCH
def test_a_block_without_casts_is_an_autocast_block_that_is_off() -> None:
    program = amp_program("y = super().forward(x)\nwith amp.disable_casts():\n    return y + super().forward(x)")
    after = plan_of(program, device_type="cpu")[0]
    assert 'torch.autocast("cpu", enabled=False)' in after
    assert distance(run(program), run(after)) == 0.0
    without = program.replace("with amp.disable_casts():", "if True:")
    assert distance(run(program), run(without)) > 1e-4


@NEEDS_NEW_TORCH
def test_einsum_needs_no_registration() -> None:
    program = amp_program(
        "return torch.einsum('bi,oi->bo', x, self.weight) + self.bias", "amp.register_half_function(torch, 'einsum')"
    )
    after = plan_of(program)[0]
    assert "register" not in after
    assert distance(run(program), run(after)) == 0.0
    # a CPU shows it for contractions; that CUDA's autocast has the whole function, its dispatcher says
    assert torch._C._dispatch_has_kernel_for_dispatch_key("aten::einsum", "AutocastCUDA")


@NEEDS_NEW_TORCH
def test_a_function_that_casts_its_input_trains_the_same() -> None:
    function = """
class Half(torch.autograd.Function):
    @staticmethod
    @amp.float_function
    def forward(ctx, x):
        assert x.dtype == torch.float32
        return x * 0.7
    @staticmethod
    def backward(ctx, grad):
        return grad * 0.7
"""
    program = amp_program("return Half.apply(super().forward(x))", function)
    after = plan_of(program, **REVIEW, torch=(2, 4), device_type="cpu")[0]
    assert "custom_fwd" in after and "custom_bwd" in after
    assert distance(run(program), run(after)) == 0.0


DISTRIBUTED = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
import amp_migrate
amp_migrate.install()
from apex import parallel
rank, meeting, result = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=2)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(2, 2)
        self.register_buffer("mine", torch.full((8,), 1.0 + rank))
    def forward(self, x, both):
        x = torch.tanh(self.first(x)) * self.mine
        return self.second(x) if both else x
torch.manual_seed(rank)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
model = parallel.DistributedDataParallel(model, message_size=100, delay_allreduce=True)
assert isinstance(model, parallel.DistributedDataParallel)
for step in range(20):
    optimizer.zero_grad()
    model(torch.randn(5, 4), step % 3 < 2).pow(2).mean().backward()
    optimizer.step()
assert float(model.module.mine[0]) == 1.0 + rank
torch.save(model.state_dict(), result)
dist.barrier()
os._exit(0)
"""


@NEEDS_NEW_TORCH
def test_two_processes_train_the_same_with_unused_parameters_and_buffers_of_their_own(tmp_path: Path) -> None:
    after = plan_of(DISTRIBUTED, **REVIEW)[0]
    assert "parallel.DistributedDataParallel(model, find_unused_parameters=True, broadcast_buffers=False)" in after
    results = {}
    for name, text in (("before", DISTRIBUTED), ("after", after)):
        (tmp_path / f"{name}.py").write_text(text)
        files = [tmp_path / f"{name}.{rank}.pt" for rank in range(2)]
        command = [sys.executable, str(tmp_path / f"{name}.py")]
        meeting = str(tmp_path / f"{name}.meeting")
        ranks = [
            subprocess.Popen([*command, str(rank), meeting, str(file)], env=clean_environment(OMP_NUM_THREADS="1"))
            for rank, file in enumerate(files)
        ]
        assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
        results[name] = [torch.load(file) for file in files]
    for before, now in zip(results["before"], results["after"]):
        assert before.keys() == now.keys()
        assert all(torch.equal(before[key], now[key]) for key in before)
