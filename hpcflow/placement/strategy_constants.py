"""Constants of a machine in the cost model of strategies, and the ranges where they usually lie.

A range is a prior: the logarithm of a constant is normal, and two thirds of its mass lies between
`low` and `high`. The ranges are those of data-centre GPUs with tensor cores and of frameworks that
launch one kernel per operation; a fit moves a constant as far as its rows say.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np


@dataclasses.dataclass(frozen=True)
class Range:
    """Where a positive constant usually lies."""

    low: float
    high: float

    @property
    def log_middle(self) -> float:
        """Mean of the logarithm."""
        return 0.5 * (math.log(self.low) + math.log(self.high))

    @property
    def log_deviation(self) -> float:
        """Standard deviation of the logarithm."""
        return 0.5 * (math.log(self.high) - math.log(self.low))


RANGES: Mapping[str, Range] = {
    # Products in 16 bits: 30 to 80 % of the peak of 312 TFLOP/s of an A100.
    "product_flops": Range(90e12, 250e12),
    "vocabulary_flops": Range(100e12, 225e12),
    # A matrix with this many columns runs at half of the speed of a wide one.
    "half_speed_columns": Range(115, 570),
    # A vocabulary that is no multiple of a tile takes slower kernels; see vocabulary_seconds.
    "whole_vocabulary_factor": Range(1.0, 2.25),
    # Loops over memory: 1.5 to 2 TB/s at best, less where arrays are small.
    "memory_bytes_per_s": Range(0.7e12, 2e12),
    "update_bytes_per_s": Range(1e12, 3e12),
    # An operation as a Python framework launches it, and the shortest kernel with its gap.
    "launch_s": Range(12e-6, 33e-6),
    "kernel_s": Range(6e-6, 16e-6),
    # How sharply the later of launches and kernels decides: 1 is their sum, infinity the maximum.
    "overlap_exponent": Range(1.85, 3.4),
    # All-reduces amid other work, by those of the tables, and the wait around each.
    "activation_allreduce_factor": Range(1.0, 1.75),
    "gradient_allreduce_factor": Range(0.9, 1.6),
    "allreduce_wait_s": Range(20e-6, 130e-6),
    # How much later the slowest of ranks launches an all-reduce, for each rank more.
    "rank_skew_s": Range(4e-6, 27e-6),
    # Between stages: PCIe 4 to NVLink.
    "link_bytes_per_s": Range(20e9, 200e9),
    "micro_batch_s": Range(0.45e-3, 2.2e-3),
    "step_s": Range(0.7e-3, 5.4e-3),
}
NAMES = tuple(RANGES)
LOG_MIDDLES = np.array([RANGES[name].log_middle for name in NAMES])
LOG_DEVIATIONS = np.array([RANGES[name].log_deviation for name in NAMES])
