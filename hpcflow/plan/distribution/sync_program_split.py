"""Synchronous training with parameter servers: splits a worker's step from the update.

The graph has a sum over replicas (`ReplicaSum`). Where the synchronization rule joins the workers'
gradients (`sync="all"`, `Backup`), the program of a step is split at these sums.

A worker's step begins when server 0, the *coordinator*, sends the version of the variables
(`RoundBegin`). It ends when the gradients are on the servers of their variables (`RoundAdd`) and
the coordinator is notified (`RoundReady`).

All nodes behind the sums that change state form a synchronous update (`round` in the code): a
separate program, which server 0 drives repeatedly. It picks the workers whose gradients count
(`RoundPick`). Each server sums their gradients (`RoundSum`), updates its variables and reports the
end (`RoundEnd`).

Where a rule only bounds the staleness (`Stale`), updates stay in the worker's step. Before it
begins, the step waits until the slowest worker is within the bound. It notifies the coordinator
when its updates are applied.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcflow.errors import GraphError
from hpcflow.graph.device_names import parse_device
from hpcflow.graph.dtypes import float64, resource
from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.static_shape import Spec
from hpcflow.plan.distribution.initial_value_sharding import assigns_initial_value
from hpcflow.plan.distribution.variable_placement import VariablePlacement
from hpcflow.plan.ir.control_flow_nodes import nested_nodes, node_with_nested
from hpcflow.plan.ir.node_effects import updates_variables
from hpcflow.plan.ir.program import Cluster, Node, Program, Ref
from hpcflow.plan.ir.program_rewriting import eliminate_dead_nodes, infer_specs, substitute_values
from hpcflow.plan.verification.effect_verifier import used_state

if TYPE_CHECKING:
    from hpcflow.plan.distribution.sync_update_nodes import UpdateNodes

COORDINATOR = "/job:ps/task:0"  # decides for all servers; drives the updates
CLOCK = "clock"  # channel name of steps that are only counted
BEFORE_ALL = ("wait", "is_initialized")  # roles of ops that run before the step begins
BEGIN, READY, PICK = "_rounds/begin", "_rounds/ready", "_rounds/pick"


def split_sync_program(
    program: Program,
    cluster: Cluster,
    placements: Mapping[str, VariablePlacement],
    share: str | None,
    trains: bool,
) -> tuple[Program, Program | None, str]:
    """Return the program of a worker's step, the program of the update and the name of the update.

    The update is None if nothing is summed. `share` names the node with the worker's fraction of
    the global batch, if there is one. `trains` is true if the graph sums gradients, even if the
    rule made each worker's sum its own gradient.
    Errors: GraphError for a sum that depends on another one.
    """
    splitter = _SyncSplitter(program, cluster, placements)
    if cluster.sync.counts_steps:
        return (splitter.clocked() if trains else program), None, ""
    if not cluster.sync.joins:
        return program, None, ""
    if not splitter.sums:
        return splitter.gated(""), None, ""
    # only jobs with such a rule need it
    from hpcflow.plan.distribution.sync_update_nodes import UpdateNodes

    update = UpdateNodes(
        program,
        splitter.sums,
        splitter.acts,
        splitter.downstream,
        splitter.worker_effects,
        splitter.is_served,
    )
    joined = splitter.round(update)
    return splitter.step(share, update), joined, splitter.channel


def rule_attributes(cluster: Cluster) -> dict[str, Any]:
    """Return the attributes of the state that all updates of a rule share on a server."""
    text = str(cluster.sync)
    return {"rule": text, "workers": cluster.replicas, "shared_name": f"rounds {text}"}


class _SyncSplitter:
    def __init__(
        self, program: Program, cluster: Cluster, placements: Mapping[str, VariablePlacement]
    ) -> None:
        self.program, self.cluster = program, cluster
        nested = nested_nodes(program.nodes)  # a loop can hold the only node of a variable
        self.served = {
            n.name: task
            for n in (*program.nodes.values(), *nested)
            if n.row.variable == "handle" and (task := _server_task(n, placements)) is not None
        }
        self.sums = [n for n in program.nodes.values() if n.row.lowers_to]
        self.downstream = self._gradient_sums_and_successors()
        acts = [n for n in program.nodes.values() if n.name in self.downstream and _has_effect(n)]
        self.acts = [n for n in acts if self._is_on_server(n)]  # part of the update
        self.worker_effects = [
            n.name for n in acts if not self._is_on_server(n)
        ]  # part of each worker's step
        self.handles: dict[str, Node] = {}  # task -> handle of its update state
        self.channel = ""

    # -- tasks of nodes

    def _gradient_sums_and_successors(self) -> set[str]:
        """Return the sums and all nodes that depend on one."""
        behind = {n.name for n in self.sums}
        for node in self.program.nodes.values():
            if any(before in behind for before in node.before()):
                if node.row.lowers_to:
                    raise GraphError(
                        "a sum over replicas depends on another one; with parameter servers all "
                        "sums of a step are made at once",
                        op=node.name,
                        line=node.line,
                        hint="fetch the first sum and feed it, or train in collective mode",
                    )
                behind.add(node.name)
        return behind

    def _is_on_server(self, node: Node) -> bool:
        """Return whether servers can run an effect: all state that it uses is on servers.

        What only checks or prints a value runs where the value is.
        """
        if any(n.row.script for n in node_with_nested(node)):
            return False
        handles = [r.node for r in node.inputs if self.program.spec(r).dtype == resource]
        if handles:
            return all(map(self.is_served, handles))
        stack, visited = [r.node for r in node.inputs], set[str]()
        while stack:
            before = self.program.nodes[stack.pop()]
            if before.name in self.downstream - visited and not before.row.lowers_to:
                if before.row.script or not all(map(self.is_served, used_state(before)[0])):
                    return False
                stack += [ref.node for ref in before.inputs]
            visited.add(before.name)
        return True

    def is_served(self, handle: str) -> bool:
        """Return whether the state of a handle is on a server."""
        return handle in self.served or (
            handle in self.program.nodes
            and parse_device(self.program.nodes[handle].device).job == "ps"
        )

    def _server(self, node: Node) -> str:
        """Return the task of the variable that a node uses or is colocated with.

        The default is the coordinator.
        """
        for name in (*(ref.node for ref in node.inputs), *node.colocate):
            if name in self.served:
                return self.served[name]
        return COORDINATOR

    def _handle(self, task: str) -> Ref:
        if task not in self.handles:
            name = f"_rounds/on_server_{parse_device(task).task}"
            attrs = rule_attributes(self.cluster)
            handle = self._node(name, "Rounds", (), attrs)
            self.handles[task] = handle.but(attrs=attrs, device=task)
        return Ref(self.handles[task].name)

    def _node(
        self,
        name: str,
        type: str,
        inputs: tuple[Ref, ...],
        attrs: dict[str, Any],
        control: tuple[str, ...] = (),
    ) -> Node:
        """Return a new node at the line of the first sum, with specs inferred without inputs."""
        line = self.sums[0].line if self.sums else ""
        attrs = {"channel": self.channel, **attrs}
        specs = infer_specs(type, [], attrs, op=name, line=line)
        return Node(name, type, inputs, control, attrs, specs, line=line)

    def _begin(self) -> Node:
        return self._node(BEGIN, "RoundBegin", (self._handle(COORDINATOR),), {})

    # -- a worker's step

    def _gated_node(self, node: Node) -> Node:
        """Return the node; if it uses variables on servers, it follows RoundBegin."""
        if not any(map(self._uses_server, node_with_nested(node))):
            return node
        return node.but(control=(*node.control, BEGIN))

    def _uses_server(self, node: Node) -> bool:
        """Return whether a node, without those in its programs, uses a variable on a server.

        Initial values and tests or waits for initialization do not.
        """
        if assigns_initial_value(node) or node.row.variable in BEFORE_ALL:
            return False
        return any(ref.node in self.served for ref in node.inputs)

    def gated(self, channel: str) -> Program:
        """Return the program with every use of a server variable after RoundBegin."""
        self.channel = channel
        nodes = {node.name: self._gated_node(node) for node in self.program.nodes.values()}
        if all(nodes[name] is node for name, node in self.program.nodes.items()):
            return self.program
        return self._with([self._begin()], nodes, self.program.targets)

    def clocked(self) -> Program:
        """Return the gated program with a ClockTick when all updates are applied."""
        program = self.gated(CLOCK)
        ends = tuple(
            n.name
            for n in self.program.nodes.values()
            if updates_variables(n) and any(map(self._uses_server, node_with_nested(n)))
        )
        handle = (self._handle(COORDINATOR),)
        tick = self._node("_rounds/tick", "ClockTick", handle, {}, ends or (BEGIN,))
        begin = [] if BEGIN in program.nodes else [self._begin()]
        return self._with(begin, {**program.nodes, tick.name: tick}, (*program.targets, tick.name))

    def step(self, share: str | None, update: UpdateNodes) -> Program:
        """Return the program of a worker's step: up to RoundAdd, and the fetches behind it."""
        nodes: dict[str, Node] = {}
        overs: dict[str, Node] = {}
        instead: dict[str, tuple[str, ...]] = {}
        begin = self._begin()
        act_names = {n.name for n in self.acts}
        gated: list[str] = []  # must run before the update of this step
        for node in self.program.nodes.values():
            if node.row.lowers_to:
                inputs = (self._handle(self._server(node)), Ref(BEGIN))
                attrs = {
                    "channel": self.channel,
                    "sum": node.name,
                    "made": _result_specs(node.specs),
                }
                nodes[node.name] = node.but(
                    type="RoundTotal", inputs=inputs, attrs=attrs, control=(), colocate=()
                )
            elif node.name in act_names:
                over = self._update_end_wait(self._server(node), overs)
                nodes[node.name], instead[node.name] = node, (over,)
            else:
                nodes[node.name] = node if node.name in self.downstream else self._gated_node(node)
                if nodes[node.name] is not node:
                    gated.append(node.name)
        adds = [self._add_node(n.name, self._server(n), n.inputs, n.line) for n in self.sums]
        adds += [self._add_node(str(ref), COORDINATOR, (ref,), "") for ref in update.handed]
        weight = Ref(share) if share in nodes else Ref("_rounds/share")
        value = np.asarray(1 / self.cluster.replicas, float64)
        constant = self._node("_rounds/share", "Const", (), {"value": value})
        ready_inputs = (self._handle(COORDINATOR), Ref(BEGIN), weight)
        after = (*(a.name for a in adds), *gated, *update.awaited)
        ready = self._node(READY, "RoundReady", ready_inputs, {}, after)
        first = [begin, *overs.values()] + ([constant] if weight.node == constant.name else [])
        nodes.update({n.name: n for n in (*adds, ready)})
        step_program = self._with(first, nodes, (*self._ends(), *self.worker_effects, READY))
        update.check_used(step_program, instead)
        step_program = eliminate_dead_nodes(substitute_values(step_program, {}, instead))
        update.check_reads(step_program)
        return step_program

    def _ends(self) -> list[str]:
        """Return the targets before the sums, and state changes that later targets depend on."""
        ends: dict[str, None] = {}
        visited: set[str] = set()
        stack = list(self.program.targets)
        while stack:
            name = stack.pop()
            node = self.program.nodes[name]
            if name not in self.downstream:
                if name in self.program.targets or _has_effect(node):
                    ends[name] = None
            elif name not in visited and not node.row.lowers_to:
                visited.add(name)
                stack.extend(node.before())
        return list(ends)

    def _update_end_wait(self, task: str, overs: dict[str, Node]) -> str:
        """Return the node on `task` that waits for the end of the update there."""
        if task not in overs:
            name = f"_rounds/over_on_{parse_device(task).task}"
            inputs = (self._handle(task), Ref(BEGIN))
            overs[task] = self._node(name, "RoundOver", inputs, {})
        return overs[task].name

    def _add_node(self, name: str, task: str, values: tuple[Ref, ...], line: str) -> Node:
        inputs = (self._handle(task), Ref(BEGIN), *values)
        node = self._node(f"_rounds/add/{name}", "RoundAdd", inputs, {"sum": name})
        return node.but(line=line or node.line)

    def _with(self, first: list[Node], nodes: dict[str, Node], targets: Any) -> Program:
        """Return a program of `nodes` after the handles and the nodes in `first`."""
        ours = {n.name: n for n in (*self.handles.values(), *first)}
        return self.program.but(nodes={**ours, **nodes}, targets=tuple(dict.fromkeys(targets)))

    # -- the synchronous update

    def round(self, update: UpdateNodes) -> Program:
        """Return the program of the update: state changes behind the sums, on servers."""
        names = [n.name for n in (*self.sums, *self.acts)]
        names += [str(ref) for ref in update.handed]
        self.channel = f"{names[0]}#{zlib.crc32(chr(0).join(names).encode()):08x}"
        handed = {ref: Ref(f"_rounds/{ref}") for ref in update.handed}
        pick = {"workers": self.cluster.replicas}
        nodes = {PICK: self._node(PICK, "RoundPick", (self._handle(COORDINATOR),), pick)}
        ends: dict[str, list[str]] = {COORDINATOR: []}
        for ref, new in handed.items():
            sum_node = self._sum_node(str(ref), COORDINATOR, "first", (self.program.spec(ref),))
            nodes[new.node] = sum_node.but(name=new.node)
            ends[COORDINATOR].append(new.node)
        for node in self.program.nodes.values():
            if node.row.lowers_to:
                how, task = lookup_op(node.row.lowers_to).combines, self._server(node)
                nodes[node.name] = self._sum_node(node.name, task, how, node.specs, node.line)
                ends.setdefault(task, []).append(node.name)
            elif node.name in update.names:
                nodes[node.name] = self._update_node(node, handed, update)
        self._begin_behind_pick(nodes)
        for node in self.acts:
            ends.setdefault(self._server(node), []).append(node.name)
        last: list[str] = []
        for task in sorted(ends, key=lambda t: t == COORDINATOR):
            control = tuple(ends[task]) + (tuple(last) if task == COORDINATOR else ())
            name = f"_rounds/end_on_{parse_device(task).task}"
            nodes[name] = self._node(name, "RoundEnd", (self._handle(task),), {}, control)
            last.append(name)
        ours = {n.name: n for n in self.handles.values()}
        return eliminate_dead_nodes(Program({**ours, **nodes}, targets=(last[-1],)))

    def _sum_node(
        self, name: str, task: str, reduction: str, specs: tuple[Spec, ...], line: str = ""
    ) -> Node:
        attrs = {"sum": name, "how": reduction, "made": _result_specs(specs)}
        node = self._node(name, "RoundSum", (self._handle(task), Ref(PICK)), attrs)
        return node.but(line=line or node.line)

    def _begin_behind_pick(self, nodes: dict[str, Node]) -> None:
        """Let all nodes that use state follow the choice of the workers.

        The program begins as soon as the previous update is over. Workers may still assign to
        variables until they have sent their gradients.
        """
        behind = {PICK}
        for name, node in nodes.items():
            uses = bool(used_state(node)[0]) and node.row.variable not in BEFORE_ALL
            if behind.isdisjoint(node.before()) and uses:
                nodes[name] = node = node.but(control=(*node.control, PICK))
            if not behind.isdisjoint(node.before()):
                behind.add(name)

    def _update_node(self, node: Node, handed: Mapping[Ref, Ref], update: UpdateNodes) -> Node:
        """Return a node for the program of the update, without worker devices."""
        inputs = tuple(handed.get(ref, ref) for ref in node.inputs)
        control = update.control(node)
        requested = parse_device(node.device)
        if requested.job == "worker":
            requested = requested._replace(job=None, task=None)
        return node.but(inputs=inputs, control=control, device=str(requested))


def _server_task(node: Node, placements: Mapping[str, VariablePlacement]) -> str | None:
    """Return the server of a variable, or of a piece of one; None if it is on a worker."""
    requested = placements[node.name].pieces[0].device if node.name in placements else node.device
    device = parse_device(requested)
    return device.host if device.job == "ps" else None


def _has_effect(node: Node) -> bool:
    """Return whether a node changes state; pure nodes and reads can run any number of times."""
    if node.row.control_flow:
        return any(_has_effect(inner) for inner in nested_nodes({node.name: node}))
    row = node.row
    passes = node.is_state or row.lowers_to or row.order_only
    return bool(row.writes) or (row.stateful and not passes)


def _result_specs(specs: tuple[Spec, ...]) -> tuple[tuple[np.dtype, Any], ...]:
    return tuple((s.dtype, s.shape) for s in specs)
