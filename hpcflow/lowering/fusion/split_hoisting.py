"""Split hoisting: a Split of an elementwise result moves before the elementwise nodes.

The gates of a recurrent cell are columns of one matrix product plus a bias. After the pass, each
gate is computed in the loop that uses it, which reads its columns of the product in place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from hpcflow.codegen import elementwise_formulas
from hpcflow.graph.static_shape import Spec, is_known, require_known, size_of
from hpcflow.lowering.segments_between_waits import segment_by_node, split_segments, value_consumers
from hpcflow.plan.ir.program import Node, Partition, Ref
from hpcflow.plan.ir.program_rewriting import unused_name


def hoist_splits(part: Partition, exact: bool, kinds: Collection[str] = ("cpu",)) -> Partition:
    """The partition with Splits moved before the elementwise nodes that compute their input.

    Only on devices of these `kinds`, and where elementwise nodes use all outputs of the Split, so
    that loops are generated for them. With `exact` only formulas that change no bit count.
    """
    if not any(node.row.splits == "split" for node in part.nodes.values()):
        return part
    return _SplitRewriter(part, exact, kinds).run()


class _SplitRewriter:
    def __init__(self, part: Partition, exact: bool, kinds: Collection[str]) -> None:
        self.part, self.exact, self.kinds = part, exact, kinds
        self.users, self.home = value_consumers(part), segment_by_node(split_segments(part))
        self.followed = {c for node in part.nodes.values() for c in node.control}
        self.fetched = set(part.fetches)
        self.instead: dict[str, list[Node]] = {}  # node -> the nodes that replace it
        # node -> new nodes after it that split its values
        self.inserted_after: dict[str, list[Node]] = {}
        self.parts: dict[tuple[Ref, int, int], list[Ref]] = {}  # (value, axis, count) -> its parts
        self.values: dict[Ref, Ref] = {}
        self.names = set(part.nodes)
        self.position = {name: i for i, name in enumerate(part.nodes)}

    def run(self) -> Partition:
        """Rewrite all Splits."""
        for node in self.part.nodes.values():
            if node.row.splits == "split" and self.goes_on(node):
                ref, shape = node.inputs[0], require_known(node.specs[0].shape)
                if self.moves(ref, node):
                    axis, count = node.attrs["axis"] % len(shape) - len(shape), len(node.specs)
                    for name in self.chain(ref, axis):
                        self.compute(name, axis, count)
                    parts = self.parts[ref, axis, count]
                    self.values.update({Ref(node.name, i): parts[i] for i in range(count)})
                    self.instead[node.name] = []
        nodes = {}
        for name, old in self.part.nodes.items():
            for node in (*self.instead.get(name, [old]), *self.inserted_after.get(name, ())):
                nodes[node.name] = node.taking(self.values)
        return dataclasses.replace(self.part, nodes=nodes)

    def goes_on(self, split: Node) -> bool:
        """Whether a Split has equal outputs with only elementwise users in its segment."""
        shapes = [spec.shape for spec in split.specs]
        if len(split.inputs) > 1 or len(set(shapes)) > 1 or not self.is_plain(split):
            return False
        takers = [self.users.get(Ref(split.name, i), []) for i in range(len(shapes))]
        return all(takers) and all(
            self.is_elementwise(self.part.nodes[name]) and self.home[name] == self.home[split.name]
            for names in takers
            for name in names
        )

    def is_plain(self, node: Node) -> bool:
        """Whether a node on one of `kinds` has static shapes, no control edge and no fetch."""
        refs = [Ref(node.name, i) for i in range(len(node.specs))]
        shapes = [spec.shape for spec in (*node.specs, *map(self.part.spec, node.inputs))]
        if node.control or node.name in self.followed or node.kind not in self.kinds:
            return False
        return self.fetched.isdisjoint(refs) and all(is_known(s) and size_of(s) for s in shapes)

    def is_elementwise(self, node: Node) -> bool:
        return elementwise_formulas.find_formula(node.type, self.exact) is not None

    def moves(self, ref: Ref, consumer: Node) -> bool:
        """Whether a value is elementwise, with `consumer` as its only user, in its segment."""
        node = self.part.nodes[ref.node]
        if not self.is_elementwise(node) or not self.is_plain(node):
            return False
        here = (node.device, self.home[node.name]) == (consumer.device, self.home[consumer.name])
        return here and set(self.users[ref]) == {consumer.name}

    def chain(self, ref: Ref, axis: int) -> list[str]:
        """The nodes to compute in parts for a value, in topological order."""
        names, stack = {ref.node: None}, [ref.node]
        while stack:
            node = self.part.nodes[stack.pop()]
            for arg in node.inputs:
                if self.has_parts(arg, axis) and self.moves(arg, node) and arg.node not in names:
                    names[arg.node] = None
                    stack.append(arg.node)
        return sorted(names, key=self.position.__getitem__)

    def has_parts(self, ref: Ref, axis: int) -> bool:
        """Whether a value is not broadcast along an axis, which is counted from the end."""
        shape = require_known(self.part.spec(ref).shape)
        return -axis <= len(shape) and shape[axis] != 1

    def compute(self, name: str, axis: int, count: int) -> None:
        """Replace a node by one node for each part."""
        node, ref = self.part.nodes[name], Ref(name)
        input_parts = [self.parts_of(arg, axis, count) for arg in node.inputs]
        spec = self.part_spec(ref, axis, count)
        names = [self.name(node.name) for _ in range(count)]
        self.instead[node.name] = [
            node.but(name=name, inputs=tuple(of[i] for of in input_parts), specs=(spec,))
            for i, name in enumerate(names)
        ]
        self.parts[ref, axis, count] = [Ref(name) for name in names]

    def parts_of(self, ref: Ref, axis: int, count: int) -> list[Ref]:
        """The parts of an input of a node that is computed in parts."""
        if not self.has_parts(ref, axis):
            return [ref] * count
        key = (ref, axis, count)
        if key not in self.parts:
            self.parts[key] = self.split_value(ref, axis, count)
        return self.parts[key]

    def split_value(self, ref: Ref, axis: int, count: int) -> list[Ref]:
        """The parts of a value that is computed whole: views if the axis is the first."""
        node, spec = self.part.nodes[ref.node], self.part_spec(ref, axis, count)
        n = require_known(spec.shape)[axis]
        template = node.but(inputs=(ref,), control=(), specs=(spec,))
        if -axis == len(require_known(spec.shape)):
            rows = [{"start": i * n, "stop": i * n + n} for i in range(count)]
            new = [template.but(name=self.name(node.name), type="Rows", attrs=at) for at in rows]
        else:
            attrs = {"axis": axis, "sizes": (n,) * count}
            name = self.name(node.name)
            new = [template.but(name=name, type="Split", attrs=attrs, specs=(spec,) * count)]
        self.inserted_after.setdefault(ref.node, []).extend(new)
        return [Ref(piece.name, i) for piece in new for i in range(len(piece.specs))]

    def name(self, base: str) -> str:
        """An unused name for a part of the node `base`."""
        name = unused_name(f"{base}/part", self.names)
        self.names.add(name)
        return name

    def part_spec(self, ref: Ref, axis: int, count: int) -> Spec:
        """The spec of one of `count` parts of a value."""
        spec = self.part.spec(ref)
        shape = list(require_known(spec.shape))
        shape[axis] //= count
        return Spec(spec.dtype, tuple(shape))
