"""Variable sharding: shards large variables by rows over servers, with reads and updates.

Slots are sharded like their variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from hpcflow.errors import PlacementError
from hpcflow.graph.static_shape import Spec, size_of
from hpcflow.plan.distribution.initial_value_sharding import (
    assigns_initial_value,
    initial_value_in_pieces,
)
from hpcflow.plan.distribution.variable_placement import VariablePlacement, VariableShard
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_rewriting import (
    as_constant,
    eliminate_dead_nodes,
    infer_specs,
    substitute_values,
)

COPIES, ROWS = "copies", "rows"  # a copy each, or its rows; a Ref: the rows picked by these indices


class ShardedValue(NamedTuple):
    """A value in pieces, each beside a piece of the variable; `space` says what pieces hold."""

    parts: tuple[Ref, ...]
    pieces: tuple[VariableShard, ...]
    space: str | Ref


def shard_variables(program: Program, placements: Mapping[str, VariablePlacement]) -> Program:
    """Replace each variable of several pieces by Variable nodes `name/part_i` on their servers.

    A part has attrs `piece` (its rows) and `whole` (the shape of the variable). A slot of another
    shape than its owner is copied to every part and has the attr `copy` (its number, of how many).
    A read becomes the reads of the parts and a Concat. An update becomes one update per part, with
    the rows of its values. Elementwise ops colocated with such a variable, as in optimizers, run
    for each part on its server, so only gradients are sent there, and no message lies between read
    and update.
    """
    cut = {
        name: placement
        for name, placement in placements.items()
        if len(placement.pieces) > 1 and name in program.nodes
    }
    return eliminate_dead_nodes(_VariableSharder(program, cut).run()) if cut else program


class RowSelection(NamedTuple):
    """The rows that belong to one piece; `indices` count from the first row of the piece."""

    indices: Ref
    places: Ref  # positions among all rows
    rows: Ref


class _VariableSharder:
    def __init__(self, program: Program, cut: Mapping[str, VariablePlacement]) -> None:
        self.program, self.cut = program, cut
        self.nodes: dict[str, Node] = {}
        self.order: dict[str, tuple[str, ...]] = {}  # sharded node -> nodes to follow instead
        self.rows: dict[tuple[Ref, VariableShard], Ref] = {}
        self.values: dict[Ref, ShardedValue] = {}
        # indices(, values) -> picks
        self.picks: dict[tuple[Ref, ...], tuple[RowSelection, ...]] = {}
        self.gathered: dict[tuple[Ref, ...], list[str]] = {}  # values, indices -> nodes of pieces

    def run(self) -> Program:
        for node in self.program.nodes.values():
            handles = [ref.node for ref in node.inputs if ref.node in self.cut]
            if node.name in self.cut:
                self._variable(node)
            elif not handles:
                self._add_unsharded(node)
            elif node.row.whole_variable or not (node.row.variable or node.row.writes):
                raise PlacementError(
                    f"{node.type} cannot use {handles[0]!r}, a variable sharded over servers",
                    op=node.name,
                    line=node.line,
                    hint='put the variable on one server with hf.device("/job:ps/task:0"), '
                    "or raise HPCFLOW_SHARD_BYTES",
                )
            elif node.row.variable == "is_initialized":  # the pieces are initialized together
                first = Ref(_shard_name(handles[0], 0))
                self._add(node.but(inputs=(first,), colocate=()))
            elif node.row.variable == "read":
                self._read(node, self.cut[handles[0]])
            elif node.row.variable == "read_rows":
                self._read_rows(node, self.cut[handles[0]])
            elif node.row.by_rows:
                self._update_rows(node, self.cut[handles[0]])
            else:
                self._update(node, handles)
        reads = {name for name in self.order if name in self.nodes}
        program = self.program.but(nodes=self.nodes)
        return _follow_shard_reads(
            substitute_values(program, {}, self._removed_nodes()), reads, self.order
        )

    def _removed_nodes(self) -> dict[str, tuple[str, ...]]:
        return {name: parts for name, parts in self.order.items() if name not in self.nodes}

    def _add(self, node: Node) -> Ref:
        self.nodes[node.name] = node
        return Ref(node.name)

    def _variable(self, node: Node) -> None:
        placement, shape = self.cut[node.name], node.attrs["shape"]
        for i, piece in enumerate(placement.pieces):
            attrs = dict(node.attrs, piece=(piece.start, piece.stop), whole=shape)
            if placement.copied:
                attrs = dict(node.attrs, copy=(i, len(placement.pieces)))
            else:
                attrs["shape"] = (piece.stop - piece.start, *shape[1:])
            part = _shard_name(node.name, i)
            self._add(node.but(name=part, attrs=attrs, device=piece.device, colocate=()))

    def _read(self, node: Node, placement: VariablePlacement) -> None:
        handle = node.inputs[0].node
        parts = []
        for i, piece in enumerate(placement.pieces):
            shard, attrs = Ref(_shard_name(handle, i)), self._piece_attrs(node, placement, piece)
            parts.append(self._add(self._cut_node(node, placement, i, attrs, (shard,))))
        space = COPIES if placement.copied else ROWS
        self.values[Ref(node.name)] = ShardedValue(tuple(parts), placement.pieces, space)
        if placement.copied:
            self._add(node.but(inputs=(Ref(_shard_name(handle, 0)),), colocate=()))
            return
        specs = [self.nodes[ref.node].specs[0] for ref in parts]
        attrs = {"axis": 0}
        out_specs = infer_specs("Concat", specs, attrs, op=node.name, line=node.line)
        self._add(Node(node.name, "Concat", tuple(parts), (), attrs, out_specs, line=node.line))
        self.order[node.name] = tuple(ref.node for ref in parts)

    def _update(self, node: Node, handles: list[str]) -> None:
        placement = self.cut[handles[0]]
        mates = [node.inputs[i].node for i in node.row.writes]
        for mate in mates:
            if self.cut.get(mate, placement).pieces != placement.pieces or mate not in self.cut:
                raise PlacementError(
                    f"{node.name!r} updates {handles[0]!r}, which is sharded over servers, "
                    f"together with {mate!r}, which is sharded differently",
                    op=node.name,
                    line=node.line,
                    hint="leave the slot's device to its variable, or raise HPCFLOW_SHARD_BYTES",
                )
        initial = self._initial(node, placement)
        parts = []
        for i, piece in enumerate(placement.pieces):
            inputs = tuple(
                Ref(_shard_name(ref.node, i))
                if ref.node in self.cut
                else self._piece_of(ref, placement, i)
                for ref in node.inputs
            )
            inputs = (inputs[0], initial[i]) if initial else inputs
            attrs = self._piece_attrs(node, placement, piece)
            parts.append(self._add(self._cut_node(node, placement, i, attrs, inputs)).node)
        self.order[node.name] = tuple(parts)

    def _initial(self, node: Node, placement: VariablePlacement) -> list[Ref] | None:
        """Return the initial value in pieces computed on their servers, None if not possible."""
        if not assigns_initial_value(node) or placement.copied:
            return None
        beside = [_shard_name(node.inputs[0].node, i) for i in range(len(placement.pieces))]
        return initial_value_in_pieces(self.program, node, placement.pieces, beside, self._add)

    def _read_rows(self, node: Node, placement: VariablePlacement) -> None:
        """Read the rows on the servers that hold them, and join them in requested order."""
        handle, indices = node.inputs
        picks = self._picked(node, placement, (indices,))
        parts = []
        for i, pick in enumerate(picks):
            inputs = (Ref(_shard_name(handle.node, i)), pick.indices)
            attrs = self._piece_attrs(node, placement, placement.pieces[i])
            parts.append(self._add(self._cut_node(node, placement, i, attrs, inputs)))
        self._join(node, ShardedValue(tuple(parts), placement.pieces, indices))
        self.order[node.name] = tuple(ref.node for ref in parts)

    def _join(self, node: Node, cut: ShardedValue) -> None:
        """Add the whole value under the name of `node`; it is dropped later if unused."""
        self.values[Ref(node.name)] = cut
        type, inputs, attrs = "JoinRows", cut.parts, {}
        if cut.space == COPIES:
            type, inputs = "Identity", cut.parts[:1]
        elif cut.space == ROWS:
            type, attrs = "Concat", {"axis": 0}
        elif isinstance(cut.space, Ref):
            places = (pick.places for pick in self.picks[(cut.space,)])
            inputs = (cut.space, *places, *cut.parts)
        specs = infer_specs(
            type, [self._spec(r) for r in inputs], attrs, op=node.name, line=node.line
        )
        self._add(Node(node.name, type, inputs, (), attrs, specs, line=node.line))

    def _update_rows(self, node: Node, placement: VariablePlacement) -> None:
        """Send each server the indices and values of its own rows."""
        handle, indices, values = node.inputs
        cut, is_scalar = self.values.get(values), self.program.spec(values).shape == ()
        there = cut is not None and (cut.pieces, cut.space) == (placement.pieces, indices)
        picks = self._picked(
            node, placement, (indices,) if there or is_scalar else (indices, values)
        )
        parts = []
        for i, part in enumerate(placement.pieces):
            rows = cut.parts[i] if there and cut else values if is_scalar else picks[i].rows
            inputs = (Ref(_shard_name(handle.node, i)), picks[i].indices, rows)
            attrs = self._piece_attrs(node, placement, part)
            parts.append(self._add(self._cut_node(node, placement, i, attrs, inputs)).node)
        self.order[node.name] = tuple(parts)

    def _picked(
        self, node: Node, placement: VariablePlacement, inputs: tuple[Ref, ...]
    ) -> tuple[RowSelection, ...]:
        """Return the cached picks of indices and values for each piece."""
        if inputs not in self.picks:
            self.picks[inputs] = self._picks(node, placement, inputs)
        return self.picks[inputs]

    def _picks(
        self, node: Node, placement: VariablePlacement, inputs: tuple[Ref, ...], width: int = 1
    ) -> tuple[RowSelection, ...]:
        """Return new picks for each piece; `width` indices count as one row."""
        picks = []
        specs = [self._spec(ref) for ref in inputs]
        for piece in placement.pieces:
            sides = {"start": piece.start, "stop": piece.stop, "size": placement.pieces[-1].stop}
            attrs = {side: row * width for side, row in sides.items()}
            out_specs = infer_specs("PieceRows", specs, attrs, op=node.name, line=node.line)
            name = f"{node.name}/rows_{piece.start}_{piece.stop}"
            self._add(Node(name, "PieceRows", inputs, (), attrs, out_specs, line=node.line))
            picks.append(RowSelection(Ref(name, 0), Ref(name, 1), Ref(name, 2)))
        return tuple(picks)

    # -- nodes beside a sharded variable

    def _add_unsharded(self, node: Node) -> None:
        """Add a node that uses no sharded variable, in pieces if possible."""
        owner = next((c for c in node.colocate if c in self.cut and not self.cut[c].copied), None)
        if owner is not None and node.type == "AddEntries" and self._entries(node, owner):
            return
        if owner is not None and node.type == "GatherGrad" and self._rows_made_whole(node, owner):
            return
        if owner is None or not node.row.update_formula or not self._in_pieces(node, owner):
            loose = tuple(c for c in node.colocate if c not in self.cut)
            self._add(node.but(colocate=loose))
        if owner is not None and node.type == "ReplicaGather":
            self._gather_pieces(node, owner)
        if owner is not None and node.type == "SumEqualRows":
            self._send_rows(node, owner)

    def _send_rows(self, node: Node, owner: str) -> None:
        """Send the rows of a gradient to the servers that hold the variable's rows."""
        placement, indices = self.cut[owner], Ref(node.name, 1)
        picks = self._picked(node, placement, (indices, Ref(node.name, 0)))
        if node.inputs in self.gathered:  # rows of all replicas are on the servers already
            pieces = []
            for i, name in enumerate(self.gathered[node.inputs]):
                mate = node.but(colocate=(_shard_name(owner, i),))
                inputs = (Ref(name, 0), Ref(name, 1))
                pieces.append(
                    self._add(self._cut_node(mate, placement, i, node.attrs, inputs)).node
                )
            both = zip(picks, pieces, strict=True)
            picks = tuple(
                RowSelection(Ref(name, 1), pick.places, Ref(name, 0)) for pick, name in both
            )
            self.picks[indices, Ref(node.name, 0)] = picks
        self.picks[(indices,)] = picks
        parts = tuple(pick.rows for pick in picks)
        self.values[Ref(node.name, 0)] = ShardedValue(parts, placement.pieces, indices)

    def _gather_pieces(self, node: Node, owner: str) -> None:
        """Gather the rows of all replicas on the server of each piece separately."""
        values, indices = node.inputs
        placement, parts = self.cut[owner], []
        for i, pick in enumerate(self._picks(node, placement, (indices, values))):
            mate = node.but(colocate=(_shard_name(owner, i),))
            inputs = (pick.rows, pick.indices)
            parts.append(self._add(self._cut_node(mate, placement, i, node.attrs, inputs)).node)
        self.gathered[Ref(node.name, 0), Ref(node.name, 1)] = parts

    def _entries(self, node: Node, owner: str) -> bool:
        """Send each server the entries of its piece; False if shapes differ from `owner`."""
        placement, shape = self.cut[owner], tuple(node.attrs["shape"])
        if shape != tuple(self.program.nodes[owner].attrs["shape"]):
            return False
        picks = self._picks(node, placement, node.inputs, size_of(shape[1:]))
        self._made_there(node, owner, [(pick.indices, pick.rows) for pick in picks])
        return True

    def _rows_made_whole(self, node: Node, owner: str) -> bool:
        """Densify row gradients per piece; False if not shaped like `owner`."""
        shape = tuple(self.program.nodes[owner].attrs["shape"])
        if len(node.inputs) != 2 or node.attrs["axis"] != 0 or node.attrs["shape"] != shape:
            return False
        values, indices = node.inputs
        picks = self._picked(node, self.cut[owner], (indices, values))
        self._made_there(node, owner, [(pick.rows, pick.indices) for pick in picks])
        return True

    def _made_there(self, node: Node, owner: str, piece_inputs: list[tuple[Ref, Ref]]) -> None:
        """Add a value like `owner`, computed in pieces on each server from `piece_inputs`."""
        placement, parts = self.cut[owner], []
        for i, inputs in enumerate(piece_inputs):
            mate = node.but(colocate=(_shard_name(owner, i),))
            attrs = self._piece_attrs(node, placement, placement.pieces[i])
            parts.append(self._add(self._cut_node(mate, placement, i, attrs, inputs)))
        self._join(node, ShardedValue(tuple(parts), placement.pieces, ROWS))
        self.order[node.name] = tuple(ref.node for ref in parts)

    def _in_pieces(self, node: Node, owner: str) -> bool:
        """Compute a node for each piece of `owner`; False if its inputs do not fit."""
        placement, shape = self.cut[owner], tuple(self.program.nodes[owner].attrs["shape"])
        cuts = [self.values[ref] for ref in node.inputs if ref in self.values]
        if any(cut.pieces != placement.pieces for cut in cuts):
            return False
        spaces = {cut.space for cut in cuts} - {COPIES}
        if not spaces:
            out_dims = node.specs[0].shape
            spaces = {COPIES} if cuts or out_dims == () else {ROWS} if out_dims == shape else set()
        if len(spaces) != 1:
            return False
        (space,) = spaces
        for ref in node.inputs:
            if ref not in self.values and (input_shape := self.program.spec(ref).shape) != ():
                if space != ROWS or input_shape != shape:
                    return False
        parts = []
        for i in range(len(placement.pieces)):
            inputs = tuple(self._piece_of(ref, placement, i) for ref in node.inputs)
            mate = node.but(colocate=(_shard_name(owner, i),))
            parts.append(self._add(self._cut_node(mate, placement, i, node.attrs, inputs)))
        self._join(node, ShardedValue(tuple(parts), placement.pieces, space))
        self.order[node.name] = tuple(ref.node for ref in parts)
        return True

    def _piece_of(self, ref: Ref, placement: VariablePlacement, i: int) -> Ref:
        """Return the part of a value that piece `i` needs."""
        cut = self.values.get(ref)
        if cut is not None and cut.pieces == placement.pieces:
            return cut.parts[i]
        return self._rows(ref, placement, placement.pieces[i])

    def _spec(self, ref: Ref) -> Spec:
        return self.nodes[ref.node].specs[ref.index]

    def _piece_attrs(
        self, node: Node, placement: VariablePlacement, piece: VariableShard
    ) -> dict[str, Any]:
        if placement.copied or "shape" not in node.attrs:
            return node.attrs
        rows = piece.stop - piece.start
        return node.attrs | {"shape": (rows, *node.attrs["shape"][1:])}

    def _cut_node(
        self,
        node: Node,
        placement: VariablePlacement,
        i: int,
        attrs: dict[str, Any],
        inputs: tuple[Ref, ...],
    ) -> Node:
        """Return the node of piece `i`.

        Of a control input that is computed in pieces, it follows the same piece.
        """
        input_specs = [self.nodes[ref.node].specs[ref.index] for ref in inputs]
        specs = infer_specs(node.type, input_specs, attrs, op=node.name, line=node.line)
        control: dict[str, None] = {}
        for name in node.control:
            cut = self.values.get(Ref(name))
            there = cut is not None and cut.pieces == placement.pieces
            control[cut.parts[i].node if there and cut else name] = None
        mates = tuple(c for c in node.colocate if c not in self.cut)
        return node.but(
            name=_shard_name(node.name, i),
            inputs=inputs,
            control=tuple(control),
            attrs=attrs,
            specs=specs,
            colocate=mates,
        )

    def _rows(self, ref: Ref, placement: VariablePlacement, piece: VariableShard) -> Ref:
        """Return the rows of a value that belong to a piece; a scalar serves all pieces."""
        shape = self.program.spec(ref).shape
        if not shape or placement.copied:
            return ref
        if (ref, piece) not in self.rows:
            node = self.program.nodes[ref.node]
            name = f"{ref.node}/rows_{ref.index}_{piece.start}_{piece.stop}"
            self.rows[ref, piece] = self._add(self._slice(node, ref, piece, name))
        return self.rows[ref, piece]

    def _slice(self, node: Node, ref: Ref, piece: VariableShard, name: str) -> Node:
        if node.row.source == "constant":
            value = np.asarray(node.attrs["value"])[piece.start : piece.stop]
            return as_constant(node.but(name=name), value)
        if node.row.source == "fill" and not node.inputs:
            shape = (piece.stop - piece.start, *node.attrs["shape"][1:])
            attrs = node.attrs | {"shape": shape}
            specs = infer_specs("Fill", [], attrs, op=node.name, line=node.line)
            return node.but(name=name, attrs=attrs, specs=specs)
        attrs = {"key": (("slice", piece.start, piece.stop, None),)}
        specs = infer_specs(
            "StridedSlice", [self.program.spec(ref)], attrs, op=name, line=node.line
        )
        return Node(name, "StridedSlice", (ref,), (), attrs, specs, node.device, (), node.line)


def _shard_name(name: str, i: int) -> str:
    return f"{name}/part_{i}"


def _follow_shard_reads(
    program: Program, reads: set[str], order: Mapping[str, tuple[str, ...]]
) -> Program:
    """Make successors of a sharded read follow the reads of the parts, not the Concat."""
    nodes = {
        node.name: node.but(
            control=tuple(
                dict.fromkeys(p for c in node.control for p in (order[c] if c in reads else (c,)))
            )
        )
        if any(c in reads for c in node.control)
        else node
        for node in program.nodes.values()
    }
    return program.but(nodes=nodes)
