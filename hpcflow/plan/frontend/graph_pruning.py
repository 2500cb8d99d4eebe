"""Graph pruning: the subgraph that the fetches need, with Feed nodes for fed tensors.

This is the first pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any

from hpcflow.errors import FeedError, FetchError, ShapeError
from hpcflow.graph.dtypes import resource
from hpcflow.graph.function_body import (
    Function,
    needed_operations,
    used_control_inputs,
    used_inputs,
    variable_operation,
)
from hpcflow.graph.graph import Graph, Operation, Tensor
from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.static_shape import Spec, merge_shapes, shape_text
from hpcflow.plan.frontend.read_write_order import order_reads_before_updates
from hpcflow.plan.ir.control_flow_nodes import FrameBuilder
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_rewriting import infer_specs, new_name


def prune_to_fetches(
    graph: Graph,
    fetches: Sequence[Tensor | Operation],
    feeds: Mapping[Tensor, Spec],
    finished: Container[Operation] = (),
) -> Program:
    """Return the subgraph that `fetches` need when `feeds` are given, in creation order.

    Every feed has a node, used or not. Shapes are inferred again from the shapes of the fed arrays.
    Operations in `finished` do not run again, and no node waits for them.
    Errors: FeedError (missing, unknown, wrong dtype or shape), FetchError, ShapeError.
    """
    for fetch in fetches:
        _check_fetch(graph, fetch)
    names = {(t.op, t.index): _feed_name(graph, t) for t in feeds}
    for tensor, spec in feeds.items():
        _check_feed(graph, tensor, spec)
        _check_not_bound(tensor)
    fed = {names[t.op, t.index]: (t, spec) for t, spec in feeds.items()}
    builder = _PrunedProgramBuilder(graph, fetches, _feed_all_reads(graph, names), finished)
    _check_bodies(builder.operations, feeds)
    return builder.program(fed)


def _check_fetch(graph: Graph, fetch: object) -> None:
    if not isinstance(fetch, (Tensor, Operation)):
        raise FetchError(f"{fetch!r} cannot be fetched", hint="fetch tensors and operations")
    op = fetch if isinstance(fetch, Operation) else fetch.op
    if op.graph is not graph:
        raise FetchError(f"fetch {fetch.name!r} is of another graph", op=op.name, line=op.line)
    if isinstance(fetch, Tensor) and fetch.dtype == resource:
        raise FetchError(
            f"{fetch.name!r} is a handle, not a value",
            op=op.name,
            line=op.line,
            hint="fetch the variable or a read of it",
        )


def _check_feed(graph: Graph, tensor: Tensor, spec: Spec) -> None:
    facts: dict[str, Any] = {"op": tensor.op.name, "line": tensor.op.line}
    if tensor.graph is not graph:
        raise FeedError(f"feed {tensor.name!r} is of another graph", **facts)
    if tensor.dtype == resource:
        raise FeedError(f"{tensor.name!r} is a handle and cannot be fed", **facts)
    if tensor.dtype != spec.dtype:
        raise FeedError(
            f"feed {tensor.name!r} is {spec.dtype}, the tensor is {tensor.dtype}",
            **facts,
            hint=f"feed array.astype({tensor.dtype.name!r})",
        )
    try:
        merge_shapes(tensor.shape, spec.shape)
    except ShapeError:
        raise FeedError(
            f"feed {tensor.name!r} has shape {shape_text(spec.shape)}, "
            f"the tensor has {shape_text(tensor.shape)}",
            **facts,
            hint="reshape the array, or declare the placeholder with None for sizes that vary",
        ) from None


def _check_not_bound(tensor: Tensor) -> None:
    line = tensor.graph.bound.get(tensor)
    if line is not None:
        raise FeedError(
            f"{tensor.name!r} cannot be fed: the graph was built on its value at {line}",
            op=tensor.op.name,
            line=tensor.op.line,
            hint="use an hf.placeholder or hf.placeholder_with_default in its place",
        )


def _feed_all_reads(
    graph: Graph, names: Mapping[tuple[Operation, int], str]
) -> dict[tuple[Operation, int], str]:
    """Return `names`; a fed read of a variable also feeds all other reads of it."""
    fed = {op.inputs[0]: name for (op, _), name in names.items() if _reads(op)}
    feed_names = dict(names)
    for op in graph.get_operations() if fed else ():
        if _reads(op) and op.inputs[0] in fed:
            feed_names.setdefault((op, 0), fed[op.inputs[0]])
    return feed_names


def _check_bodies(operations: Sequence[Operation], feeds: Iterable[Tensor]) -> None:
    """Errors: FeedError if a body reads a variable that is fed."""
    fed = {t.op.inputs[0] for t in feeds if _reads(t.op)}
    for op in operations if fed else ():
        variable = next((t.op for t in op.inputs if t in fed), None)
        if lookup_op(op.type).owner and variable is not None:
            raise FeedError(
                f"variable {variable.name!r} cannot be fed: {op.name!r} uses it in a body",
                op=variable.name,
                line=op.line,
                hint="load the value into the variable",
            )


def _feed_name(graph: Graph, tensor: Tensor) -> str:
    """Return the op's own name if a feed always replaces it, else a new name from it."""
    if lookup_op(tensor.op.type).stands_for_feed:
        return tensor.op.name
    used_names = {op.name for op in graph.get_operations()}
    return new_name(f"{tensor.op.name}/feed_{tensor.index}", used_names)


class _PrunedProgramBuilder:
    """Builds the program that `fetches` need; `names` maps fed tensors to Feed nodes."""

    def __init__(
        self,
        graph: Graph,
        fetches: Sequence[Tensor | Operation],
        names: Mapping[tuple[Operation, int], str],
        finished: Container[Operation] = (),
    ) -> None:
        self.graph, self.fetches, self.names, self.finished = graph, fetches, names, finished
        self.nodes: dict[str, Node] = {}
        self.outputs: dict[Operation, list[int]] = {}  # owner -> outputs of its frame
        self.used_outputs, self.instead = self._needs()
        ops = sorted(self.used_outputs.keys() - self.instead.keys(), key=lambda op: op.index)
        self.operations = _topological(ops, self._before, self.instead)

    def program(self, feeds: Mapping[str, tuple[Tensor, Spec]]) -> Program:
        """Return the program, with a node for every feed, used or not."""
        place: dict[str, Any] = {}
        for name, (tensor, spec) in feeds.items():
            self.nodes[name] = _feed_node(tensor, spec, name)
            place[name] = (tensor.op.index, 0)
        for i, op in enumerate(self.operations):
            self._add(op)
            place.setdefault(op.name, (self._position(op), i))
        nodes = order_reads_before_updates(self.nodes, lambda name: place.get(name, (-1, 0)))
        targets = [self._final(f).name for f in self.fetches if isinstance(f, Operation)]
        return Program(
            nodes,
            tuple(feeds),
            tuple(self.ref(f) for f in self.fetches if isinstance(f, Tensor)),
            tuple(dict.fromkeys(targets)),
        )

    def _position(self, op: Operation) -> int:
        """Return the creation index; an extension has that of the replaced operation."""
        return min((o.index for o, new in self.instead.items() if new is op), default=op.index)

    def _final(self, op: Operation) -> Operation:
        return self.instead.get(op, op)

    def ref(self, t: Tensor) -> Ref:
        """Return the reference to the value of a tensor."""
        feed = self.names.get((t.op, t.index))
        if feed is not None:
            return Ref(feed)
        op = self._final(t.op)
        if _is_parameter(op) and t.dtype == resource:
            return Ref(self._variable(t))
        return Ref(op.name, self.outputs[op].index(t.index) if op in self.outputs else t.index)

    def spec(self, t: Tensor) -> Spec:
        """Return the spec of a tensor in this step."""
        ref = self.ref(t)
        return self.nodes[ref.node].specs[ref.index]

    def _variable(self, handle: Tensor) -> str:
        """Return the node name of the variable behind a handle; add the node if needed."""
        op = variable_operation(handle)
        if op.name not in self.nodes:
            self.nodes[op.name] = self._node(op)
        return op.name

    def _replaced(self, op: Operation) -> bool:
        return lookup_op(op.type).stands_for_feed and (op, 0) in self.names

    def _needs(self) -> tuple[dict[Operation, set[int]], dict[Operation, Operation]]:
        """Return the needed operations with their used outputs, and the extensions.

        An extension runs instead of the operation that it extends.
        """
        targets: list[Tensor | Operation] = list(self.fetches)
        while True:
            used = needed_operations(targets, self._is_available)
            instead = _replaced_owners(used)
            extra = [new.outputs[i] for old, new in instead.items() for i in used[old] - used[new]]
            if not extra:
                break
            targets += extra
        for op in used:
            if lookup_op(op.type).source == "placeholder":
                raise FeedError(
                    f"placeholder {op.name!r} needs a feed",
                    op=op.name,
                    line=op.line,
                    hint=f"add it to feed_dict, shape {shape_text(op.outputs[0].shape)} "
                    f"{op.outputs[0].dtype}",
                )
        return used, instead

    def _is_available(self, item: Tensor | Operation) -> bool:
        """Return whether a value is fed, or an operation has already run."""
        if isinstance(item, Tensor) and (item.op, item.index) in self.names:
            return True
        op = item if isinstance(item, Operation) else item.op
        return op in self.finished or self._replaced(op)

    def _before(self, op: Operation) -> list[Operation]:
        used = self.used_outputs[op]
        return [*(t.op for t in used_inputs(op, used)), *used_control_inputs(op, used)]

    def _add(self, op: Operation) -> None:
        if lookup_op(op.type).owner:
            framer = FrameBuilder(_function_program, self.spec, self.ref)
            framed = framer.frame(op, self.used_outputs[op], self._control(op))
            self.nodes[op.name], self.outputs[op] = framed.node, framed.outputs
        elif not (_is_parameter(op) and op.outputs[0].dtype == resource):
            self.nodes.setdefault(op.name, self._node(op))

    def _control(self, op: Operation) -> tuple[str, ...]:
        """Return the control inputs, without feeds, parameters and finished operations."""
        waited = [
            c
            for c in used_control_inputs(op, self.used_outputs.get(op))
            if c not in self.finished and not self._replaced(c) and not _is_parameter(c)
        ]
        return tuple(dict.fromkeys(self._final(c).name for c in waited))

    def _node(self, op: Operation) -> Node:
        inputs = tuple(self.ref(t) for t in op.inputs)
        input_specs = [self.nodes[ref.node].specs[ref.index] for ref in inputs]
        inferred = infer_specs(op.type, input_specs, op.attrs, op=op.name, line=op.line)
        try:
            specs = tuple(
                s._replace(shape=merge_shapes(s.shape, t.shape))
                for s, t in zip(inferred, op.outputs, strict=True)
            )
        except ShapeError as error:
            error.op, error.line = op.name, op.line
            raise
        control = self._control(op)
        wish = (op.device, op.colocate, op.line)
        return Node(op.name, op.type, inputs, control, op.attrs, specs, *wish)


def _function_program(
    function: Function, specs: Mapping[Tensor, Spec], results: Sequence[Tensor]
) -> Program:
    """Return the program of a function for parameters with these specs.

    Only parameters that the results need are fed.
    """
    names = {(p.op, 0): p.op.name for p in specs}
    builder = _PrunedProgramBuilder(function.body, [*results, *function.targets], names)
    used_tensors = {
        t for op in builder.operations for t in used_inputs(op, builder.used_outputs[op])
    }
    used_tensors.update(results)
    return builder.program({p.op.name: (p, s) for p, s in specs.items() if p in used_tensors})


def _replaced_owners(operations: Collection[Operation]) -> dict[Operation, Operation]:
    """Map owners of functions to the latest extension that is needed too.

    The extension runs instead of the owner.
    """
    extensions = {}
    for op in operations:
        newer, best = op, None
        while newer in newer.graph.extensions:
            newer = newer.graph.extensions[newer]
            best = newer if newer in operations else best
        if best is not None:
            extensions[op] = best
    return extensions


def _topological(
    operations: Sequence[Operation],
    before: Callable[[Operation], Iterable[Operation]],
    instead: Mapping[Operation, Operation],
) -> list[Operation]:
    """Return the operations in topological order.

    Without extensions this is the creation order.
    """
    if not instead:
        return list(operations)
    there = set(operations)
    place = {new: old.index for old, new in reversed(list(instead.items()))}
    ordered: dict[Operation, None] = {}
    stack = sorted(operations, key=lambda op: place.get(op, op.index), reverse=True)
    while stack:
        op = stack[-1]
        first = [instead.get(b, b) for b in before(op)]
        waiting = [b for b in first if b in there and b not in ordered]
        if waiting and op not in ordered:
            stack.extend(waiting)
        else:
            ordered[stack.pop()] = None
    return list(ordered)


def _reads(op: Operation) -> bool:
    """Return whether an operation reads the value of a variable."""
    return lookup_op(op.type).variable == "read"


def _is_parameter(op: Operation) -> bool:
    return lookup_op(op.type).source == "parameter"


def _feed_node(tensor: Tensor, spec: Spec, name: str) -> Node:
    attrs = {"dtype": spec.dtype, "shape": spec.shape}
    return Node(name, "Feed", attrs=attrs, specs=(Spec(*spec),), line=tensor.op.line)
