"""Conditions, loops, TensorArrays, assertions and Python callbacks, with their kernels."""
