"""Fusion of sparse optimizer updates: the formula over the rows of a gradient becomes one loop.

In the graph, an update reads rows of a variable and of its slots, computes with them, and writes
new rows. If no row index repeats, and all else is elementwise, one node `UpdateRows1`,
`UpdateRows2`, ... (the number of its tables) does that in place, row by row. Its attribute `text`
is the LLVM IR from `hpcflow.codegen.row_gather_scatter_codegen`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from hpcflow.codegen import elementwise_formulas, row_gather_scatter_codegen
from hpcflow.codegen.fused_loop_ir import FULL, ONE, KernelOperand, KernelStep
from hpcflow.codegen.llvm_builder import TYPES
from hpcflow.graph.static_shape import is_known, size_of
from hpcflow.lowering.segments_between_waits import value_consumers
from hpcflow.ops.variables.sparse_row_update_ops import MOST_TABLES
from hpcflow.plan.ir.program import Node, Partition, Ref
from hpcflow.plan.ir.program_rewriting import cyclic_nodes, topological_order

PREFIX = "Scatter"


def fuse_sparse_optimizers(part: Partition, exact: bool) -> Partition:
    """The partition with one node a sparse update of a variable; with `exact`, bitwise equal."""
    groups: dict[tuple[Any, ...], list[Node]] = {}
    for node in part.nodes.values():
        if _is_fusible_update(node):
            key = node.inputs[1], node.device, node.attrs["dtype"], tuple(node.attrs["shape"])
            groups.setdefault(key, []).append(node)
    for changes in groups.values():
        fused = _RowUpdateGroup(part, changes, exact).fused_partition()
        part = part if fused is None else fused
    return part


def _is_fusible_update(node: Node) -> bool:
    """Whether a node updates rows with distinct indices by an operation that can be fused."""
    if not node.type.startswith(PREFIX) or not node.attrs.get("distinct") or len(node.inputs) != 3:
        return False
    return (
        node.type.removeprefix(PREFIX) in row_gather_scatter_codegen.CHANGES
        and "/cpu:" in node.device
    )


class _RowUpdateGroup:
    """The row updates of several tables by the same indices, and the nodes that only these need."""

    def __init__(self, part: Partition, changes: list[Node], exact: bool) -> None:
        self.part, self.changes, self.exact = part, changes, exact
        self.indices = changes[0].inputs[1]
        self.handles = [node.inputs[0] for node in changes]
        self.dtype, self.row = changes[0].attrs["dtype"], tuple(changes[0].attrs["shape"][1:])
        self.members = {node.name for node in changes} | self.exclusive_nodes()

    def fused_partition(self) -> Partition | None:
        """The partition with one node in place of the group; None if the result could differ."""
        index = self.part.spec(self.indices).dtype.name
        steps = [n for n in self.part.nodes.values() if n.name in self.members and self.is_step(n)]
        if not steps or len(set(self.handles)) < len(self.handles) or not self.in_order():
            return None
        if len(self.handles) > MOST_TABLES or index not in row_gather_scatter_codegen.INDICES:
            return None
        if self.dtype.name not in row_gather_scatter_codegen.DTYPES:
            return None
        node = self.node(steps, index)
        return None if node is None else self.replaced(node)

    # -- members

    def exclusive_nodes(self) -> set[str]:
        """The row-wise nodes whose values only these updates use."""
        exclusive: set[str] = set()
        stack = [node.inputs[2].node for node in self.changes]
        while stack:
            node = self.part.nodes[stack.pop()]
            if node.name not in exclusive and (self.is_step(node) or self.is_read(node)):
                exclusive.add(node.name)
                stack += [ref.node for ref in node.inputs]
        takers, last = value_consumers(self.part), {node.name for node in self.changes}
        fetched = {ref.node for ref in self.part.fetches}
        while True:
            outer = {
                name
                for name in exclusive
                if name in fetched or not exclusive | last >= set(takers.get(Ref(name), ()))
            }
            if not outer:
                return exclusive
            exclusive -= outer

    def is_read(self, node: Node) -> bool:
        """Whether a node reads the rows of the group from one of its tables."""
        return (
            node.row.variable == "read_rows"
            and node.inputs[1] == self.indices
            and (node.inputs[0] in self.handles)
        )

    def is_step(self, node: Node) -> bool:
        """Whether a node computes rows elementwise."""
        if elementwise_formulas.find_formula(node.type, self.exact) is None or len(node.specs) != 1:
            return False
        ways = [self.operand_mapping(ref) for ref in node.inputs]
        return self.operand_mapping(Ref(node.name)) == FULL and None not in ways and FULL in ways

    def operand_mapping(self, ref: Ref) -> str | None:
        """How a value maps to the elements of the rows; None if it does not."""
        spec = self.part.spec(ref)
        if spec.dtype.name not in TYPES:
            return None
        if is_known(spec.shape) and size_of(spec.shape) == 1:
            return ONE
        alike = spec.shape is not None and len(spec.shape) == 1 + len(self.row)
        return FULL if alike and tuple(spec.shape[1:]) == self.row else None  # type: ignore[index]

    # -- legality and construction

    def in_order(self) -> bool:
        """Whether no other node intervenes when all tables change at the last of the updates."""
        names = list(self.part.nodes)
        at = {name: i for i, name in enumerate(names)}
        end = max(at[node.name] for node in self.changes)
        for change, handle in zip(self.changes, self.handles, strict=True):
            for node in self.part.nodes.values():
                if handle not in node.inputs or node.name == change.name:
                    continue
                if node.row.control_flow:  # its body may change the table
                    return False
                if node.name in self.members:
                    if at[node.name] > at[change.name]:
                        return False
                elif at[change.name] < at[node.name] < end:
                    return False
                elif node.inputs.index(handle) in node.row.writes and at[node.name] < end:
                    reads = [n for n in self.members if handle in self.part.nodes[n].inputs]
                    if any(at[n] < at[node.name] for n in reads):
                        return False
        return True

    def node(self, steps: list[Node], index: str) -> Node | None:
        """The fused node; None if an operation has no formula."""
        number: dict[Ref, int] = {}
        for node in (self.part.nodes[name] for name in self.members):
            if self.is_read(node):
                number[Ref(node.name)] = self.handles.index(node.inputs[0])
        values = [ref for node in steps for ref in node.inputs]
        values += [node.inputs[2] for node in self.changes]
        outside = [
            r for r in dict.fromkeys(values) if r not in number and r.node not in self.members
        ]
        operands: list[KernelOperand] = []
        for ref in outside:
            spec, mapping = self.part.spec(ref), self.operand_mapping(ref)
            if mapping is None:
                return None
            number[ref] = len(self.handles) + len(operands)
            operands.append(KernelOperand(spec.dtype, mapping))
        written = []
        for node in steps:
            written.append(KernelStep(node.type, tuple(number[r] for r in node.inputs), node.attrs))
            number[Ref(node.name)] = len(self.handles) + len(operands) + len(written) - 1
        changes = [(n.type.removeprefix(PREFIX), number[n.inputs[2]]) for n in self.changes]
        body = row_gather_scatter_codegen.RowUpdateFormula(
            self.dtype, index, tuple(operands), tuple(written), tuple(changes)
        )
        text = row_gather_scatter_codegen.formula(
            body,
            row_gather_scatter_codegen.lines_of(size_of(self.row) * self.dtype.itemsize),
            self.exact,
        )
        if text is None:
            return None
        members = [self.part.nodes[name] for name in self.part.nodes if name in self.members]
        control = dict.fromkeys(c for n in members for c in n.control if c not in self.members)
        attrs = {**self.changes[-1].attrs, "body": body, "text": text}
        return self.changes[-1].but(
            type=f"UpdateRows{len(self.handles)}",
            inputs=(*self.handles, self.indices, *outside),
            control=tuple(control),
            attrs={**attrs, "names": tuple(n.name for n in members)},
        )

    def replaced(self, fused: Node) -> Partition | None:
        """The partition with `fused` in place of the group; None if that makes a cycle."""
        place = {name: i for i, name in enumerate(self.part.nodes)}
        nodes: dict[str, Node] = {}
        for name, node in self.part.nodes.items():
            if name == fused.name:
                nodes[name] = fused
            elif name not in self.members:
                control = [new for c in node.control for new in self.instead(c, fused)]
                nodes[name] = node.but(control=tuple(dict.fromkeys(control)))
        if cyclic_nodes(nodes):  # another node depends on a part of the group, and the rest on it
            return None
        order = topological_order(nodes, place.__getitem__)
        return dataclasses.replace(self.part, nodes={name: nodes[name] for name in order})

    def instead(self, name: str, fused: Node) -> Iterator[str]:
        """The control inputs for a node: the update, or what its value depended on."""
        changes = {change.name for change in self.changes}
        stack, visited = [name], set[str]()
        while stack:
            name = stack.pop()
            if name not in self.members:
                yield name
            elif name in changes:
                yield fused.name
            elif name not in visited:
                visited.add(name)
                stack += reversed(self.part.nodes[name].before())
