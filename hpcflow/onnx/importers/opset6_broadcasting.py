"""ONNX opset 6 broadcasting: attributes align the second operand's axes with the first's."""

from __future__ import annotations

from collections.abc import Sequence

from hpcflow.graph.graph import Tensor
from hpcflow.onnx.importers.onnx_node import OnnxNode
from hpcflow.ops.array.array_ops import reshape

NUMPY = 7  # the first opset with NumPy broadcasting
BINARY = frozenset("Add And Div Equal Greater Less Mul Or Pow Sub Xor".split())


def aligned(node: OnnxNode, inputs: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """The operands of a node, reshaped for NumPy broadcasting."""
    if node.version >= NUMPY or len(inputs) != 2:
        return inputs
    first, second = inputs
    if first is None or second is None:
        return inputs
    if node.type in BINARY and node.attr("broadcast", 0) and node.has("axis"):
        rank = node.rank(first)
        return [first, _ending(node, second, rank - node.attr("axis") % rank)]
    if node.type == "PRelu" and node.static_shape(second) != (1,):  # one slope per channel
        return [first, _ending(node, second, max(1, node.rank(first) - 1))]
    return inputs


def _ending(node: OnnxNode, x: Tensor, rank: int) -> Tensor:
    """`x` with trailing axes of size 1, up to the given rank."""
    shape = node.static_shape(x)
    return reshape(x, [*shape, *[1] * (rank - len(shape))])
