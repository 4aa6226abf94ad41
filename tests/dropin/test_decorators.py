"""``half_function`` and its kin, ``register_*``, and edits of ``amp.lists``."""

from __future__ import annotations

import types

import pytest
import torch
import torch.nn.functional as F

from amp_migrate.apex.amp import lists
from amp_migrate.apex.amp._patches import patches

from . import needs_float16
from .scenarios import mlp, sgd, wave

pytestmark = needs_float16
HALF, FULL = torch.float16, torch.float32


def start(amp):
    model = mlp()
    return amp.initialize(model, sgd(model), opt_level="O1", verbosity=0)


def dtypes(*args, **kwargs):
    return [a.dtype for a in args], {k: v.dtype for k, v in kwargs.items()}


def test_decorated_before_initialize_casts_after_it_only(amp) -> None:  # S42
    x = wave(2)
    half, full = amp.half_function(dtypes), amp.float_function(dtypes)
    assert half(x, k=x.half()) == ([FULL], {"k": HALF}) == full(x, k=x.half())
    start(amp)
    assert half(x, k=x) == ([HALF], {"k": HALF})
    assert full(x.half(), k=x.half()) == ([FULL], {"k": FULL})
    with amp.disable_casts():
        assert half(x) == ([FULL], {})


def test_promoting_widens_mixed_arguments_only(amp) -> None:
    start(amp)
    widest, x = amp.promote_function(dtypes), wave(2)
    assert widest(x, x.half()) == ([FULL, FULL], {})
    assert widest(x.half(), x.half()) == ([HALF, HALF], {})


@pytest.mark.parametrize("order", ["static_outside", "static_inside"])
def test_a_staticmethod_may_be_decorated_in_either_order(amp, order) -> None:  # S42
    class Square(torch.autograd.Function):
        def forward(ctx, x):
            Square.seen = x.dtype
            ctx.save_for_backward(x)
            return x * x

        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return 2 * x * grad

        if order == "static_outside":
            forward = staticmethod(amp.float_function(forward))
        else:
            forward = amp.float_function(staticmethod(forward))
        backward = staticmethod(backward)

    start(amp)
    x = torch.tensor([1.0, 2.0, 3.0], dtype=HALF, requires_grad=True)
    Square.apply(x).sum().backward()
    assert Square.seen == FULL
    assert x.grad.dtype == HALF and x.grad.tolist() == [2.0, 4.0, 6.0]


def test_nested_arguments_are_cast_and_others_left(amp) -> None:
    start(amp)
    box = []
    half = amp.half_function(lambda *a, **k: box.append((a, k)))
    ids, pair = torch.tensor([1]), (wave(2), [wave(1)])
    half(pair, ids, 3, None, "text", key=pair)
    (args, kwargs) = box[0]
    assert args[0][0].dtype == args[0][1][0].dtype == kwargs["key"][0].dtype == HALF
    assert args[1] is ids and args[2:] == (3, None, "text")
    assert pair[0].dtype == FULL


def test_decorating_keeps_name_and_docs(amp) -> None:
    def mine(x):
        """Says so."""

    assert (amp.half_function(mine).__name__, amp.half_function(mine).__doc__) == ("mine", "Says so.")


def test_registered_functions_cast_until_undone(amp) -> None:
    module = types.ModuleType("mine")
    module.one = module.two = dtypes
    amp.register_half_function(module, "one")
    amp.register_float_function(module, "two")
    assert module.one is dtypes
    start(amp)
    x = wave(2)
    assert module.one(x) == ([HALF], {}) and module.two(x.half()) == ([FULL], {})
    patches.undo_all()
    assert module.one is dtypes and module.two is dtypes


def test_registering_what_is_not_there_is_refused(amp) -> None:
    for register in (amp.register_half_function, amp.register_float_function, amp.register_promote_function):
        with pytest.raises(ValueError, match="No function named nothing"):
            register(torch, "nothing")


def test_a_registration_wins_over_autocast(amp) -> None:
    original = torch.mm
    amp.register_float_function(torch, "mm")
    start(amp)
    x = wave(2, 2)
    assert torch.mm(x, x).dtype == FULL
    assert torch.matmul(x, x).dtype == HALF
    patches.undo_all()
    assert torch.mm is original


def test_edits_of_the_lists_count_at_initialize(amp, monkeypatch) -> None:
    functional = lists.functional_overrides
    monkeypatch.setattr(functional, "FP16_FUNCS", [n for n in functional.FP16_FUNCS if n != "linear"])
    monkeypatch.setattr(functional, "FP32_FUNCS", [*functional.FP32_FUNCS, "linear"])
    start(amp)
    assert F.linear(wave(2, 2), wave(2, 2)).dtype == FULL
