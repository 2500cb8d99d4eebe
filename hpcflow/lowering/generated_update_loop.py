"""Emits the call of a generated loop for a group of nodes and variable updates."""

from __future__ import annotations

from typing import Any

from hpcflow.lowering import update_tiling
from hpcflow.lowering.fusion.update_fusion import Described
from hpcflow.lowering.update_tiling import Group, is_loose
from hpcflow.plan.ir.program import Node, Ref


class UpdateLoop:
    """Writes the calls of the generated loop of `group` into a partition's code.

    With `yields` the segment yields after each tile. Else a large update defers Ctrl-C until it has
    ended: no update is left half done.
    """

    def __init__(self, writer: Any, group: Group, loop: Described, yields: bool) -> None:
        self.writer, self.group, self.loop, self.yields = writer, group, loop, yields
        self.store, self.last = writer.store, group.last
        self.nodes: list[Node] = [writer.part.nodes[name] for name in group.nodes]
        self.large = group.size >= update_tiling.LARGE
        self.begun: dict[str, int] = {}  # variable -> how many updates its `end` counts

    def write(self) -> None:
        """Emit the code before the loop, the loop, and the end of the updates."""
        emit, last = self.writer.emit, self.last
        arrays = [array for handle in self.loop.handles for array in self.target(handle)]
        arrays += [self.operand(ref) for ref in self.loop.operands]
        arrays += [self.store.expr[ref] for ref in self.loop.results]
        name = f"k{self.store.number[last]}"
        self.writer.binds[name] = ("loop", last, self.loop.text)
        given = ", ".join(arrays)
        if self.yields:
            emit(f"for i in range(0, {self.group.size}, {update_tiling.TILE}):", last)
            emit(f"{name}(i, min(i + {update_tiling.TILE}, {self.group.size}), {given})", last, 3)
            emit("yield", last, 3)
            self.end(2)
        elif self.large:
            emit(f"if {self.is_torn()}: {self.writer.hook('hold')}()", last)
            emit("try:", last)
            emit(f"{name}(0, {self.group.size}, {given})", last, 3)
            self.end(3)
            emit("finally:", last)
            emit(f"{self.writer.hook('let_go')}()", last, 3)
        else:
            emit(f"{name}(0, {self.group.size}, {given})", last)
            self.end(2)

    def target(self, handle: Ref) -> tuple[str, str]:
        """The names of the output array of a variable and of the array with its previous value."""
        variable = self.store.variable(handle)
        new, old = f"n{variable}", f"o{variable}"
        users = [n for n in self.nodes if handle in [n.inputs[i] for i in n.row.writes]]
        first = users[0]
        counts = self.loop.update.targets[self.loop.handles.index(handle)].counts
        whole = first.type == "Assign"
        if counts or not (self.large or self.yields or whole or len(users) > 1):
            self.writer.emit(f"{new} = {variable}.write()", first.name)
            return new, new
        self.begun[variable] = len(users)
        self.writer.emit(f"{new}, {old} = {variable}.begin({whole})", first.name)
        if whole:
            return new, new
        self.writer.emit(f"if {old} is None: {old} = {new}", first.name)
        return new, old

    def is_torn(self) -> str:
        """The condition under which an interrupt before the end of updates leaves them torn.

        An update is torn if its array is filled but not yet current.
        """
        if any(node.type == "Assign" for node in self.nodes):
            return "True"
        return " or ".join(f"n{name} is not o{name}" for name in self.begun) or "False"

    def end(self, depth: int) -> None:
        """Make the filled arrays current."""
        for variable, updates in self.begun.items():
            self.writer.emit(f"{variable}.end(n{variable}, {updates})", self.last, depth)

    def operand(self, ref: Ref) -> str:
        """An array of a value's elements in C order."""
        text = self.store.expr[ref]
        if not is_loose(self.writer.part, ref, self.writer.info):
            return text
        plain = f"plain_{self.nodes[-1].kind}"
        self.writer.binds[plain] = ("plain", self.last)
        return f"{plain}({text})"
