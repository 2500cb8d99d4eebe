"""A device: its kernels, memory, arenas and CUDA graphs."""
