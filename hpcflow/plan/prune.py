"""First pass: the part of the graph that the fetches need, with feeds in place of what is fed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcflow.errors import FeedError, FetchError, ShapeError
from hpcflow.graph.dtypes import resource
from hpcflow.graph.graph import Graph, Operation, Tensor
from hpcflow.graph.shape import Spec, merge, show
from hpcflow.plan.ir import Node, Program, Ref
from hpcflow.plan.rewrite import infer

STANDS_FOR_ITS_FEED = ("Placeholder", "ReplicaShare")  # a Feed takes over their name and order


def prune(
    graph: Graph, fetches: Sequence[Tensor | Operation], feeds: Mapping[Tensor, Spec]
) -> Program:
    """What computing `fetches` needs when `feeds` are given, in creation order.

    Every feed has its node, used or not. Shapes are inferred anew from those of the fed arrays.
    Errors: FeedError (missing, unknown, wrong dtype or shape), FetchError, ShapeError.
    """
    for fetch in fetches:
        _check_fetch(graph, fetch)
    names = {(t.op, t.index): _feed_name(graph, t) for t in feeds}
    for tensor, spec in feeds.items():
        _check_feed(graph, tensor, spec)
    needed = _reach(fetches, names)
    nodes = _build(graph, needed, feeds, names)
    targets = [f.name for f in fetches if isinstance(f, Operation)]
    return Program(
        nodes,
        tuple(names.values()),
        tuple(_ref(f, names) for f in fetches if isinstance(f, Tensor)),
        tuple(dict.fromkeys(targets)),
    )


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
        merge(tensor.shape, spec.shape)
    except ShapeError:
        raise FeedError(
            f"feed {tensor.name!r} has shape {show(spec.shape)}, "
            f"the tensor has {show(tensor.shape)}",
            **facts,
            hint="reshape the array, or declare the placeholder with None for sizes that vary",
        ) from None


def _feed_name(graph: Graph, tensor: Tensor) -> str:
    """The op's own name if the feed replaces it for good, else a name beside it."""
    if tensor.op.type in STANDS_FOR_ITS_FEED:
        return tensor.op.name
    name = f"{tensor.op.name}/feed_{tensor.index}"
    taken = {op.name for op in graph.get_operations()}
    while name in taken:
        name += "_"
    return name


def _replaced(op: Operation, names: Mapping[tuple[Operation, int], str]) -> bool:
    return op.type in STANDS_FOR_ITS_FEED and (op, 0) in names


def _ref(tensor: Tensor, names: Mapping[tuple[Operation, int], str]) -> Ref:
    feed = names.get((tensor.op, tensor.index))
    return Ref(feed) if feed is not None else Ref(tensor.op.name, tensor.index)


def _reach(
    fetches: Sequence[Tensor | Operation], names: Mapping[tuple[Operation, int], str]
) -> list[Operation]:
    """Operations that must run, in creation order; an unfed placeholder among them is an error."""
    seen: dict[Operation, None] = {}
    stack: list[Operation] = []
    for fetch in fetches:
        if isinstance(fetch, Operation):
            stack.append(fetch)
        elif (fetch.op, fetch.index) not in names:
            stack.append(fetch.op)
    while stack:
        op = stack.pop()
        if op in seen or _replaced(op, names):
            continue
        if op.type == "Placeholder":
            raise FeedError(
                f"placeholder {op.name!r} needs a feed",
                op=op.name,
                line=op.line,
                hint=f"add it to feed_dict, shape {show(op.outputs[0].shape)} "
                f"{op.outputs[0].dtype}",
            )
        seen[op] = None
        stack.extend(t.op for t in op.inputs if (t.op, t.index) not in names)
        stack.extend(op.control_inputs)
    return sorted(seen, key=lambda op: op.index)


def _build(
    graph: Graph,
    needed: Sequence[Operation],
    feeds: Mapping[Tensor, Spec],
    names: Mapping[tuple[Operation, int], str],
) -> dict[str, Node]:
    made = [(t.op.index, _feed_node(t, s, names[t.op, t.index])) for t, s in feeds.items()]
    nodes = {node.name: node for _, node in made}
    for op in needed:
        nodes[op.name] = _node(op, nodes, names)
    place = {op.name: op.index for op in needed}
    place.update({node.name: index for index, node in made})
    return {name: nodes[name] for name in sorted(nodes, key=place.__getitem__)}


def _feed_node(tensor: Tensor, spec: Spec, name: str) -> Node:
    attrs = {"dtype": spec.dtype, "shape": spec.shape}
    specs = (Spec(spec.dtype, spec.shape),)
    return Node(name, "Feed", attrs=attrs, specs=specs, line=tensor.op.line)


def _node(
    op: Operation, nodes: Mapping[str, Node], names: Mapping[tuple[Operation, int], str]
) -> Node:
    inputs = tuple(_ref(t, names) for t in op.inputs)
    given = [nodes[ref.node].specs[ref.index] for ref in inputs]
    inferred = infer(op.type, given, op.attrs, op=op.name, line=op.line)
    try:
        specs = tuple(
            Spec(s.dtype, merge(s.shape, t.shape), s.value)
            for s, t in zip(inferred, op.outputs, strict=True)
        )
    except ShapeError as error:
        error.op, error.line = op.name, op.line
        raise
    control = tuple(c.name for c in op.control_inputs)
    return Node(op.name, op.type, inputs, control, op.attrs, specs, op.device, op.colocate, op.line)
