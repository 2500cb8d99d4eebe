"""Recomputation in fused kernels: a kernel recomputes values instead of loading them from memory.

The gradient of a formula needs intermediate values of the formula. Large ones are written to memory
and read again, while their operands are read anyway: a kernel then recomputes them from these, in
registers, where that moves less memory (Chen et al. 2016, "Training Deep Nets with Sublinear Memory
Cost", does the same for whole layers).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from hpcflow.codegen.fused_loop_ir import FULL
from hpcflow.codegen.row_op_decomposition import EXPANSIONS
from hpcflow.graph.static_shape import size_of
from hpcflow.lowering.fusion.iteration_space import Lengths, NodeMapping, common_lengths
from hpcflow.lowering.segments_between_waits import value_consumers
from hpcflow.plan.ir.program import Node, Partition, Ref
from hpcflow.plan.ir.program_rewriting import unused_name

LARGE_VALUE_BYTES = (
    1 << 20
)  # bytes of a value: smaller ones are still in the cache when they are read
MAX_RECOMPUTED_OPS = 16  # operations that are recomputed for each value


def recompute_values(
    part: Partition, groups: Sequence[list[str]], readings: dict[str, NodeMapping]
) -> tuple[Partition, list[list[str]]]:
    """The partition and its groups, each a future kernel, with copies of the nodes to recompute.

    `readings` says of each node how its values are laid out; entries of new nodes are added to it.
    """
    work = _Recomputation(part, [list(names) for names in groups], readings)
    for k in range(len(groups)):
        for j in sorted({work.owner[r.node] for r in work.operands(k) if r.node in work.owner}):
            if j != k:
                work.recompute(j, k)
    return work.part, work.groups


class _Recomputation:
    def __init__(
        self, part: Partition, groups: list[list[str]], mappings: dict[str, NodeMapping]
    ) -> None:
        self.part, self.groups, self.mappings = part, groups, mappings
        self.owner = {name: k for k, names in enumerate(groups) for name in names}
        self.users = value_consumers(part)

    def operands(self, k: int) -> list[Ref]:
        """The FULL values that a group takes from other nodes."""
        operands: dict[Ref, None] = {}
        for name in self.groups[k]:
            node, mappings = self.part.nodes[name], self.mappings[name].inputs
            for ref, mapping in zip(node.inputs, mappings, strict=True):
                if mapping == FULL and self.owner.get(ref.node) != k:
                    operands[ref] = None
        return list(operands)

    def recompute(self, source: int, dest: int) -> None:
        """Recompute in `dest` what it takes from `source`, if that moves less memory."""
        operands = self.operands(dest)
        candidates = [ref for ref in operands if self.is_only_for(ref, source, dest)]
        nodes: dict[str, None] = {}
        leaves: set[Ref] = set()
        recomputable: list[Ref] = []
        for ref in candidates:
            formula = self.formula(ref, source, dest, set(candidates))
            if formula is not None:
                recomputable.append(ref)
                nodes.update(dict.fromkeys(formula[0]))
                leaves |= formula[1]
        extra_leaves = leaves - set(operands)
        one_domain = self.have_one_domain([*nodes, *self.groups[dest]])
        if (
            recomputable
            and one_domain
            and len(extra_leaves) < len(recomputable)
            and len(nodes) <= MAX_RECOMPUTED_OPS * len(recomputable)
        ):
            self.copy([n for n in self.groups[source] if n in nodes], recomputable, dest)

    def is_only_for(self, ref: Ref, source: int, dest: int) -> bool:
        """Whether a large value of group `source` is used by `source` and `dest` alone."""
        node = self.part.nodes[ref.node]
        spec = node.specs[ref.index]
        if self.owner.get(ref.node) != source or ref in self.part.fetches or not spec.known:
            return False
        if spec.nbytes < LARGE_VALUE_BYTES or size_of(spec.shape) != self.mappings[node.name].size:
            return False
        return all(self.owner.get(name) in (source, dest) for name in self.users[ref])

    def formula(
        self, ref: Ref, source: int, dest: int, candidates: set[Ref]
    ) -> tuple[list[str], set[Ref]] | None:
        """The nodes of `source` that compute a value, and the FULL values they start from.

        None if one of them cannot be recomputed.
        """
        nodes: dict[str, None] = {}
        leaves: set[Ref] = set()
        stack = [ref]
        while stack:
            ref = stack.pop()
            node = self.part.nodes[ref.node]
            if node.type in EXPANSIONS or node.row.stateful:
                return None
            nodes[node.name] = None
            reading = self.mappings[node.name]
            for operand, mapping in zip(node.inputs, reading.inputs, strict=True):
                if mapping != FULL:
                    continue
                inside = self.owner.get(operand.node) == source
                stays = operand not in candidates and not self.is_hidden(operand, source)
                if inside and not stays:
                    if operand.node not in nodes:
                        stack.append(operand)
                elif self.part.nodes[operand.node].row.variable == "read":
                    return None  # the variable may have changed
                else:
                    leaves.add(operand)
        return list(nodes), leaves

    def have_one_domain(self, names: Sequence[str]) -> bool:
        """Whether nodes can be in one kernel: on one device, with rows of one length."""
        cols: Lengths | None = ()
        for name in names:
            cols = None if cols is None else common_lengths(cols, self.mappings[name].cols)
        sizes = {self.mappings[name].size for name in names}
        devices = {self.part.nodes[name].device for name in names}
        return cols is not None and len(sizes) == 1 == len(devices)

    def is_hidden(self, ref: Ref, source: int) -> bool:
        """Whether a value is used only inside the group that computes it."""
        names = self.users.get(ref, ())
        return ref not in self.part.fetches and all(self.owner.get(n) == source for n in names)

    def copy(self, names: Sequence[str], values: Sequence[Ref], dest: int) -> None:
        """Put copies of nodes into group `dest`, which takes `values` from them."""
        nodes = dict(self.part.nodes)
        new = {name: unused_name(f"{name}/again", nodes) for name in names}
        for name in names:
            node = nodes[name]
            nodes[new[name]] = node.but(name=new[name], inputs=_moved_bytes(node, new), control=())
            self.mappings[new[name]] = self.mappings[name]
            self.owner[new[name]] = dest
        instead = {ref: Ref(new[ref.node], ref.index) for ref in values}
        for name in self.groups[dest]:
            node = nodes[name]
            nodes[name] = node.taking(instead)
        self.groups[dest] = [*new.values(), *self.groups[dest]]
        self.part = dataclasses.replace(self.part, nodes=nodes)
        self.users = value_consumers(self.part)


def _moved_bytes(node: Node, new: Mapping[str, str]) -> tuple[Ref, ...]:
    return tuple(Ref(new.get(ref.node, ref.node), ref.index) for ref in node.inputs)
