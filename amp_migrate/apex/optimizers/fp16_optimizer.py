"""``FP16_Optimizer`` at the place it had until 2019-10.

Source: apex/optimizers/fp16_optimizer.py before 1904e48d.
"""

from __future__ import annotations

from ..contrib.optimizers.fp16_optimizer import FP16_Optimizer as FP16_Optimizer
