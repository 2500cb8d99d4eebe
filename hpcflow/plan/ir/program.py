"""The plan's form of the graph: plain data that passes rewrite and ranks exchange."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hpcflow.errors import HpcflowError
from hpcflow.graph.dtypes import resource
from hpcflow.graph.op_registry import OpDef, lookup
from hpcflow.graph.static_shape import Spec
from hpcflow.ps.sync_rule import Rule
from hpcflow.ps.sync_rules import All, Async


class Ref(NamedTuple):
    """Output `index` of the node called `node`."""

    node: str
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which nobody needs

    def __str__(self) -> str:
        return f"{self.node}:{self.index}"


@dataclasses.dataclass(frozen=True)
class Node:
    """One operation of a step, with what the plan has decided about it."""

    name: str
    type: str
    inputs: tuple[Ref, ...] = ()
    control: tuple[str, ...] = ()
    attrs: dict[str, Any] = dataclasses.field(default_factory=dict)
    specs: tuple[Spec, ...] = ()  # of its outputs, as far as this step's feeds tell
    device: str = ""  # the constraint asked for; after placing, the full name of its device
    colocate: tuple[str, ...] = ()
    line: str = ""  # the user's line that made it

    @property
    def row(self) -> OpDef:
        """Its row of the op table."""
        return lookup(self.type)

    @property
    def kind(self) -> str:
        """The kind of its device, `cpu` or `gpu`."""
        return self.device.rpartition("/")[2].partition(":")[0]

    @property
    def is_state(self) -> bool:
        """True if it makes a handle: of a variable, or of other state that outlives the step."""
        return bool(self.specs) and self.specs[0].dtype == resource

    def before(self) -> list[str]:
        """Names of the nodes it must follow."""
        return [*[node for node, _ in self.inputs], *self.control]

    def but(self, **changes: Any) -> Node:
        """A copy with fields changed."""
        if not changes.keys() <= self.__dict__.keys():
            raise TypeError(f"a node has not all of the fields {', '.join(changes)}")
        made = object.__new__(Node)  # nodes are copied often: a tenth of the time of `replace`
        made.__dict__.update(self.__dict__, **changes)
        return made

    def taking(self, values: Mapping[Ref, Ref]) -> Node:
        """The node with other values in place of those in `values`."""
        if values.keys().isdisjoint(self.inputs):
            return self
        return self.but(inputs=tuple(values.get(ref, ref) for ref in self.inputs))


@dataclasses.dataclass(frozen=True)
class Program:
    """The part of a graph that one step needs: nodes in an order that respects their edges.

    A fed tensor is a node of type "Feed" (one output, its spec that of the fed array) in place of
    the operation that would have made it. `targets` are fetched operations, as node names.
    """

    nodes: dict[str, Node]
    feeds: tuple[str, ...] = ()  # names of Feed nodes, in the order the step receives values
    fetches: tuple[Ref, ...] = ()
    targets: tuple[str, ...] = ()

    def but(self, **changes: Any) -> Program:
        """A copy with fields changed."""
        return dataclasses.replace(self, **changes)

    def spec(self, ref: Ref) -> Spec:
        """What is known of a value."""
        return self.nodes[ref.node].specs[ref.index]


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The ranks a plan is made for, as tasks of jobs.

    A replica is `tasks_per_replica` worker tasks of which task 0 drives; in plans, worker tasks are
    numbered within their replica (`/job:worker/task:k`), so one plan serves every replica.
    """

    workers: int = 1
    servers: int = 0
    tasks_per_replica: int = 1
    devices: tuple[str, ...] = ("cpu:0",)  # of each worker task, the default first
    server_devices: tuple[str, ...] = ("cpu:0",)
    sync: Rule = dataclasses.field(
        default_factory=Async
    )  # how the workers of parameter servers keep step
    lead: str = "/job:worker/task:0"  # the task that drives the step
    measured: tuple[tuple[str, int, int], ...] = ()  # variable, bytes and messages of a step
    soft: bool = False  # what asks for a device that its task lacks runs on another one of it
    cpus: int = 1  # names cpu:0, cpu:1 ... of a task's CPU, which is one device

    def __post_init__(self) -> None:
        if self.workers < 1 or self.workers % self.tasks_per_replica:
            raise HpcflowError(
                f"{self.workers} workers cannot be dealt into replicas of {self.tasks_per_replica}",
                hint="choose --tasks-per-replica so that it divides ranks minus servers",
            )

    @property
    def replicas(self) -> int:
        """How many copies of the script run."""
        return self.workers // self.tasks_per_replica

    @property
    def mode(self) -> str:
        """ "ps" with servers, "collective" with several replicas, else "single"."""
        return "ps" if self.servers else ("collective" if self.replicas > 1 else "single")

    @property
    def joins(self) -> bool:
        """Whether the gradients of several replicas are joined to one update."""
        return self.mode == "collective" or (self.mode == "ps" and self.sync.joins)

    @property
    def in_step(self) -> bool:
        """Whether every replica has a part in every update, so that all take the same steps."""
        return self.mode != "ps" or isinstance(self.sync, All)

    def tasks(self) -> list[str]:
        """The tasks one replica's step may use, its driver first."""
        found = [f"/job:worker/task:{k}" for k in range(self.tasks_per_replica)]
        found += [f"/job:ps/task:{s}" for s in range(self.servers)]
        return [self.lead, *(task for task in found if task != self.lead)]


@dataclasses.dataclass(frozen=True)
class Edge:
    """A value that crosses from one task to another, once per step; `token` carries order only.

    In a loop or branch, `frame`, it crosses as often as that runs.
    """

    channel: int
    source: str  # task
    dest: str
    ref: Ref  # the value, or the node whose end the token tells
    spec: Spec
    token: bool = False
    frame: str = ""


class Share(NamedTuple):
    """What one variable has of a message: `nbytes`, 0 as far as only the step knows.

    `way` is "sent" or "received" by `server`; `variable` is "" where the message is of none.
    """

    server: int
    way: str
    variable: str
    nbytes: int


@dataclasses.dataclass(frozen=True)
class Message:
    """An edge to or from a server, and whose bytes cross it."""

    channel: int
    source: str  # task
    dest: str
    shares: tuple[Share, ...]


@dataclasses.dataclass(frozen=True)
class Part:
    """What one task runs in each step: its nodes, Send and Recv included, in the global order.

    Send has attrs channel, dest (task) and token; Recv channel, source, dtype, shape and token.
    """

    task: str
    nodes: dict[str, Node]
    feeds: tuple[str, ...] = ()  # only the driver's part has feeds and fetches
    fetches: tuple[Ref, ...] = ()

    def spec(self, ref: Ref) -> Spec:
        """What is known of a value."""
        return self.nodes[ref.node].specs[ref.index]


@dataclasses.dataclass(frozen=True)
class Plan:
    """One step over the tasks of a replica and the servers."""

    parts: dict[str, Part]  # by task; the driver's first
    edges: tuple[Edge, ...]
    driver: str
    cluster: Cluster
    why: dict[str, str] = dataclasses.field(default_factory=dict)  # node -> why its device
    round: Plan | None = None  # what the servers do by themselves with the gradients of this step
    updates: str = ""  # the name of the updates that `round` makes
    messages: tuple[Message, ...] = ()  # to and from servers, of a plan that trains

    @property
    def updates_servers(self) -> bool:
        """Whether a step changes what servers hold, by itself or by the round behind it."""
        parts = (p for p in self.parts.values() if p.task.startswith("/job:ps"))
        return self.round is not None or any(n.row.writes for p in parts for n in p.nodes.values())

    @property
    def collectives(self) -> list[str]:
        """Names of the collective nodes, in the order every rank issues them."""
        return [n.name for p in self.parts.values() for n in p.nodes.values() if n.row.collective]


def shape_is_told(node: Node, spec: Callable[[Ref], Spec]) -> bool:
    """True if the step tells a shape, which the kernel compares with what is known of it."""
    if node.type not in ("Reshape", "BroadcastTo"):
        return False
    return any(spec(ref).value is None for ref in node.inputs[1:])
