"""Optimizers, library code over ordinary operations: one idea a file, `base` first."""
