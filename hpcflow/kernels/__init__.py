"""Kernels: the registry (op, device kind) -> kernel; kernels of libraries and generated code."""
