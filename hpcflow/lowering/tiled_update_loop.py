"""Writes the tiled loop of a group of nodes: one loop over slices of flat arrays."""

from __future__ import annotations

from typing import Any

from hpcflow.lowering import update_tiling
from hpcflow.lowering.instructions import Access, Opcode, Use
from hpcflow.lowering.update_tiling import TileGroup
from hpcflow.plan.ir.program import Node, Ref


class TileLoop:
    """Writes the instructions of the loop of `group`.

    Before the loop, values and variables are flattened (`a...`); in the loop, their tiles have
    names (`t...`). With `yields` the segment yields after each tile. Else Ctrl-C is deferred until
    the last tile: no update is left half done.
    """

    def __init__(self, writer: Any, group: TileGroup, yields: bool) -> None:
        self.writer, self.group, self.yields = writer, group, yields
        self.nodes = [writer.part.nodes[name] for name in group.nodes]
        self.tile: dict[Ref, str] = {}  # value -> the name of its tile
        self.flat: dict[str, str] = {}  # name of a tile -> the flat array it is sliced from
        self.scratch: list[tuple[str, Use]] = []  # (tile, buffer) of values of one tile
        self.targets: dict[str, str] = {}  # variable -> the name of its tile
        # variable -> its pinned version, copied before the update
        self.pinned_versions: dict[str, str] = {}

    def write(self) -> None:
        """Add the instructions before the loop, the loop, and the end of the updates."""
        add, last = self.writer.add, self.group.last
        self.name_values()
        self.begin_updates()
        for name, buffer in self.scratch:
            add(Opcode.SCRATCH, last, (name,), (buffer,))
        if self.yields:
            self.loop()
            self.end_updates()
            return
        add(Opcode.HOLD_INTERRUPT, last)
        with self.writer.block(Opcode.GUARD, last):
            self.loop()
            self.end_updates()
            add(Opcode.LET_GO, last)

    def loop(self) -> None:
        """Add the loop itself.

        A tile of a pinned version is copied to the variable's second buffer right before the update
        of that tile. The copy is then still in the cache when the update changes it, for any number
        of variables.
        """
        add, last, size = self.writer.add, self.group.last, self.group.size
        tile = update_tiling.TILE
        with self.writer.block(Opcode.TILE_LOOP, last, size, tile):
            add(Opcode.TILE_END, last, numbers=(tile,))
            if size % tile and self.scratch:
                with self.writer.block(Opcode.LAST_TILE, last, size):
                    for name, buffer in self.scratch:
                        add(Opcode.SHORTEN, last, (name,), (buffer,), "", (size,))
            for name, array in self.flat.items():
                add(Opcode.SLICE, last, (name,), (Use(array),))
            old_arrays = dict(self.pinned_versions)
            for node in self.nodes:
                variable = self.variable(node)
                if old := old_arrays.pop(variable, ""):
                    into = Use(self.targets[variable], Access.FILLED)
                    add(Opcode.COPY_OLD_TILE, node.name, (), (into, Use(old)))
                self.compute(node)
            if self.yields:
                add(Opcode.YIELD, last)

    def name_values(self) -> None:
        """Name the tiles of all values that are not scalars."""
        store = self.writer.store
        outputs = [Ref(n.name) for n in self.nodes if not n.row.tiled]
        for ref in (*outputs, *(r for n in self.nodes for r in self.operands(n))):
            if ref in self.tile or store.part.spec(ref).shape == ():
                continue
            name = self.tile[ref] = f"t{store.number[ref.node]}_{ref.index}"
            if ref in self.group.scratch:
                self.scratch.append((name, store.expressions[ref]))
            else:
                flat = self.flat[name] = f"a{name[1:]}"
                self.writer.add(Opcode.FLATTEN, ref.node, (flat,), (store.expressions[ref],))

    def begin_updates(self) -> None:
        """Get from each variable the array to fill, and the version to copy there first."""
        add = self.writer.add
        for node in self.nodes:
            variable = self.variable(node)
            if not variable or variable in self.targets:
                continue
            tile = self.targets[variable] = f"t{variable}"
            self.flat[tile] = f"a{variable}"
            whole = node.row.variable == "assign"
            new, old = f"n{variable}", f"o{variable}"
            updated = (Use(variable, Access.UPDATED),)
            add(Opcode.BEGIN_UPDATE, node.name, (new, old), updated, "", (int(whole),))
            add(Opcode.FLATTEN, node.name, (self.flat[tile],), (Use(new),))
            if not whole:
                self.pinned_versions[variable] = old
                add(Opcode.FLATTEN_IF_HELD, node.name, (old,), (Use(old),))

    def end_updates(self) -> None:
        """Make the filled arrays current."""
        for variable in self.targets:
            nodes = [n.name for n in self.nodes if self.variable(n) == variable]
            operands = (Use(variable, Access.UPDATED), Use(f"n{variable}"))
            self.writer.add(Opcode.END_UPDATE, nodes[-1], (), operands, "", (len(nodes),))

    def variable(self, node: Node) -> str:
        """The name of the variable that a node updates, "" if none."""
        return self.writer.store.variable(node.inputs[0]) if node.row.tiled else ""

    def operands(self, node: Node) -> list[Ref]:
        """The operands of a node without the handles it updates."""
        return [ref for i, ref in enumerate(node.inputs) if i not in node.row.writes]

    def compute(self, node: Node) -> None:
        """Add the instruction that computes one node on one tile."""
        add, store = self.writer.add, self.writer.store
        args = [
            Use(self.tile[ref]) if ref in self.tile else store.expressions[ref]
            for ref in self.operands(node)
        ]
        if node.row.variable == "assign":
            into = Use(self.targets[self.variable(node)], Access.FILLED)
            add(Opcode.COPY_INTO, node.name, (), (into, args[0]))
        elif node.row.tiled:
            into = Use(self.targets[self.variable(node)], Access.FILLED)
            add(Opcode.CALL_KERNEL, node.name, (), (into, args[0]), self.writer.kernel(node))
        else:
            out = Use(self.tile[Ref(node.name)], self.writer.filled(node))
            add(Opcode.CALL_KERNEL, node.name, (), (*args, out), self.writer.kernel(node))
