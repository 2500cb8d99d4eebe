"""From a graph and what is asked of it to a plan: all passes in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcflow.graph.graph import Graph, Operation, Tensor
from hpcflow.graph.shape import Spec
from hpcflow.plan.bucket import bucket
from hpcflow.plan.ir import Cluster, Plan
from hpcflow.plan.join import join
from hpcflow.plan.order import order
from hpcflow.plan.partition import partition
from hpcflow.plan.place import place
from hpcflow.plan.prune import prune
from hpcflow.plan.replicate import replicate
from hpcflow.plan.shard import shard
from hpcflow.plan.simplify import Evaluate, simplify
from hpcflow.plan.variables import assign_variables
from hpcflow.settings import Settings


def make_plan(
    graph: Graph,
    fetches: Sequence[Tensor | Operation],
    feeds: Mapping[Tensor, Spec],
    cluster: Cluster,
    settings: Settings,
    replica: int = 0,
    evaluate: Evaluate | None = None,
) -> Plan:
    """The plan of one step of `replica`: `feeds` (with the shapes of the fed arrays) to `fetches`.

    `evaluate(node, arrays)` computes a pure node, for constant folding; without it nothing folds.
    The caller verifies it (`hpcflow.plan.verify`) before it runs.
    Errors: FeedError, FetchError, ShapeError, PlacementError, VerifyError.
    """
    homes = assign_variables(graph, cluster, settings)
    program = prune(graph, fetches, feeds)
    program = replicate(program, graph, cluster, replica, homes)
    program = shard(program, homes)
    on_cpu = all(d.startswith("cpu") for d in (*cluster.devices, *cluster.server_devices))
    program = simplify(program, evaluate, fold_floats=on_cpu or not settings.exact)
    program, why = place(program, graph, cluster, homes)
    program = bucket(program, settings)
    program = join(program, cluster.tasks()[0])
    return partition(order(program), cluster, why)
