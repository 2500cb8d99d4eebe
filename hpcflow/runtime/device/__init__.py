"""Devices: kernels, memory, arenas and CUDA graphs of one device."""
