"""Pass list: the passes that turn a graph and its fetches into a plan, in their order."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping, Sequence

from hpcflow.graph.graph import Graph, Operation, Tensor
from hpcflow.graph.static_shape import Spec
from hpcflow.plan.algebra.algebra_passes import by_algebra
from hpcflow.plan.algebra.loop_accumulation_hoisting import sums_behind_loops
from hpcflow.plan.communication.atomic_step_commit import commit
from hpcflow.plan.communication.control_edge_merging import join
from hpcflow.plan.communication.gradient_bucketing import bucket
from hpcflow.plan.communication.message_coalescing import pack_step
from hpcflow.plan.communication.send_recv_insertion import partition
from hpcflow.plan.communication.step_order import order
from hpcflow.plan.cost import server_traffic
from hpcflow.plan.distribution.control_flow_frames import split
from hpcflow.plan.distribution.device_placement import place
from hpcflow.plan.distribution.initial_value_sharding import beside_variables
from hpcflow.plan.distribution.partial_sum_hoisting import add_where_made
from hpcflow.plan.distribution.replica_lowering import LOWERED, refuse_sums, replicate
from hpcflow.plan.distribution.sync_program_split import COORDINATOR
from hpcflow.plan.distribution.sync_program_split import split as split_rounds
from hpcflow.plan.distribution.variable_placement import Home, assign_variables
from hpcflow.plan.distribution.variable_sharding import shard
from hpcflow.plan.frontend.capture_hoisting import constants_inside, reads_outside
from hpcflow.plan.frontend.constant_folding import Evaluate
from hpcflow.plan.frontend.graph_pruning import prune
from hpcflow.plan.frontend.py_func_threads import calls_in_threads
from hpcflow.plan.frontend.simplification import simplify
from hpcflow.plan.ir.control_flow_nodes import mapped
from hpcflow.plan.ir.program import Cluster, Plan, Program
from hpcflow.plan.verification.effect_verifier import passes
from hpcflow.settings import Settings


def make_plan(
    graph: Graph,
    fetches: Sequence[Tensor | Operation],
    feeds: Mapping[Tensor, Spec],
    cluster: Cluster,
    settings: Settings,
    replica: int = 0,
    evaluate: Evaluate | None = None,
    done: Container[Operation] = (),
) -> Plan:
    """Return the plan of one step of `replica`, from `feeds` to `fetches`.

    `feeds` hold the shapes of the fed arrays. Operations in `done` ran in an earlier part of the
    step (partial run) and do not run again.
    Errors: FeedError, FetchError, ShapeError, PlacementError, VerifyError.
    """
    program = prune(graph, fetches, feeds, done)
    return plan_of(program, graph, cluster, settings, replica, evaluate)


def plan_of(
    program: Program,
    graph: Graph,
    cluster: Cluster,
    settings: Settings,
    replica: int = 0,
    evaluate: Evaluate | None = None,
) -> Plan:
    """Return the plan of `program`, the subgraph of `graph` that a step needs.

    `evaluate(node, arrays)` computes a pure node for constant folding. Without it no node is
    folded. The caller verifies the plan (`hpcflow.plan.verification.plan_verifier`) before the plan
    runs.
    Errors: ShapeError, PlacementError, VerifyError.
    """
    homes = assign_variables(graph, cluster, settings)
    planner = _Planner(graph, cluster, settings, homes, replica, evaluate)
    program = planner.run(reads_outside, program)
    trains = any(node.type in LOWERED for node in program.nodes.values())
    if cluster.mode != "ps":
        return planner.cut(planner.lowered(program), cluster)
    share = next((t.op.name for t in graph.get_collection("replica_share")), None)
    step, joined, updates = split_rounds(planner.lowered(program), cluster, homes, share, trains)
    plan = planner.cut(step, cluster)
    if server_traffic.trains(plan):
        plan = dataclasses.replace(plan, messages=server_traffic.messages(plan, homes))
    if joined is None:
        return plan
    after = planner.cut(joined, dataclasses.replace(cluster, lead=COORDINATOR))
    return dataclasses.replace(plan, round=after, updates=updates)


class _Planner:
    """Runs the passes and holds their common arguments."""

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        settings: Settings,
        homes: dict[str, Home],
        replica: int,
        evaluate: Evaluate | None,
    ) -> None:
        self.graph, self.cluster, self.settings = graph, cluster, settings
        self.homes, self.replica, self.evaluate = homes, replica, evaluate
        on_cpu = all(d.startswith("cpu") for d in (*cluster.devices, *cluster.server_devices))
        self.floats = on_cpu or not settings.exact
        self.run = passes(settings.verify_passes)

    def lowered(self, program: Program, inside: bool = False) -> Program:
        """Return the simplified program of one replica.

        `inside` is true for the program of a loop or branch.
        """
        run, settings, homes = self.run, self.settings, self.homes
        if inside and self.cluster.joins:
            refuse_sums(program)
        program = run(replicate, program, self.graph, self.cluster, self.replica, homes)
        program = run(beside_variables, program, homes)
        program = run(shard, program, homes)
        program = run(simplify, program, self.evaluate, self.floats)
        program = run(constants_inside, program)
        joins = self.cluster.tasks_per_replica == 1 and not settings.one_by_one
        if joins:
            program = run(by_algebra, program, settings.exact)
        program = mapped(program, lambda inner: self.lowered(inner, inside=True))
        return run(sums_behind_loops, program) if joins and not settings.exact else program

    def cut(self, program: Program, cluster: Cluster) -> Plan:
        """Place `program` on the tasks of `cluster` and partition it."""
        run, settings = self.run, self.settings
        program = run(calls_in_threads, program)
        program, why = run(place, program, self.graph, cluster, self.homes)
        if not settings.exact:
            program = run(add_where_made, program)
        program, edges = run(split, program, cluster)
        program = run(bucket, program, settings)
        if settings.survive and cluster.mode == "collective":
            program = run(commit, program)
        program = run(join, program, cluster.lead)
        program = run(pack_step, program, cluster.lead)
        return partition(run(order, program), cluster, why, edges)
