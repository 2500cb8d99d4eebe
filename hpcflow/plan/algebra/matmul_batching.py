"""MatMul batching: products with a common right operand become one product of more rows.

A network that is unrolled over time multiplies the same weights by a few rows at each step. Where
the rows of several steps are available at once, one product of all rows is several times as fast.
Sometimes this holds for some columns only: of `[x, h] W`, the `x` of all steps are known in
advance, `h` is not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from hpcflow.graph.static_shape import is_known, require_known, size_of, sizes_along
from hpcflow.plan.algebra.concat_order import common_permutation
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_builder import (
    ProgramBuilder,
    concat_widths,
    consumer_names,
    control_edge_nodes,
    requested_placement,
)

FEW_ROWS = 512  # products of more rows are near peak speed already
NOT_TRANSPOSED = {"transpose_a": False, "transpose_b": False}


def batch_products(program: Program) -> Program:
    """Replace independent products with a common right operand by one product.

    The rounding of sums may change.
    """
    for key in _product_groups(program):
        names = _product_groups(program).get(key, [])
        if len(names) < 2:
            continue
        cut, parts = _split_products(program, names)
        if parts and any(len(set(_chain_lengths(cut, part))) < len(part) for part in parts):
            for part in parts:
                cut = _batched(cut, part)
            program = cut
        else:
            program = _batched(program, names)
    return program


def _product_groups(program: Program) -> dict[Hashable, list[str]]:
    """Return the products of few rows, grouped by right operand and placement."""
    anchors, groups = control_edge_nodes(program), dict[Hashable, list[str]]()
    for node in program.nodes.values():
        if node.type != "MatMul" or node.name in anchors or node.attrs["transpose_a"]:
            continue
        shapes = [s.shape for s in (*(program.spec(r) for r in node.inputs), *node.specs)]
        if all(is_known(s) and len(require_known(s)) == 2 and size_of(s) for s in shapes):
            if require_known(shapes[0])[0] <= FEW_ROWS:
                key = node.inputs[1], node.attrs["transpose_b"], requested_placement(node)
                groups.setdefault(key, []).append(node.name)
    return {key: names for key, names in groups.items() if len(names) > 1}


# -- independent products


def _chain_lengths(program: Program, names: Sequence[str]) -> list[int]:
    """Return the length of the longest chain of group members that ends at each member.

    Members of one level are independent.
    """
    members, depth = set(names), dict[str, int]()
    for node in program.nodes.values():  # in topological order
        deep = max((depth[b] for b in node.before()), default=0)
        depth[node.name] = deep + (node.name in members)
    return [depth[name] for name in names]


def _batched(program: Program, names: Sequence[str]) -> Program:
    """Return the program with one product for each level."""
    by_level: dict[int, list[str]] = {}
    for name, level in zip(names, _chain_lengths(program, names), strict=True):
        by_level.setdefault(level, []).append(name)
    for alike in by_level.values():
        if len(alike) > 1:
            program = _single_product(program, alike)
    return program


def _single_product(program: Program, names: Sequence[str]) -> Program:
    nodes = [program.nodes[name] for name in names]
    places = common_permutation(
        program, [[n.inputs[0] for n in nodes], [Ref(n.name) for n in nodes]]
    )
    nodes = [nodes[i] for i in places]
    first, draft = nodes[0], ProgramBuilder(program)
    left = draft.add(first, "Concat", [n.inputs[0] for n in nodes], "left", axis=0)
    product = draft.add(first, "MatMul", [left, first.inputs[1]], "all", **first.attrs)
    start = 0
    for node in nodes:
        stop = start + require_known(node.specs[0].shape)[0]
        rows = draft.add(node, "Rows", [product], "rows", start=start, stop=stop)
        draft.put(rows, Ref(node.name))
        start = stop
    return draft.build()


# -- products in parts


class _ProductParts(NamedTuple):
    """Widths of the parts of a group of products, and the builder of one product's parts."""

    widths: tuple[int, ...]
    make: Callable[[ProgramBuilder, Node, Sequence[Ref]], list[Ref]]


def _split_products(program: Program, names: Sequence[str]) -> tuple[Program, list[list[str]]]:
    """Return the program with each product computed in parts, and the names for each part."""
    nodes = [program.nodes[name] for name in names]
    parts = _split_by_concat(program, nodes) or _split_by_weights(program, nodes)
    if parts is None:
        return program, []
    draft, starts = (
        ProgramBuilder(program),
        [sum(parts.widths[:i]) for i in range(len(parts.widths))],
    )
    rights = [
        draft.add(nodes[0], "Rows", [nodes[0].inputs[1]], "right", start=a, stop=a + w)
        for a, w in zip(starts, parts.widths, strict=True)
    ]
    products = [parts.make(draft, node, rights) for node in nodes]
    cut = draft.build()  # without dead parts
    there = [
        [ref.node for ref in part if ref.node in cut.nodes] for part in zip(*products, strict=True)
    ]
    return cut, there


def _split_by_concat(program: Program, nodes: Sequence[Node]) -> _ProductParts | None:
    """Split products of column-concatenated values into sums of products of these values."""
    lefts = [program.nodes[n.inputs[0].node] for n in nodes]
    if any(n.attrs["transpose_b"] for n in nodes):
        return None
    all_widths = {concat_widths(program, left) for left in lefts}
    (widths,) = all_widths if len(all_widths) == 1 else (None,)
    if widths is None:
        return None

    def make(draft: ProgramBuilder, node: Node, rights: Sequence[Ref]) -> list[Ref]:
        left = program.nodes[node.inputs[0].node]
        products = [
            draft.add(node, "MatMul", [a, b], "part", **NOT_TRANSPOSED)
            for a, b in zip(left.inputs, rights, strict=True)
        ]
        total = products[0]
        for product in products[1:]:
            total = draft.add(node, "Add", [total, product], "sum")
        draft.put(total, Ref(node.name))
        return products

    return _ProductParts(widths, make)


def _split_by_weights(program: Program, nodes: Sequence[Node]) -> _ProductParts | None:
    """Split products with transposed weights by the columns of their Split.

    Each part multiplies with rows of the weights.
    """
    used, splits = consumer_names(program), dict[str, Node]()
    for node in nodes:
        names = used.get(Ref(node.name), [])
        split = program.nodes.get(names[0]) if len(names) == 1 else None
        if split is None or split.row.splits != "split" or split.control:
            return None
        if split.attrs["axis"] not in (1, -1) or not node.attrs["transpose_b"]:
            return None
        splits[node.name] = split
    all_widths = {sizes_along(1, (s.shape for s in split.specs)) for split in splits.values()}
    (widths,) = all_widths if len(all_widths) == 1 else (None,)
    if widths is None:
        return None

    def make(draft: ProgramBuilder, node: Node, rights: Sequence[Ref]) -> list[Ref]:
        products = []
        for i, right in enumerate(rights):
            part = draft.add(node, "MatMul", [node.inputs[0], right], "part", **node.attrs)
            draft.put(part, Ref(splits[node.name].name, i))
            products.append(part)
        return products

    return _ProductParts(widths, make)
