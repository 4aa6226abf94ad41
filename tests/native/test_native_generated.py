"""Generated training loops: whatever is put together, what becomes native trains as on the drop-in."""

from __future__ import annotations

import tempfile
from pathlib import Path

from comparing import compare
from expected import EITHER, Expected
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from overflows import accumulates
from runs import rewrite_program, run_all

HEAD = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
from apex import amp

torch.manual_seed(3)
FP16 = {fp16}
model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.05)
{initialize}
"""
GUARDED = {
    True: "if FP16:\n    model, optimizer = amp.initialize(model, optimizer, opt_level='O1', verbosity=0)",
    False: "model, optimizer = amp.initialize(model, optimizer, opt_level='O1', verbosity=0)",
}
BACKWARD = "with amp.scale_loss(loss, optimizer) as scaled_loss:\n    scaled_loss.backward()"
CLIP = {
    "": "",
    "master": "nn.utils.clip_grad_norm_(amp.master_params(optimizer), 0.3)",
    "model": "nn.utils.clip_grad_norm_(model.parameters(), 0.3)",
    "by hand": "for p in model.parameters():\n    p.grad.clamp_(-0.1, 0.1)",
    "log": "norm = sum(float(p.grad.norm()) for p in model.parameters())",
}
ZERO = ("optimizer.zero_grad()", "model.zero_grad()", "for p in model.parameters():\n    p.grad = None", "")


def indented(text: str, depth: int) -> str:
    return "".join("    " * depth + line + "\n" if line else "" for line in text.split("\n"))


@st.composite
def programs(draw: st.DrawFn) -> str:
    guarded, fp16 = draw(st.booleans()), draw(st.booleans())
    every = draw(st.sampled_from([1, 1, 2, 3]))
    backward = BACKWARD
    if guarded:
        backward = f"if FP16:\n{indented(BACKWARD, 1)}else:\n    loss.backward()"
    zero, clip = draw(st.sampled_from(ZERO)), CLIP[draw(st.sampled_from(sorted(CLIP)))]
    if clip == CLIP["master"] and guarded:
        clip = f"if FP16:\n    {clip}\nelse:\n    {CLIP['model']}"
    forward = draw(
        st.sampled_from(
            [
                "output = model(x)\nloss = F.cross_entropy(output, y)",
                "loss = F.cross_entropy(model(x), y)",
                "loss = 0\nfor part in (x, x + 1):\n    loss = loss + F.cross_entropy(model(part), y)",
                "losses = [F.cross_entropy(model(x), y), model(x).pow(2).mean()]\nloss = sum(losses)",
            ]
        )
    )
    clip_inside = draw(st.booleans()) or every == 1
    zero_first = draw(st.booleans()) and every == 1
    body = [zero if zero_first else "", forward, f"loss = loss / {every}" if every > 1 else "", backward]
    body += ["" if clip_inside else clip]
    step = "\n".join(
        each for each in (clip if clip_inside else "", "optimizer.step()", "" if zero_first else zero) if each
    )
    body.append(step if every == 1 else f"if (i + 1) % {every} == 0:\n{indented(step, 1)}".rstrip())
    head = HEAD.format(fp16=fp16, optimizer=draw(st.sampled_from(["SGD", "Adam"])), initialize=GUARDED[guarded])
    loop = "for i in range(6):\n    x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))\n"
    return head + loop + "".join(indented(each, 1) for each in body if each)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(programs())
def test_a_generated_loop_trains_the_same_or_stays(source: str) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        program = folder / "program.py"
        program.write_text(source, encoding="utf-8")
        new = rewrite_program(program, folder)
        if not new.is_native:
            return
        original, native = run_all([(program, folder), (new.main, folder)])
        found = compare(original, native)
        rounding = Expected(EITHER, bitwise=False, same_output=False, same_traces=False)
        assert found.agrees(rounding, accumulates(original)), f"{found}\n{source}\n{new.sources}"
