"""Dataflow graph: tensors, operations, shapes, dtypes, and the op registry.

Imports only errors, platform and numpy.
"""
