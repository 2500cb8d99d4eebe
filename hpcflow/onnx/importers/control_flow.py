"""ONNX import of If, Loop and Scan: as control flow, or unrolled if the iterations are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.graph.dtypes import int32, int64
from hpcflow.graph.function_body import FunctionBody
from hpcflow.graph.graph import Tensor, get_default_graph
from hpcflow.graph.static_shape import Spec
from hpcflow.onnx.importers.constant_propagation import UnknownValueError
from hpcflow.onnx.importers.importer_table import imports
from hpcflow.onnx.importers.onnx_node import OnnxNode
from hpcflow.ops.array.array_ops import constant, reshape
from hpcflow.ops.array.concat_split_ops import stack, unstack
from hpcflow.ops.control_flow import cond_while
from hpcflow.ops.control_flow.tensor_array import TensorArray
from hpcflow.ops.math import arithmetic_ops

MOST_UNROLLED = 64  # iterations, if unrolling is optional
MOST_ROUNDS = 10_000  # iterations, if unrolling is necessary


@imports("If")
def _if(node: OnnxNode, condition: Tensor) -> Sequence[Tensor]:
    """The taken branch if the condition is known; otherwise a conditional."""
    static_condition = node.maybe(condition, "the condition")
    branches = [node.attr("then_branch"), node.attr("else_branch")]
    if static_condition is not None:
        return node.body(branches[0 if static_condition.reshape(()) else 1], [])
    yes, no = (lambda graph=graph: node.body(graph, []) for graph in branches)
    outputs: list[Tensor] = cond_while.cond(reshape(condition, []), yes, no, strict=True)
    return outputs


@imports("Loop")
def _loop(
    node: OnnxNode, max_trip_count: Tensor | None, condition: Tensor | None, *carried: Tensor
) -> Sequence[Tensor]:
    """Unrolled if the number of iterations is known and small; otherwise a while loop."""
    rounds = (
        None if max_trip_count is None else node.maybe(max_trip_count, "the number of iterations")
    )
    count = None if rounds is None else int(rounds.reshape(()))
    goes_on = constant(True) if condition is None else reshape(condition, [])
    is_known = node.maybe(goes_on, "the condition") is not None
    if count is not None and count <= MOST_UNROLLED and is_known:
        unrolled = _unrolled(node, count, goes_on, carried)
        if unrolled is not None:
            return unrolled
    try:
        return _looped(node, max_trip_count, goes_on, carried)
    except UnknownValueError:  # the body needs a value in each iteration: unroll
        count = (
            MOST_ROUNDS
            if max_trip_count is None
            else int(node.value(max_trip_count, "the number of iterations"))
        )
        unrolled = _unrolled(node, count, goes_on, carried)
        if unrolled is None:
            raise
        return unrolled


def _unrolled(
    node: OnnxNode, count: int, goes_on: Tensor, carried: Sequence[Tensor]
) -> list[Tensor] | None:
    """The unrolled iterations; None if a condition is unknown."""
    body, states = node.attr("body"), list(carried)
    rows: list[list[Tensor]] = []
    for i in range(count):
        static_condition = node.maybe(goes_on, "the condition")
        if static_condition is None:
            return None
        if not static_condition.reshape(()):
            break
        goes_on, *outputs = node.body(body, [constant(np.int64(i)), goes_on, *states])
        states = outputs[: len(carried)]
        rows.append(outputs[len(carried) :])
    if not rows and len(body.output) > 1 + len(carried):
        raise node.declined("a loop without iterations cannot have scan outputs")
    return [*states, *(stack(column) for column in zip(*rows, strict=True))]


def _looped(
    node: OnnxNode, max_trip_count: Tensor | None, goes_on: Tensor, carried: Sequence[Tensor]
) -> list[Tensor]:
    """A while_loop with variables iteration, condition, states and output arrays."""
    body, states = node.attr("body"), len(carried)
    limit = (
        constant(np.int64(np.iinfo(np.int64).max))
        if max_trip_count is None
        else reshape(max_trip_count, [])
    )
    after = _round(node, goes_on, carried)
    columns = [TensorArray(s.dtype, size=0, dynamic_size=True) for s in after[states:]]
    shapes = [
        cond_while.common_shape(t.shape, s.shape) for t, s in zip(carried, after, strict=False)
    ]

    def once(i: Tensor, go: Tensor, *rest: Any) -> list[Any]:
        go, *outputs = node.body(body, [i, go, *rest[:states]])
        arrays = zip(rest[states:], outputs[states:], strict=True)
        written = [array.write(arithmetic_ops.cast(i, int32), value) for array, value in arrays]
        return [arithmetic_ops.add(i, np.int64(1)), reshape(go, []), *outputs[:states], *written]

    loop_vars = cond_while.while_loop(
        lambda i, go, *rest: arithmetic_ops.logical_and(go, arithmetic_ops.less(i, limit)),
        once,
        [constant(np.int64(0)), goes_on, *carried, *columns],
        shape_invariants=[(), (), *shapes, *[None] * len(columns)],
    )
    return [*loop_vars[2 : 2 + states], *(array.stack() for array in loop_vars[2 + states :])]


def _round(node: OnnxNode, goes_on: Tensor, carried: Sequence[Tensor]) -> list[Spec]:
    """The next states and the outputs of one iteration of the body."""
    scratch = FunctionBody(get_default_graph(), "round")
    loop = [Spec(int64, ()), goes_on.spec, *(t.spec for t in carried)]
    with scratch.inside():
        params = [scratch.parameter(Spec(s.dtype, s.shape), "state") for s in loop]
        return [t.spec for t in node.body(node.attr("body"), params)[1:]]


@imports("Scan", since=9)
def _scan(node: OnnxNode, *inputs: Tensor) -> Sequence[Tensor]:
    body, count = node.attr("body"), node.attr("num_scan_inputs")
    states, scan_inputs = list(inputs[:-count]), inputs[-count:]
    outputs = len(body.output) - len(states)
    into, out = (node.attr(f"scan_{w}_directions") for w in ("input", "output"))
    axes = node.attr("scan_input_axes", [0] * count)
    columns = [unstack(x, axis=axis) for x, axis in zip(scan_inputs, axes, strict=True)]
    columns = [_turned(c, into, i) for i, c in enumerate(columns)]
    scan_outputs = []
    for row in zip(*columns, strict=True):
        results = node.body(body, [*states, *row])
        states = results[: len(states)]
        scan_outputs.append(results[len(states) :])
    places = node.attr("scan_output_axes", [0] * outputs)
    scanned = [_turned(list(c), out, i) for i, c in enumerate(zip(*scan_outputs, strict=True))]
    return [*states, *(stack(c, axis) for c, axis in zip(scanned, places, strict=True))]


def _turned(column: list[Tensor], directions: Sequence[int] | None, index: int) -> list[Tensor]:
    """The elements of one input or output, in reverse order if its direction is 1."""
    return column[::-1] if directions and directions[index] else column


@imports("Scan", since=8)
def _batched_scan(node: OnnxNode, lengths: Tensor | None, *inputs: Tensor) -> Sequence[Tensor]:
    """Scan of opset 8: scans each sample of the batch separately."""
    if lengths is not None:
        raise node.declined("sequences of differing lengths")
    samples = zip(*(unstack(x) for x in inputs), strict=True)
    sample_outputs = [_scan(node, *sample) for sample in samples]
    return [stack(column) for column in zip(*sample_outputs, strict=True)]
