"""Memory estimate: bytes per rank, predicted before the run by the code that allocates buffers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from hpcflow.graph.device_names import parse_device
from hpcflow.graph.dtypes import OPAQUE
from hpcflow.graph.static_shape import Spec, is_known
from hpcflow.lowering.arena_allocation import ALIGNED
from hpcflow.lowering.fusion.update_fusion import UpdateLoopFactory
from hpcflow.lowering.instructions import Binding, BindingKind
from hpcflow.lowering.kernel_metadata import GeneratedCode, KernelInfo
from hpcflow.lowering.python_codegen import generate_code
from hpcflow.plan.ir.control_flow_nodes import TRIPS, nested_nodes, nested_programs, passes_of
from hpcflow.plan.ir.program import Node, Partition, Plan

PartitionLowering = Callable[
    [Partition], tuple[Partition, Callable[[Node], KernelInfo], UpdateLoopFactory | None]
]


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on one rank; `total` is held while the steps of the plan run.

    Not in `total` are `versions`, the second buffers that updates of variables may need while
    readers hold a version; `results`, which belong to the caller; and `unsized`, the number of
    values whose sizes are known only at run time; also those in lists of loops whose number of
    iterations is not known.
    """

    task: str
    sizes: Mapping[str, int]  # variable -> bytes
    constants: int = 0
    buffers: int = 0  # the arenas of all steps in flight
    lists: int = 0  # values that loops keep of each iteration, in tensor lists and tensor arrays
    messages: int = 0  # receive and send buffers of these steps
    sums: int = 0  # inputs and outputs of collectives
    steps: int = 1  # number in flight: on a server one per replica
    versions: int = 0
    results: int = 0
    unsized: int = 0

    @property
    def variables(self) -> int:
        """Bytes of all variables."""
        return sum(self.sizes.values())

    @property
    def total(self) -> int:
        """Bytes that are held at once."""
        parts = self.constants, self.buffers, self.lists, self.messages, self.sums
        return self.variables + sum(parts)


def with_plain_kernels(part: Partition) -> tuple[Partition, Callable[[Node], KernelInfo], None]:
    """Return the partition with kernels that share no memory between outputs and inputs.

    This assumption is always valid.
    """
    return part, lambda node: KernelInfo("out"), None


def predict_memory(
    plan: Plan, lower: PartitionLowering = with_plain_kernels
) -> dict[str, MemoryEstimate]:
    """Return the memory of each task of a plan.

    `lower(part)` returns the partition that runs, the KernelInfo of its nodes, and the writer of
    generated updates.
    """
    return {
        task: _partition_memory(part, lower, _steps_in_flight(plan, task))
        for task, part in plan.parts.items()
    }


def _partition_memory(part: Partition, lowering: PartitionLowering, steps: int) -> MemoryEstimate:
    part, info, writes = lowering(part)
    insides = [
        _frame_memory(node, key, p, lowering, steps)
        for node in part.nodes.values()
        for key, p in nested_programs(node)
        if isinstance(p, Partition)
    ]
    return memory_of_code(part, generate_code(part, info, writes=writes), steps, insides)


def _frame_memory(
    node: Node, key: str, inside: Partition, lowering: PartitionLowering, steps: int
) -> MemoryEstimate:
    """The memory of the program `key` of a loop or branch, with the values that it keeps."""
    estimate = _partition_memory(inside, lowering, steps)
    if node.row.control_flow != "loop":
        return estimate
    kept = [inside.spec(n.inputs[n.row.keeps]) for n in inside.nodes.values()
            if n.row.keeps is not None]  # fmt: skip
    unsized = estimate.unsized + (len(kept) if TRIPS not in node.attrs else 0)
    once = estimate.lists + steps * sum(spec.nbytes for spec in kept)
    return dataclasses.replace(estimate, lists=passes_of(node, key) * once, unsized=unsized)


def _steps_in_flight(plan: Plan, task: str) -> int:
    """Return how many steps can be in flight on a task: on a server one per replica, else one."""
    by_workers = parse_device(plan.driver).job != "ps"
    return plan.cluster.replicas if by_workers and parse_device(task).job == "ps" else 1


def memory_of_code(
    part: Partition, code: GeneratedCode, steps: int, insides: Iterable[MemoryEstimate]
) -> MemoryEstimate:
    """Return the memory of a task whose partition has this code, with `steps` steps in flight.

    `insides` is the memory of its loops and branches.
    """
    sizes = variable_bytes(part)
    estimate = MemoryEstimate(
        part.task,
        sizes,
        constants=sum(constant_bytes(part, code).values()),
        buffers=steps * sum(size + ALIGNED for size in code.arenas.values()),
        messages=steps * sum(_message_bytes(part, binding) for binding in code.binds.values()),
        sums=sum(collective_bytes_of(node) for node in part.nodes.values()),
        steps=steps,
        versions=sum(sizes[name] for name in code.versions),
        results=sum(part.spec(ref).nbytes for ref in part.fetches),
        unsized=sum(_unsized(node) for node in part.nodes.values()),
    )
    for inside in insides:
        estimate = _with_frame(estimate, inside)
    return estimate


def constant_bytes(part: Partition, code: GeneratedCode) -> dict[str, int]:
    """Return the bytes of each constant that the code of a partition uses."""
    bindings = code.binds.values()
    names = dict.fromkeys(b.node for b in bindings if b.kind == BindingKind.CONSTANT)
    return {name: part.nodes[name].specs[0].nbytes for name in names}


def variable_bytes(part: Partition) -> dict[str, int]:
    """Return the bytes of each variable, or piece of one, in a partition and its loops."""
    nodes = (
        n for n in (*part.nodes.values(), *nested_nodes(part.nodes)) if n.row.variable == "handle"
    )
    return {n.name: Spec(n.attrs["dtype"], tuple(n.attrs["shape"])).nbytes for n in nodes}


def _with_frame(outer: MemoryEstimate, inside: MemoryEstimate) -> MemoryEstimate:
    """Add the memory of a loop or branch; its variables are counted in `outer`."""
    names = ("constants", "buffers", "lists", "messages", "unsized")
    changes = {name: getattr(outer, name) + getattr(inside, name) for name in names}
    return dataclasses.replace(outer, **changes)


def _message_bytes(part: Partition, binding: Binding) -> int:
    """Return the bytes of a receive buffer or send staging buffer."""
    if binding.kind == BindingKind.RECEIVE_BUFFER:
        return part.nodes[binding.node].specs[0].nbytes
    if binding.kind == BindingKind.SEND_BUFFER and (inputs := part.nodes[binding.node].inputs):
        return part.nodes[inputs[0].node].specs[inputs[0].index].nbytes
    return 0


def collective_bytes_of(node: Node) -> int:
    """Return the buffer bytes of a collective, 0 for other nodes; GPUs reduce in place."""
    if not node.row.collective or node.row.combines == "rows":
        return 0
    places = 2 if node.row.combines == "sum" and "/gpu:" not in node.device else 1
    return places * sum(spec.nbytes for spec in node.specs)


def _unsized(node: Node) -> int:
    """Return how many outputs of a node have sizes known only at run time."""
    return sum(spec.dtype not in OPAQUE and not is_known(spec.shape) for spec in node.specs)
