"""Initial value sharding: each server computes initial values for its own rows only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcflow.graph.static_shape import Spec, is_known, size_of
from hpcflow.plan.distribution.variable_placement import VariablePlacement, VariableShard
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_rewriting import as_constant, infer_specs
from hpcflow.platform.rank_logging import say_once

READS = "ReadCheckpoint"  # immutable, and any rows can be read
MAX_INITIALIZER_NODES = 64  # maximum of nodes in an initializer that moves


def assigns_initial_value(node: Node) -> bool:
    """Return whether a node assigns a variable its initial value."""
    return node.row.variable == "assign" and bool(node.attrs.get("initial"))


def place_initializers(program: Program, placements: Mapping[str, VariablePlacement]) -> Program:
    """Move the initializers of variables that are whole on a server to that server.

    An initializer moves if it depends on no feed and no other variable. Nodes with other consumers
    are duplicated, because random draws with one key are the same everywhere.
    """
    users: dict[str, set[str]] = {}
    for node in program.nodes.values():
        for before in node.before():
            users.setdefault(before, set()).add(node.name)
    for name in (*(ref.node for ref in program.fetches), *program.targets):
        users.setdefault(name, set()).add("")
    nodes: dict[str, Node] = {}
    for node in program.nodes.values():
        placement = placements.get(node.inputs[0].node) if assigns_initial_value(node) else None
        makers = (
            computing_nodes(program, node.inputs[1])
            if placement and len(placement.pieces) == 1
            else []
        )
        if any(not program.nodes[name].row.pure or program.nodes[name].inputs for name in makers):
            handle, inside = node.inputs[0].node, {*makers, node.name}
            shared = any(not users[name] <= inside for name in makers)
            rename = {name: f"{handle}/initial/{name}" if shared else name for name in makers}
            for name in makers:
                old = program.nodes[name]
                inputs = _renamed(old.inputs, rename)
                nodes[rename[name]] = old.but(name=rename[name], inputs=inputs, colocate=(handle,))
            node = node.but(inputs=_renamed(node.inputs, rename))
        nodes.setdefault(node.name, node)
    return program.but(nodes=nodes)


def _renamed(refs: Sequence[Ref], names: Mapping[str, str]) -> tuple[Ref, ...]:
    return tuple(Ref(names.get(ref.node, ref.node), ref.index) for ref in refs)


def computing_nodes(program: Program, value: Ref) -> list[str]:
    """Return the nodes that compute `value`, in order.

    The list is empty if the value depends on anything that cannot be computed again elsewhere.
    """
    makers: dict[str, None] = {}
    stack = [value.node]
    while stack:
        node = program.nodes[stack.pop()]
        draws = node.row.draws_rows and not node.attrs.get("batch")
        free = not (node.control or node.device or node.colocate) and node.row.source != "feed"
        repeatable = draws or node.row.pure or node.type == READS
        if not (free and repeatable) or len(makers) > MAX_INITIALIZER_NODES:
            return []
        makers[node.name] = None
        stack.extend(ref.node for ref in node.inputs if ref.node not in makers)
    return [name for name in program.nodes if name in makers]


def initial_value_in_pieces(
    program: Program,
    node: Node,
    pieces: Sequence[VariableShard],
    parts: Sequence[str],
    add: Callable[[Node], Ref],
) -> list[Ref] | None:
    """Return the initial value that `node` assigns, computed separately beside each piece.

    None if rows cannot be computed separately; a log line says so, and the value is computed whole.
    """
    value = node.inputs[1]
    if computing_nodes(program, value) and program.spec(value).shape:
        try:
            return [
                _PieceBuilder(program, piece, part, add).slice_value(value)
                for piece, part in zip(pieces, parts, strict=True)
            ]
        except _NotRowwise as error:
            why = str(error)
    else:
        why = "it depends on more than itself"
    if program.nodes[value.node].row.source not in ("constant", "fill"):
        say_once(
            f"the initial value of {node.inputs[0].node!r}, which is sharded over servers, is made "
            f"as a whole by a worker and sent: {why}"
        )
    return None


class _NotRowwise(Exception):
    """Raised for a value whose rows cannot be computed separately."""


class _PieceBuilder:
    """Builds the nodes that compute the rows of one piece."""

    def __init__(
        self, program: Program, piece: VariableShard, part: str, add: Callable[[Node], Ref]
    ) -> None:
        self.program, self.piece, self.part, self.add = program, piece, part, add
        self.sliced: dict[Ref, Ref] = {}
        self.specs: dict[Ref, Spec] = {}

    def slice_value(self, value: Ref) -> Ref:
        """Return the rows of a value that has as many rows as the variable."""
        spec = self.program.spec(value)
        self.rank, self.size = len(spec.shape or ()), (spec.shape or (None,))[0]
        return self._rows(value)

    def _rows(self, ref: Ref) -> Ref:
        if ref not in self.sliced:
            node = self.program.nodes[ref.node]
            shape = node.specs[ref.index].shape
            if not is_known(shape) or shape is None:
                raise _NotRowwise(f"{node.type} {node.name!r} has an unknown size")
            by_rows = self._is_long(ref)
            copy = self._piece_node(node) if by_rows else self._clone(node, node.attrs, self._input)
            self.sliced[ref] = Ref(copy.node, ref.index)
        return self.sliced[ref]

    def _is_long(self, ref: Ref) -> bool:
        shape = self.program.spec(ref).shape or ()
        return len(shape) == self.rank and shape[0] == self.size

    def _input(self, ref: Ref) -> Ref:
        """Return a value that all rows use, computed again for this piece.

        Errors: _NotRowwise if the value itself has all rows of the variable.
        """
        if self._is_long(ref):
            raise _NotRowwise(f"{ref.node!r} is needed as a whole")
        return self._rows(ref)

    def _piece_node(self, node: Node) -> Ref:
        start, stop = self.piece.start, self.piece.stop
        if node.row.source == "constant":
            rows = np.asarray(node.attrs["value"])[start:stop]
            constant = as_constant(self._other_node(node), rows)
            self.specs[Ref(constant.name)] = constant.specs[0]
            return self.add(constant)
        if node.type == READS:
            first = node.attrs["start"] + start
            shape = (stop - start, *node.attrs["shape"][1:])
            attrs = {**node.attrs, "start": first, "shape": shape}
            return self._clone(node, attrs, self._input)
        if node.row.initial_formula:
            return self._clone(node, node.attrs, self._rows)
        shape = node.attrs.get("shape", ())
        drawn = node.row.draws_rows and all(
            self.program.spec(ref).shape == () for ref in node.inputs
        )
        if not (drawn or (node.row.source == "fill" and not node.inputs)):
            raise _NotRowwise(f"{node.type} {node.name!r} makes no rows by themselves")
        attrs = node.attrs | {"shape": (stop - start, *shape[1:])}
        if drawn:
            attrs["first"] = node.attrs.get("first", 0) + start * size_of(shape[1:])
        return self._clone(node, attrs, self._input)

    def _clone(self, node: Node, attrs: dict[str, Any], map_input: Callable[[Ref], Ref]) -> Ref:
        inputs = tuple(map_input(ref) for ref in node.inputs)
        specs = infer_specs(
            node.type,
            [self.specs[ref] for ref in inputs],
            attrs,
            op=node.name,
            line=node.line,
        )
        clone = self._other_node(node).but(attrs=attrs, inputs=inputs, specs=specs)
        self.specs.update({Ref(clone.name, i): spec for i, spec in enumerate(specs)})
        return self.add(clone)

    def _other_node(self, node: Node) -> Node:
        return node.but(name=f"{self.part}/initial/{node.name}", colocate=(self.part,))
