"""The vocabulary: one family of ops a file. Imports leaves and graph; never comm or kernels."""

from hpcflow.ops import (
    array,
    broadcast,
    comm,
    control,
    conv,
    convolutions,
    initializers,
    join,
    math,
    matmul,
    nn,
    random,
    reduce,
    slicing,
    state,
    window,
)

__all__ = [
    "array",
    "broadcast",
    "comm",
    "control",
    "conv",
    "convolutions",
    "initializers",
    "join",
    "math",
    "matmul",
    "nn",
    "random",
    "reduce",
    "slicing",
    "state",
    "window",
]
