"""Lost updates: a worker assigns to a variable of a server what it computed from an older value.

Updates that other workers make between the read and the assignment are overwritten. An assignment
loses none if its server reads the variable after all that the value needs of other tasks, as in
the updates of optimizers.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpcflow.plan.communication.send_recv_insertion import task_of
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.verification.effect_verifier import Reachability


def lost_update_warnings(program: Program) -> Iterator[str]:
    """Yield a warning for each variable of a server whose updates by other workers may be lost.

    `program` is that of a worker's step, with the devices of its nodes.
    """
    nodes = program.nodes
    assignments = [
        _Assignment(program, node, node.inputs[node.row.writes[0]])
        for node in nodes.values()
        if _overwrites_on_server(node)
    ]
    if not assignments:
        return
    handles = {assignment.handle for assignment in assignments}
    reads = [node for node in nodes.values() if not handles.isdisjoint(_read_handles(node))]
    marked = dict.fromkeys(node.name for one in assignments for node in (*one.awaited, *one.reads))
    marked |= dict.fromkeys(node.name for node in reads)
    follows = Reachability(nodes, marked)
    told: set[str] = set()
    for one in assignments:
        cause = one.awaited_after_read(reads, follows)
        if cause is None or one.handle.node in told:
            continue
        told.add(one.handle.node)
        yield (
            f"{one.update.name!r} ({one.update.line}) assigns to the variable {one.handle.node!r} "
            f"a value that depends on its older value and on {cause.name!r} ({cause.line}), which "
            f"{task_of(cause.device)} computes: updates that other workers make between are lost\n"
            "  next  use assign_add or assign_sub, or compute the value under "
            "hf.colocate_with(variable), reading the variable under control dependencies of "
            "all that other tasks compute"
        )


def _overwrites_on_server(node: Node) -> bool:
    is_update = node.row.overwrites and not node.attrs.get("initial")
    return is_update and node.device.startswith("/job:ps")


def _read_handles(node: Node) -> list[Ref]:
    return [node.inputs[i] for i in node.row.reads]


class _Assignment:
    """An assignment: the reads of its variable and the values of other tasks that it uses.

    `reads` are on the server. What the server computes of them and of `awaited` is the new value.
    """

    def __init__(self, program: Program, update: Node, handle: Ref) -> None:
        self.update, self.handle = update, handle
        self.reads: list[Node] = []
        self.awaited: list[Node] = []
        server, own, visited = task_of(update.device), [update], {update.name}
        for node in own:  # which grows: nodes of the server, the nearest first
            for name in dict.fromkeys(ref.node for ref in node.inputs if ref.node not in visited):
                visited.add(name)
                before = program.nodes[name]
                if task_of(before.device) != server:
                    self.awaited.append(before)
                    continue
                own.append(before)
                if handle in _read_handles(before):
                    self.reads.append(before)

    def awaited_after_read(self, reads: list[Node], follows: Reachability) -> Node | None:
        """Return an operation of another task that runs after the variable was last read.

        None if the value does not depend on that of the variable. `reads` are those of all
        variables.
        """
        late = self.awaited
        for read in self.reads:
            late = [node for node in self.awaited if not follows(node.name, read.name)]
            if not late:
                return None
        names = [read.name for read in reads if self.handle in _read_handles(read)]
        is_used = self.reads or any(
            node.name in names or any(follows(name, node.name) for name in names)
            for node in self.awaited
        )
        return late[0] if is_used and late else None
