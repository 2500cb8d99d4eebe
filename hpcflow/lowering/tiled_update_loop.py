"""Emits the tiled loop of a group of nodes: one loop over slices of flat arrays."""

from __future__ import annotations

from typing import Any

from hpcflow.lowering import update_tiling
from hpcflow.lowering.update_tiling import TILED, Group
from hpcflow.plan.ir.program import Node, Ref


class TileLoop:
    """Writes the loop of `group` into a partition's code.

    Before the loop, values and variables are flattened (`a...`); in the loop, their tiles have
    names (`t...`). With `yields` the segment yields after each tile. Else Ctrl-C is deferred until
    the last tile: no update is left half done.
    """

    def __init__(self, writer: Any, group: Group, yields: bool) -> None:
        self.writer, self.group, self.yields = writer, group, yields
        self.nodes = [writer.part.nodes[name] for name in group.nodes]
        self.tile: dict[Ref, str] = {}  # value -> the name of its tile
        self.flat: dict[str, str] = {}  # name of a tile -> the flat array it is sliced from
        self.scratch: list[tuple[str, str]] = []  # (tile, buffer) of values of one tile
        self.targets: dict[str, str] = {}  # variable -> the name of its tile
        self.kept: dict[str, str] = {}  # variable -> its pinned version, copied before the update

    def write(self) -> None:
        """Emit the code before the loop, the loop, and the end of the updates."""
        emit, last = self.writer.emit, self.group.last
        self.name_values()
        self.begin_updates()
        for name, buffer in self.scratch:
            emit(f"{name} = {buffer}", last)
        if self.yields:
            self.loop(2)
            self.end_updates(2)
        else:
            emit(f"{self.writer.hook('hold')}()", last)
            emit("try:", last)
            self.loop(3)
            self.end_updates(3)
            emit("finally:", last)
            emit(f"{self.writer.hook('let_go')}()", last, 3)

    def loop(self, depth: int) -> None:
        """Emit the loop itself.

        A tile of a pinned version is copied to the variable's second buffer right before the update
        of that tile. The copy is then still in the cache when the update changes it, for any number
        of variables.
        """
        emit, last, size = self.writer.emit, self.group.last, self.group.size
        emit(f"for i in range(0, {size}, {update_tiling.TILE}):", last, depth)
        emit(f"j = i + {update_tiling.TILE}", last, depth + 1)
        if size % update_tiling.TILE and self.scratch:
            emit(f"if j > {size}:", last, depth + 1)
            for name, buffer in self.scratch:
                emit(f"{name} = {buffer}[:{size} - i]", last, depth + 2)
        for name, whole in self.flat.items():
            emit(f"{name} = {whole}[i:j]", last, depth + 1)
        kept = dict(self.kept)
        for node in self.nodes:
            variable = self.variable(node)
            if old := kept.pop(variable, ""):
                tile = self.targets[variable]
                emit(f"if {old} is not None: {tile}[...] = {old}[i:j]", node.name, depth + 1)
            emit(self.computed(node), node.name, depth + 1)
        if self.yields:
            emit("yield", last, depth + 1)

    def name_values(self) -> None:
        """Name the tiles of all values that are not scalars."""
        emit, store = self.writer.emit, self.writer.store
        made = [Ref(n.name) for n in self.nodes if n.type not in TILED]
        for ref in (*made, *(r for n in self.nodes for r in self.operands(n))):
            if ref in self.tile or store.part.spec(ref).shape == ():
                continue
            name = self.tile[ref] = f"t{store.number[ref.node]}_{ref.index}"
            if ref in self.group.scratch:
                self.scratch.append((name, store.expr[ref]))
            else:
                self.flat[name] = f"a{name[1:]}"
                emit(f"{self.flat[name]} = {store.expr[ref]}.reshape(-1)", ref.node)

    def begin_updates(self) -> None:
        """Get from each variable the array to fill, and the version to copy there first."""
        for node in self.nodes:
            variable = self.variable(node)
            if not variable or variable in self.targets:
                continue
            tile = self.targets[variable] = f"t{variable}"
            self.flat[tile] = f"a{variable}"
            whole = node.type == "Assign"
            new, old = f"n{variable}", f"o{variable}"
            self.writer.emit(f"{new}, {old} = {variable}.begin({whole})", node.name)
            self.writer.emit(f"{self.flat[tile]} = {new}.reshape(-1)", node.name)
            if not whole:
                self.kept[variable] = old
                self.writer.emit(f"if {old} is not None: {old} = {old}.reshape(-1)", node.name)

    def end_updates(self, depth: int) -> None:
        """Make the filled arrays current."""
        for variable in self.targets:
            nodes = [n.name for n in self.nodes if self.variable(n) == variable]
            self.writer.emit(f"{variable}.end(n{variable}, {len(nodes)})", nodes[-1], depth)

    def variable(self, node: Node) -> str:
        """The name of the variable that a node updates, "" if none."""
        return self.writer.store.variable(node.inputs[0]) if node.type in TILED else ""

    def operands(self, node: Node) -> list[Ref]:
        """The operands of a node without the handles it updates."""
        return [ref for i, ref in enumerate(node.inputs) if i not in node.row.writes]

    def computed(self, node: Node) -> str:
        """The code of one node on one tile."""
        args = [self.tile.get(r) or self.writer.store.expr[r] for r in self.operands(node)]
        if node.type == "Assign":
            return f"{self.targets[self.variable(node)]}[...] = {args[0]}"
        if node.type in TILED:
            return f"{self.writer.kernel(node)}({self.targets[self.variable(node)]}, {args[0]})"
        args.append(self.writer.keyword(node) + self.tile[Ref(node.name)])
        return f"{self.writer.kernel(node)}({', '.join(args)})"
