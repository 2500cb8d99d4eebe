"""Fusion of variable updates into generated loops: what a loop computes, and which nodes it has."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from hpcflow.codegen import elementwise_formulas
from hpcflow.codegen.fused_loop_ir import FULL, ONE, KernelOperand, KernelStep
from hpcflow.codegen.optimizer_formulas import UPDATE_COUNT_INPUTS, UPDATES
from hpcflow.codegen.variable_update_codegen import UpdateKernel, UpdateTarget, VariableChange
from hpcflow.graph.static_shape import is_known
from hpcflow.lowering.fusion import kernel_dedup
from hpcflow.lowering.fusion.fusion_clustering import connected_components
from hpcflow.plan.ir.program import Node, Partition, Ref


class UpdateDescription(NamedTuple):
    """A loop and its arguments in order: handles of variables, operands, results."""

    update: UpdateKernel
    text: str | None  # LLVM IR; None: an operation has no formula
    handles: tuple[Ref, ...]
    operands: tuple[Ref, ...]
    results: tuple[Ref, ...]


def updated_shape(node: Node) -> Any:
    """The shape of the value that a node computes, or of the variable that it updates."""
    return tuple(node.attrs["shape"]) if node.type in UPDATES else node.specs[0].shape


class UpdateLoopFactory:
    """Tells whether a loop over all elements can be generated for a node.

    It depends on the type of the node, and on its device: one of `kinds`.
    """

    def __init__(self, exact: bool, kinds: Collection[str]) -> None:
        self.exact, self.kinds = exact, kinds
        self._supported: dict[str, bool] = {}

    def __call__(self, part: Partition, node: Node) -> bool:
        """Whether a loop can be generated for this node."""
        if node.name not in self._supported:
            self._supported[node.name] = self._writes(part, node)
        return self._supported[node.name]

    def _writes(self, part: Partition, node: Node) -> bool:
        if node.kind not in self.kinds:
            return False
        if (
            node.type not in UPDATES
            and elementwise_formulas.find_formula(node.type, self.exact) is None
        ):
            return False
        shape = updated_shape(node)
        if not shape or not is_known(shape) or not math.prod(shape):
            return False
        specs = [part.spec(ref) for ref in node.inputs]
        if not all(s.shape in ((), shape) for s in specs):
            return False
        return describe_update(part, [node], [], self.exact).text is not None


def describe_update(
    part: Partition, nodes: Sequence[Node], results: Sequence[Ref], exact: bool
) -> UpdateDescription:
    """The loop of nodes of one shape; `results` are its values that other nodes use."""
    group = {node.name for node in nodes}
    targets: dict[Ref, UpdateTarget] = {}
    operands: dict[Ref, KernelOperand] = {}
    for node in nodes:
        for i, ref in enumerate(node.inputs):
            if i in node.row.writes:
                counts = UPDATE_COUNT_INPUTS.get(node.type) == i
                dtype = part.nodes[ref.node].attrs["dtype"]
                targets.setdefault(ref, UpdateTarget(dtype, counts))
            elif ref.node not in group:
                spec = part.spec(ref)
                mapping = FULL if spec.shape == updated_shape(node) else ONE
                operands.setdefault(ref, KernelOperand(spec.dtype, mapping))
    place = {ref: k for k, ref in enumerate(targets)}
    number = {ref: i for i, ref in enumerate(operands)}
    steps: list[KernelStep | VariableChange] = []
    for node in nodes:
        writes = node.row.writes
        operand_numbers = tuple(number[r] for i, r in enumerate(node.inputs) if i not in writes)
        if node.type in UPDATES:
            of = tuple(place[node.inputs[i]] for i in writes)
            steps.append(VariableChange(node.type, of, operand_numbers, node.attrs))
        else:
            number[Ref(node.name)] = len(operands) + len(steps)
            steps.append(KernelStep(node.type, operand_numbers, node.attrs))
        number.setdefault(Ref(node.name), len(operands) + len(steps) - 1)
    update = UpdateKernel(
        tuple(targets.values()),
        tuple(operands.values()),
        tuple(steps),
        tuple(number[ref] for ref in results),
    )
    on_gpu = nodes[0].kind == "gpu"
    text = (
        kernel_dedup.gpu_update_loop(update)
        if on_gpu
        else kernel_dedup.cpu_update_loop(update, exact)
    )
    return UpdateDescription(update, text, tuple(targets), tuple(operands), tuple(results))


def independent_groups(part: Partition, names: Sequence[str]) -> Iterator[list[str]]:
    """Groups of nodes of one shape that share no elements and need no order between them."""
    inside = set(names)

    def shared(name: str) -> Iterator[Any]:
        node = part.nodes[name]
        yield name
        yield from (c for c in node.control if c in inside)
        for i, ref in enumerate(node.inputs):
            if i in node.row.writes:
                yield ref
            elif part.spec(ref).shape == updated_shape(node):
                yield ref.node if ref.node in inside else ref

    return connected_components(names, shared)
