"""Ops on shapes, slices, indices and order of elements, with their kernels."""
