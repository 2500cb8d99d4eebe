"""Importing this fills the kernel table."""

from hpcflow.kernels import (
    array,
    conv,
    host,
    math,
    nn,
    pool,
    random,
    reduce,
    slicing,
    state,
)

__all__ = [
    "array",
    "conv",
    "host",
    "math",
    "nn",
    "pool",
    "random",
    "reduce",
    "slicing",
    "state",
]
