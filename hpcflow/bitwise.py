"""`hf.bitwise`: the names of TensorFlow 1's `tf.bitwise`; re-exports only."""

from __future__ import annotations

from hpcflow.guard import guard_module
from hpcflow.ops.bits import (
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    invert,
    left_shift,
    right_shift,
)

__all__ = ["bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift"]

guard_module(globals(), __all__)
