"""Plan diagram: Graphviz and Mermaid text, with tasks as boxes and crossing values as edges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hpcflow.plan.cost import cost_model
from hpcflow.plan.cost.memory_estimate import variable_bytes
from hpcflow.plan.ir.program import Node, Plan
from hpcflow.plan.listing.plan_text import rank_count
from hpcflow.platform.quantity_text import format_bytes

DRAWN_OPS = 400  # a plan with more is drawn as tasks only
DRAWN_TASKS = 32


class _Arrow(NamedTuple):
    source: str
    dest: str
    label: str = ""
    order: bool = False  # a control edge


class _Box(NamedTuple):
    title: str
    nodes: list[tuple[str, str]]  # id, label


def as_dot(plan: Plan) -> str:
    """Return Graphviz text, for `dot -Tsvg`."""
    boxes, arrows = _boxes_and_arrows(plan)
    lines = ["digraph plan {", "  rankdir=LR; node [shape=box, fontsize=10]; compound=true;"]
    for i, box in enumerate(boxes):
        lines.append(f"  subgraph cluster_{i} {{ label={_quote(box.title)};")
        lines += [f"    {name} [label={_quote(label)}];" for name, label in box.nodes]
        lines.append("  }")
    for arrow in arrows:
        facts = [f"label={_quote(arrow.label)}"] if arrow.label else []
        facts += ["style=dashed"] if arrow.order else []
        tail = f" [{', '.join(facts)}]" if facts else ""
        lines.append(f"  {arrow.source} -> {arrow.dest}{tail};")
    return "\n".join([*lines, "}"]) + "\n"


def as_mermaid(plan: Plan) -> str:
    """Return Mermaid text, which Markdown viewers draw."""
    boxes, arrows = _boxes_and_arrows(plan)
    lines = ["flowchart LR"]
    for i, box in enumerate(boxes):
        lines.append(f"  subgraph box{i}[{_quote(box.title)}]")
        lines += [f"    {name}[{_quote(label)}]" for name, label in box.nodes]
        lines.append("  end")
    for arrow in arrows:
        line = "-.->" if arrow.order else "-->"
        label = f"|{_quote(arrow.label)}|" if arrow.label else ""
        lines.append(f"  {arrow.source} {line}{label} {arrow.dest}")
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "/").replace('"', "'") + '"'


def _boxes_and_arrows(plan: Plan) -> tuple[list[_Box], list[_Arrow]]:
    ops = sum(len(part.nodes) for part in plan.parts.values())
    if ops > DRAWN_OPS or len(plan.parts) > DRAWN_TASKS:
        return _tasks_alone(plan)
    number: dict[tuple[str, str], str] = {}
    boxes = []
    for task, part in plan.parts.items():
        drawn = [n for n in part.nodes.values() if _is_drawn(n)]
        for node in drawn:
            number[task, node.name] = f"n{len(number)}"
        nodes = [(number[task, n.name], _label(n)) for n in drawn]
        boxes.append(_Box(_title(plan, task), nodes))
    arrows = dict.fromkeys(_arrows(plan, number))
    return boxes, list(arrows)


def _label(node: Node) -> str:
    device = node.device.rsplit("/", 1)[-1]
    return f"{node.name} ({node.type})" + ("" if device == "cpu:0" else f" {device}")


def _title(plan: Plan, task: str) -> str:
    count = rank_count(plan, task)
    return task + (f", {count} ranks alike" if count > 1 else "")


def _arrows(plan: Plan, number: dict[tuple[str, str], str]) -> Iterator[_Arrow]:
    """Yield the edges between drawn nodes; an edge from a Recv starts at the sending node."""
    edges = {edge.channel: edge for edge in plan.edges}
    for task, part in plan.parts.items():
        for node in part.nodes.values():
            if (task, node.name) not in number:
                continue
            here = number[task, node.name]
            befores = [(ref.node, False) for ref in node.inputs]
            befores += [(name, True) for name in node.control]
            for before, order in befores:
                source = part.nodes[before]
                if source.row.message == "receive":
                    edge = edges[source.attrs["channel"]]
                    there = number.get((edge.source, edge.ref.node))
                    label = "" if edge.token else format_bytes(edge.spec.nbytes)
                    if there is not None:
                        yield _Arrow(there, here, label, edge.token)
                elif (task, before) in number:
                    yield _Arrow(number[task, before], here, "", order)


def _is_drawn(node: Node) -> bool:
    """Return whether a node has a box of its own; constants and messages have none."""
    return node.row.source != "constant" and node.row.message not in ("send", "receive")


def _tasks_alone(plan: Plan) -> tuple[list[_Box], list[_Arrow]]:
    shown = list(plan.parts)[:DRAWN_TASKS]
    number = {task: f"t{i}" for i, task in enumerate(shown)}
    boxes = []
    for task in shown:
        part = plan.parts[task]
        label = (
            f"{len(part.nodes)} ops, {format_bytes(sum(variable_bytes(part).values()))} of "
            "variables"
        )
        boxes.append(_Box(_title(plan, task), [(number[task], label)]))
    hidden = len(plan.parts) - len(shown)
    if hidden:
        boxes.append(_Box("...", [("rest", f"{hidden} more tasks")]))
    arrows = [
        _Arrow(number[r.source], number[r.dest], f"{r.messages} messages, {format_bytes(r.nbytes)}")
        for r in cost_model.message_traffic(plan)
        if r.source in number and r.dest in number
    ]
    return boxes, arrows
