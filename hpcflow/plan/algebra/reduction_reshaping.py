"""Sums and what is spread as the loop beside them can do them, without arrays in between.

What is computed element by element is one loop, over rows (`hpcflow.lowering.fusion`): it can end
in a
sum of each row or of each column, and take a number for all elements.
"""

from __future__ import annotations

import numpy as np

from hpcflow.graph.static_shape import is_known, known, normalize_axes, size_of
from hpcflow.plan.algebra.reshape_hoisting import BY_ELEMENT
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_builder import Draft, followed

LARGE = 1 << 12  # elements: it is not worth while for fewer
TWO = frozenset("Add Maximum Minimum Mul RealDiv Sub".split())  # operands, that are broadcast


def loop_ends(program: Program) -> Program:
    """The same values from sums in front of Reshapes, or of rows first, and numbers as they are.

    Sums may be added up in another order.
    """
    anchors, draft = followed(program), Draft(program)
    for node in program.nodes.values():
        if node.name in anchors or not all(s.known for s in node.specs) or not node.inputs:
            continue
        made = _by_columns(draft, node) or _by_rows(draft, node) or _of_number(draft, node)
        if made is not None:
            draft.put(made, Ref(node.name))
    return draft.done()


def _axes(draft: Draft, node: Node) -> tuple[int, ...]:
    """The axes that a node sums over; none if it sums nothing large."""
    if node.type not in ("Sum", "Mean"):
        return ()
    spec = draft.spec(node.inputs[0])
    if not is_known(spec.shape) or spec.dtype.kind != "f" or size_of(spec.shape) < LARGE:
        return ()
    return normalize_axes(node.attrs["axis"], len(known(spec.shape)))


def _by_columns(draft: Draft, node: Node) -> Ref | None:
    """The sum over the first axes of what is reshaped, in place of that over those that it has."""
    source, axes = draft.nodes[node.inputs[0].node], _axes(draft, node)
    if not axes or axes != tuple(range(len(axes))):
        return None
    if source.type != "Reshape" or source.control or node.attrs["keepdims"]:
        return None
    old, row = draft.spec(source.inputs[0]).shape, known(source.specs[0].shape)[len(axes) :]
    if not row or not is_known(old) or known(old)[-len(row) :] != row:
        return None
    first = tuple(range(len(known(old)) - len(row)))
    return draft.add(node, node.type, source.inputs[:1], "columns", axis=first, keepdims=False)


def _by_rows(draft: Draft, node: Node) -> Ref | None:
    """The sum, or mean, of those of rows, in place of that of all."""
    shape = draft.spec(node.inputs[0]).shape
    if draft.nodes[node.inputs[0].node].type not in BY_ELEMENT or shape is None or len(shape) < 2:
        return None
    if len(_axes(draft, node)) < len(shape) or shape[-1] == 1:
        return None
    keep = node.attrs["keepdims"]
    last = (len(shape) - 1,)
    rows = draft.add(node, node.type, node.inputs, "rows", axis=last, keepdims=keep)
    return draft.add(node, node.type, [rows], "all", axis=None, keepdims=keep)


def _of_number(draft: Draft, node: Node) -> Ref | None:
    """An operation of an array and a number, in place of one of an array and a number spread."""
    if node.type not in TWO or size_of(node.specs[0].shape) < LARGE:
        return None
    shape = node.specs[0].shape
    for i, ref in enumerate(node.inputs):
        number = _number(draft, draft.nodes[ref.node], node)
        if number is not None and draft.spec(node.inputs[1 - i]).shape == shape:
            inputs = [number if j == i else other for j, other in enumerate(node.inputs)]
            return draft.add(node, node.type, inputs, "by_number", **node.attrs)
    return None


def _number(draft: Draft, spread: Node, like: Node) -> Ref | None:
    """The number that all elements of a node are; None if they are not all alike."""
    if spread.type not in ("SumGrad", "MeanGrad") or spread.control or not spread.specs[0].known:
        return None
    ref = spread.inputs[0]
    maker, given = draft.nodes[ref.node], draft.spec(ref)
    if not is_known(given.shape) or size_of(given.shape) != 1:
        return None
    if spread.type == "SumGrad":
        return ref
    share = np.asarray(1 / size_of(spread.specs[0].shape), given.dtype)
    if maker.type == "Const":
        return draft.add(like, "Const", [], "share", value=share * maker.attrs["value"])
    factor = draft.add(like, "Const", [], "share", value=share)
    return draft.add(like, "Mul", [ref, factor], "number")
