"""Pass contexts: what the passes of one step share, and those passes that need more of it.

The list of the passes is in `pass_list.py`. Most passes are functions of a program, or of a program
and a few settings. The functions here take or report more: their names are those of the passes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from hpcflow.graph.graph import Graph
from hpcflow.lowering.fusion.elementwise_fusion import fuse_elementwise
from hpcflow.lowering.lowering_target import LoweringTarget
from hpcflow.lowering.segments_between_waits import split_segments
from hpcflow.plan.cost.server_traffic import server_messages
from hpcflow.plan.distribution.colocation_groups import ChosenTask
from hpcflow.plan.distribution.control_flow_frames import partition_frames
from hpcflow.plan.distribution.device_placement import place_devices
from hpcflow.plan.distribution.replica_lowering import lower_replicas, refuse_nested_collectives
from hpcflow.plan.distribution.sync_program_split import COORDINATOR, split_sync_program
from hpcflow.plan.distribution.variable_placement import VariablePlacement, place_variables
from hpcflow.plan.frontend.constant_folding import Evaluate, fold_constants
from hpcflow.plan.frontend.dead_read_elimination import live_reads
from hpcflow.plan.ir.control_flow_nodes import nested_programs
from hpcflow.plan.ir.node_effects import plan_trains
from hpcflow.plan.ir.program import Cluster, Edge, Partition, Plan, Program
from hpcflow.plan.pass_row import Pass, Watch, run_passes
from hpcflow.settings import Settings


@dataclasses.dataclass
class Planning:
    """The planning of one step of a replica: the arguments of the passes, and what they report.

    `evaluate(node, arrays)` computes a pure node for constant folding; without it no node is
    folded. `inside` is true for the program of a loop or branch.
    """

    graph: Graph
    cluster: Cluster
    settings: Settings
    replica: int = 0
    evaluate: Evaluate | None = None
    watch: Watch | None = None
    rows: Sequence[Pass] = ()
    subject: str = "step"
    inside: bool = False
    sums: bool = False  # whether the graph sums over replicas
    placements: dict[str, VariablePlacement] = dataclasses.field(
        default_factory=dict
    )  # variable -> its servers
    reads: list[str] = dataclasses.field(default_factory=list)  # reads used before simplification
    reasons: dict[str, str] = dataclasses.field(
        default_factory=dict
    )  # node -> reason for its device, or for the size of a bucket
    forecast: str = ""  # what automatic placement predicts
    task_seconds: tuple[float, ...] = ()  # its predicted own work of each worker task
    warnings: tuple[str, ...] = ()  # of updates that may be lost
    edges: list[Edge] = dataclasses.field(default_factory=list)  # in loops and branches
    update: Program | None = None  # what the servers run on the gradients of the step
    updates: str = ""  # the name of the update

    @property
    def verify(self) -> bool:
        """Whether effects are checked after each pass."""
        return self.settings.verify_passes

    @functools.cached_property
    def rewrites(self) -> bool:
        """Whether algebraic rewrites are allowed.

        They delay values for which other tasks may wait, and change values that are checked.
        """
        return self.cluster.tasks_per_replica == 1 and not self.settings.one_by_one

    @functools.cached_property
    def rounds(self) -> bool:
        """Whether rewrites are allowed that change the rounding of sums."""
        return self.rewrites and not self.settings.exact

    @functools.cached_property
    def folds_floats(self) -> bool:
        """Whether folding computes floating-point constants as their device would."""
        devices = (*self.cluster.devices, *self.cluster.server_devices)
        return not self.settings.exact or all(d.startswith("cpu") for d in devices)

    def of_body(self, label: str) -> Planning:
        """The planning of the program of a loop or branch."""
        return dataclasses.replace(self, subject=f"{self.subject}, {label}", inside=True)

    def of_update(self) -> Planning:
        """The planning of the servers' update, which the coordinator drives."""
        cluster = dataclasses.replace(self.cluster, lead=COORDINATOR)
        why: dict[str, str] = {}
        return dataclasses.replace(
            self, subject="update", cluster=cluster, reasons=why, edges=[], update=None
        )


@dataclasses.dataclass(frozen=True)
class Lowering:
    """The lowering of one partition for a target."""

    target: LoweringTarget
    verify: bool = False
    watch: Watch | None = None
    subject: str = ""
    owned_feeds: frozenset[str] = frozenset()  # they have memory of their own: loop variables


# -- passes over a program


def variable_placement(program: Program, planning: Planning) -> Program:
    """Record the servers of variables in `planning.placements`; the program is unchanged."""
    planning.placements = place_variables(planning.graph, planning.cluster, planning.settings)
    return program


def replica_lowering(program: Program, planning: Planning) -> Program:
    """Lower the operations about replicas for the mode of the cluster."""
    if planning.inside and planning.cluster.joins:
        refuse_nested_collectives(program)
    return lower_replicas(
        program, planning.graph, planning.cluster, planning.replica, planning.placements
    )


def read_uses(program: Program, planning: Planning) -> Program:
    """Record the reads whose values are used in `planning.reads`; the program is unchanged."""
    planning.reads = live_reads(program)
    return program


def constant_folding(program: Program, planning: Planning) -> Program:
    """Compute pure nodes with constant inputs by `planning.evaluate`."""
    assert planning.evaluate is not None
    return fold_constants(program, planning.evaluate, planning.folds_floats)


def control_flow_bodies(program: Program, planning: Planning) -> Program:
    """Run the passes that also run in bodies on the programs of loops and branches."""
    rows = [row for row in planning.rows if row.in_bodies]
    nodes = dict(program.nodes)
    for name, node in program.nodes.items():
        if node.row.control_flow:
            bodies = {
                key: run_passes(rows, body, planning.of_body(f"{key} of {name}"))
                for key, body in nested_programs(node)
            }
            nodes[name] = node.but(attrs={**node.attrs, **bodies})
    return program.but(nodes=nodes)


def sync_program_split(program: Program, planning: Planning) -> Program:
    """Move the updates of a synchronous rule to `planning.update`."""
    share = next((t.op.name for t in planning.graph.get_collection("replica_share")), None)
    step, planning.update, planning.updates = split_sync_program(
        program, planning.cluster, planning.placements, share, planning.sums
    )
    return step


def device_placement(program: Program, planning: Planning) -> Program:
    """Give each node a device, and record the reasons."""
    graph, cluster, placements = planning.graph, planning.cluster, planning.placements
    chosen: Mapping[str, ChosenTask] = {}
    if graph.root.has_requirements and cluster.lead.startswith("/job:worker"):
        # few scripts need it
        from hpcflow.plan.distribution.task_requirements import required_tasks

        chosen = required_tasks(graph, cluster, planning.settings, placements).chosen()
    if planning.settings.automatic and cluster.lead.startswith("/job:worker"):
        # only a rank with this setting needs it
        from hpcflow.plan.distribution.automatic_placement import choose_tasks

        found = choose_tasks(program, graph, cluster, planning.settings, placements)
        chosen = {**chosen, **found.tasks}
        planning.forecast, planning.task_seconds = found.forecast, found.task_seconds
    program, planning.reasons = place_devices(program, graph, cluster, placements, chosen)
    if cluster.mode == "ps" and cluster.replicas > 1 and cluster.lead.startswith("/job:worker"):
        # only a job with servers needs it
        from hpcflow.plan.verification.lost_updates import lost_update_warnings

        planning.warnings = tuple(lost_update_warnings(program))
    return program


def control_flow_frames(program: Program, planning: Planning) -> Program:
    """Partition loops and branches, and record the edges in them."""
    program, planning.edges = partition_frames(program, planning.cluster)
    return program


def server_traffic(plan: Plan, planning: Planning) -> Plan:
    """Record the bytes of each variable in messages of servers, if the plan trains."""
    if not plan_trains(plan) and planning.update is None:
        return plan
    return dataclasses.replace(plan, messages=server_messages(plan, planning.placements))


def loop_invariant_hoisting(program: Program) -> Program:
    """Import and run the pass if the program has loops or branches."""
    if not _has_bodies(program):
        return program
    # only a rank with a loop needs it
    from hpcflow.plan.algebra.loop_invariant_hoisting import hoist_loop_invariants

    return hoist_loop_invariants(program)


def loop_accumulation_hoisting(program: Program) -> Program:
    """Import and run the pass if the program has loops or branches."""
    if not _has_bodies(program):
        return program
    from hpcflow.plan.algebra.loop_accumulation_hoisting import hoist_loop_sums

    return hoist_loop_sums(program)


def loop_trip_counts(program: Program) -> Program:
    """Import and run the pass if the program has loops or branches."""
    if not _has_bodies(program):
        return program
    from hpcflow.plan.ir.trip_counts import record_trip_counts

    return record_trip_counts(program)


def _has_bodies(program: Program) -> bool:
    """Whether a program has loops or branches."""
    return any(node.row.control_flow for node in program.nodes.values())


def batch_norm_expansion(part: Partition, lowering: Lowering) -> Partition:
    """Import and run the pass if the partition may be on a GPU."""
    if "gpu" not in lowering.target.kinds:
        return part
    # only a rank with a GPU needs it
    from hpcflow.lowering.fusion.batch_norm_expansion import expand_batch_norms

    return expand_batch_norms(part, lowering.target.exact)


def elementwise_fusion(part: Partition, lowering: Lowering) -> Partition:
    """Fuse elementwise operations of a segment to generated loops."""
    target = lowering.target
    return fuse_elementwise(
        part, split_segments(part), target.infos, target.exact, target.kinds, target.threads
    )
