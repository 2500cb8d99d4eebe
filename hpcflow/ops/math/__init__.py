"""Elementwise arithmetic, reductions and special functions, with their kernels."""
