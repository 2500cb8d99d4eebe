"""Unfused times: seconds of the operations of a program before fusion, by a machine profile.

`placement=auto` places operations before fusion, but the rows of a profile are of operations after
it, when elementwise operations are fused loops. So a fused loop is assumed for each elementwise
operation together with the elementwise inputs that it alone uses. The predicted time of the loop is
divided among its operations in the ratio of their times by the cost model.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence

from hpcflow.graph.device_names import parse_device
from hpcflow.graph.dtypes import OPAQUE, resource
from hpcflow.graph.static_shape import Spec
from hpcflow.lowering.fusion.fused_node_label import node_label
from hpcflow.plan.cost.cost_model import predicted_seconds
from hpcflow.plan.cost.measured_rows import MeasuredRows
from hpcflow.plan.cost.operation_costs import OperationCosts
from hpcflow.plan.cost.operation_features import OperationFeatures, operation_features
from hpcflow.plan.ir.control_flow_nodes import nested_programs, runs_of
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.platform.union_find import DisjointSets

Specs = Mapping[str, tuple[Spec, ...]]


class UnfusedTimes:
    """Seconds of the operations of programs before fusion, by measured rows."""

    def __init__(self, measured: MeasuredRows) -> None:
        self._costs = OperationCosts(measured.rows)
        self._types = frozenset(row.key.type for row in measured.rows)
        self._threads, self._device = measured.threads, measured.device

    def seconds(self, program: Program, specs: Specs) -> dict[str, float]:
        """Return the seconds of each operation, by name; `specs` are those of its outputs.

        Collectives and messages take the time of the cost model.
        """
        times: dict[str, float] = {}
        for loop in _loops(program, specs):
            by_model = [predicted_seconds(node, _plain_inputs(node, specs)) for node in loop]
            whole = self._loop_seconds(loop, program, specs)
            factor = 1.0 if whole is None else whole / (sum(by_model) or 1.0)
            pairs = zip(loop, by_model, strict=True)
            times.update((node.name, factor * each) for node, each in pairs)
        return times

    def _loop_seconds(self, loop: Sequence[Node], program: Program, specs: Specs) -> float | None:
        """Return the seconds of a loop, or of a single operation; None: the cost model has them.

        They are rounded to three digits: the last bits differ between the libraries of unlike
        nodes, and replicas need equal plans.
        """
        last = loop[-1]
        if last.row.collective or last.row.message:
            return None
        if last.row.control_flow:
            return self._control_flow_seconds(last)
        if last.row.work == "nothing":
            return 0.0
        features = self._features(loop, program, specs)
        if features is None:
            return None
        device = parse_device(last.device).kind or self._device
        return float(f"{self._costs.seconds_of(features, device, self._threads).median:.3g}")

    def _control_flow_seconds(self, node: Node) -> float:
        """Return the seconds of a control-flow loop or branch."""
        sums = {
            key: sum(self.seconds(p, {n.name: n.specs for n in p.nodes.values()}).values())
            for key, p in nested_programs(node)
            if isinstance(p, Program)
        }
        return sum(times * sums[key] for key, times in runs_of(node, sums).items())

    def _features(
        self, loop: Sequence[Node], program: Program, specs: Specs
    ) -> OperationFeatures | None:
        """Return the features of a fused loop: its FLOPs, and the bytes that enter and leave it.

        None if a size of one of its operations is unknown.
        """
        inputs = [_cost_inputs(node, program, specs) for node in loop]
        found = [operation_features(*each) for each in zip(loop, inputs, strict=True)]
        known = [features for features in found if features is not None]
        if len(known) < len(loop):
            return None
        label = self._label(loop)
        if len(loop) == 1:
            return known[0]._replace(type=label)
        inside = {node.name for node in loop[:-1]}
        read: dict[Ref, Spec] = {}
        for node, each in zip(loop, inputs, strict=True):
            pairs = zip(node.inputs, each, strict=True)
            read.update((ref, spec) for ref, spec in pairs if ref.node not in inside)
        outside = [*read.values(), *loop[-1].specs]
        dtypes = {str(spec.dtype) for spec in outside if spec.dtype not in OPAQUE}
        flops = sum(features.flops for features in known)
        nbytes = sum(spec.nbytes for spec in outside)
        return OperationFeatures(label, tuple(sorted(dtypes)), flops, nbytes)

    def _label(self, loop: Sequence[Node]) -> str:
        """Return the label of a loop; one operation may also have run by a kernel of its own."""
        first = loop[0]
        fused = node_label(Node("", "Fused", attrs={"types": [node.type for node in loop]}))
        if len(loop) > 1:
            return fused
        if first.type in self._types:
            return first.type
        return fused if first.row.elementwise or fused in self._types else first.type


@functools.lru_cache(maxsize=4)
def unfused_times(measured: MeasuredRows) -> UnfusedTimes:
    """Return the times by these rows; the models of equal rows are fitted once."""
    return UnfusedTimes(measured)


def _loops(program: Program, specs: Specs) -> Iterator[list[Node]]:
    """Yield the operations of each fused loop, in the order of the program; most are alone."""
    users: dict[str, set[str]] = {ref.node: {""} for ref in program.fetches}
    for node in program.nodes.values():
        for ref in node.inputs:
            users.setdefault(ref.node, set()).add(node.name)
    sets: DisjointSets[str] = DisjointSets()
    for name, node in program.nodes.items():
        sets.add(name)
        for ref in node.inputs if node.row.elementwise else ():
            source = program.nodes[ref.node]
            same = specs[ref.node][0].shape == specs[name][0].shape
            if same and source.row.elementwise and users[ref.node] == {name}:
                sets.join(ref.node, name)
    loops: dict[str, list[Node]] = {}
    for name, node in program.nodes.items():
        loops.setdefault(sets.find(name), []).append(node.but(specs=specs[name]))
    yield from loops.values()


def _plain_inputs(node: Node, specs: Specs) -> list[Spec]:
    return [specs[ref.node][ref.index] for ref in node.inputs]


def _cost_inputs(node: Node, program: Program, specs: Specs) -> list[Spec]:
    """Return the specs of the inputs of a node; for the handle of a variable those of its value."""
    found = []
    for ref in node.inputs:
        source, spec = program.nodes[ref.node], specs[ref.node][ref.index]
        if spec.dtype == resource and source.row.variable == "handle":
            spec = Spec(source.attrs["dtype"], tuple(source.attrs["shape"]))
        found.append(spec)
    return found
