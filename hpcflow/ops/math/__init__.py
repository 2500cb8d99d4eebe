"""Math ops: elementwise arithmetic, reductions and special functions, with kernels."""
