"""Loads all op families: importing this module fills the op table.

Ops are in modules named `NAME_ops`, which are found in the folders of the families, and in the
modules that are imported here by name.
"""

from __future__ import annotations

import importlib
import pkgutil

import hpcflow.ops
from hpcflow.ops.array import gather_nd_scatter_nd
from hpcflow.ops.control_flow import cond_while, control_dependencies, tensor_array
from hpcflow.ops.data_flow import conditional_accumulators, file_readers
from hpcflow.ops.random import shuffle_multinomial

__all__ = [
    "cond_while",
    "conditional_accumulators",
    "control_dependencies",
    "file_readers",
    "gather_nd_scatter_nd",
    "shuffle_multinomial",
    "tensor_array",
]

for _module in pkgutil.walk_packages(hpcflow.ops.__path__, "hpcflow.ops."):
    if _module.name.endswith("_ops") and _module.name != __name__:
        importlib.import_module(_module.name)
