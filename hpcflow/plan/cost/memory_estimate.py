"""The memory each rank of a plan needs, known before it runs: by the code that places values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from hpcflow.graph.device_names import parse
from hpcflow.graph.dtypes import OPAQUE
from hpcflow.graph.static_shape import Spec, is_known
from hpcflow.lowering.arena_allocation import ALIGNED
from hpcflow.lowering.fusion.update_fusion import Writer
from hpcflow.lowering.kernel_metadata import Code, KernelInfo
from hpcflow.lowering.python_codegen import generate
from hpcflow.plan.ir.control_flow_nodes import inner, within
from hpcflow.plan.ir.program import Node, Part, Plan

Made = Callable[[Part], tuple[Part, Callable[[Node], KernelInfo], Writer | None]]


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one rank; `total` is what it holds while the steps of the plan go on.

    Apart from these are `versions`, the second buffers that updates of variables may need while
    readers hold a version, `results`, which are the caller's own, and `unsized` values, of which
    only the step tells how large they are.
    """

    task: str
    sizes: Mapping[str, int]  # of the variables
    constants: int = 0
    buffers: int = 0  # the arenas of all steps that are in flight at once
    messages: int = 0  # where values come and go, of these steps
    sums: int = 0  # what collectives add, and the sums
    steps: int = 1  # in flight at once: on a server one of each worker
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
        return self.variables + self.constants + self.buffers + self.messages + self.sums


def plainly(part: Part) -> tuple[Part, Callable[[Node], KernelInfo], None]:
    """Of kernels that write all outputs to other memory than their inputs: what is always right."""
    return part, lambda node: KernelInfo("out"), None


def predict(plan: Plan, made: Made = plainly) -> dict[str, Memory]:
    """The memory of each task of a plan.

    `made(part)` is what runs, its kernels' forms, and what tells of generated updates.
    """
    return {task: _part(part, made, _steps(plan, task)) for task, part in plan.parts.items()}


def _part(part: Part, made: Made, steps: int) -> Memory:
    part, info, writes = made(part)
    parts = [p for node in part.nodes.values() for _, p in inner(node) if isinstance(p, Part)]
    insides = [_part(inside, made, steps) for inside in parts]
    return of_code(part, generate(part, info, writes=writes), steps, insides)


def _steps(plan: Plan, task: str) -> int:
    """A server has a part in the step of each worker, which may all come at once."""
    by_workers = parse(plan.driver).job != "ps"
    return plan.cluster.replicas if by_workers and parse(task).job == "ps" else 1


def of_code(part: Part, code: Code, steps: int, insides: Iterable[Memory]) -> Memory:
    """The memory of one task whose part has this code and is run by `steps` steps at once.

    `insides` is that of its loops and branches.
    """
    sizes = variables(part)
    made = Memory(
        part.task,
        sizes,
        constants=sum(constants(part, code).values()),
        buffers=steps * sum(size + ALIGNED for size in code.arenas.values()),
        messages=steps * sum(_message(part, what) for what in code.binds.values()),
        sums=sum(sum_bytes(node) for node in part.nodes.values()),
        steps=steps,
        versions=sum(sizes[name] for name in code.versions),
        results=sum(part.spec(ref).nbytes for ref in part.fetches),
        unsized=sum(_unsized(node) for node in part.nodes.values()),
    )
    for inside in insides:
        made = _with(made, inside)
    return made


def constants(part: Part, code: Code) -> dict[str, int]:
    """Bytes of each constant that the code of a part uses."""
    names = dict.fromkeys(what[1] for what in code.binds.values() if what[0] == "const")
    return {name: part.nodes[name].specs[0].nbytes for name in names}


def variables(part: Part) -> dict[str, int]:
    """Bytes of each variable of a part, or piece of one, those that its loops use among them."""
    nodes = (n for n in (*part.nodes.values(), *within(part.nodes)) if n.type == "Variable")
    return {n.name: Spec(n.attrs["dtype"], tuple(n.attrs["shape"])).nbytes for n in nodes}


def _with(outer: Memory, inside: Memory) -> Memory:
    """With what a loop or branch needs; its variables are among those of the whole."""
    names = ("constants", "buffers", "messages", "unsized")
    changes = {name: getattr(outer, name) + getattr(inside, name) for name in names}
    return dataclasses.replace(outer, **changes)


def _message(part: Part, what: tuple) -> int:
    """Bytes of a buffer where a value comes, or from where it goes."""
    if what[0] == "recv":
        return part.nodes[what[1]].specs[0].nbytes
    if what[0] == "stage" and (inputs := part.nodes[what[1]].inputs):
        return part.nodes[inputs[0].node].specs[inputs[0].index].nbytes
    return 0


def sum_bytes(node: Node) -> int:
    """Bytes of the storage of a collective, 0 of others; GPUs add in place."""
    if not node.row.collective or node.type == "AllGather":
        return 0
    places = 2 if node.type == "AllReduce" and "/gpu:" not in node.device else 1
    return places * sum(spec.nbytes for spec in node.specs)


def _unsized(node: Node) -> int:
    """How many values of a node have sizes that only the step tells."""
    return sum(spec.dtype not in OPAQUE and not is_known(spec.shape) for spec in node.specs)
