"""Reduction reshaping: sums and broadcasts that a fused elementwise loop can compute.

Elementwise operations are fused to one loop over rows (`hpcflow.lowering.fusion`). The loop can end
in a sum of each row or of each column, and can take a scalar for all elements, without arrays in
between.
"""

from __future__ import annotations

import numpy as np

from hpcflow.graph.static_shape import is_known, normalize_axes, require_known, size_of
from hpcflow.plan.algebra.reshape_hoisting import by_element
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_builder import ProgramBuilder, control_edge_nodes

MIN_ELEMENTS = 1 << 12  # minimum of elements for a rewrite
BINARY_OPS = frozenset(
    "Add Maximum Minimum Mul RealDiv Sub".split()
)  # ops of two operands that broadcast


def reshape_reductions(program: Program) -> Program:
    """Sum in front of Reshapes, or by rows first, and use scalars without broadcasting them.

    The order of additions may change.
    """
    anchors, draft = control_edge_nodes(program), ProgramBuilder(program)
    for node in program.nodes.values():
        if node.name in anchors or not all(s.known for s in node.specs) or not node.inputs:
            continue
        replacement = (
            _reduce_columns(draft, node)
            or _reduce_rows(draft, node)
            or _use_scalar_operand(draft, node)
        )
        if replacement is not None:
            draft.put(replacement, Ref(node.name))
    return draft.build()


def _reduced_axes(draft: ProgramBuilder, node: Node) -> tuple[int, ...]:
    """Return the axes that a node sums over; empty if it sums nothing large."""
    if node.type not in ("Sum", "Mean"):
        return ()
    spec = draft.spec(node.inputs[0])
    if not is_known(spec.shape) or spec.dtype.kind != "f" or size_of(spec.shape) < MIN_ELEMENTS:
        return ()
    return normalize_axes(node.attrs["axis"], len(require_known(spec.shape)))


def _reduce_columns(draft: ProgramBuilder, node: Node) -> Ref | None:
    """Sum over the first axes of the input of a Reshape, instead of its output."""
    source, axes = draft.nodes[node.inputs[0].node], _reduced_axes(draft, node)
    if not axes or axes != tuple(range(len(axes))):
        return None
    if source.type != "Reshape" or source.control or node.attrs["keepdims"]:
        return None
    old, row = draft.spec(source.inputs[0]).shape, require_known(source.specs[0].shape)[len(axes) :]
    if not row or not is_known(old) or require_known(old)[-len(row) :] != row:
        return None
    first = tuple(range(len(require_known(old)) - len(row)))
    return draft.add(node, node.type, source.inputs[:1], "columns", axis=first, keepdims=False)


def _reduce_rows(draft: ProgramBuilder, node: Node) -> Ref | None:
    """Replace a sum or mean over all axes by the sum or mean of those of rows."""
    shape = draft.spec(node.inputs[0]).shape
    if not by_element(draft.nodes[node.inputs[0].node]) or shape is None or len(shape) < 2:
        return None
    if len(_reduced_axes(draft, node)) < len(shape) or shape[-1] == 1:
        return None
    keep = node.attrs["keepdims"]
    last = (len(shape) - 1,)
    rows = draft.add(node, node.type, node.inputs, "rows", axis=last, keepdims=keep)
    return draft.add(node, node.type, [rows], "all", axis=None, keepdims=keep)


def _use_scalar_operand(draft: ProgramBuilder, node: Node) -> Ref | None:
    """Replace the broadcast scalar operand of an elementwise operation by the scalar."""
    if node.type not in BINARY_OPS or size_of(node.specs[0].shape) < MIN_ELEMENTS:
        return None
    shape = node.specs[0].shape
    for i, ref in enumerate(node.inputs):
        number = _broadcast_scalar(draft, draft.nodes[ref.node], node)
        if number is not None and draft.spec(node.inputs[1 - i]).shape == shape:
            inputs = [number if j == i else operand for j, operand in enumerate(node.inputs)]
            return draft.add(node, node.type, inputs, "by_number", **node.attrs)
    return None


def _broadcast_scalar(draft: ProgramBuilder, spread: Node, like: Node) -> Ref | None:
    """Return the scalar that all elements of a node equal; None if there is none."""
    if spread.type not in ("SumGrad", "MeanGrad") or spread.control or not spread.specs[0].known:
        return None
    ref = spread.inputs[0]
    maker, spec = draft.nodes[ref.node], draft.spec(ref)
    if not is_known(spec.shape) or size_of(spec.shape) != 1:
        return None
    if spread.type == "SumGrad":
        return ref
    share = np.asarray(1 / size_of(spread.specs[0].shape), spec.dtype)
    if maker.row.source == "constant":
        return draft.add(like, "Const", [], "share", value=share * maker.attrs["value"])
    factor = draft.add(like, "Const", [], "share", value=share)
    return draft.add(like, "Mul", [ref, factor], "number")
