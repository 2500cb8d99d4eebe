"""Loop accumulation hoisting: a sum of products in a loop becomes one product behind it.

The backward loop of a recurrent network adds X_t^T G_t at each step t to the gradient of the
weights, and the forward loop saves X_t. This pass pushes the rows of X_t and G_t on a list instead,
and computes one product of all rows behind the loop. If the loop also adds up the rows of G_t, the
gradient of the bias, they are added up behind it, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from hpcflow.graph.static_shape import is_known, require_known
from hpcflow.ops.control_flow.tensor_list_ops import LIST
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_builder import ProgramBuilder, consumer_names, control_edge_nodes
from hpcflow.plan.ir.program_rewriting import (
    eliminate_dead_nodes,
    sorted_program,
    substitute_values,
)


def hoist_loop_sums(program: Program) -> Program:
    """Compute one product behind each loop for each sum of products in it.

    The rounding of sums changes. During the loop the list holds X_t, which is saved anyway, and
    G_t: as many extra elements as the G_t of all steps have.
    """
    for name in list(program.nodes):
        node = program.nodes.get(name)
        if node is not None and node.row.control_flow == "loop":
            for loop_sum in _loop_sums(node):
                program = _with_product_after(program, name, loop_sum)
    return program


class _LoopSum(NamedTuple):
    """Variable `slot` of a loop, fed as `feed`, to which the body adds `product`.

    To the variables `row_sums` it adds the sum of the rows of the product's second operand.
    """

    slot: int
    feed: str
    product: Node
    row_sums: tuple[int, ...]


def _loop_sums(loop: Node) -> list[_LoopSum]:
    """Return the loop variables that only accumulate products of saved rows."""
    body, products, row_sums = loop.attrs["body"], [], dict[Ref, list[int]]()
    for slot, feed, addend in _accumulators(loop):
        if addend.type == "MatMul" and _is_worth_hoisting(body, addend):
            products.append((slot, feed, addend))
        elif _adds_rows(body, addend):
            row_sums.setdefault(addend.inputs[0], []).append(slot)
    return [
        _LoopSum(slot, feed, product, tuple(row_sums.pop(product.inputs[1], ())))
        for slot, feed, product in products
    ]


def _accumulators(loop: Node) -> Iterator[tuple[int, str, Node]]:
    """Yield the loop variables to which the body only adds: slot, feed and the node added."""
    body, used = loop.attrs["body"], consumer_names(loop.attrs["body"])
    anchors = control_edge_nodes(body)
    for feed, slot in zip(body.feeds, loop.attrs["body_feeds"], strict=True):
        if slot >= len(loop.specs) or slot in loop.attrs["cond_feeds"]:
            continue
        total = body.nodes[body.fetches[slot].node]
        if (
            total.name in anchors
            or total.type != "Add"
            or Ref(feed) not in total.inputs
            or len(used[Ref(feed)]) > 1
        ):
            continue
        addend = next((ref for ref in total.inputs if ref != Ref(feed)), None)
        if addend is not None and len(used[addend]) == len(used[Ref(total.name)]) == 1:
            node = body.nodes[addend.node]
            if node.specs[addend.index][:2] == body.spec(Ref(feed))[:2]:
                yield slot, feed, node


def _adds_rows(body: Program, node: Node) -> bool:
    """Return whether a node adds up the rows of a matrix."""
    if node.type not in ("Sum", "SumToShape") or len(node.inputs) > 1 or node.control:
        return False
    shape, result = body.spec(node.inputs[0]).shape, node.specs[0].shape
    if shape is None or len(shape) != 2 or result != shape[1:]:
        return False
    return node.type == "SumToShape" or tuple(np.atleast_1d(node.attrs["axis"])) in ((0,), (-2,))


def _is_worth_hoisting(body: Program, product: Node) -> bool:
    """Return whether to hoist X^T G: X is saved on the device, and copies cost less than sums."""
    if not product.attrs["transpose_a"] or product.attrs["transpose_b"] or product.control:
        return False
    saved = body.nodes[product.inputs[0].node]
    if saved.type != "ListPop" or saved.attrs["host"]:
        return False
    left, right = (body.spec(ref).shape or () for ref in product.inputs)
    if len(left) != 2 or len(right) != 2 or not is_known((left[1], right[1])):
        return False
    n, (rows, columns) = left[0], require_known((left[1], right[1]))
    return n is None or n * (rows + columns) <= 2 * rows * columns


def _with_product_after(program: Program, name: str, loop_sum: _LoopSum) -> Program:
    """Return the program with a list of operands in the loop and their product behind the loop."""
    loop, product = program.nodes[name], loop_sum.product
    draft, like = ProgramBuilder(program), product.but(name=name)
    begin = draft.add(like, "ListEmpty", [], "rows")
    joined = []
    for k, ref in enumerate(product.inputs):
        dtype, shape, *_ = loop.attrs["body"].spec(ref)
        attrs = {"dtype": dtype, "shape": (None, *shape[1:]), "first": k, "of": 2}
        joined.append(draft.add(like, "ListRows", [begin], "all", **attrs))
    total = draft.add(like, "MatMul", joined, "product", **product.attrs)
    totals = {loop_sum.slot: total}
    for slot in loop_sum.row_sums:
        totals[slot] = draft.add(like, "Sum", joined[1:], "rows", axis=(0,), keepdims=False)
    for slot, total in totals.items():
        first = loop.inputs[slot]
        if not _is_zero(program.nodes[first.node]):
            totals[slot] = draft.add(like, "Add", [first, total], "sum")
    lists = {ref.node: Ref(name, loop_sum.slot) for ref in joined}
    rewired = substitute_values(program, {Ref(name, k): total for k, total in totals.items()})
    loop = rewired.nodes[name]
    changed = loop.but(
        inputs=_replace_item(loop.inputs, loop_sum.slot, begin),
        attrs={
            **loop.attrs,
            "body": _with_saved_operands(loop.attrs["body"], loop_sum),
            "made": _replace_item(loop.attrs["made"], loop_sum.slot, tuple(LIST[:2])),
        },
        specs=_replace_item(loop.specs, loop_sum.slot, LIST),
    )
    new = {
        key: node.but(inputs=(lists[key],)) if key in lists else node
        for key, node in draft.nodes.items()
        if key not in program.nodes
    }
    return sorted_program(
        eliminate_dead_nodes(rewired.but(nodes={**rewired.nodes, **new, name: changed}))
    )


def _with_saved_operands(body: Program, loop_sum: _LoopSum) -> Program:
    """Return the body with the operands of the product pushed on a list."""
    draft, feed = ProgramBuilder(body), body.nodes[loop_sum.feed]
    attrs = {"dtype": LIST.dtype, "shape": LIST.shape}
    draft.nodes[feed.name] = feed.but(attrs=attrs, specs=(LIST,))
    list_ref = Ref(feed.name)
    for ref in loop_sum.product.inputs:
        list_ref = draft.add(loop_sum.product, "ListPush", [list_ref, ref], "push", host=False)
    fetches = _replace_item(body.fetches, loop_sum.slot, list_ref)
    return sorted_program(eliminate_dead_nodes(body.but(nodes=draft.nodes, fetches=fetches)))


def _is_zero(node: Node) -> bool:
    return node.row.source == "fill" and not node.inputs and node.attrs["value"] == 0


def _replace_item(items: tuple[Any, ...], index: int, item: Any) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])
