"""Sparse updates without copies of their operands: scale and concatenated pieces are fused in.

A scalar by which all rows are multiplied becomes an input of the update. Rows that are a Concat of
several gradients become one update for each piece: the pieces are applied in order, so the table is
the same to the last bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from hpcflow.lowering.segments_between_waits import value_consumers
from hpcflow.plan.ir.program import Node, Partition, Ref
from hpcflow.plan.ir.program_rewriting import unused_name


def fuse_sparse_operands(part: Partition) -> Partition:
    """The partition with sparse updates that take a scale and separate pieces."""
    rewriter = _SparseUpdateRewriter(part)
    nodes = {new.name: new for node in part.nodes.values() for new in rewriter.instead(node)}
    if not rewriter.absorbed:
        return part
    used: set[str] = set()
    for name, node in reversed(list(nodes.items())):
        if name in rewriter.absorbed and name not in used:
            del nodes[name]
        else:
            used |= {ref.node for ref in node.inputs}
    return dataclasses.replace(part, nodes=nodes)


class _SparseUpdateRewriter:
    """Rewrites sparse updates; `absorbed` are the nodes that they no longer use."""

    def __init__(self, part: Partition) -> None:
        self.part, self.users, self.absorbed = part, value_consumers(part), set[str]()
        self.ordered = {name for node in part.nodes.values() for name in node.control}
        self.ordered |= {ref.node for ref in part.fetches}
        self.names = set(part.nodes)

    def instead(self, node: Node) -> Iterator[Node]:
        """The nodes that replace a node."""
        by_rows = node.row.by_rows and not node.row.whole_variable
        if node.type.startswith("Scatter") and by_rows:
            yield from self.pieces(*self.scaled(node))
        else:
            yield node

    def scaled(self, node: Node) -> tuple[Node, Node]:
        """The update with the scalar factor as an input, and the node that used the rows.

        That node is the only user of the rows in the original partition.
        """
        product = self.only_for(node.inputs[2], node, "Mul")
        if product is None or len(node.inputs) > 3:
            return node, node
        for rows, number in (product.inputs, product.inputs[::-1]):
            same = (
                self.part.spec(rows)[:2] == product.specs[0][:2]
                and self.part.spec(number).shape == ()
            )
            if same and product.specs[0].dtype.kind == "f" and self.is_computed(rows):
                self.absorbed.add(product.name)
                inputs = (*node.inputs[:2], rows, number)
                control = dict.fromkeys((*node.control, *product.control))
                return node.but(inputs=inputs, control=tuple(control)), product
        return node, node

    def pieces(self, node: Node, user: Node) -> Iterator[Node]:
        """One update for each piece of the rows, in order; the last has the node's name."""
        handle, indices, values, *scale = node.inputs
        join, places = self.concat_of(values, user), self.concat_of(indices, None)
        if join is None or places is None or not self.pieces_match(join, places):
            yield node
            return
        self.absorbed |= {join.name, places.name} - self.ordered
        before = dict.fromkeys((*node.control, *join.control, *places.control))
        count = len(join.inputs)
        for k, (at, rows) in enumerate(zip(places.inputs, join.inputs, strict=True)):
            name = node.name if k == count - 1 else self.name(f"{node.name}/piece_")
            inputs = (handle, at, rows, *scale)
            yield node.but(name=name, inputs=inputs, control=tuple(before))
            before = {name: None, **before}

    def name(self, stem: str) -> str:
        """An unused name for a new node."""
        name = unused_name(stem, self.names)
        self.names.add(name)
        return name

    def concat_of(self, ref: Ref, user: Node | None) -> Node | None:
        """The Concat along the first axis of a value; with `user`, only if it is its only user."""
        node = self.only_for(ref, user, "Concat") if user else self.part.nodes[ref.node]
        shape = self.part.spec(ref).shape
        if node is None or node.row.joins != "concat" or shape is None:
            return None
        return node if node.attrs["axis"] % len(shape) == 0 else None

    def pieces_match(self, join: Node, places: Node) -> bool:
        """Whether each piece of the rows has a matching piece of the indices."""
        if len(join.inputs) != len(places.inputs) or not all(map(self.is_computed, join.inputs)):
            return False
        for rows, at in zip(join.inputs, places.inputs, strict=True):
            shape, index_shape = self.part.spec(rows).shape, self.part.spec(at).shape
            if shape is None or index_shape is None or len(index_shape) != 1:
                return False
            if None in shape[:1] or shape[:1] != index_shape:
                return False
        return True

    def only_for(self, ref: Ref, user: Node, type: str) -> Node | None:
        """The node of that type that computes a value only for `user`, on the device of `user`."""
        node = self.part.nodes[ref.node]
        alone = self.users[ref] == [user.name] and ref.node not in self.ordered
        return node if node.type == type and alone and node.device == user.device else None

    def is_computed(self, ref: Ref) -> bool:
        """Whether a value has memory of its own, unlike a read, which the update may change."""
        node = self.part.nodes[ref.node]
        while node.row.view == "same_order":
            node = self.part.nodes[node.inputs[0].node]
        return node.row.variable != "read"
