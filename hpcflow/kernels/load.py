"""Importing this fills the kernel table."""

from hpcflow.kernels import (
    array,
    complex,
    conv,
    elementwise,
    gamma,
    host,
    math,
    nn,
    pool,
    random,
    reduce,
    scatter,
    slicing,
    special,
    state,
)

__all__ = [
    "array",
    "complex",
    "conv",
    "elementwise",
    "gamma",
    "host",
    "math",
    "nn",
    "pool",
    "random",
    "reduce",
    "scatter",
    "slicing",
    "special",
    "state",
]
