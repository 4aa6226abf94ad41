"""What must become of each legacy program at ``--level safe``, by SOUNDNESS, and how closely a native one must agree.

NATIVE: nothing may be left on Apex's amp. DROPIN: everything stays on the drop-in. EITHER: both are right.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

NATIVE, DROPIN, EITHER = "native", "drop-in", "either"


@dataclass(frozen=True)
class Expected:
    """What must become of a program.

    Args:
        verdict: NATIVE, DROPIN or EITHER.
        rules: the numbers of the SOUNDNESS rules that it shows.
        bitwise: parameters agree in every bit; False where a model is called more than once in a region (casts of
            weights are kept per region natively, per forward on the drop-in) or an optimizer is another one.
        same_output: what is printed agrees in every character; False where results of an evaluation are printed, which
            ran under casts on the drop-in and runs in float32 natively, or metrics that the CPU's casts don't cover.
        same_traces: the operations that lead to each backward agree; False where a float32 copy of an output, or a
            layer of torch in place of Apex's, makes others: then only the kernels that autocast casts for agree.
        spared: numbers of backwards that aren't made to overflow, because there Apex's own skip would stay pending and
            take the next good step (7): native is better, and differs.
        is_off: whether amp is off unless an option says otherwise, so that nothing can be missed in a plain run.
        silent_regions: how many regions may be missing without a CPU run noticing, for nothing in them is cast there.
        arguments: command lines besides the empty one with which the rewrite must agree as well.
    """

    verdict: str
    rules: tuple[int, ...] = ()
    bitwise: bool = True
    same_output: bool = True
    same_traces: bool = True
    spared: tuple[int, ...] = ()
    silent_regions: int = 0
    is_off: bool = False
    arguments: tuple[tuple[str, ...], ...] = ()


def _native(*rules: int, also: tuple[str, ...] = (), **how: Any) -> Expected:
    return Expected(NATIVE, rules, arguments=(also,) if also else (), **how)


def _either(*rules: int, **how: Any) -> Expected:
    return Expected(EITHER, rules, **how)


def _dropin(*rules: int) -> Expected:
    return Expected(DROPIN, rules)


#: a level that comes from the command line counts by its default, O1; a note says what the others mean now
_ANY_LEVEL = _native(9, 25, same_output=False)

EXPECTED = {
    # the programs of the first days
    "amp_on_args": _ANY_LEVEL,
    "both_backends": _dropin(26),  # called through a variable that may hold the native twin
    "cast_decorators": _either(19),  # casts by decorators and disable_casts
    "checkpoint_resume": _ANY_LEVEL,
    "clip_every_microbatch": _dropin(14, 18),
    "custom_function": _either(22),  # @amp.float_function on a Function's forward
    "delay_unscale": _native(13, 17),
    "engine_closure": _dropin(14),  # accumulation clips each micro-batch
    "folds": _native(1, 25, 26, same_output=False, same_traces=False),
    "fp16_flag": _native(9, 27, also=("--fp16", "0")),
    "gan_three_losses": _dropin(1),  # two loss ids meet in one optimizer
    "grad_noise": _dropin(7, 18),
    "gradient_penalty": _native(3, 16, 19, bitwise=False),
    # the recorder doesn't leave out what a handle itself does
    "handle_api": _native(9, also=("--no-amp",), same_traces=False),
    "handle_wrapped": _native(1, 2, 12, 15, bitwise=False, same_traces=False),
    "handle_wrap_optimizer": _dropin(1),  # two losses of one optimizer
    "helper_train": _ANY_LEVEL,
    "hierarchy": _dropin(26),  # overridden in another file
    "hook_runner": _dropin(26),
    "inference_only": _dropin(18, 25),
    "loss_as_parameter": _ANY_LEVEL,
    "loss_scale_internals": _native(6, 17, also=("--fp16", "0")),
    "manual_context": _dropin(26),
    "multi_task_loss_ids": _dropin(1),
    "nan_guard": _native(3),
    "o0_baseline": replace(_ANY_LEVEL, is_off=True),
    "o2_convnet": _dropin(18),
    "o3_static_scale": _dropin(6, 18),
    "optimizer_list": _dropin(4),
    "overflow_recovery": _dropin(6),  # writes _amp_state
    "pix2pix_two_losses": _native(2, 12, also=("--no_fp16",)),
    "plain_loop": _native(3, 19),
    "semi_supervised": _ANY_LEVEL,
    "some_optimizers": _dropin(6, 18),
    "squad_style": _ANY_LEVEL,
    "step_before_backward": _dropin(4, 5),
    "trainer_class": _native(15, 27),
    "work_inside_block": _native(15),
    # everyday shapes
    "alias_imports": _native(19),
    "from_imports": _native(13, 15, also=("--max-norm", "0")),
    "import_sets_flag": _native(27, also=("--no-apex",)),
    "modulo_twice": _native(13, 17),
    "clip_helper": _native(15),
    "grad_norm_logging": _native(15),
    "hidden_state": _native(20),
    "inner_loop_loss": _native(19, bitwise=False),
    "mean_after_guard": _native(3, 17),
    "trainer_self": _native(13, 15),
    "base_class": _native(26),
    "train_function": _native(17, 26),
    "nested_step": _native(3),
    "optimizer_choice": _native(3, also=("--optimizer", "sgd")),
    "data_parallel": _native(24),
    "ema_onecycle": _native(3),
    "validate_between": _native(25, same_output=False),
    "checkpoint_helpers": _native(9),
    "unfreezing": _native(5),
    "nested_targets": _native(19),
    "result_ignored": _native(3),
    "retain_graph": _native(10, 17),
    "shadowed_names": _native(19),
    "scaler_taken": _native(3),
    "loss_dict": _native(19),
    "backward_method": _native(15, 27),
    "fused_adam": _native(28, bitwise=False),
    # hazards that still come out native
    "seeds_in_a_loop": _native(1),
    "loss_ids_apart": _native(1, 2),
    "warmup_backward": _either(10),  # the warm-up's loss is computed where its backward is called
    "critic_continue": _native(3, bitwise=False),
    "gan_shared_forward": _native(2, 12, 19, bitwise=False),
    "plain_beside_scaled": _native(10),
    "bce_on_probabilities": _native(21),
    "r1_penalty": _native(16, 19, silent_regions=1),
    "weight_clamp": _native(3, 19, bitwise=False),
    "adversarial_inputs": _native(19, bitwise=False),
    "scale_bounds": _native(6),
    "o0_literal": _native(6),
    "enabled_option": _native(9, also=("--amp", "0")),
    "no_else": _native(27, also=("--fp32",)),
    "metrics_after_step": _native(20, same_output=False, same_traces=False, silent_regions=2),
    "norm_after_step": _native(15),
    "pseudo_labels": _native(23, bitwise=False),
    "scale_logged": _native(1, 12, bitwise=False),
    "optional_noise": _native(13, 15),
    "replay_buffer": _native(19),
    "feature_hook": _native(20),
    "timed_train": _native(26),
    "optimizer_class": _native(8),
    "loss_vector": _native(24),
    "returned_initialize": _native(26),
    "precision_mode": _native(27),
    # the rules leave a choice
    "out_of_memory": _either(3, 7, spared=(11,)),
    "custom_matmul": _either(22),
    "epoch_flush": _either(5, 13, 17),  # `if pending > 0` means that there are gradients
    "memory_bank": replace(_either(20, bitwise=False), silent_regions=1),
    "noam_wrapper": _dropin(8),
    "lookahead": _dropin(8),
    # hazards that stay on the drop-in
    "partial_backward": _native(26),  # the partial gets the scaler
    "callbacks": _dropin(26),
    "steps_after_both": _dropin(2),
    "two_optimizers_one_loss": _dropin(4),
    "idle_head": _dropin(5),
    "static_scale_o1": _dropin(6),
    "norm_guard": _dropin(7),
    "zero_one_model": _dropin(11),
    "never_zeroed": _dropin(11),
    "loss_reaches_other": _dropin(12),
    "norm_between_backwards": _dropin(13),
    "clip_each_microbatch_o1": _dropin(14),
    "clip_in_block": _dropin(15),
    "o2_clip_model": _dropin(18),
    "fp16_optimizer": _dropin(18, 25),
    "fp16_accumulated": _dropin(6, 18, 25),
    "weight_perturbation": _dropin(19),
    "guard_changes": _dropin(27),
}
