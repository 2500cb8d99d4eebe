"""Plan listing: a text table, and plain data for JSON (`hpcflow help plan-format`)."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from hpcflow.graph.device_names import parse_device
from hpcflow.graph.dtypes import name_of
from hpcflow.graph.static_shape import Spec, shape_text
from hpcflow.plan.cost import cost_model
from hpcflow.plan.cost.memory_estimate import (
    MemoryEstimate,
    PartitionLowering,
    predict_memory,
    with_plain_kernels,
)
from hpcflow.plan.ir.program import Edge, Node, Partition, Plan
from hpcflow.platform.quantity_text import format_bytes

FORMAT = "hpcflow-plan-1"
# these add up to the total
MEMORY = ("variables", "constants", "buffers", "lists", "messages", "sums")
MAX_LISTED = 12  # maximum of values and reasons in the text; of the rest it shows the number


# -- plain data


def plan_data(plan: Plan, lower: PartitionLowering = with_plain_kernels) -> dict[str, Any]:
    """Return the plan and its costs as lists, dicts, strings and numbers.

    `lower` is that of `predict_memory`.
    """
    # a rank, which only formats tables by this module, does not need it
    from hpcflow.plan.verification.unproved_properties import unproved_properties

    cluster = plan.cluster
    driver, rows = plan.parts[plan.driver], cost_model.message_traffic(plan)
    return {
        "format": FORMAT,
        "mode": cluster.mode,
        "sync": str(cluster.sync),
        "ranks": cluster.workers + cluster.servers,
        "workers": cluster.workers,
        "servers": cluster.servers,
        "tasks_per_replica": cluster.tasks_per_replica,
        "replicas": cluster.replicas,
        "driver": plan.driver,
        "feeds": list(driver.feeds),
        "fetches": [str(ref) for ref in driver.fetches],
        "tasks": _task_rows(plan, rows, lower),
        "idle": _idle_tasks(plan),
        "edges": [_edge_data(edge) for edge in plan.edges],
        "traffic": [_traffic_data(row) for row in rows],
        "collectives": _collective_data(plan),
        "forecast": plan.forecast,
        "warnings": list(plan.warnings),
        "unproved": unproved_properties(plan),
        "round": None if plan.round is None else plan_data(plan.round, lower),
    }


def _idle_tasks(plan: Plan) -> list[str]:
    """Return the tasks without a partition; none in a plan that a server drives."""
    if plan.cluster.lead.startswith("/job:ps"):
        return []
    return [task for task in plan.cluster.tasks() if task not in plan.parts]


def _task_rows(
    plan: Plan, rows: Sequence[cost_model.TaskTraffic], lowering: PartitionLowering
) -> list[dict[str, Any]]:
    memory = predict_memory(plan, lowering)
    moved = {task: {"sent": [0, 0], "received": [0, 0]} for task in plan.parts}
    for row in rows:
        for task, side in ((row.source, "sent"), (row.dest, "received")):
            moved[task][side][0] += row.messages
            moved[task][side][1] += row.nbytes
    return [
        _task_data(plan, part, memory[task])
        | {side: {"messages": n, "bytes": size} for side, (n, size) in moved[task].items()}
        | {"nodes": [_node_data(node, plan) for node in part.nodes.values()]}
        for task, part in plan.parts.items()
    ]


def _task_data(plan: Plan, part: Partition, memory: MemoryEstimate) -> dict[str, Any]:
    devices: dict[str, collections.Counter[str]] = {}
    for node in part.nodes.values():
        devices.setdefault(node.device, collections.Counter())[node.type] += 1
    return {
        "task": part.task,
        "copies": rank_count(plan, part.task),
        "devices": {device: dict(sorted(types.items())) for device, types in devices.items()},
        "memory": {
            name: getattr(memory, name)
            for name in (*MEMORY, "total", "steps", "versions", "results", "unsized")
        },
        "collective_bytes": sum(cost_model.collective_bytes(part).values()),
    }


def _node_data(node: Node, plan: Plan) -> dict[str, Any]:
    return {
        "name": node.name,
        "type": node.type,
        "device": node.device,
        "inputs": [str(ref) for ref in node.inputs],
        "control": list(node.control),
        "outputs": [_spec_data(spec) for spec in node.specs],
        "why": plan.reasons.get(node.name, ""),
        "line": node.line,
    }


def rank_count(plan: Plan, task: str) -> int:
    """Return how many ranks run the partition of `task`: 1 on a server, else one per replica."""
    return 1 if parse_device(task).job == "ps" else plan.cluster.replicas


def _spec_data(spec: Spec) -> dict[str, Any]:
    shape = None if spec.shape is None else list(spec.shape)
    return {"dtype": name_of(spec.dtype), "shape": shape}


def _edge_data(edge: Edge) -> dict[str, Any]:
    return {
        "channel": edge.channel,
        "source": edge.source,
        "dest": edge.dest,
        "value": str(edge.ref),
        "token": edge.token,
        "frame": edge.frame,
        "bytes": edge.spec.nbytes if edge.spec.sized else None,
        **_spec_data(edge.spec),
    }


def _traffic_data(row: cost_model.TaskTraffic) -> dict[str, Any]:
    return {
        "source": row.source,
        "dest": row.dest,
        "messages": row.messages,
        "bytes": row.nbytes,
        "headers": row.headers,
    }


def _collective_data(plan: Plan) -> list[dict[str, Any]]:
    collectives = [
        {
            "sequence": node.attrs["sequence"],
            "name": node.name,
            "type": node.type,
            "task": task,
            "ranks": plan.cluster.replicas,
            "values": len(node.inputs),
            "bytes": sum(spec.nbytes for spec in node.specs),
        }
        for task, part in plan.parts.items()
        for node in part.nodes.values()
        if node.row.collective
    ]
    return sorted(collectives, key=lambda row: row["sequence"])


# -- text


def plan_text(plan: Plan, lower: PartitionLowering = with_plain_kernels) -> str:
    """Return the plan as text: tasks, memory, edges, collectives, reasons, unproved properties."""
    data = plan_data(plan, lower)
    head = (
        f"plan: mode {data['mode']}{_sync_rule_text(plan)}, {data['ranks']} ranks ="
        f" {data['workers']} workers + {data['servers']} servers; {data['replicas']} replica(s) of"
        f" {data['tasks_per_replica']} task(s)\n"
        f"feeds {_shortened(data['feeds'])}; fetches {_shortened(data['fetches'])}"
    )
    if plan.forecast:
        head += f"\n{plan.forecast}"
    head += "".join(f"\nwarning: {line}" for line in plan.warnings)
    sections = [head, _tasks_text(data), _memory_text(data)]
    sections += [_traffic_text(data), _edges_text(data)]
    sections += [_collectives_text(data), _why_text(plan), _proof_text(data)]
    text = "\n\n".join(section for section in sections if section) + "\n"
    if plan.round is None:
        return text
    return f"{text}\n-- by the servers themselves, once an update\n\n{plan_text(plan.round, lower)}"


def _sync_rule_text(plan: Plan) -> str:
    """Return the synchronization rule of parameter servers as text."""
    return f", sync={plan.cluster.sync}" if plan.cluster.mode == "ps" else ""


def _shortened(names: Sequence[str]) -> str:
    suffix = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return (", ".join(names[:MAX_LISTED]) or "none") + suffix


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format rows as columns under their headers."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [header, *rows]
    ]
    return "\n".join(lines)


def _fold_tasks(
    rows: Sequence[tuple[str, tuple[str, ...]]],
) -> list[tuple[str, int, tuple[str, ...]]]:
    """Merge neighbouring tasks of one job with equal facts: `/job:worker/task:1..4091`, 4091."""
    out: list[tuple[str, str, int, tuple[str, ...]]] = []
    for task, facts in rows:
        if out and out[-1][3] == facts and parse_device(out[-1][1]).job == parse_device(task).job:
            out[-1] = (out[-1][0], task, out[-1][2] + 1, facts)
        else:
            out.append((task, task, 1, facts))
    return [
        (first if first == last else f"{first}..{parse_device(last).task}", count, facts)
        for first, last, count, facts in out
    ]


def _tasks_text(data: dict[str, Any]) -> str:
    rows, ranks = [], {}
    for task in data["tasks"]:
        ranks[task["task"]] = task["copies"]
        devices = ", ".join(
            f"{sum(types.values())} on {parse_device(device)._replace(job=None, task=None)}"[:60]
            for device, types in task["devices"].items()
        )
        memory, sent, received = task["memory"], task["sent"], task["received"]
        facts = (
            devices.replace("on /", "on "),
            format_bytes(memory["total"]),
            f"{sent['messages']}, {format_bytes(sent['bytes'])}",
            f"{received['messages']}, {format_bytes(received['bytes'])}",
            format_bytes(task["collective_bytes"]),
        )
        rows.append((task["task"], facts))
    header = ("task", "ranks", "ops", "memory", "sends", "receives", "sums")
    by_servers = data["driver"].startswith("/job:ps")
    note = "per update" if by_servers else "per step of one replica"
    if data["servers"] and data["replicas"] > 1 and not by_servers:
        note += "; a server does this for each replica's step"
    folded = [
        (name, str(count * ranks[name.split("..")[0]]), *facts)
        for name, count, facts in _fold_tasks(rows)
    ]
    idle = ", ".join(name for name, _, _ in _fold_tasks([(task, ()) for task in data["idle"]]))
    suffix = f"\nnothing to do in this step: {idle}" if idle else ""
    return f"{note}\n{format_table(header, folded)}{suffix}"


def _memory_text(data: dict[str, Any]) -> str:
    """Format the memory of a rank by kind; `lists` only if loops keep values."""
    has_lists = any(task["memory"]["lists"] for task in data["tasks"])
    kinds = [name for name in MEMORY if has_lists or name != "lists"]
    rows = [
        (task["task"], tuple(format_bytes(task["memory"][name]) for name in (*kinds, "versions")))
        for task in data["tasks"]
    ]
    header = ("memory of a rank", *kinds, "and versions <=")
    table = format_table(header, [(name, *cells) for name, _, cells in _fold_tasks(rows)])
    unsized = sum(task["memory"]["unsized"] for task in data["tasks"])
    suffix = f"\nand {unsized} values whose sizes only a step tells" if unsized else ""
    return table + suffix


def _traffic_text(data: dict[str, Any]) -> str:
    """Format one row per pair of tasks; equal rows are folded by the far task."""
    groups: dict[tuple[bool, str], list[tuple[str, tuple[str, ...]]]] = {}
    for row in data["traffic"]:
        out = row["source"] == data["driver"]
        near, far = (row["source"], row["dest"]) if out else (row["dest"], row["source"])
        facts = (str(row["messages"]), format_bytes(row["bytes"]), str(row["headers"]))
        groups.setdefault((out, near), []).append((far, facts))
    rows: list[tuple[str, ...]] = []
    for (out, near), group in groups.items():
        for far, _, cells in _fold_tasks(group):
            rows.append((near, far, *cells) if out else (far, near, *cells))
    return format_table(("from", "to", "messages", "bytes a step", "headers"), rows) if rows else ""


def _edges_text(data: dict[str, Any]) -> str:
    values = [edge for edge in data["edges"] if not edge["token"]]
    values.sort(key=lambda edge: (-(edge["bytes"] or 0), edge["channel"]))
    rows = [
        (
            edge["value"],
            edge["source"],
            edge["dest"],
            f"{edge['dtype']} "
            f"{shape_text(None if edge['shape'] is None else tuple(edge['shape']))}",
            format_bytes(edge["bytes"])
            + (f" each time in {edge['frame']}" if edge["frame"] else ""),
        )
        for edge in values[:MAX_LISTED]
    ]
    if not rows:
        return ""
    hidden = len(values) - len(rows)
    suffix = f"\n... and {hidden} smaller values" if hidden else ""
    tokens = sum(edge["token"] for edge in data["edges"])
    suffix += f"\nand {tokens} tokens of 0 bytes" if tokens else ""
    return format_table(("value", "from", "to", "is", "bytes a step"), rows) + suffix


def _collectives_text(data: dict[str, Any]) -> str:
    rows = [
        (
            str(row["sequence"]),
            row["name"],
            row["type"],
            row["task"],
            str(row["ranks"]),
            str(row["values"]),
            format_bytes(row["bytes"]),
        )
        for row in data["collectives"]
    ]
    header = ("collective", "name", "type", "on", "ranks", "values", "bytes a rank")
    return format_table(header, rows) if rows else ""


def _why_text(plan: Plan) -> str:
    texts = [
        plan.reasons[n] for part in plan.parts.values() for n in part.nodes if n in plan.reasons
    ]
    reasons = collections.Counter(
        "beside the state they use or sum" if why.startswith("with ") else why for why in texts
    )
    rows = [(str(count), why) for why, count in reasons.most_common(MAX_LISTED)]
    suffix = (
        f"\n... and {len(reasons) - MAX_LISTED} more reasons" if len(reasons) > MAX_LISTED else ""
    )
    return format_table(("ops", "why they are where they are"), rows) + suffix if rows else ""


def _proof_text(data: dict[str, Any]) -> str:
    if not data["unproved"]:
        return "proved: every Send has its Recv, one order of collectives, no deadlock, no race"
    return "not proved:\n" + "\n".join(f"  {line}" for line in data["unproved"])
