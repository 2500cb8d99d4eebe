"""Nodes of a synchronous update: what servers compute behind the sums of gradients, in which order.

An *act* is a node behind the sums that changes state of servers. The update runs the acts and what
they need. It recomputes constants and reads of variables that only acts change. Workers send it
all other values, those of the first worker whose gradient counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from hpcflow.errors import GraphError
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_rewriting import eliminate_dead_nodes
from hpcflow.plan.verification.effect_verifier import Reachability, used_state


class UpdateNodes:
    """The nodes of the update of a program, by name.

    `downstream` are the sums and all nodes behind one, `worker_effects` those of them that change
    what is not on servers, `is_served` tells whether the state of a handle is on a server.
    `handed` are the values that workers send, `awaited` the other nodes of a worker that must have
    run before its gradients count.
    Errors: GraphError if the update needs what workers compute behind the sums.
    """

    def __init__(
        self,
        program: Program,
        sums: Sequence[Node],
        acts: Sequence[Node],
        downstream: Collection[str],
        worker_effects: Collection[str],
        is_served: Callable[[str], bool],
    ) -> None:
        self.program, self.acts, self.downstream = program, acts, downstream
        self._worker_effects, self._is_served = worker_effects, is_served
        self._ordering = {n.name for n in (*sums, *acts)}
        others = (n for n in program.nodes.values() if n.name not in {a.name for a in acts})
        self._changed_by_workers = {state for node in others for state in used_state(node)[1]}
        self._copied: dict[str, bool] = {}
        self.handed: dict[Ref, None] = {}
        self.awaited: dict[str, None] = {}
        self.names = self._needed()

    def control(self, node: Node) -> tuple[str, ...]:
        """Return the sums and acts that a node follows, in place of its control inputs.

        Effects of workers do not run in the update; what follows them follows what they follow.
        """
        found: dict[str, None] = {}
        visited: set[str] = set()
        stack = list(reversed(node.control))
        while stack:
            name = stack.pop()
            if name in visited:
                continue
            visited.add(name)
            if name in self._ordering:
                found[name] = None
            elif name in self.downstream or self._can_copy(name):
                stack.extend(self.program.nodes[name].before())
            else:
                self.awaited[name] = None
        return tuple(found)

    def _needed(self) -> set[str]:
        """Return the nodes that the update computes itself."""
        needed: set[str] = set()
        stack = [n.name for n in self.acts]
        while stack:
            node = self.program.nodes[stack.pop()]
            if node.name in needed or node.row.lowers_to:
                continue
            self._check_state(node)
            needed.add(node.name)
            for ref in node.inputs:
                if ref.node in self.downstream or self._can_copy(ref.node):
                    stack.append(ref.node)
                else:
                    self.handed[ref] = None
            stack += self.control(node)
        return needed

    def _can_copy(self, name: str) -> bool:
        """Return whether the update can recompute a node that precedes the sums.

        When the update runs, workers have made their own changes of this step.
        """
        if name not in self._copied:
            node = self.program.nodes[name]
            read = {node.inputs[i].node for i in node.row.reads}
            same = node.row.pure or (bool(read) and not node.row.writes)
            fits = same and not node.row.control_flow and all(map(self._is_served, read))
            fits = fits and self._changed_by_workers.isdisjoint(read)
            handle = node.row.variable == "handle" and self._is_served(name)
            self._copied[name] = (handle or fits) and all(
                self._can_copy(ref.node) for ref in node.inputs
            )
        return self._copied[name]

    def _check_state(self, node: Node) -> None:
        state = used_state(node)[0]
        if node.name in self._worker_effects or not all(map(self._is_served, state)):
            raise GraphError(
                f"an update that the servers make needs {node.name!r}, which workers run behind "
                "the sum of the gradients",
                op=node.name,
                line=node.line,
                hint="read the variable before the gradients, or fetch the value and feed it",
            )

    def check_used(self, program: Program, acts: Mapping[str, Any]) -> None:
        """Check that a worker's step uses no value of an act."""
        nodes = eliminate_dead_nodes(program.but(targets=())).nodes
        users = [(ref.node, nodes[ref.node]) for ref in program.fetches]
        users += [(ref.node, node) for node in nodes.values() for ref in node.inputs]
        for used, user in users:
            if used in acts:
                raise GraphError(
                    f"the value of {used!r}, an update that the servers make, is fetched",
                    op=user.name,
                    line=user.line,
                    hint="fetch a read of the variable that comes after it",
                )

    def check_reads(self, program: Program) -> None:
        """Check that what a worker reads behind the sums follows all updates of the variable.

        A worker reads when the whole update is over.
        """
        follows = Reachability(self.program.nodes, [act.name for act in self.acts])
        for node in program.nodes.values():
            reads = used_state(node)[0] if node.name in self.downstream else set[str]()
            for act in self.acts if reads else []:
                state = sorted(reads & used_state(act)[1])
                if state and node.name != act.name and not follows(act.name, node.name):
                    raise GraphError(
                        f"{node.name!r} reads {state[0]!r} behind the sum of the gradients and "
                        f"before {act.name!r}, an update that the servers make",
                        op=node.name,
                        line=node.line,
                        hint="read it behind this update, or before the gradients, or in another "
                        "call of run",
                    )
