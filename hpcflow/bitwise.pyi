"""Made by tools/stubs.py."""

# ruff: noqa
# fmt: off
from hpcflow.ops.math.bitwise_ops import bitwise_and as bitwise_and
from hpcflow.ops.math.bitwise_ops import bitwise_or as bitwise_or
from hpcflow.ops.math.bitwise_ops import bitwise_xor as bitwise_xor
from hpcflow.ops.math.bitwise_ops import invert as invert
from hpcflow.ops.math.bitwise_ops import left_shift as left_shift
from hpcflow.ops.math.bitwise_ops import right_shift as right_shift
