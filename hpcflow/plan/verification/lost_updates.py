"""Lost updates: a worker assigns to a variable of a server what it computed from an older value.

Updates that other workers make between the read and the assignment are overwritten. An assignment
loses none if its server reads the variable after all that the value needs of other tasks, as in
the updates of optimizers.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpcflow.plan.ir.program import Node, Program, Ref


def lost_update_warnings(program: Program) -> Iterator[str]:
    """Yield a warning for each variable of a server whose updates by other workers may be lost.

    `program` is that of a worker's step, with the devices of its nodes.
    """
    told: set[str] = set()
    for node in program.nodes.values():
        handle = _overwritten(node)
        if handle is None or handle.node in told:
            continue
        cause = _Assignment(program, node, handle).awaited_after_read()
        if cause is not None:
            told.add(handle.node)
            yield (
                f"{node.name!r} ({node.line}) assigns to the variable {handle.node!r} a value "
                f"that depends on its older value and on {cause.name!r} ({cause.line}), which "
                f"{_task(cause)} computes: updates that other workers make between are lost\n"
                "  next  use assign_add or assign_sub, or compute the value under "
                "hf.colocate_with(variable), reading the variable under control dependencies of "
                "all that other tasks compute"
            )


def _overwritten(node: Node) -> Ref | None:
    """Return the handle of the variable of a server that a node overwrites."""
    row = node.row
    if not row.overwrites or not node.device.startswith("/job:ps") or node.attrs.get("initial"):
        return None
    return node.inputs[row.writes[0]]


def _task(node: Node) -> str:
    return node.device.rpartition("/")[0]


class _Assignment:
    """An assignment, and what its value depends on."""

    def __init__(self, program: Program, update: Node, handle: Ref) -> None:
        self._nodes, self._handle, self._server = program.nodes, handle, _task(update)
        own = self._cone([ref.node for ref in update.inputs], stays=True)
        self._reads = [node for node in own if self._is_read(node)]
        inputs = {ref.node for node in (update, *own) for ref in node.inputs}
        self._awaited = [n for n in map(self._nodes.get, inputs) if n and _task(n) != self._server]

    def awaited_after_read(self) -> Node | None:
        """Return an operation of another task that runs after the variable was last read.

        None if the value does not depend on that of the variable.
        """
        late = self._awaited
        for read in self._reads:
            before = {node.name for node in self._cone(read.before(), stays=False)}
            late = [node for node in self._awaited if node.name not in before]
            if not late:
                return None
        names = [node.name for node in self._awaited]
        depends = self._reads or any(map(self._is_read, self._cone(names, stays=False)))
        return late[0] if depends and late else None

    def _is_read(self, node: Node) -> bool:
        return self._handle in (node.inputs[i] for i in node.row.reads)

    def _cone(self, names: list[str], stays: bool) -> list[Node]:
        """Return the nodes of these names and what they depend on.

        With `stays` these are only data, on the server.
        """
        found: dict[str, Node] = {}
        stack = list(names)
        while stack:
            node = self._nodes[stack.pop()]
            if node.name in found or (stays and _task(node) != self._server):
                continue
            found[node.name] = node
            stack += [ref.node for ref in node.inputs] if stays else node.before()
        return list(found.values())
