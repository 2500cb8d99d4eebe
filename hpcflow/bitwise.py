"""Bitwise functions `hf.bitwise`: the names of TensorFlow 1's `tf.bitwise`; re-exports only."""

from __future__ import annotations

from hpcflow.ops.math.bitwise_ops import (
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    invert,
    left_shift,
    right_shift,
)
from hpcflow.platform.exception_translation import guard_module

__all__ = ["bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift"]

guard_module(globals(), __all__)
