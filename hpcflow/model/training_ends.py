"""What a model computes in training and otherwise: its output, penalties and updates.

Layers that were called without `training=` do other things in training. The graph of the training
is a copy of that of the inference from these calls on, with the same variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Any, NamedTuple

from hpcflow.errors import GraphError
from hpcflow.graph.function_body import all_operations, bodies, used_control_inputs
from hpcflow.graph.graph import Graph, Operation, Tensor, as_operation
from hpcflow.graph.graph_keys import GraphKeys
from hpcflow.graph.operation_copy import OperationCopier
from hpcflow.ops.nn.training_calls import TrainingCall, calls_without_training, external_tensors

_KEYS = (GraphKeys.REGULARIZATION_LOSSES, GraphKeys.UPDATE_OPS)
_Node = TrainingCall | Operation


class Ends(NamedTuple):
    """What a step of a model computes."""

    output: Tensor
    penalties: list[Any]  # losses of weights and of activities
    updates: list[Any]  # of moving averages and the like

    def with_variables(self, own: Set[Operation]) -> Ends:
        """The same with only the penalties and updates that need one of these variables."""
        entries = ([e for e in listed if own & ancestors([e])] for listed in self[1:])
        return Ends(self.output, *entries)


def ends_of(output: Tensor) -> Ends:
    """An output, with the penalties and updates of its graph so far."""
    return Ends(output, *(output.graph.get_collection(key) for key in _KEYS))


def ancestors(ends: Iterable[Any]) -> set[Operation]:
    """The operations that some tensors and operations depend on, with their own."""
    found: set[Operation] = set()
    waiting = [as_operation(end) for end in ends]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [t.op for t in op.inputs]
            waiting += op.control_inputs
    return found


def of_two_calls(
    first: Ends, second: Ends, inputs: Sequence[Tensor], now: Ends
) -> tuple[Ends, Ends]:
    """What is computed in training and otherwise, of a model that was called for both.

    `first` are the ends after the call for inference, `second` those after that for training, `now`
    has all entries. An activity of the first call has no penalty and no update in training.
    """
    trained, inferred = [], []
    for before, between, entries in zip(first[1:], second[1:], now[1:], strict=True):
        kept = [e for e in before if not _depends(e, inputs)]
        trained.append([*kept, *entries[len(before) :]])
        inferred.append([*before, *entries[len(between) :]])
    return Ends(second.output, *trained), Ends(first.output, *inferred)


def in_training(inferred: Ends, inputs: Sequence[Tensor], name: str) -> Ends:
    """The same in training: calls without `training=` are repeated, what uses them is copied.

    `inferred` itself if there are none. The variables are shared. The penalties and updates that
    the repeated calls make belong to the result, and leave the collections of the graph.

    Errors: GraphError for a call that cannot be repeated.
    """
    graph = inferred.output.graph
    copies = _TrainingCopies(graph, calls_without_training(graph), name)
    repeated = [n for n in copies.needed([inferred.output]) if isinstance(n, TrainingCall)]
    made = {id(entry) for call in repeated for entry in call.entries}
    kept = [
        [e for e in entries if id(e) not in made or not _depends(e, inputs)]
        for entries in inferred[1:]
    ]
    nodes = copies.needed([inferred.output, *kept[0], *kept[1]])
    if not any(isinstance(node, TrainingCall) for node in nodes):
        return inferred
    new = copies.make(nodes)
    penalties, updates = (
        [*map(copies.other, old), *added] for old, added in zip(kept, new, strict=True)
    )
    return Ends(copies.other(inferred.output), penalties, updates)


def _depends(entry: Any, inputs: Sequence[Tensor]) -> bool:
    return not ancestors([entry]).isdisjoint(t.op for t in inputs)


class _TrainingCopies:
    """The copies of operations of a graph that depend on repeated calls."""

    def __init__(self, graph: Graph, calls: Sequence[TrainingCall], name: str) -> None:
        self.graph, self.name = graph, name
        self.copier = OperationCopier()
        self.made_by = {t: call for call in calls for t in call.results}  # of the outer call
        self.inside = {t.op: call for t, call in self.made_by.items() if t.graph is not graph}

    def other(self, end: Any) -> Any:
        """The copy of a tensor or an operation; itself if it has none."""
        if isinstance(end, Tensor):
            return self.copier.tensors.get(end, end)
        return self.copier.operations.get(as_operation(end), end)

    def needed(self, ends: Iterable[Any]) -> list[_Node]:
        """The calls and the other operations that `ends` depend on, in order of creation."""
        found: dict[int, tuple[int, _Node]] = {}
        waiting = list(ends)
        while waiting:
            end = waiting.pop()
            op = as_operation(end)
            call = next((self.made_by[t] for t in op.outputs if t in self.made_by), None)
            node: _Node = op if call is None else call
            if id(node) in found:
                continue
            if call is None:
                found[id(node)] = op.index, op
                self._check_bodies(op)
                waiting += [*op.inputs, *used_control_inputs(op)]
            else:
                found[id(node)] = min(t.op.index for t in call.results), call
                waiting += [*call.inputs, *external_tensors(call), *self._before(call)]
        return [node for _, node in sorted(found.values(), key=lambda pair: pair[0])]

    def _before(self, call: TrainingCall) -> list[Operation]:
        """The operations that a call was told to run after."""
        after = [c for t in call.results for c in t.op.control_inputs if c.index < call.start]
        return list(dict.fromkeys(after))

    def _check_bodies(self, op: Operation) -> None:
        """Errors: GraphError for a call inside of a loop or a branch."""
        for f in bodies(op) if self.inside else ():
            for inner in all_operations(f.body):
                if inner in self.inside:
                    raise GraphError(
                        f"{self.inside[inner].label} is called inside a loop or a branch without "
                        f"training=: the model {self.name!r} cannot repeat the call in training",
                        op=inner.name,
                        line=inner.line,
                        hint="give training=True or training=False, or write the model as "
                        "hf.Model(call=function)",
                    )

    def make(self, nodes: Sequence[_Node]) -> list[list[Any]]:
        """Make the copies; returns the penalties and the updates that the repeated calls made."""
        variables = self.graph.get_collection_ref(GraphKeys.GLOBAL_VARIABLES)
        before = [len(self.graph.get_collection(key)) for key in _KEYS]
        count = len(variables)
        with self.graph.as_default(), self.graph.name_scope("training"):
            for node in nodes:
                if isinstance(node, TrainingCall):
                    self._repeat(node)
                elif self._is_changed(node):
                    self.copier.copy(node)
                if len(variables) != count:
                    assert isinstance(node, TrainingCall)
                    raise GraphError(
                        f"{node.label} makes new variables each time it is called: the model "
                        f"{self.name!r} calls it again in training",
                        op=node.results[0].op.name,
                        line=node.results[0].op.line,
                        hint="make variables in the layer's build() or in __init__",
                    )
        made = []
        for key, length in zip(_KEYS, before, strict=True):
            entries = self.graph.get_collection_ref(key)
            made.append(entries[length:])
            del entries[length:]
        return made

    def _is_changed(self, op: Operation) -> bool:
        tensors, operations = self.copier.tensors, self.copier.operations
        return any(t in tensors for t in op.inputs) or any(
            c in operations for c in used_control_inputs(op)
        )

    def _repeat(self, call: TrainingCall) -> None:
        """Call again, on the device and after the operations of the first call."""
        for t in external_tensors(call):
            if t in self.copier.tensors:
                raise GraphError(
                    f"{call.label} uses {t.name!r}, which differs in training and is none of its "
                    "inputs",
                    op=t.op.name,
                    line=t.op.line,
                    hint="give it to the layer as an input, in a list",
                )
        first = call.results[0].op
        after = [self.copier.operations.get(c, c) for c in self._before(call)]
        with self.graph.control_dependencies(after), self.graph.beside(first):
            results = call.repeat(self.copier.tensors)
        if len(results) != len(call.results):
            raise GraphError(
                f"{call.label} returns {len(results)} tensors in training, and otherwise "
                f"{len(call.results)}",
                op=first.name,
                line=first.line,
            )
        for old, new in zip(call.results, results, strict=True):
            self.copier.replace(old, new)
