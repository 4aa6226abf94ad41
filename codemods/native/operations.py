"""Names of operations, by what autocast does with them. Tables, and nothing else.

Source: torch.amp, "Autocast Op Reference".
"""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """Return the words of ``text``."""
    return frozenset(text.split())


#: methods and functions whose result doesn't depend on whether autocast is on
NEUTRAL = words(
    """
    abs add add_ add_module add_scalar all any append argmax argmin argsort barrier bernoulli_ bool ceil children
    chunk clamp clamp_ clone contiguous copy copy_ cpu cuda data debug deepcopy detach dict dim div div_ double
    enumerate eq error eval expand expand_as extend fill_ flatten flip float floor flush format gather ge get
    get_last_lr getattr gt half hasattr id index_select info int is_available is_cuda isfinite isinf isinstance
    isnan item items iter join keys le len list log_metrics long lt manual_seed masked_fill masked_fill_
    masked_select max mean min modules mul mul_ named_children named_modules named_parameters narrow ne neg new_full
    new_ones new_tensor new_zeros next nonzero normal_ numel numpy parameters perf_counter permute pin_memory pop
    print random_ range record_function register_buffer register_forward_hook register_forward_pre_hook
    register_module register_parameter remove repeat repeat_interleave repr requires_grad_ reshape retain_grad
    reversed roll round scatter scatter_ set set_description set_epoch set_postfix share_memory_ sign size sort
    sorted split squeeze squeeze_ state_dict step str sub sub_ t time to tolist topk train transpose tuple type
    type_as unbind uniform_ unsqueeze unsqueeze_ update values view view_as warning write xpu zero_ zero_grad zip
    """
)

#: functions of torch that make or move data
TORCH_NEUTRAL = words(
    """
    Generator Size abs all any arange argmax argmin as_tensor bernoulli bincount cat ceil chunk clamp device
    empty empty_like enable_grad eq equal eye flatten flip floor from_numpy full full_like gather ge gt
    index_select inference_mode is_tensor isfinite isinf isnan le linspace load lt manual_seed masked_select max
    mean meshgrid min multinomial ne no_grad nonzero ones ones_like permute rand rand_like randint randint_like
    randn randn_like randperm reshape roll round save scatter set_grad_enabled sign sort split squeeze stack
    tensor topk transpose unique unsqueeze where zeros zeros_like
    """
)

#: what autocast runs in half precision, on whatever it is given
LOWERED = words(
    """
    addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_transpose1d conv_transpose2d
    conv_transpose3d einsum linear matmul mm multi_dot mv prelu scaled_dot_product_attention
    """
)

#: methods that register what a module calls in its forward
HOOKS = frozenset({"register_forward_hook", "register_forward_pre_hook", "register_module_forward_hook"})

#: functions of Python itself, and those of them that may compute with tensors
BUILTINS = words(
    """
    any all map pow sum abs bool bytes callable dict divmod enumerate filter float format getattr hasattr hash id input
    int isinstance iter len list max min next object open print range repr reversed round set setattr sorted str
    super tuple type vars zip
    """
)
BUILTINS_THAT_COMPUTE = frozenset({"map", "pow", "sum"})

#: attributes and methods whose result is as precise as what they are called on
KEEPS_PRECISION = words(
    """
    T clamp clamp_ clone contiguous cpu cuda data detach expand expand_as flatten gather index_select masked_fill mean
    narrow permute repeat reshape squeeze t to transpose unsqueeze view view_as
    """
)
