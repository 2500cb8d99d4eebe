"""Importing this fills the kernel table."""

from hpcflow.kernels import array, math, nn, random, reduce, slicing, state

__all__ = ["array", "math", "nn", "random", "reduce", "slicing", "state"]
