"""From a graph and what is asked of it to a plan: all passes in their order."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping, Sequence

from hpcflow.graph.graph import Graph, Operation, Tensor
from hpcflow.graph.shape import Spec
from hpcflow.plan import traffic
from hpcflow.plan.algebra.apply import by_algebra
from hpcflow.plan.algebra.loop_sums import sums_behind_loops
from hpcflow.plan.bucket import bucket
from hpcflow.plan.calls import calls_in_threads
from hpcflow.plan.captures import constants_inside, reads_outside
from hpcflow.plan.commit import commit
from hpcflow.plan.effects import passes
from hpcflow.plan.frames import split
from hpcflow.plan.initial import beside_variables
from hpcflow.plan.ir import Cluster, Plan, Program
from hpcflow.plan.join import join
from hpcflow.plan.nested import mapped
from hpcflow.plan.order import order
from hpcflow.plan.parcel import pack_step
from hpcflow.plan.partial_sums import add_where_made
from hpcflow.plan.partition import partition
from hpcflow.plan.place import place
from hpcflow.plan.prune import prune
from hpcflow.plan.replicate import LOWERED, refuse_sums, replicate
from hpcflow.plan.rounds import COORDINATOR
from hpcflow.plan.rounds import split as split_rounds
from hpcflow.plan.shard import shard
from hpcflow.plan.simplify import Evaluate, simplify
from hpcflow.plan.variables import Home, assign_variables
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
    """The plan of one step of `replica`: `feeds` (with the shapes of the fed arrays) to `fetches`.

    Operations that are `done` ran in an earlier part of the step and do not run again.
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
    """The plan of a program, the part of `graph` that a step needs.

    `evaluate(node, arrays)` computes a pure node, for constant folding; without it nothing folds.
    The caller verifies it (`hpcflow.plan.verify`) before it runs.
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
    if traffic.trains(plan):
        plan = dataclasses.replace(plan, messages=traffic.messages(plan, homes))
    if joined is None:
        return plan
    after = planner.cut(joined, dataclasses.replace(cluster, lead=COORDINATOR))
    return dataclasses.replace(plan, round=after, updates=updates)


class _Planner:
    """The passes, and what they know of the plan that they make."""

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
        """The program of one replica, simplified; `inside` a loop or branch of another program."""
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
        """The program placed over the tasks of `cluster` and cut at their borders."""
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
