"""Strided matrix products: products read transposed or sliced operands and write results in place.

In attention, Transposes, Splits and Concats between the heads and the whole arrays copy. A product
that takes matrices at any strides needs none of these copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hpcflow.graph.static_shape import Spec, is_known, require_known, size_of, sizes_along
from hpcflow.lowering.segments_between_waits import segment_by_node, split_segments, value_consumers
from hpcflow.lowering.strided_layout import (
    StridedLayout,
    c_order_layout,
    drop_unused_views,
    layout_of_view,
    transpose_axes,
)
from hpcflow.plan.ir.program import Node, Partition, Ref
from hpcflow.plan.ir.program_rewriting import replace_nodes

Serves = Callable[[Node, list[Spec]], bool]


def fuse_strided_products(part: Partition, serves: Serves) -> Partition:
    """The partition with `StridedMatMul` for products of batches of matrices that others rearrange.

    Only where `serves` says that a kernel better than the plain one computes the new node, given
    the specs of its inputs. Rounding may change.
    """
    products = [n for n in part.nodes.values() if n.type in ("MatMul", "Einsum")]
    if any(len(node.specs[0].shape or ()) > 2 for node in products):
        return _StridedMatMulRewriter(part, serves).run()
    return part


class ResultLayout(NamedTuple):
    """The nodes that only rearrange a product's result, and its layout in their output."""

    lay: StridedLayout | None  # of the matrices of the result; None: no strides describe it
    nodes: tuple[Node, ...]  # the last one has the rearranged value
    join: Node | None = None  # the node that concatenates the result with others


class _StridedMatMulRewriter:
    def __init__(self, part: Partition, serves: Serves) -> None:
        self.part, self.serves = part, serves
        self.users, self.home = value_consumers(part), segment_by_node(split_segments(part))
        self.followed = {c for node in part.nodes.values() for c in node.control}
        self.fetched = set(part.fetches)
        self.new: dict[str, Node] = {}
        self.values: dict[Ref, Ref] = {}
        self.replaced: dict[str, str] = {}

    def run(self) -> Partition:
        """Rewrite all products; products that are joined in one array first."""
        products = [n for n in self.part.nodes.values() if self.is_product(n)]
        ways = {n.name: self.result_layout(n) for n in products}
        joined: dict[str, list[Node]] = {}
        for node in products:
            if (join := ways[node.name].join) is not None:
                joined.setdefault(join.name, []).append(node)
        for name, nodes in joined.items():
            if len(nodes) != len(self.part.nodes[name].inputs) or not self.join(nodes, ways):
                ways.update({n.name: self.result_layout(n, join=False) for n in nodes})
        for node in products:
            if node.name not in self.new:
                self.make_strided(node, ways[node.name])
        return self.partition() if self.new else self.part

    def is_product(self, node: Node) -> bool:
        """Whether a node is a batched matrix product of static shape on a CPU."""
        if node.type not in ("MatMul", "Einsum") or "/cpu:" not in node.device:
            return False
        shapes = [spec.shape for spec in (*map(self.part.spec, node.inputs), *node.specs)]
        if not all(is_known(s) and size_of(s) and len(require_known(s)) > 2 for s in shapes):
            return False
        return node.type == "MatMul" or _is_matrices(node, [require_known(s) for s in shapes])

    # -- layouts of operands

    def operand(self, node: Node, i: int) -> tuple[Ref, StridedLayout | None]:
        """The value that a product reads as operand `i`, and the layout of its matrices in it."""
        ref = node.inputs[i]
        root, lay = layout_of_view(self.part, ref, node.device)
        matrix_lay = _matrix_layout(node, i, lay)
        if matrix_lay is None or lay.is_packed() or 1 not in matrix_lay.strides[-2:]:
            return ref, _matrix_layout(
                node, i, c_order_layout(require_known(self.part.spec(ref).shape))
            )
        return root, matrix_lay

    # -- layouts of results

    def result_layout(self, node: Node, join: bool = True) -> ResultLayout:
        """The longest chain of nodes after a product that only rearrange its result."""
        nodes = [node]
        while (after := self.only_user(nodes[-1], node)) is not None:
            if not after.row.joins:
                nodes.append(after)
                continue
            if join and after.inputs.count(Ref(nodes[-1].name)) == 1:
                lay = self.product_layout(_join_layout(after, nodes[-1], self.part), nodes)
                if lay is not None:
                    return ResultLayout(lay, tuple(nodes), after)
            break
        while len(nodes) > 1:
            lay = self.product_layout(
                c_order_layout(require_known(nodes[-1].specs[0].shape)), nodes
            )
            if lay is not None and any(n.type == "Transpose" for n in nodes):
                return ResultLayout(lay, tuple(nodes))
            nodes.pop()
        return ResultLayout(
            self.product_layout(c_order_layout(require_known(node.specs[0].shape)), nodes), (node,)
        )

    def product_layout(
        self, lay: StridedLayout | None, nodes: Sequence[Node]
    ) -> StridedLayout | None:
        """The layout of a product's matrices where the last node's output has the layout `lay`."""
        first = _source_layout(lay, nodes, self.part)
        matrix_lay = None if first is None else _matrix_layout(nodes[0], 2, first)
        return matrix_lay if matrix_lay is not None and 1 in matrix_lay.strides[-2:] else None

    def only_user(self, node: Node, product: Node) -> Node | None:
        """The only user of a value, if it rearranges or joins it on the product's device."""
        names = self.users.get(Ref(node.name), [])
        if len(names) != 1 or Ref(node.name) in self.fetched:
            return None
        after = self.part.nodes[names[0]]
        if not (_rearranges(after) or after.row.joins):
            return None
        if not after.row.joins and after.inputs[0] != Ref(node.name):  # a shape input
            return None
        if after.control or after.name in self.followed or after.device != product.device:
            return None
        if node is not product and node.name in self.followed:
            return None
        same = self.home.get(after.name) == self.home.get(product.name)
        return after if same and is_known(after.specs[0].shape) else None

    # -- new nodes

    def strided_product(
        self, node: Node, result: ResultLayout, target: Node, into: Sequence[Ref] = ()
    ) -> Node | None:
        """The product that writes into the value of `target`; None if no kernel serves it."""
        (a, lay_a), (b, lay_b), lay = self.operand(node, 0), self.operand(node, 1), result.lay
        if lay_a is None or lay_b is None or lay is None:
            return None
        if lay.strides[-1] != 1:  # column-major: compute the transposed product
            (a, lay_a), (b, lay_b), lay = (b, lay_b.swapped()), (a, lay_a.swapped()), lay.swapped()
        lays = tuple(map(tuple, (lay_a, lay_b, lay)))
        attrs = {"lays": lays, "shape": target.specs[0].shape, "inplace": (2,) if into else ()}
        inputs = (a, b, *into)
        strided = node.but(type="StridedMatMul", inputs=inputs, attrs=attrs, specs=target.specs)
        specs = [self.part.spec(a), self.part.spec(b), *(target.specs[0] for _ in into)]
        return strided if self.serves(strided, specs) else None

    def make_strided(self, node: Node, result: ResultLayout) -> None:
        """Make a product strided if that saves a copy."""
        reads = any(self.operand(node, i)[0] != node.inputs[i] for i in (0, 1))
        if not reads and len(result.nodes) == 1 and node.type == "MatMul":
            return
        if (strided := self.strided_product(node, result, result.nodes[-1])) is not None:
            self.put([strided], result.nodes[1:])

    def join(self, products: list[Node], results: dict[str, ResultLayout]) -> bool:
        """Make products run one after the other, each writing its slice of their joined array."""
        join = results[products[0].name].join
        assert join is not None
        new: list[Node] = []
        for node in products:
            into = [Ref(previous.name) for previous in new[-1:]]
            strided = self.strided_product(node, results[node.name], join, into)
            if strided is None:
                return False
            new.append(strided)
        gone = [n for node in products for n in results[node.name].nodes[1:]]
        self.put(new, [*gone, join])
        return True

    def put(self, new: Sequence[Node], replaced: Sequence[Node]) -> None:
        """Register new nodes; the last one computes the value of the last node of `replaced`."""
        self.new.update({node.name: node for node in new})
        if replaced:
            self.values[Ref(replaced[-1].name)] = Ref(new[-1].name)
        self.replaced.update({node.name: new[-1].name for node in replaced})

    def partition(self) -> Partition:
        """The new partition, without the nodes that only the products used."""
        part = replace_nodes(self.part, self.new, self.values, self.replaced)
        return drop_unused_views(part, {ref.node for ref in self.users})


def _einsum_labels(node: Node) -> tuple[list[str], list[str]]:
    """The terms of an Einsum, the result last; its labels: of batch, rows, contraction, columns."""
    inputs, _, out = node.attrs["equation"].partition("->")
    terms = [*inputs.split(","), out]
    a, b = terms[:2]
    rows = "".join(c for c in out if c in a and c not in b)
    columns = "".join(c for c in out if c in b and c not in a)
    joint = "".join(c for c in out if c in a and c in b)
    return terms, [joint, rows, "".join(c for c in a if c not in out), columns]


def _is_matrices(node: Node, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether an Einsum is a batched matrix product."""
    if len(shapes) != 3 or "." in node.attrs["equation"]:
        return False
    terms, (joint, rows, inner, columns) = _einsum_labels(node)
    expected = [joint + rows + inner, joint + inner + columns, joint + rows + columns]
    if not (joint and rows and inner and columns):
        return False
    if any(sorted(t) != sorted(w) for t, w in zip(terms, expected, strict=True)):
        return False
    pairs = zip("".join(terms), (n for shape in shapes for n in shape), strict=True)
    return len(set(pairs)) == len(set("".join(terms)))  # no label is broadcast


def _rearranges(node: Node) -> bool:
    """Whether a node may rearrange a product's result."""
    return node.row.view == "same_order" or node.type == "Transpose"


def _matrix_layout(node: Node, i: int, lay: StridedLayout) -> StridedLayout | None:
    """The layout of the matrices of operand `i` of a product; 2 is its result."""
    if node.type == "MatMul":
        turned = i < 2 and node.attrs["transpose_b" if i else "transpose_a"]
        return lay.swapped() if turned else lay
    terms, (joint, rows, inner, columns) = _einsum_labels(node)
    pair = [(rows, inner), (inner, columns), (rows, columns)][i]
    size = dict(zip(terms[i], lay.sizes, strict=True))
    turned = lay.transposed([terms[i].index(c) for c in joint + pair[0] + pair[1]])
    flat = (math.prod(size[c] for c in labels) for labels in pair)
    return turned.reshaped([*(size[c] for c in joint), *flat])


def _source_layout(
    lay: StridedLayout | None, nodes: Sequence[Node], part: Partition
) -> StridedLayout | None:
    """The layout of the first node's value, where that of the last node is `lay`."""
    for node in reversed(nodes[1:]):
        if lay is None:
            return None
        if node.type == "Transpose":
            perm = transpose_axes(node)
            lay = lay.transposed([perm.index(i) for i in range(len(perm))])
        else:
            lay = lay.reshaped(require_known(part.spec(node.inputs[0]).shape))
    return lay


def _join_layout(join: Node, node: Node, part: Partition) -> StridedLayout | None:
    """The layout of a value in its join; None along the first axis (concat_in_place)."""
    lay = c_order_layout(require_known(join.specs[0].shape))
    axis, index = join.attrs["axis"] % len(lay.sizes), join.inputs.index(Ref(node.name))
    if not axis:
        return None
    if join.row.joins == "stack":
        return lay.at(axis, index)
    before = sizes_along(axis, (part.spec(ref).shape for ref in join.inputs[: index + 1]))
    return None if before is None else lay.part(axis, sum(before[:-1]), before[-1])
