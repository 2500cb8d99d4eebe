"""Operands of opset 6: attributes tell where the second one's axes stand in the first."""

from __future__ import annotations

from collections.abc import Sequence

from hpcflow.graph.graph import Tensor
from hpcflow.onnx.importers.onnx_node import Node
from hpcflow.ops.array.array_ops import reshape

NUMPY = 7  # the first opset whose broadcasting is NumPy's
BINARY = frozenset("Add And Div Equal Greater Less Mul Or Pow Sub Xor".split())


def aligned(node: Node, inputs: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """The operands of a node as NumPy broadcasts them."""
    if node.version >= NUMPY or len(inputs) != 2:
        return inputs
    first, second = inputs
    if first is None or second is None:
        return inputs
    if node.type in BINARY and node.attr("broadcast", 0) and node.has("axis"):
        rank = node.rank(first)
        return [first, _ending(node, second, rank - node.attr("axis") % rank)]
    if node.type == "PRelu" and node.known(second) != (1,):  # a slope for each channel
        return [first, _ending(node, second, max(1, node.rank(first) - 1))]
    return inputs


def _ending(node: Node, x: Tensor, rank: int) -> Tensor:
    """`x` with axes of size 1 behind its own, so that it has that rank."""
    shape = node.known(x)
    return reshape(x, [*shape, *[1] * (rank - len(shape))])
