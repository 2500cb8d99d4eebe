"""Objects as HTML for notebooks: a short table of facts; graphs and plans with their picture.

The classes name these functions as `_repr_html_` (`LazyMethod`), which notebooks call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hpcflow.graph.dtypes import name_of
from hpcflow.graph.static_shape import shape_text
from hpcflow.plan.ir.program import Cluster, Node, Partition, Plan, Ref
from hpcflow.plan.listing.picture_groups import picture_of
from hpcflow.platform.quantity_text import format_bytes
from hpcflow.report.html_elements import Html, element, joined, table
from hpcflow.report.plan_svg import svg_of

MOST_ROWS = 30  # of a table; the rest is counted
MOST_VALUES = 12  # elements of a constant


def tensor_html(tensor: Any) -> str:
    """A tensor: its name, dtype and shape, and where it comes from."""
    rows = [
        ("dtype", name_of(tensor.dtype)),
        ("shape", shape_text(tensor.shape)),
        ("operation", tensor.op.type),
        ("device", tensor.device or "not requested"),
        ("made at", tensor.op.line),
    ]
    value = tensor.spec.value
    if value is not None:
        text = np.array2string(value, threshold=MOST_VALUES, edgeitems=3)
        rows.append(("constant", text))
    return facts_table(f"Tensor {tensor.name}", rows)


def graph_html(graph: Any) -> str:
    """A graph: its operations and variables, and its picture."""
    nodes = {op.name: _node(op) for op in graph.get_operations()}
    variables = [node for node in nodes.values() if node.row.variable == "handle"]
    sizes = [
        int(np.prod(node.attrs["shape"])) for node in variables if None not in node.attrs["shape"]
    ]
    rows = [
        ("operations", f"{len(nodes):,}"),
        ("variables", f"{len(variables):,} with {sum(sizes):,} elements"),
        ("finalized", "yes" if graph.finalized else "no"),
    ]
    plan = Plan({"": Partition("", nodes)}, (), "", Cluster())
    return joined([facts_table("Graph", rows), _picture(plan)])


def plan_html(plan: Any) -> str:
    """A plan: its tasks and messages, and its picture."""
    cluster = plan.cluster
    rows = [
        ("mode", cluster.mode),
        ("ranks", f"{cluster.workers} workers, {cluster.servers} servers"),
        ("operations", f"{sum(len(part.nodes) for part in plan.parts.values()):,}"),
        ("tasks", ", ".join(plan.parts)),
        ("messages a step", f"{len(plan.edges):,}"),
        ("bytes a step", format_bytes(sum(edge.spec.nbytes for edge in plan.edges))),
    ]
    return joined([facts_table("Plan", rows), _picture(plan)])


def session_html(session: Any) -> str:
    """A session: its graph, its job and its devices."""
    context = session.context
    rows = [
        ("operations of the graph", f"{session.graph.version:,}"),
        ("mode", context.cluster.mode),
        ("rank", f"{context.rank} of {context.size}"),
        ("devices", ", ".join(device.name for device in session.list_devices())),
    ]
    return facts_table("Session", rows)


def dataset_html(dataset: Any) -> str:
    """A dataset: its samples, batches and order, and the placeholders that it feeds."""
    rows = [
        ("samples", f"{dataset.samples:,}"),
        ("batch over all workers", f"{dataset.batch:,}"),
        ("steps an epoch", f"{dataset.steps_per_epoch:,}"),
        ("shuffle", f"{dataset.shuffle}, seed {dataset.seed}"),
    ]
    feeds = [(t.name, name_of(t.dtype), shape_text(t.shape)) for t in dataset.keys]
    return joined([facts_table("Dataset", rows), rows_table(("feeds", "dtype", "shape"), feeds)])


def checkpoint_html(reader: Any) -> str:
    """A checkpoint: its arrays with dtypes, shapes and bytes."""
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    sizes = {name: int(np.prod(shape)) * dtypes[name].itemsize for name, shape in shapes.items()}
    rows = [("arrays", f"{len(shapes):,}"), ("bytes", format_bytes(sum(sizes.values())))]
    arrays = [
        (name, name_of(dtypes[name]), shape_text(tuple(shapes[name])), format_bytes(sizes[name]))
        for name in sorted(shapes)
    ]
    head = ("array", "dtype", "shape", "bytes")
    return joined([facts_table(f"Checkpoint {reader.path}", rows), rows_table(head, arrays)])


def _node(op: Any) -> Node:
    """An operation of a graph as a node that is not placed yet."""
    inputs = tuple(Ref(t.op.name, t.index) for t in op.inputs)
    specs = tuple(t.spec for t in op.outputs)
    return Node(op.name, op.type, inputs, (), op.attrs, specs, op.device, (), op.line)


def _picture(plan: Plan) -> Html:
    return element("div", svg_of(picture_of(plan)), style="overflow-x: auto; margin-top: 0.5em")


def facts_table(title: str, rows: Iterable[tuple[str, str]]) -> Html:
    """Facts by name below a title."""
    return rows_table((title, ""), list(rows))


def rows_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Html:
    """Rows below their head; of many the first, and the number of the others."""
    more = len(rows) - MOST_ROWS
    shown = [*rows[:MOST_ROWS]]
    if more > 0:
        shown.append((f"and {more:,} more", *[""] * (len(head) - 1)))
    return table(head, shown)
