"""Importing this fills the kernel table."""

from hpcflow.kernels import array, conv, math, nn, random, reduce, slicing, state

__all__ = ["array", "conv", "math", "nn", "random", "reduce", "slicing", "state"]
