"""Plan file `plan.json` of a run directory: the picture of its first training plan, as plain data.

The file may be damaged or of another program: what is read is checked so far that it can be drawn.
"""

from __future__ import annotations

import collections
import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcflow.errors import HpcflowError
from hpcflow.graph.device_names import parse_device
from hpcflow.graph.static_shape import size_of
from hpcflow.plan.distribution.colocation_groups import BY_LOAD, PIECE_BY_LOAD
from hpcflow.plan.ir.program import Plan
from hpcflow.plan.listing.picture_groups import MOST_BOXES, Box, Picture, picture_of
from hpcflow.plan.listing.picture_operations import (
    PHASES,
    UPDATES_OF_SERVER,
    DrawnValue,
    PictureOperation,
)
from hpcflow.plan.listing.picture_reduction import reduced
from hpcflow.platform.record_files import read_json_object
from hpcflow.report.run_directory_reader import has_type
from hpcflow.train.result_files import write_text

NAME, FORMAT = "plan.json", "hpcflow-plan-picture-1"
MOST_OPERATIONS = 20_000  # in a file; of a larger plan only the sums of each box are written
MOST_BYTES = 16 << 20  # of a file
MOST_SHOWN, MOST_EDGES = 4 * MOST_BOXES, 2000  # boxes and edges of a picture that is drawn
MOST_DEPTH = 200  # boxes in each other
MOST_NAME = 400  # characters
TASK = re.compile(rf"(/job:\w+/task:\d+({re.escape(UPDATES_OF_SERVER)})?)?")
DEVICE = re.compile(r"(/job:\w+/task:\d+/\w+:\d+)?")
OPERATION = (str, int, int, int, int, int, int, float, int, int)
BOX = (str, int, int, [int], [int])
MESSAGES = (int, int, int, int)
VARIABLE = (str, int, int, int, int)


class Traffic(NamedTuple):
    """Messages from a task to another in one step of a worker, and their bytes."""

    source: str
    dest: str
    messages: int
    nbytes: int


class HeldVariable(NamedTuple):
    """A variable on a server, or a piece of one; `by_load` if the planner chose the server."""

    name: str
    server: int
    rows: int
    nbytes: int
    by_load: bool


class DrawnPlan(NamedTuple):
    """What `plan.json` tells: `written` in seconds since 1970."""

    picture: Picture
    workers: int
    servers: int
    tasks_per_replica: int
    written: float
    traffic: list[Traffic]
    variables: list[HeldVariable]  # in the order of the plan; [] of a file without them


def write_plan(folder: Path, plan: Plan) -> None:
    """Write `plan.json` atomically.

    Errors: OSError.
    """
    write_text(folder / NAME, json.dumps(plan_json(plan), separators=(",", ":")) + "\n")


def plan_json(plan: Plan) -> dict[str, Any]:
    """The picture of a plan as plain data; with sums instead of operations if it is large."""
    picture = picture_of(plan)
    if len(picture.operations) > MOST_OPERATIONS:
        picture = reduced(picture)
    traffic = _traffic(plan)
    tasks = _numbered([*(op.task for op in picture.operations), *(t for p in traffic for t in p)])
    devices = _numbered(op.device for op in picture.operations)
    types = _numbered(op.type for op in picture.operations)
    own: dict[int, list[int]] = {}
    for number, place in enumerate(picture.box_of):
        own.setdefault(place, []).append(number)
    return {
        "format": FORMAT,
        "written": round(time.time(), 3),
        "workers": plan.cluster.workers,
        "servers": plan.cluster.servers,
        "tasks_per_replica": plan.cluster.tasks_per_replica,
        "tasks": list(tasks),
        "devices": list(devices),
        "types": list(types),
        "phases": list(PHASES),
        "messages": [[tasks[a], tasks[b], *sums] for (a, b), sums in traffic.items()],
        "variables": [[*one[:-1], int(one.by_load)] for one in _held_variables(plan)],
        "operations": [
            [op.node_name, tasks[op.task], devices[op.device], types[op.type], op.phase,
             int(op.flops), int(op.nbytes), float(f"{1e3 * op.seconds:.6g}"), int(op.unsized),
             op.count]
            for op in picture.operations
        ],
        "values": [[v.source, int(v.nbytes), v.count, *v.users] for v in picture.values],
        "boxes": [
            [box.name, box.phase, box.row, box.children, own.get(place, [])]
            for place, box in enumerate(picture.boxes)
        ],
        "tops": picture.tops,
        "opened": sorted(picture.opened),
    }  # fmt: skip


def read_plan(path: Path) -> DrawnPlan | None:
    """The plan in a file; None if the file does not exist.

    Errors: HpcflowError with the reason if it cannot be drawn.
    """
    data = read_json_object(path, MOST_BYTES)
    if data is None:
        return None
    if data.get("format") != FORMAT:
        raise _refusal("format")
    tasks, devices = (_texts(data, name) for name in ("tasks", "devices"))
    _require(all(map(TASK.fullmatch, tasks)), "tasks")
    _require(all(map(DEVICE.fullmatch, devices)), "devices")
    operations = _operations(data, tasks, devices)
    picture = _picture(data, operations, _values(data, len(operations)))
    traffic = [
        Traffic(tasks[a], tasks[b], number, nbytes)
        for a, b, number, nbytes in _rows(data, "messages", MESSAGES)
        if a < len(tasks) and b < len(tasks)
    ]
    workers, servers, tasks_per_replica = (
        _number(data, name, int) for name in ("workers", "servers", "tasks_per_replica")
    )
    _require(tasks_per_replica > 0, "tasks_per_replica")
    written = _number(data, "written", float)
    variables = [
        HeldVariable(name[:MOST_NAME], server, rows, nbytes, bool(by_load))
        for name, server, rows, nbytes, by_load in _rows(
            {"variables": [], **data}, "variables", VARIABLE
        )
        if server < servers
    ]
    return DrawnPlan(picture, workers, servers, tasks_per_replica, written, traffic, variables)


def _traffic(plan: Plan) -> dict[tuple[str, str], list[int]]:
    """Messages with values and their bytes, by the two tasks."""
    found: dict[tuple[str, str], list[int]] = {}
    for each, name in ((plan, "{}"), (plan.round, "{}" + UPDATES_OF_SERVER)):
        for edge in each.edges if each is not None else ():
            pair = name.format(edge.source), name.format(edge.dest)
            sums = found.setdefault(pair, [0, 0])
            if not edge.token:
                sums[0] += 1
                sums[1] += edge.spec.nbytes
    return {pair: sums for pair, sums in found.items() if sums[0]}


def _held_variables(plan: Plan) -> list[HeldVariable]:
    """The variables on servers that a step reads or changes, and their pieces; no slots."""
    owners = {share.variable for message in plan.messages for share in message.shares}
    found: list[tuple[int, HeldVariable]] = []
    order = {name: i for i, name in enumerate(plan.reasons)}
    for task, part in plan.parts.items():
        device = parse_device(task)
        for node in part.nodes.values():
            if device.job != "ps" or node.row.variable != "handle":
                continue
            is_piece = "piece" in node.attrs
            name = node.name.rpartition("/part_")[0] if is_piece else node.name
            if name in owners:
                shape = node.attrs["shape"]
                nbytes = node.attrs["dtype"].itemsize * size_of(shape)
                by_load = plan.reasons.get(node.name, "") in (BY_LOAD, PIECE_BY_LOAD)
                rows = shape[0] if shape else 1
                held = HeldVariable(name, device.task or 0, rows, nbytes, by_load)
                found.append((order.get(node.name, len(order)), held))
    return [held for _, held in sorted(found, key=lambda pair: pair[0])]


def _numbered(texts: Any) -> dict[str, int]:
    return {text: i for i, text in enumerate(dict.fromkeys(texts))}


# -- reading


def _refusal(name: str) -> HpcflowError:
    return HpcflowError(f"{NAME}: {name!r} is not what a run writes there")


def _require(is_right: bool, name: str) -> None:
    if not is_right:
        raise _refusal(name)


def _texts(data: Mapping[str, Any], name: str) -> list[str]:
    found = data.get(name)
    _require(has_type(found, [str]), name)
    return [text[:MOST_NAME] for text in found or ()]


def _number(data: Mapping[str, Any], name: str, shape: type) -> Any:
    _require(has_type(data.get(name), shape), name)
    return data[name]


def _rows(data: Mapping[str, Any], name: str, shapes: Sequence[Any]) -> list[list[Any]]:
    """Rows with one value of each shape."""
    rows = data.get(name)
    _require(isinstance(rows, list), name)
    for row in rows or ():
        _require(isinstance(row, list) and len(row) == len(shapes), name)
        _require(all(map(has_type, row, shapes)), name)
    return rows or []


def _operations(
    data: Mapping[str, Any], tasks: Sequence[str], devices: Sequence[str]
) -> list[PictureOperation]:
    types, found = _texts(data, "types"), []
    for name, task, device, kind, phase, *costs in _rows(data, "operations", OPERATION):
        is_right = task < len(tasks) and device < len(devices) and kind < len(types)
        _require(is_right and phase < len(PHASES) and costs[-1] > 0, "operations")
        about = name[:MOST_NAME], tasks[task], devices[device], types[kind], phase
        flops, nbytes, milliseconds, unsized, count = costs
        found.append(PictureOperation(*about, flops, nbytes, milliseconds / 1e3, unsized, count))
    return found


def _values(data: Mapping[str, Any], operations: int) -> list[DrawnValue]:
    found, rows = [], data.get("values")
    _require(has_type(rows, [[int]]), "values")
    for row in rows or ():
        _require(len(row) > 3 and row[0] < operations, "values")
        source, nbytes, count, *users = row
        _require(max(users) < operations, "values")
        found.append(DrawnValue(source, nbytes, users, count))
    return found


def _picture(
    data: Mapping[str, Any], operations: list[PictureOperation], values: list[DrawnValue]
) -> Picture:
    """The picture, after checks that boxes are trees of all operations, and few are open."""
    boxes, box_of = _boxes(data, operations)
    tops, opened = data.get("tops"), data.get("opened")
    _require(has_type(tops, [int]) and has_type(opened, [int]), "tops")
    outer = [place for place, box in enumerate(boxes) if box.parent is None]
    _require(sorted(tops or ()) == outer, "tops")
    _require(all(k < len(boxes) and boxes[k].children for k in opened or ()), "opened")
    picture = Picture(operations, values, boxes, box_of, list(tops or ()), set(opened or ()))
    seen = set(picture.visible(picture.opened))
    _require(len(seen | picture.opened) <= MOST_SHOWN, "opened")
    _require(picture.opened <= seen, "opened")
    _require(len(picture.edges(picture.opened)) <= MOST_EDGES, "values")
    return picture


def _boxes(
    data: Mapping[str, Any], operations: Sequence[PictureOperation]
) -> tuple[list[Box], list[int]]:
    """The boxes, each parent before its children, and the box of each operation."""
    rows = _rows(data, "boxes", BOX)
    boxes = [Box(name[:MOST_NAME], phase, row=row) for name, phase, row, _, _ in rows]
    depths, holders = [0] * len(boxes), collections.Counter[int]()
    box_of = [0] * len(operations)
    for place, (_, phase, _, children, own) in enumerate(rows):
        box = boxes[place]
        is_right = phase < len(PHASES) and depths[place] < MOST_DEPTH
        _require(is_right and bool(children or own), "boxes")
        for child in children:
            _require(place < child < len(boxes) and boxes[child].parent is None, "boxes")
            boxes[child].parent, depths[child] = place, depths[place] + 1
        _require(all(number < len(operations) for number in own), "boxes")
        holders.update(own)
        for number in own:
            box_of[number] = place
        box.children, box.members = children, list(own)
    _require(len(holders) == holders.total() == len(operations), "boxes")
    for box in reversed(boxes):
        if not box.children and len(box.members) == 1 and operations[box.members[0]].count == 1:
            box.operation = box.members[0]
        if box.parent is not None:
            boxes[box.parent].members += box.members
    return boxes, box_of
