"""Effect verifier: checks after each pass that no update, wait, fetch or effect order is lost.

The setting `verify_passes` enables it; passes that users register are always checked. An *effect*
is a node that updates state, waits for other steps or tasks, calls a Python function of the user,
or has a side effect and no output (Assert). Two effects are ordered if one follows the other by
values or control inputs. A pass must preserve that order for all effects on the same state, and a
read must see the same updates as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpcflow.errors import VerifyError
from hpcflow.plan.ir.control_flow_nodes import nested_programs, node_with_nested
from hpcflow.plan.ir.program import Node, Partition, Plan, Program

Nodes = Mapping[str, Node]


def check_effects(name: str, old: Program | Partition, new: Program | Partition | Plan) -> None:
    """Check that the pass `name` turned `old` into `new` without losing an effect or an order.

    Errors: VerifyError if it did lose one.
    """
    fetches = new.parts[new.driver].fetches if isinstance(new, Plan) else new.fetches
    if len(old.fetches) != len(fetches):
        raise VerifyError(
            "effects-kept", f"{name} made {len(fetches)} of {len(old.fetches)} fetches"
        )
    nodes = _joined_nodes(new.parts.values()) if isinstance(new, Plan) else new.nodes
    _check_nodes(name, old.nodes, nodes)


def _joined_nodes(parts: Iterable[Partition]) -> Nodes:
    """Return the nodes of all partitions, each receive behind its send."""
    nodes = {node.name: node for part in parts for node in part.nodes.values()}
    sends = {n.attrs["channel"]: n.name for n in nodes.values() if n.row.message == "send"}
    for node in nodes.values():
        if node.row.message == "receive":
            nodes[node.name] = node.but(control=(*node.control, sends[node.attrs["channel"]]))
    return nodes


def _check_nodes(name: str, old: Nodes, new: Nodes) -> None:
    effects = [node for node in old.values() if _has_effect(node)]
    carriers = {node.name: _carriers_of_effect(node, new) for node in effects}
    for node in effects:
        if not carriers[node.name]:
            raise _lost_effect_error(name, node, "is lost")
        for key, body in nested_programs(node):
            rewritten = [new[carrier].attrs.get(key) for carrier in carriers[node.name]]
            parts = [part for part in rewritten if isinstance(part, Partition)]
            if isinstance(body, Program) and parts:
                _check_nodes(name, body.nodes, _joined_nodes(parts))
                continue
            for other in rewritten:
                if isinstance(other, type(body)):
                    _check_nodes(name, body.nodes, other.nodes)
    before = Reachability(old, carriers)
    after = Reachability(new, dict.fromkeys(n for names in carriers.values() for n in names))
    for first, second in _conflicts(effects):
        for a, b in ((first, second), (second, first)):
            if before(a.name, b.name) and not all(
                x == y or after(x, y) or not in_conflict(new[x], new[y])
                for x in carriers[a.name]
                for y in carriers[b.name]
            ):
                raise _lost_effect_error(name, b, f"does not follow {a.name!r} any longer")
    for node in old.values():
        reads = used_state(node)[0] if _reads(node) else set[str]()
        for a in effects if reads else []:
            if not reads.isdisjoint(used_state(a)[1]) and before(a.name, node.name):
                if not all(
                    after(x, y) or not in_conflict(new[x], new[y])
                    for x in carriers[a.name]
                    for y in _carriers_of_effect(node, new)
                    if new[y].type.startswith(node.type)
                ):
                    raise _lost_effect_error(name, node, f"does not see {a.name!r} any longer")


def _reads(node: Node) -> bool:
    """Return whether a node reads variables and has no effect."""
    if node.row.control_flow:
        return not _has_effect(node)
    return node.row.variable in ("read", "read_rows")


def used_state(node: Node) -> tuple[set[str], set[str]]:
    """Return the state that a node uses and the state that it updates.

    For a loop or branch this includes the state of its bodies.
    """
    nodes = list(node_with_nested(node))
    used = {n.inputs[i].node for n in nodes for i in (*n.row.reads, *n.row.writes)}
    return used, {n.inputs[i].node for n in nodes for i in n.row.writes}


def _has_effect(node: Node) -> bool:
    row = node.row
    if node.row.control_flow:
        return any(_has_effect(n) for _, body in nested_programs(node) for n in body.nodes.values())
    only = row.stateful and not node.specs and not node.row.order_only
    return bool(row.writes or row.waits or row.script or only) and node.row.message != "receive"


def _carriers_of_effect(node: Node, new: Nodes) -> list[str]:
    """Return the nodes of `new` with the effect of `node`: itself, a holder, or its pieces."""
    if node.name in new:
        return [node.name]
    carriers = [n.name for n in new.values() if node.name in n.attrs.get("names", ())]
    if node.row.combines == "sum":  # in a bucket
        sums = [n for n in new.values() if n.type == node.type]
        carriers += [n.name for n in sums if node.name in n.attrs.get("of", ())]
    kin = [n for n in new.values() if n.type.startswith(node.type)]
    return carriers or [n.name for n in kin if n.name.startswith(f"{node.name}/")]


def in_conflict(a: Node, b: Node) -> bool:
    """Return whether two nodes must keep their order.

    One of them updates state that the other uses, or both act outside of the variables: they
    wait, call a function of the user, or print.
    """
    (used_a, written_a), (used_b, written_b) = used_state(a), used_state(b)
    share_state = not (used_a.isdisjoint(written_b) and used_b.isdisjoint(written_a))
    return share_state or (_acts_outside(a) and _acts_outside(b))


def acts(node: Node) -> bool:
    """Return whether a node uses state or acts outside of the variables: it has an order."""
    return bool(used_state(node)[0]) or _acts_outside(node)


def _acts_outside(node: Node) -> bool:
    """Return whether a node, or one of its bodies, has an effect other than an update."""
    if node.row.control_flow:
        bodies = (body for _, body in nested_programs(node))
        return any(_acts_outside(n) for body in bodies for n in body.nodes.values())
    return _has_effect(node) and not (node.row.writes or node.row.message)


def _conflicts(effects: list[Node]) -> Iterable[tuple[Node, Node]]:
    """Yield pairs of effects that must keep their order."""
    for i, a in enumerate(effects):
        for b in effects[:i]:
            if in_conflict(a, b):
                yield b, a


class Reachability:
    """Records for each node which of the marked nodes it follows."""

    def __init__(self, nodes: Nodes, marked: Iterable[str]) -> None:
        self.bit = {name: 1 << i for i, name in enumerate(marked)}
        self.masks: dict[str, int] = {}
        stack = list(nodes)[::-1]
        while stack:
            name = stack[-1]
            waiting = [b for b in nodes[name].before() if b not in self.masks]
            if waiting and name not in self.masks:
                stack += waiting
                continue
            stack.pop()
            mask = 0
            for b in nodes[name].before():
                mask |= self.masks[b] | self.bit.get(b, 0)
            self.masks[name] = mask

    def __call__(self, before: str, after: str) -> bool:
        """Return whether `after` follows the marked node `before`, directly or indirectly."""
        return bool(self.masks[after] & self.bit[before])


def _lost_effect_error(name: str, node: Node, problem: str) -> VerifyError:
    return VerifyError(
        "effects-kept",
        f"{name}: {node.name!r} {problem}",
        op=node.name,
        line=node.line,
        hint="this is an error of hpcflow: please report it with the program",
    )
