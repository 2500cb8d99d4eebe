"""ONNX import of random numbers: hpcflow's generators, with the seed of the model or graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcflow.graph.dtypes import float32
from hpcflow.graph.graph import Tensor
from hpcflow.onnx import element_types
from hpcflow.onnx.importers.importer_table import imports
from hpcflow.onnx.importers.onnx_node import OnnxNode
from hpcflow.ops.array.array_ops import shape
from hpcflow.ops.math import arithmetic_ops
from hpcflow.ops.random.random_ops import random_normal, random_uniform


def _seed(node: OnnxNode) -> int | None:
    return int(node.attr("seed")) if node.has("seed") else None


def _normal(node: OnnxNode, sizes: Any, dtype: Any) -> Tensor:
    mean, scale = node.attr("mean", 0.0), node.attr("scale", 1.0)
    return random_normal(sizes, mean, scale, dtype, _seed(node))


def _uniform(node: OnnxNode, sizes: Any, dtype: Any) -> Tensor:
    low, high = node.attr("low", 0.0), node.attr("high", 1.0)
    return random_uniform(sizes, low, high, dtype, _seed(node))


def _draw(name: str, function: Callable[[OnnxNode, Any, Any], Tensor]) -> None:
    @imports(name)
    def of_shape(node: OnnxNode) -> Tensor:
        dtype = element_types.from_onnx(node.attr("dtype", 1))
        return function(node, list(node.attr("shape")), dtype)

    @imports(f"{name}Like")
    def like(node: OnnxNode, x: Tensor) -> Tensor:
        dtype = element_types.from_onnx(node.attr("dtype")) if node.has("dtype") else x.dtype
        real = dtype if dtype.kind == "f" else float32
        return arithmetic_ops.cast(function(node, shape(x), real), dtype)


_draw("RandomNormal", _normal)
_draw("RandomUniform", _uniform)
