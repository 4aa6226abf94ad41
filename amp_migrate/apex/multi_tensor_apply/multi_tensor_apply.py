"""The caller of Apex's CUDA kernels (``amp_C``), which the drop-in doesn't have.

Source: apex/multi_tensor_apply/multi_tensor_apply.py.
"""

from __future__ import annotations

from typing import Any


class MultiTensorApply:
    """Says that there are no kernels: ``available`` is False, ``import_err`` why.

    Args:
        chunk_size: of the kernels that aren't there.
    """

    available = False
    warned = False
    import_err = ImportError("No module named 'amp_C': Apex's CUDA kernels aren't part of amp_migrate", name="amp_C")

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def check_avail(self) -> None:
        """Raise RuntimeError: the kernels aren't available."""
        raise RuntimeError(
            "multi_tensor_applier runs Apex's CUDA kernels, and these aren't part of amp_migrate. Ask "
            "`multi_tensor_applier.available` first, or use torch's: torch._foreach_mul_ to scale, torch._foreach_norm "
            "for norms, torch.optim with fused=True or foreach=True to step.",
            self.import_err,
        )

    def __call__(self, op: Any, noop_flag_buffer: Any, tensor_lists: Any, *args: Any) -> Any:
        """Raise RuntimeError: see :meth:`check_avail`."""
        self.check_avail()
