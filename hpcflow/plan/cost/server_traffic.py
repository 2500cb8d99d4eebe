"""Server traffic: what each server sends and receives in a step, by variable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from hpcflow.graph.device_names import parse_device
from hpcflow.plan.distribution.variable_placement import VariablePlacement
from hpcflow.plan.ir.program import Edge, Node, Partition, Plan, Ref, ServerMessage, VariableBytes

SENT, RECEIVED = "sent", "received"
HANDS_OVER = "RoundAdd"  # sends a gradient to a synchronous update; its attr `sum` names a variable


def server_messages(
    plan: Plan, placements: Mapping[str, VariablePlacement]
) -> tuple[ServerMessage, ...]:
    """Return the messages of one step to or from servers, without the headers of steps.

    Edges inside a loop or branch are left out, because values decide how often they run.
    """
    sides = {
        task: _ServerPartition(p, placements)
        for task, p in plan.parts.items()
        if parse_device(task).job == "ps"
    }
    messages = []
    for edge in plan.edges:
        ends = ((SENT, sides.get(edge.source)), (RECEIVED, sides.get(edge.dest)))
        shares = [s for way, side in ends if side is not None for s in side.shares(edge, way)]
        if shares and not edge.frame:
            messages.append(ServerMessage(edge.channel, edge.source, edge.dest, tuple(shares)))
    return tuple(messages)


class _ServerPartition:
    """The partition of a server: finds the variables to which its messages belong."""

    def __init__(self, part: Partition, placements: Mapping[str, VariablePlacement]) -> None:
        self.part, self.placements = part, placements
        self.server = parse_device(part.task).task or 0
        self.ends = {
            node.attrs["channel"]: node
            for node in part.nodes.values()
            if node.row.message in ("send", "receive")
        }
        self.users: dict[str, list[Node]] = {}
        for node in part.nodes.values():
            for before in dict.fromkeys(node.before()):
                self.users.setdefault(before, []).append(node)

    def shares(self, edge: Edge, direction: str) -> list[VariableBytes]:
        """Return the shares of the variables in the message of an edge."""
        end = self.ends.get(edge.channel)
        if end is None:
            return []
        nbytes = edge.spec.nbytes if edge.spec.sized else 0
        values = self._values(end, direction)
        if not values:
            return [VariableBytes(self.server, direction, self._nearest(end, direction), nbytes)]
        sizes = [
            VariableBytes(self.server, direction, self._nearest(n, direction), size)
            for n, size in values
        ]
        gaps = nbytes - sum(size for _, size in values)  # padding for alignment
        return [sizes[0]._replace(nbytes=sizes[0].nbytes + gaps), *sizes[1:]]

    def _values(self, end: Node, direction: str) -> list[tuple[Node, int]]:
        """Return (node, bytes) of each value in a parcel; the node produces or takes it."""
        nodes = self.part.nodes
        if direction == RECEIVED:
            outs = [n for n in self.users.get(end.name, ()) if n.row.message == "unpack"]
            return [(n, n.specs[0].nbytes) for n in outs]
        parcel = nodes[end.inputs[0].node] if end.inputs else None
        if parcel is None or parcel.row.message != "pack":
            return []
        return [(nodes[r.node], nodes[r.node].specs[r.index].nbytes) for r in parcel.inputs]

    def _nearest(self, node: Node, direction: str) -> str:
        """Return the variable nearest to a node: before a sent value, after a received one."""
        step: Callable[[Node], Iterable[Node]] = self._before if direction == SENT else self._after
        visited, layer = {node.name}, [node]
        while layer:
            for current in layer:
                name = self._variable(current)
                if name:
                    return name
            layer = [n for current in layer for n in step(current) if n.name not in visited]
            visited.update(n.name for n in layer)
        return ""

    def _before(self, node: Node) -> Iterable[Node]:
        return [self.part.nodes[name] for name in node.before()]

    def _after(self, node: Node) -> Iterable[Node]:
        return self.users.get(node.name, ())

    def _variable(self, node: Node) -> str:
        """Return the variable, or the owner of the slot, that a node uses first."""
        name = str(node.attrs["sum"]) if node.type == HANDS_OVER else ""
        while name:
            name = name.rpartition("/")[0]
            if name in self.placements:
                return self.placements[name].owner
        refs: Sequence[Ref] = node.inputs if node.row.variable != "handle" else (Ref(node.name),)
        for ref in refs:
            source = self.part.nodes[ref.node]
            if source.row.variable == "handle":
                is_part = {"piece", "copy"} & set(source.attrs)
                name = source.name.rpartition("/part_")[0] if is_part else source.name
                return self.placements[name].owner if name in self.placements else name
        return ""
