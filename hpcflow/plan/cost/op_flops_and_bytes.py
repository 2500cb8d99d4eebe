"""FLOPs and bytes of a node, from the cost facts in the row of its op.

`hpcflow/ops/flop_counts.py` has the formulas and their sources. Bytes are the minimum that must
move: each input is read once and each output written once. For large tables only the used rows
count. An update in place counts as a read and a write. Work is None where sizes are known only at
run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpcflow.codegen.fused_loop_ir import (
    COLUMN,
    COLUMN_INDEX,
    COLUMN_SUM,
    FULL,
    JOIN,
    JOINED,
    NUMBER,
    OF_ROWS,
    ONE,
    ROUND,
    ROW,
)
from hpcflow.graph.dtypes import OPAQUE
from hpcflow.graph.op_registry import MatmulSize
from hpcflow.graph.static_shape import Spec, size_of
from hpcflow.plan.ir.program import Node, Partition


class NodeCost(NamedTuple):
    """FLOPs, and bytes that are read or written."""

    flops: int
    nbytes: int


def node_cost(node: Node, inputs: Sequence[Spec]) -> NodeCost | None:
    """Return the work of `node` on `inputs`; a handle has the spec of its variable.

    None if a size is unknown, or if the formula does not cover this form of the op.
    """
    if node.row.work in ("nothing", "start"):
        return NodeCost(0, 0)
    if not all(spec.known for spec in (*inputs, *node.specs) if spec.dtype not in OPAQUE):
        return None
    try:
        return NodeCost(round(_flops(node, inputs)), round(_bytes_moved(node, inputs)))
    except (IndexError, KeyError):
        return None  # a form of the op that its formula does not cover


def cost_input_specs(node: Node, part: Partition) -> list[Spec]:
    """Return the specs of the inputs of a node; for a handle the spec of its variable."""
    specs = []
    for ref in node.inputs:
        source = part.nodes[ref.node]
        if source.row.variable == "handle":
            specs.append(Spec(source.attrs["dtype"], tuple(source.attrs["shape"])))
        else:
            specs.append(source.specs[ref.index])
    return specs


def matmul_size(node: Node, inputs: Sequence[Spec]) -> MatmulSize | None:
    """Return the size of a matrix product, or of a convolution as windows times filters.

    None for other nodes and where sizes are known only at run time.
    """
    contraction = node.row.contraction
    if contraction is None or not all(spec.known for spec in (*inputs, *node.specs)):
        return None
    return contraction(node, inputs)


def _flops(node: Node, inputs: Sequence[Spec]) -> float:
    row = node.row
    if row.work or any(spec.dtype.kind in "OSU" for spec in node.specs):
        return 0
    if row.flops is not None:
        return row.flops(node, inputs)
    if node.type == "Fused":
        return _fused_flops(node, inputs)
    if row.by_rows and row.writes:
        return _elements(inputs[2])
    # one per element of the largest value: the output of elementwise ops, the input of reductions
    sizes = [_elements(spec) for spec in (*inputs, *node.specs) if spec.dtype not in OPAQUE]
    return max(sizes, default=0)


def _bytes_moved(node: Node, inputs: Sequence[Spec]) -> float:
    row = node.row
    if row.by_rows and row.writes:
        indices, updates = inputs[1], inputs[2]  # rows are read, changed and written
        old = 0 if row.overwrites else updates.nbytes
        return indices.nbytes + old + 2 * updates.nbytes
    if row.nbytes is not None:
        return row.nbytes(node, inputs)
    outputs = sum(spec.nbytes for spec in node.specs)
    if row.work == "pick":
        return 2 * node.specs[0].nbytes + sum(spec.nbytes for spec in inputs[1:])
    written = sum(inputs[i].nbytes for i in row.writes)
    read = sum(spec.nbytes for spec in inputs)
    return outputs + written + (read - written if row.overwrites else read)


def _elements(spec: Spec) -> int:
    return size_of(spec.shape)


def _fused_flops(node: Node, inputs: Sequence[Spec]) -> float:
    """Count the operations of a `Fused` node; a row or column sum is one addition per element."""
    body, size = node.attrs["body"], node.attrs["size"]
    sizes = {FULL: size, ROW: size, COLUMN: size // (body.cols or size), ONE: 1, JOINED: size}
    values, count = [*inputs], 0.0
    for step in body.steps:
        summed = step.type in (*OF_ROWS, COLUMN_SUM)
        specs = [values[i] for i in step.inputs]
        dtype = specs[0].dtype if specs else np.dtype(np.float32)
        values.append(Spec(dtype, (sizes[step.mapping],)))
        step_node = Node(node.name, step.type, attrs=dict(step.attrs), specs=(values[-1],))
        if step.type not in (JOIN, NUMBER, COLUMN_INDEX, ROUND):
            count += size if summed else _flops(step_node, specs)
    return count
