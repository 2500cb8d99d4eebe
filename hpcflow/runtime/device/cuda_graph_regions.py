"""CUDA graph regions: runs of instructions of a partition that only launch work on a GPU.

Each region becomes a function of its own. An object is called in place of its instructions; it runs
them, or launches a CUDA graph of what they launched. The feeds are copied to the GPU together,
before everything else. Consecutive copies to the host become one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hpcflow.lowering.instructions import (
    RELEASE,
    Access,
    BindingKind,
    CodeFunction,
    Instruction,
    Opcode,
    Use,
    loads,
    stores,
)
from hpcflow.lowering.kernel_metadata import GeneratedCode
from hpcflow.lowering.python_printer import PrintedCode, PythonPrinter
from hpcflow.monitoring.stack_dump import OPS
from hpcflow.plan.ir.program import Node, Partition

MIN_KERNELS = 2  # least kernels of a region: launching a graph costs as much as one kernel
PLACES = frozenset(  # what the names that a region uses may stand for
    {BindingKind.KERNEL, BindingKind.LOOP, BindingKind.CONTIGUOUS, BindingKind.ALLOCATOR}
    | {BindingKind.CONSTANT, BindingKind.VARIABLE, BindingKind.BUFFER, BindingKind.WORKSPACE}
    | {BindingKind.VIEW, BindingKind.BUCKET_INPUT, BindingKind.BUCKET_OUTPUT}
)
KERNEL_BINDINGS = frozenset({BindingKind.KERNEL, BindingKind.LOOP})
CAPTURABLE_OPCODES = frozenset(  # what a CUDA graph can hold
    {Opcode.CALL_KERNEL, Opcode.CALL_LOOP, Opcode.ALLOCATE, Opcode.COPY_INTO, Opcode.SCRATCH}
    | {Opcode.READ_VARIABLE, Opcode.ASSIGN_VARIABLE, Opcode.WRITE_VARIABLE}
    | {Opcode.BEGIN_UPDATE, Opcode.SAME_IF_IN_PLACE, Opcode.END_UPDATE}
)
INTERRUPT_OPCODES = frozenset(
    {Opcode.HOLD_INTERRUPT, Opcode.LET_GO}
)  # around updates: they defer Ctrl-C
JOINING_OPS = frozenset("Concat Pack Parcel AllReduce".split())
NOT_HELD = frozenset({Access.PINNED, Access.ARRAY})
WRITES = frozenset({Access.WRITTEN, Access.UPDATED})
INPUTS, OUTPUTS, REGION = "_inputs", "_outputs", "_region"


@dataclasses.dataclass
class GraphRegion:
    """One run of instructions: its nodes, kernels and variables.

    `feed_indices` says for each argument of the region its index in `CodeWithRegions.feeds`; None
    if it is no feed.
    """

    nodes: list[str]
    kernels: list[str]  # names in the code that are bound to them
    read: list[str]  # names of variables
    written: list[str]
    feed_indices: list[int | None]


@dataclasses.dataclass
class CodeWithRegions:
    """The code of a partition with its regions.

    `make` takes the values that the code is bound to, then the objects for inputs, outputs and
    regions in the order of `names`.
    """

    make: Callable[..., Any]
    regions: list[GraphRegion]
    feeds: list[Node]  # copies of feeds to the GPU, in the order of the arguments of `_inputs`
    outputs: list[list[Node]]  # copies to the host that are made together
    names: list[str]


class RegionFinder:
    """Cuts the code of one partition into regions.

    `why(node)` is the reason against capturing the kernel of a node, "" if there is none.
    `on(node)` is whether the node is on the GPU.
    """

    def __init__(
        self,
        code: GeneratedCode,
        part: Partition,
        exclusion_reason: Callable[[Node], str],
        on: Callable[[Node], bool],
    ) -> None:
        self.code, self.part, self.exclusion_reason, self.on = code, part, exclusion_reason, on

    def cut(self, file: str) -> CodeWithRegions:
        """The code with regions, compiled with a file name that begins with `file`."""
        printed = self.printed()
        scope: dict[str, Any] = {OPS: printed.lines}
        exec(compile(printed.source, f"{file} with CUDA graphs", "exec"), scope)
        return CodeWithRegions(scope["make"], self.regions, self.feeds, self.outputs, self.names)

    def printed(self) -> PrintedCode:
        """The code with regions, as Python."""
        self.regions: list[GraphRegion] = []
        self.feeds: list[Node] = []
        self.outputs: list[list[Node]] = []
        functions: list[CodeFunction] = []
        for function in self.code.functions:
            functions += [function] if function.name == RELEASE else self._segment(function)
        self.names = [INPUTS] if self.feeds or any(self._draws(0)) else []
        self.names += [f"{OUTPUTS}{i}" for i in range(len(self.outputs))]
        self.names += [f"{REGION}{i}" for i in range(len(self.regions))]
        names = [*self.code.binds, *self.names]
        return PythonPrinter().print(names, self.code.shared, functions)

    def _segment(self, segment: CodeFunction) -> list[CodeFunction]:
        """The functions of the regions of a segment, and the segment that calls them."""
        first = segment.name == "s0"
        fed = [i for i in segment.body if first and self._is_feed(i)]
        instructions = [i for i in segment.body if i not in fed]
        new, functions, at = self._inputs(fed, first), [], 0
        while at < len(instructions):
            run = self._run(instructions, at, self._holds)
            copies = self._run(instructions, at, self._is_output)
            if sum(len([*self._kernels(i)]) for i in run) >= MIN_KERNELS:
                later = {name for i in instructions[at + len(run) :] for name in loads(i)}
                function, call = self._region(run, later | {*segment.nonlocals}, fed)
                functions.append(function)
                new.append(call)
            elif copies:
                run = copies
                new.append(self._copied(copies))
            else:
                run = instructions[at : at + max(len(run), 1)]
                new += run
            at += len(run)
        return [*functions, segment._replace(body=tuple(new))]

    @staticmethod
    def _run(
        body: list[Instruction], at: int, predicate: Callable[[Instruction], bool]
    ) -> list[Instruction]:
        end = at
        while end < len(body) and predicate(body[end]):
            end += 1
        return body[at:end]

    # -- classification of instructions

    def _copy(self, instruction: Instruction) -> Node | None:
        """The node of an instruction that copies a value of known size between devices."""
        if instruction.opcode != Opcode.COPY_DEVICE:
            return None
        node = self.part.nodes[instruction.node]
        return node if node.specs[0].sized else None

    def _is_feed(self, instruction: Instruction) -> bool:
        node = self._copy(instruction)
        if node is None or not self.on(node) or node.inputs[0].node not in self.part.feeds:
            return False
        return self.part.nodes[node.inputs[0].node].kind == "cpu"

    def _is_output(self, instruction: Instruction) -> bool:
        node = self._copy(instruction)
        if node is None or node.kind != "cpu":
            return False
        return self.on(self.part.nodes[node.inputs[0].node])

    def _kernels(self, instruction: Instruction) -> Iterator[str]:
        """The names of the kernels that an instruction calls."""
        binding = self.code.binds.get(instruction.callee)
        if binding is not None and binding.kind in KERNEL_BINDINGS:
            yield instruction.callee
        for inside in instruction.body:
            yield from self._kernels(inside)

    def _holds(self, instruction: Instruction) -> bool:
        """Whether a CUDA graph can hold what an instruction does."""
        if instruction.opcode == Opcode.HOLD_IF_TORN:
            return True
        if instruction.opcode == Opcode.GUARD:  # around an update of many elements
            return all(i.opcode in INTERRUPT_OPCODES or self._holds(i) for i in instruction.body)
        node = self.part.nodes.get(instruction.node)
        if node is None or not self.on(node) or instruction.opcode not in CAPTURABLE_OPCODES:
            return False
        if instruction.opcode == Opcode.COPY_INTO and node.type not in JOINING_OPS:
            return False
        part = self.part
        if not all(part.nodes[r.node].is_state or part.spec(r).sized for r in node.inputs):
            return False  # a graph has the sizes of its capture
        binds = self.code.binds
        bound = {binds[name].kind for name in loads(instruction) if name in binds}
        accesses = {use.access for use in instruction.operands}
        return bound <= PLACES and accesses.isdisjoint(NOT_HELD) and not self.exclusion_reason(node)

    # -- replacements of instructions

    def _draws(self, segment: int) -> Iterator[str]:
        """The names of the nodes of a segment that may draw random numbers: they have a key."""
        for name in self.code.segments[segment].nodes:
            if "key" in self.part.nodes[name].attrs:
                yield name

    def _inputs(self, fed: list[Instruction], first: bool) -> list[Instruction]:
        if not fed and not (first and any(self._draws(0))):
            return []
        self.feeds = [self.part.nodes[i.node] for i in fed]
        return [_together(INPUTS, fed)]

    def _copied(self, copies: list[Instruction]) -> Instruction:
        name = f"{OUTPUTS}{len(self.outputs)}"
        self.outputs.append([self.part.nodes[i.node] for i in copies])
        return _together(name, copies)

    def _region(
        self, run: list[Instruction], later: set[str], fed: list[Instruction]
    ) -> tuple[CodeFunction, Instruction]:
        """The function of a region, and the call that replaces its instructions."""
        number = len(self.regions)
        assigned: set[str] = set()
        inputs: dict[str, None] = {}
        for instruction in run:
            for used in sorted({*loads(instruction)}):
                if used not in self.code.binds and used not in assigned:
                    inputs[used] = None
            assigned.update(stores(instruction))
        outputs = tuple(sorted(assigned & later))
        feeds = {i.targets[0]: place for place, i in enumerate(fed)}
        read, written = _states(run)
        nodes = [i.node for i in run]
        kernels = [name for i in run for name in self._kernels(i)]
        self.regions.append(
            GraphRegion(nodes, kernels, read, written, [feeds.get(n) for n in inputs])
        )
        inside = f"{REGION}_run{number}"
        values = Instruction(Opcode.RETURN_TUPLE, run[-1].node, (), tuple(map(Use, outputs)))
        args = (Use(inside), *map(Use, inputs))
        call = Instruction(Opcode.CALL_REGION, run[0].node, outputs, args, f"{REGION}{number}")
        return CodeFunction(inside, tuple(inputs), (), (*run, values)), call


def _together(name: str, copies: Sequence[Instruction]) -> Instruction:
    """The call of `name` that makes several copies."""
    targets = tuple(i.targets[0] for i in copies)
    node = copies[0].node if copies else ""
    operands = tuple(i.operands[0] for i in copies)
    return Instruction(Opcode.CALL_REGION, node, targets, operands, name)


def _states(run: Sequence[Instruction]) -> tuple[list[str], list[str]]:
    """The variables that the instructions only read, and those that they write."""
    read: set[str] = set()
    written: set[str] = set()
    for instruction in run:
        for use in instruction.operands:
            if use.access == Access.READ:
                read.add(use.name)
            elif use.access in WRITES:
                written.add(use.name)
        inside_read, inside_written = _states(instruction.body)
        read.update(inside_read)
        written.update(inside_written)
    return sorted(read - written), sorted(written)
