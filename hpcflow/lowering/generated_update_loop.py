"""Writes the call of a generated loop for a group of nodes and variable updates."""

from __future__ import annotations

from typing import Any

from hpcflow.lowering import update_tiling
from hpcflow.lowering.fusion.update_fusion import UpdateDescription
from hpcflow.lowering.instructions import Access, Binding, BindingKind, Opcode, Use
from hpcflow.lowering.update_tiling import TileGroup, may_be_strided
from hpcflow.plan.ir.program import Node, Ref


class UpdateLoop:
    """Writes the instructions of the generated loop of `group`.

    With `yields` the segment yields after each tile. Else a large update defers Ctrl-C until it has
    ended: no update is left half done.
    """

    def __init__(
        self, writer: Any, group: TileGroup, loop: UpdateDescription, yields: bool
    ) -> None:
        self.writer, self.group, self.loop, self.yields = writer, group, loop, yields
        self.store, self.last = writer.store, group.last
        self.nodes: list[Node] = [writer.part.nodes[name] for name in group.nodes]
        self.large = group.size >= update_tiling.MIN_TILED_ELEMENTS
        self.begun: dict[str, int] = {}  # variable -> how many updates its `end` counts

    def write(self) -> None:
        """Add the instructions before the loop, the loop, and the end of the updates."""
        add, last, size = self.writer.add, self.last, self.group.size
        arrays = [Use(array) for handle in self.loop.handles for array in self.target(handle)]
        arrays += [self.operand(ref) for ref in self.loop.operands]
        arrays += [self.store.expressions[ref] for ref in self.loop.results]
        name, args = f"k{self.store.number[last]}", tuple(arrays)
        assert self.loop.text is not None
        self.writer.binds[name] = Binding(BindingKind.LOOP, last, 0, self.loop.text)
        if self.yields:
            with self.writer.block(Opcode.TILE_LOOP, last, size, update_tiling.TILE):
                add(Opcode.CALL_LOOP_TILE, last, (), args, name, (size, update_tiling.TILE))
                add(Opcode.YIELD, last)
            self.end()
        elif self.large:
            self.hold()
            with self.writer.block(Opcode.GUARD, last):
                add(Opcode.CALL_LOOP, last, (), args, name, (size,))
                self.end()
                add(Opcode.LET_GO, last)
        else:
            add(Opcode.CALL_LOOP, last, (), args, name, (size,))
            self.end()

    def target(self, handle: Ref) -> tuple[str, str]:
        """The names of the output array of a variable and of the array with its previous value."""
        variable = self.store.variable(handle)
        new, old = f"n{variable}", f"o{variable}"
        users = [n for n in self.nodes if handle in [n.inputs[i] for i in n.row.writes]]
        first = users[0]
        counts = self.loop.update.targets[self.loop.handles.index(handle)].counts
        whole = first.row.variable == "assign"
        add = self.writer.add
        if counts or not (self.large or self.yields or whole or len(users) > 1):
            written = (Use(variable, Access.WRITTEN),)
            add(Opcode.WRITE_VARIABLE, first.name, (new,), written)
            return new, new
        self.begun[variable] = len(users)
        updated = (Use(variable, Access.UPDATED),)
        add(Opcode.BEGIN_UPDATE, first.name, (new, old), updated, "", (int(whole),))
        if whole:
            return new, new
        add(Opcode.SAME_IF_IN_PLACE, first.name, (old,), (Use(new), Use(old)))
        return new, old

    def hold(self) -> None:
        """Defer Ctrl-C if an interrupt before the end of updates would leave them torn.

        An update is torn if its array is filled but not yet current.
        """
        whole = any(node.row.variable == "assign" for node in self.nodes)
        arrays = [] if whole else [Use(f"{x}{name}") for name in self.begun for x in "no"]
        self.writer.add(Opcode.HOLD_IF_TORN, self.last, (), tuple(arrays), "", (int(whole),))

    def end(self) -> None:
        """Make the filled arrays current."""
        for variable, updates in self.begun.items():
            operands = (Use(variable, Access.UPDATED), Use(f"n{variable}"))
            self.writer.add(Opcode.END_UPDATE, self.last, (), operands, "", (updates,))

    def operand(self, ref: Ref) -> Use:
        """An array of a value's elements in C order."""
        value: Use = self.store.expressions[ref]
        if not may_be_strided(self.writer.part, ref, self.writer.info):
            return value
        plain = f"plain_{self.nodes[-1].kind}"
        self.writer.binds[plain] = Binding(BindingKind.CONTIGUOUS, self.last)
        return value._replace(through=plain)
