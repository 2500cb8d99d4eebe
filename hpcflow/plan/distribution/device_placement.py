"""Device placement: the requested device, else the device of the state, else the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcflow.errors import PlacementError
from hpcflow.graph.device_names import NOTHING, DeviceName, parse_device
from hpcflow.graph.graph import Graph
from hpcflow.plan.distribution.colocation_groups import (
    ChosenTask,
    ColocationGroups,
    DeviceConstraint,
    device_constraints,
)
from hpcflow.plan.distribution.tensor_list_placement import place_tensor_lists
from hpcflow.plan.distribution.variable_placement import VariablePlacement
from hpcflow.plan.ir.control_flow_nodes import map_nested_programs, nested_programs
from hpcflow.plan.ir.program import Cluster, Node, Program, Ref
from hpcflow.plan.ir.program_rewriting import new_name

DRIVER = "/job:worker/task:0"  # of each replica; runs the script
DEFAULT = "default: the driver"  # the reason without any constraint


def host_device(cluster: Cluster) -> str:
    """Return the driver's device for feeds and fetches: its CPU if it has one."""
    lead = parse_device(cluster.lead)
    devices = cluster.server_devices if lead.job == "ps" else cluster.devices
    cpus = [d for d in devices if d.startswith("cpu")]
    return f"{cluster.lead}/{(cpus or list(devices))[0]}"


def place_devices(
    program: Program,
    graph: Graph,
    cluster: Cluster,
    placements: Mapping[str, VariablePlacement],
    chosen: Mapping[str, ChosenTask] = {},  # nobody changes it
) -> tuple[Program, dict[str, str]]:
    """Return the program with full device names, and the reason for each node's device.

    `chosen` are the tasks of nodes that automatic placement chose.
    Errors: PlacementError naming the operations whose constraints conflict or cannot be met.
    """
    why: dict[str, str] = {}

    def placed(program: Program) -> Program:
        outer = _place_program(
            colocate_equal_row_sums(program, placements), graph, cluster, placements, chosen, why
        )
        return map_nested_programs(outer, placed)

    return _copy_free_nodes(
        program, place_tensor_lists(placed(program), why, DEFAULT), why, cluster
    ), why


def _place_program(
    program: Program,
    graph: Graph,
    cluster: Cluster,
    placements: Mapping[str, VariablePlacement],
    chosen: Mapping[str, ChosenTask],
    reasons: dict[str, str],
) -> Program:
    """Place the nodes of one program, without those in its loops and branches.

    Reasons are added to `reasons`.
    """
    groups = ColocationGroups(program, graph)
    constraints: dict[str, list[DeviceConstraint]] = {}
    for name in groups.members():
        constraints.setdefault(groups.find(name), []).extend(
            device_constraints(name, program, graph, placements, chosen)
        )
    devices = {root: _choose_device(found, cluster) for root, found in constraints.items()}
    nodes = {}
    for node in program.nodes.values():
        if node.row.source == "feed":
            device, reason = host_device(cluster), "fed by the driver"
        else:
            root = groups.find(node.name)
            device, reason = str(devices[root]), _placement_reason(node, constraints[root])
        nodes[node.name], reasons[node.name] = node.but(device=device), reason
        _check_script(nodes[node.name], reason)
    return program.but(nodes=nodes)


def colocate_equal_row_sums(
    program: Program, placements: Mapping[str, VariablePlacement]
) -> Program:
    """Colocate SumEqualRows with its input, not with the variable, so that fewer rows are sent."""
    nodes = {
        node.name: node.but(colocate=(node.inputs[0].node,))
        for node in program.nodes.values()
        if node.type == "SumEqualRows" and not placements.keys().isdisjoint(node.colocate)
    }
    return program.but(nodes={**program.nodes, **nodes})


def _check_script(node: Node, reason: str) -> None:
    """Check that an operation with a Python function is placed on the driver.

    Errors: PlacementError if it is elsewhere.
    """
    if node.row.script and parse_device(node.device).host != DRIVER:
        raise PlacementError(
            f"{node.name!r} ({node.type}) would run on {node.device} ({reason}), which does not "
            "run the script and so does not know the function",
            op=node.name,
            line=node.line,
            hint=f"make it inside `with hf.device({DRIVER + '/cpu:0'!r}):`, away from variables",
        )


def _choose_device(constraints: list[DeviceConstraint], cluster: Cluster) -> DeviceName:
    merged = DeviceName()
    for constraint in constraints:
        merged = merged._replace(needs=merged.needs.both(constraint.requested.needs))
    for i, constraint in enumerate(constraints):
        merged = _merge_constraints(merged, constraint, constraints[:i], cluster.soft)
    default = "ps" if cluster.lead.startswith("/job:ps") else "worker"
    job, task = merged.job or default, merged.task or 0
    _check_task(job, task, constraints, cluster)
    devices = cluster.server_devices if job == "ps" else cluster.devices
    if merged.needs.gpu and merged.kind is None and job == "worker":
        merged = merged._replace(kind="gpu")
        if not any(device.startswith("gpu") for device in devices):
            devices = (*devices, "gpu:0")  # the topology says that the task has one
    for satisfying in _satisfying_devices(merged, cluster):
        for device in devices:
            full = parse_device(device)._replace(job=job, task=task)
            if satisfying.matches(full._replace(job=merged.job, task=merged.task)):
                return full
    asks = _first_constraint(constraints, "kind")
    raise PlacementError(
        f"/job:{job}/task:{task} has no device {merged._replace(job=None, task=None)}, "
        f"which {asks.node!r} asks for; it has {', '.join(devices)}",
        op=asks.node,
        line=asks.line,
        hint="ask for one it has, or for none; allow_soft_placement=True in hf.ConfigProto takes "
        "another one",
    )


def _satisfying_devices(merged: DeviceName, cluster: Cluster) -> list[DeviceName]:
    """Return the devices that satisfy a constraint, best first."""
    devices, any_index = [merged], merged._replace(index=None)
    if merged.kind == "cpu" and (merged.index or 0) < cluster.cpus:
        devices.append(any_index)
    if cluster.soft:
        devices += [any_index, any_index._replace(kind="cpu"), any_index._replace(kind=None)]
    return devices


def _first_constraint(constraints: list[DeviceConstraint], field: str) -> DeviceConstraint:
    """Return the first constraint that sets this field of a device name."""
    return next(c for c in constraints if getattr(c.requested, field) is not None)


def _merge_constraints(
    merged: DeviceName,
    constraint: DeviceConstraint,
    before: list[DeviceConstraint],
    soft: bool = False,
) -> DeviceName:
    """Return both constraints merged.

    With `soft`, conflicting kinds become a CPU, and of conflicting indices the first is used.
    Errors: PlacementError if the constraints conflict.
    """
    requested = constraint.requested
    if requested.job is None and requested.task is not None:
        requested = requested._replace(job="worker")
    for field in ("job", "task", "kind", "index"):
        current, wanted = getattr(merged, field), getattr(requested, field)
        if current is not None and wanted is not None and current != wanted:
            if soft and field == "kind":
                return merged._replace(kind="cpu", index=None)
            if soft and field == "index":
                return merged
            conflict = next(c for c in before if getattr(c.requested, field) in (current, None))
            raise PlacementError(
                f"{constraint.node!r} must be on {_place(requested)} ({constraint.reason}), but "
                f"shares a device with {conflict.node!r} (made at {conflict.line}), which must "
                f"be on {_place(conflict.requested)} ({conflict.reason})",
                op=constraint.node,
                line=constraint.line,
                hint="remove one of the two device scopes or the colocation",
            )
        if current is None and wanted is not None:
            merged = merged._replace(**{field: wanted})
    return merged


def _place(requested: DeviceName) -> DeviceName:
    """Return a constraint without its requirements."""
    return requested._replace(needs=NOTHING)


def _check_task(job: str, task: int, constraints: list[DeviceConstraint], cluster: Cluster) -> None:
    task_counts = {"worker": cluster.tasks_per_replica, "ps": cluster.servers}
    if task < task_counts.get(job, 0):
        return
    constraint = _first_constraint(constraints, "task" if task else "job")
    facts: dict[str, Any] = {"op": constraint.node, "line": constraint.line}
    if job == "worker":
        hint = f"start with --tasks-per-replica {task + 1} or more, dividing the worker ranks"
        raise PlacementError(
            f"{constraint.node!r} asks for /job:worker/task:{task}, but a replica has "
            f"{cluster.tasks_per_replica} task(s)",
            **facts,
            hint=hint,
        )
    if job != "ps":
        raise PlacementError(f"there is no job {job!r}; jobs are worker and ps", **facts)
    raise PlacementError(
        f"{constraint.node!r} asks for /job:ps/task:{task}, but there are "
        f"{cluster.servers or 'no'} servers",
        **facts,
        hint=f"start with --ps {task + 1}",
    )


def _placement_reason(node: Node, constraints: list[DeviceConstraint]) -> str:
    for constraint in constraints:
        if constraint.node == node.name:
            return constraint.reason
    if constraints:
        return f"with {constraints[0].node}"
    return DEFAULT


def is_free(node: Node) -> bool:
    """Return whether a node of a program before placement is copied to all its users.

    It is pure and has no inputs. A device scope or control inputs keep it on one device. Colocation
    does not: it is meant for state and its updates.
    """
    return node.row.pure and not (node.inputs or node.device or node.control)


def _copy_free_nodes(
    unplaced: Program, placed: Program, reasons: dict[str, str], cluster: Cluster
) -> Program:
    """Return the placed program and its inner programs, with free nodes copied to their users.

    `unplaced` is the program before, whose nodes have the requested devices.
    """
    nodes = {}
    for name, node in placed.nodes.items():
        before = dict(nested_programs(unplaced.nodes[name]))
        bodies = {
            k: _copy_free_nodes(before[k], p, reasons, cluster)  # type: ignore[arg-type]
            for k, p in nested_programs(node)
        }
        nodes[name] = node.but(attrs={**node.attrs, **bodies}) if bodies else node
    return _FreeNodeCopies(unplaced, placed.but(nodes=nodes), reasons).run(host_device(cluster))


class _FreeNodeCopies:
    """Copies free nodes (`is_free`) to every device that uses them: this saves messages."""

    def __init__(self, unplaced: Program, placed: Program, reasons: dict[str, str]) -> None:
        self.placed, self.reasons = placed, reasons
        self.node_copies: dict[str, list[Node]] = {
            n.name: [] for n in unplaced.nodes.values() if is_free(n)
        }
        self.copies: dict[tuple[str, str], str] = {}
        self.used_names = set(placed.nodes)

    def run(self, host: str) -> Program:
        """Return the program with the copies; fetched ones are on `host`."""
        placed = self.placed
        fetches = tuple(self._on(ref, host) for ref in placed.fetches)
        for target in placed.targets:
            self._on(Ref(target), placed.nodes[target].device)
        users = {
            name: self._user(n) for name, n in placed.nodes.items() if name not in self.node_copies
        }
        nodes: dict[str, Node] = {}
        for name in placed.nodes:
            for node in self.node_copies[name] if name in self.node_copies else [users[name]]:
                nodes[node.name] = node
        return placed.but(nodes=nodes, fetches=fetches)

    def _user(self, node: Node) -> Node:
        inputs = tuple(self._on(ref, node.device) for ref in node.inputs)
        return node.but(
            inputs=inputs, control=tuple(c for c in node.control if c not in self.node_copies)
        )

    def _on(self, ref: Ref, device: str) -> Ref:
        """Return the value on `device`, by a copy of its node if that is free."""
        if ref.node not in self.node_copies:
            return ref
        if (ref.node, device) not in self.copies:
            name = ref.node
            if self.node_copies[name]:
                name = new_name(f"{name}/on_{device_label(device)}", self.used_names)
            self.copies[ref.node, device] = name
            node = self.placed.nodes[ref.node]
            self.node_copies[ref.node].append(node.but(name=name, device=device))
            self.reasons[name] = "constant: with its users"
        return Ref(self.copies[ref.node, device], ref.index)


def device_label(device: str) -> str:
    """Return a device as part of a name: `ps_0_cpu_0` of `/job:ps/task:0/cpu:0`."""
    parsed = parse_device(device)
    parts = [parsed.job, parsed.task, parsed.kind, parsed.index]
    return "_".join(str(p) for p in parts if p is not None)
