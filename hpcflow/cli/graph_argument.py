"""Graph argument of the command line: FILE.py:FUNCTION, or an ONNX model, for inference."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcflow.errors import LaunchError
from hpcflow.graph.graph import Tensor

NamedTensors = dict[str, Tensor]

HELP = (
    "function that builds the inference graph in the default graph and returns (inputs, outputs), "
    "each a tensor, a list, or a dict by name"
)


def build(spec: str) -> tuple[NamedTensors, NamedTensors]:
    """The inputs and outputs, by name, of the graph that FILE.py:FUNCTION builds.

    It builds in the default graph.
    Errors: LaunchError if the function does not exist or returns something else.
    """
    path, colon, name = spec.rpartition(":")
    if not colon or not os.path.isfile(path):
        raise LaunchError(
            f"--model {spec}: there is no file {path or spec!r}",
            hint="write --model FILE.py:FUNCTION",
        )
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    function = runpy.run_path(path, run_name="__model__").get(name)
    if not callable(function):
        raise LaunchError(f"{path} has no function {name!r}", hint="write --model FILE.py:FUNCTION")
    pair = function()
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise LaunchError(
            f"{name} of {path} returned {pair!r}", hint="return (inputs, outputs), tensors or dicts"
        )
    return _name_tensors(pair[0], spec), _name_tensors(pair[1], spec)


def _name_tensors(nodes: Any, spec: str) -> NamedTensors:
    if isinstance(nodes, Tensor):
        nodes = [nodes]
    if isinstance(nodes, Sequence):
        nodes = {getattr(getattr(t, "op", None), "name", str(i)): t for i, t in enumerate(nodes)}
    if not isinstance(nodes, Mapping) or not all(isinstance(t, Tensor) for t in nodes.values()):
        raise LaunchError(f"--model {spec}: {nodes!r} is not a tensor or a dict of tensors")
    return dict(nodes)


def is_onnx(path: str) -> bool:
    """Whether the path is that of an ONNX model."""
    return Path(path).suffix == ".onnx"
