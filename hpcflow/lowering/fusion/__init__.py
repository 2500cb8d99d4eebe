"""Operator fusion: several nodes of a segment become one kernel.

A fused kernel is a generated loop, a library kernel with an epilogue, or a loop over tiles.
"""
