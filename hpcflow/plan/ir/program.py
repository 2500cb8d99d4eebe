"""Program IR: the plan's form of the graph, plain data that passes rewrite and ranks exchange."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcflow.errors import HpcflowError
from hpcflow.graph.dtypes import resource
from hpcflow.graph.op_registry import OpDef, lookup_op
from hpcflow.graph.static_shape import Spec
from hpcflow.platform.lazy_imports import LazyMethod
from hpcflow.ps.sync_rule import SyncRule
from hpcflow.ps.sync_rules import Async

if TYPE_CHECKING:
    from hpcflow.placement.network import Network
    from hpcflow.placement.topology import Topology
    from hpcflow.plan.cost.measured_rows import MeasuredRows


class Ref(NamedTuple):
    """Output `index` of the node named `node`."""

    node: str
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which nobody needs

    def __str__(self) -> str:
        return f"{self.node}:{self.index}"


@dataclasses.dataclass(frozen=True)
class Node:
    """One operation of a step, with the decisions of the plan about it."""

    name: str
    type: str
    inputs: tuple[Ref, ...] = ()
    control: tuple[str, ...] = ()
    attrs: dict[str, Any] = dataclasses.field(default_factory=dict)
    specs: tuple[Spec, ...] = ()  # of its outputs, as far as known from this step's feeds
    device: str = ""  # the requested constraint; after placement, the full device name
    colocate: tuple[str, ...] = ()
    line: str = ""  # the user's source line that created it

    @functools.cached_property
    def row(self) -> OpDef:
        """The op registry entry of its type, which has the facts that passes ask for."""
        return lookup_op(self.type)

    @property
    def kind(self) -> str:
        """The kind of its device, `cpu` or `gpu`."""
        return self.device.rpartition("/")[2].partition(":")[0]

    @property
    def is_state(self) -> bool:
        """True if its output is a handle of a variable or of other state that outlives the step."""
        return bool(self.specs) and self.specs[0].dtype == resource

    def before(self) -> list[str]:
        """Return the names of its predecessors, by inputs and control inputs."""
        return [*[node for node, _ in self.inputs], *self.control]

    def but(self, **changes: Any) -> Node:
        """Return a copy with fields changed."""
        if not changes.keys() <= self.__dict__.keys():
            raise TypeError(f"a node has not all of the fields {', '.join(changes)}")
        copy = object.__new__(Node)  # nodes are copied often: 10x as fast as `replace`
        copy.__dict__.update(self.__dict__, **changes)
        if "type" in changes:
            copy.__dict__.pop("row", None)
        return copy

    def taking(self, values: Mapping[Ref, Ref]) -> Node:
        """Return the node with its inputs replaced as `values` maps them."""
        if values.keys().isdisjoint(self.inputs):
            return self
        return self.but(inputs=tuple(values.get(ref, ref) for ref in self.inputs))


@dataclasses.dataclass(frozen=True)
class Program:
    """The subgraph that one step needs: nodes in topological order.

    A fed tensor is a node of type "Feed" in place of the operation that computes it. The node has
    one output, with the spec of the fed array. `targets` are the node names of fetched operations.
    """

    nodes: dict[str, Node]
    feeds: tuple[str, ...] = ()  # names of Feed nodes, in the order the step receives values
    fetches: tuple[Ref, ...] = ()
    targets: tuple[str, ...] = ()

    def but(self, **changes: Any) -> Program:
        """Return a copy with fields changed."""
        return dataclasses.replace(self, **changes)

    def spec(self, ref: Ref) -> Spec:
        """Return the spec of a value."""
        return self.nodes[ref.node].specs[ref.index]


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The ranks a plan is made for, as tasks of jobs.

    A replica has `tasks_per_replica` worker tasks; task 0 is its driver. Plans number worker tasks
    within their replica (`/job:worker/task:k`), so one plan serves every replica.
    """

    workers: int = 1
    servers: int = 0
    tasks_per_replica: int = 1
    devices: tuple[str, ...] = ("cpu:0",)  # of each worker task, the default first
    server_devices: tuple[str, ...] = ("cpu:0",)
    sync: SyncRule = dataclasses.field(
        default_factory=Async
    )  # synchronization rule of parameter servers
    lead: str = "/job:worker/task:0"  # the task that drives the step
    measured: tuple[tuple[str, int, int], ...] = ()  # variable, bytes and messages of a step
    soft: bool = False  # soft placement: a node whose device its task lacks runs on another device
    cpus: int = 1  # number of names cpu:0, cpu:1 ... that all mean the one CPU device of a task
    topology: Topology | None = None  # rank k is the task k of a replica, then the servers
    # measured speeds of the tasks of a replica, besides those of the topology; () if all are 1
    speeds: tuple[float, ...] = ()
    times: MeasuredRows | None = None  # of operations, for placement=auto; None: the cost model
    network: Network | None = None  # between all workers, by the topology of the job

    def __post_init__(self) -> None:
        if self.workers < 1 or self.workers % self.tasks_per_replica:
            raise HpcflowError(
                f"{self.workers} workers cannot be divided into replicas of "
                f"{self.tasks_per_replica}",
                hint="choose --tasks-per-replica so that it divides ranks minus servers",
            )

    @property
    def replicas(self) -> int:
        """The number of replicas; each runs a copy of the script."""
        return self.workers // self.tasks_per_replica

    @property
    def mode(self) -> str:
        """The mode: "ps" with servers, "collective" with several replicas, else "single"."""
        return "ps" if self.servers else ("collective" if self.replicas > 1 else "single")

    @property
    def joins(self) -> bool:
        """Whether the gradients of several replicas are combined into one update."""
        return self.mode == "collective" or (self.mode == "ps" and self.sync.joins)

    @property
    def in_step(self) -> bool:
        """Whether every replica takes part in every update, so that all take the same steps."""
        return self.mode != "ps" or self.sync.in_step

    def tasks(self) -> list[str]:
        """Return the tasks that one replica's step may use, `lead` first."""
        tasks = [f"/job:worker/task:{k}" for k in range(self.tasks_per_replica)]
        tasks += [f"/job:ps/task:{s}" for s in range(self.servers)]
        return [self.lead, *(task for task in tasks if task != self.lead)]


@dataclasses.dataclass(frozen=True)
class Edge:
    """A value sent from one task to another once per step; a `token` carries order only.

    In a loop or branch, named `frame`, it is sent each time that the frame runs it.
    """

    channel: int
    source: str  # task
    dest: str
    ref: Ref  # the value, or the node whose end the token signals
    spec: Spec
    token: bool = False
    frame: str = ""


class VariableBytes(NamedTuple):
    """The bytes of one variable in a message; 0 for values of unknown size.

    `direction` is "sent" or "received" by `server`. `variable` is "" if the message belongs to no
    variable.
    """

    server: int
    direction: str
    variable: str
    nbytes: int


@dataclasses.dataclass(frozen=True)
class ServerMessage:
    """An edge to or from a server, with the bytes of each variable in it."""

    channel: int
    source: str  # task
    dest: str
    shares: tuple[VariableBytes, ...]


@dataclasses.dataclass(frozen=True)
class Partition:
    """A partition: the nodes that one task runs in each step, Send and Recv included.

    The nodes stand in the global order. Send has attrs channel, dest (task) and token; Recv has
    channel, source, dtype, shape and token.
    """

    task: str
    nodes: dict[str, Node]
    feeds: tuple[str, ...] = ()  # only the driver's partition has feeds and fetches
    fetches: tuple[Ref, ...] = ()

    def spec(self, ref: Ref) -> Spec:
        """Return the spec of a value."""
        return self.nodes[ref.node].specs[ref.index]


@dataclasses.dataclass(frozen=True)
class Plan:
    """One step over the tasks of a replica and the servers."""

    parts: dict[str, Partition]  # by task; the driver's first
    edges: tuple[Edge, ...]
    driver: str
    cluster: Cluster
    reasons: dict[str, str] = dataclasses.field(
        default_factory=dict
    )  # node -> reason for its device
    round: Plan | None = None  # the synchronous update that servers run on this step's gradients
    updates: str = ""  # the name of the updates of `round`
    messages: tuple[ServerMessage, ...] = ()  # to and from servers, if the plan trains
    forecast: str = ""  # the predicted times of an automatic placement
    # its predicted own work of each worker task in seconds, 0 where it is not known
    task_seconds: tuple[float, ...] = ()
    warnings: tuple[str, ...] = ()  # of updates that may be lost
    _repr_html_ = LazyMethod("hpcflow.report.html_representation", "plan_html")

    @property
    def collectives(self) -> list[str]:
        """Names of the collective nodes, in the order in which every rank issues them."""
        return [n.name for p in self.parts.values() for n in p.nodes.values() if n.row.collective]


def has_runtime_shape(node: Node, spec: Callable[[Ref], Spec]) -> bool:
    """Return whether a target shape is a runtime value.

    The kernel compares it with the static shape.
    """
    if not node.row.checks_shape:
        return False
    return any(spec(ref).value is None for ref in node.inputs[1:])
