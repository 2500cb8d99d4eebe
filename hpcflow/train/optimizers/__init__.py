"""Optimizers: library code over ordinary operations, one per file; `optimizer` is the base."""
