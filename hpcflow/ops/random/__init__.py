"""Random ops: counter-based random numbers and distributions, with kernels."""
