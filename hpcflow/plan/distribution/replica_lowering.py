"""Replica lowering: replaces replica ops by what they mean in this mode, for this replica.

It follows the pruning of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from itertools import chain

import numpy as np

from hpcflow.errors import GraphError, PlacementError
from hpcflow.graph.graph import Graph
from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.static_shape import Spec, is_known
from hpcflow.plan.distribution.initial_value_sharding import assigns_initial_value
from hpcflow.plan.ir.control_flow_nodes import nested_nodes
from hpcflow.plan.ir.program import Cluster, Node, Program, Ref
from hpcflow.plan.ir.program_rewriting import (
    as_constant,
    bypass_nodes,
    eliminate_dead_nodes,
    infer_specs,
    reinfer_specs,
    substitute_values,
)

REPLICA_SAMPLE_OFFSET = 1 << 32  # sample offset between replicas whose batches are not sharded
UNKNOWN = -1  # bytes of a sum of unknown static shape


def lower_replicas(
    program: Program,
    graph: Graph,
    cluster: Cluster,
    replica: int = 0,
    served: Container[str] = (),
) -> Program:
    """Lower ReplicaSum, ReplicaShare, ReplicaOffset and initializers for `cluster.mode`.

    - all modes: sample offsets of consecutive replicas differ by APART, unless the offset is fed.
    - single: a sum over replicas is its input, and the share is 1.
    - collective: a sum is an AllReduce (of rows an AllGather), the share is 1 / replicas, and
      initial values are broadcast from replica 0. A sum with a `wire` is an AllReduce of that dtype
      between Casts.
    - single and collective: an optional sum of equal rows (SumEqualRows) is dropped.
    - ps: sums are as in single mode, except that a rule which joins gradients (`cluster.sync`)
      leaves them to `hpcflow.plan.distribution.sync_program_split`, with the share 1 / replicas.
      Replica 0 initializes the variables in `served`, which are on servers; the other replicas wait
      for it. Variables not in `served` are trained as in collective mode: each replica has an equal
      copy.

    Until bucketing, an AllReduce has the attrs `depth` (number of collectives before it),
    `available` (position of its input in the graph) and `static` (bytes by the static shapes),
    because the order of collectives must not depend on feeds.
    """
    collective = cluster.mode == "collective"
    share = 1 / cluster.replicas if cluster.joins else 1.0
    program = _as_scalars(
        program, {"ReplicaShare": share, "ReplicaOffset": replica * REPLICA_SAMPLE_OFFSET}
    )
    original = program
    if cluster.mode != "ps":
        program = _drop_row_sums(program)
    if collective:
        return _lower_to_allreduce(_broadcast_from_root(program), graph)
    if cluster.mode == "ps" and cluster.replicas > 1:
        program = _lower_worker_variables(program, graph, cluster, served)
    if cluster.joins and cluster.mode == "ps":
        program = _sum_equal_rows_first(program)
    if not cluster.joins:
        alone = bypass_nodes(program, [n.name for n in program.nodes.values() if n.row.lowers_to])
        program = reinfer_specs(original, alone)
    if cluster.mode == "ps" and replica != 0:
        program = _replace_nodes(program, lambda node: [_wait_for_initializer(node, served)])
    return eliminate_dead_nodes(program)


def representative_replica(program: Program, cluster: Cluster, replica: int) -> int:
    """Return the lowest replica number with the same plan, apart from its samples."""
    nodes = chain(program.nodes.values(), nested_nodes(program.nodes))
    if any(node.type == "ReplicaOffset" for node in nodes):
        return replica
    return min(replica, 1) if cluster.mode == "ps" else 0


def _sum_equal_rows_first(program: Program) -> Program:
    """Add up rows of equal index before they are sent to the servers."""

    def rule(node: Node) -> list[Node]:
        if node.type != "ReplicaGather":
            return [node]
        if program.nodes[node.inputs[1].node].type in ("SumEqualRows", "TopK"):  # distinct already
            return [node]
        name, input_specs = f"{node.name}/distinct", [program.spec(ref) for ref in node.inputs]
        specs = infer_specs("SumEqualRows", input_specs, {}, op=name, line=node.line)
        summed = Node(name, "SumEqualRows", node.inputs, specs=specs, line=node.line)
        return [summed, node.but(inputs=(Ref(name, 0), Ref(name, 1)))]

    return _replace_nodes(program, rule)


def _lower_worker_variables(
    program: Program, graph: Graph, cluster: Cluster, served: Container[str]
) -> Program:
    """Lower sums and initial values of variables that are on workers in ps mode.

    Errors: PlacementError if the replicas would not stay equal.
    """
    sums = [
        n
        for n in program.nodes.values()
        if n.row.lowers_to and _is_worker_variable(n, graph, served)
    ]
    if sums and not cluster.in_step:
        raise PlacementError(
            f"{sums[0].name!r} is for a variable on the workers: its copies stay the same only if "
            f"all workers run each step together, not with sync={cluster.sync}",
            op=sums[0].name,
            line=sums[0].line,
            hint="start with --sync all, or leave the variable to the servers",
        )
    if not cluster.in_step:
        return program
    return _lower_to_allreduce(_broadcast_from_root(program, served), graph, {n.name for n in sums})


def _is_worker_variable(node: Node, graph: Graph, served: Container[str]) -> bool:
    """Return whether a sum is for a variable that is on the workers, equal on all of them."""
    mates = [graph.get_operation_by_name(name) for name in node.colocate]
    variables = [op for op in mates if lookup_op(op.type).variable == "handle"]
    return any(op.name not in served and not op.attrs.get("local") for op in variables)


def _drop_row_sums(program: Program) -> Program:
    """Drop optional SumEqualRows, which only shorten messages to servers."""
    values = {
        Ref(node.name, i): node.inputs[i]
        for node in program.nodes.values()
        if node.type == "SumEqualRows" and node.attrs.get("optional")
        for i in range(len(node.inputs))
    }
    return substitute_values(program, values) if values else program


def refuse_nested_collectives(program: Program) -> None:
    """Check that no collective operation is inside a loop or branch.

    Replicas may not all run it there.
    Errors: GraphError if there is one.
    """
    for node in program.nodes.values():
        if node.row.lowers_to or assigns_initial_value(node):
            raise GraphError(
                f"{node.type} needs all replicas, but stands in a loop or a branch, which each "
                "replica runs as its own values say",
                op=node.name,
                line=node.line,
                hint="compute gradients, sums over replicas and initial values outside of it",
            )


def _replace_nodes(program: Program, rule: Callable[[Node], list[Node]]) -> Program:
    """Replace each node by the nodes that `rule` returns; the last keeps its name."""
    nodes = {new.name: new for node in program.nodes.values() for new in rule(node)}
    return program.but(nodes=nodes)


def _as_scalars(program: Program, values: Mapping[str, float]) -> Program:
    """Replace ops of the types in `values` by constants."""

    def rule(node: Node) -> list[Node]:
        if node.type not in values:
            return [node]
        return [as_constant(node, np.asarray(values[node.type], dtype=node.specs[0].dtype))]

    return _replace_nodes(program, rule)


def _wait_for_initializer(node: Node, served: Container[str]) -> Node:
    if not (assigns_initial_value(node) and node.inputs[0].node in served):
        return node
    return node.but(type="WaitInitialized", inputs=node.inputs[:1], control=(), specs=())


def _broadcast_from_root(program: Program, served: Container[str] = ()) -> Program:
    def rule(node: Node) -> list[Node]:
        if not assigns_initial_value(node) or node.inputs[0].node in served:
            return [node]
        handle, value = node.inputs
        if program.nodes[handle.node].attrs.get("local"):  # local to each replica
            return [node]
        spec = program.spec(value)
        root = Node(
            f"{node.name}/from_root",
            "Broadcast",
            (value,),
            attrs={"root": 0, "group": "replicas"},
            specs=(Spec(spec.dtype, spec.shape),),
            colocate=(handle.node,),
            line=node.line,
        )
        return [root, node.but(inputs=(handle, Ref(root.name)))]

    return _replace_nodes(program, rule)


def _in_wire_dtype(node: Node, wire: np.dtype, program: Program) -> list[Node]:
    """Return the AllReduce `node` in the dtype `wire`, cast back under the name of `node`."""
    spec, narrow = node.specs[0], (Spec(wire, node.specs[0].shape),)
    cast = node.but(type="Cast", control=())
    before = program.nodes[node.inputs[0].node]
    casts: list[Node] = []
    if before.type == "Cast" and program.spec(before.inputs[0]).dtype == wire:
        source = before.inputs[0]  # undo the widening cast
    else:
        source = Ref(f"{node.name}/narrow")
        casts = [cast.but(name=source.node, attrs={"dtype": wire}, specs=narrow)]
    total = node.but(name=f"{node.name}/sum", inputs=(source,), specs=narrow)
    return [*casts, total, cast.but(inputs=(Ref(total.name),), attrs={"dtype": spec.dtype})]


def _lower_to_allreduce(
    program: Program, graph: Graph, only: Container[str] | None = None
) -> Program:
    """Replace all sums, or those named in `only`, by collectives."""
    place = {name: i for i, name in enumerate(program.nodes)}
    depth: dict[str, int] = {}

    def rule(node: Node) -> list[Node]:
        below = max((depth[b] for b in node.before()), default=0)
        summed = bool(node.row.lowers_to) and (only is None or node.name in only)
        collective = summed or node.row.combines == "first"
        depth[node.name] = below + collective
        if not collective:
            return [node]
        available = max(place[ref.node] for ref in node.inputs)
        attrs = node.attrs | {"depth": below, "available": available}
        if not node.row.lowers_to:
            return [node.but(attrs=attrs)]
        graph_spec = graph.get_operation_by_name(node.name).outputs[0].spec
        wire = attrs.pop("wire", graph_spec.dtype)
        sent = Spec(wire, graph_spec.shape)
        attrs["static"] = sent.nbytes if is_known(graph_spec.shape) else UNKNOWN
        attrs["group"] = "replicas"
        specs = tuple(Spec(*s[:2]) for s in node.specs)
        lowered = node.but(type=node.row.lowers_to, specs=specs, attrs=attrs)
        return [lowered] if wire == graph_spec.dtype else _in_wire_dtype(lowered, wire, program)

    return _replace_nodes(program, rule)
