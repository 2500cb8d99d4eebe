"""If, Loop and Scan: the branch that is taken, and loops of a known number of rounds, unrolled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcflow.graph.graph import Tensor
from hpcflow.onnx.node import Node
from hpcflow.onnx.table import imports
from hpcflow.ops.array import constant
from hpcflow.ops.join import stack, unstack

MOST_ROUNDS = 10_000  # of a loop that is unrolled


@imports("If")
def _if(node: Node, condition: Tensor) -> Sequence[Tensor]:
    taken = bool(node.value(condition, "the condition").reshape(()))
    return node.body(node.attr("then_branch" if taken else "else_branch"), [])


@imports("Loop")
def _loop(
    node: Node, most: Tensor | None, condition: Tensor | None, *carried: Tensor
) -> Sequence[Tensor]:
    body = node.attr("body")
    states, made = list(carried), []
    rounds = MOST_ROUNDS if most is None else int(node.value(most, "the number of rounds"))
    goes_on = constant(True) if condition is None else condition
    for i in range(rounds):
        if not node.value(goes_on, "the condition").reshape(()):
            break
        goes_on, *outputs = node.body(body, [constant(np.int64(i)), goes_on, *states])
        states = outputs[: len(carried)]
        made.append(outputs[len(carried) :])
    if not made and len(body.output) > 1 + len(carried):
        raise node.declined("a loop of no rounds has outputs of each round")
    return [*states, *(stack(column) for column in zip(*made, strict=True))]


@imports("Scan", since=9)
def _scan(node: Node, *inputs: Tensor) -> Sequence[Tensor]:
    body, count = node.attr("body"), node.attr("num_scan_inputs")
    states, given = list(inputs[:-count]), inputs[-count:]
    outputs = len(body.output) - len(states)
    into, out = (node.attr(f"scan_{w}_directions") for w in ("input", "output"))
    axes = node.attr("scan_input_axes", [0] * count)
    columns = [unstack(x, axis=axis) for x, axis in zip(given, axes, strict=True)]
    columns = [_turned(c, into, i) for i, c in enumerate(columns)]
    made = []
    for row in zip(*columns, strict=True):
        results = node.body(body, [*states, *row])
        states = results[: len(states)]
        made.append(results[len(states) :])
    places = node.attr("scan_output_axes", [0] * outputs)
    scanned = [_turned(list(c), out, i) for i, c in enumerate(zip(*made, strict=True))]
    return [*states, *(stack(c, axis) for c, axis in zip(scanned, places, strict=True))]


def _turned(column: list[Tensor], directions: Sequence[int] | None, index: int) -> list[Tensor]:
    """The steps of one input or output, backwards if its direction is 1."""
    return column[::-1] if directions and directions[index] else column


@imports("Scan", since=8)
def _batched_scan(node: Node, lengths: Tensor | None, *inputs: Tensor) -> Sequence[Tensor]:
    """Opset 8: each sample of the batch is scanned by itself."""
    if lengths is not None:
        raise node.declined("sequences of differing lengths")
    samples = zip(*(unstack(x) for x in inputs), strict=True)
    made = [_scan(node, *sample) for sample in samples]
    return [stack(column) for column in zip(*made, strict=True)]
