"""The picture of a plan: layers with their gradients, bytes between them, places, escaping."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import hpcflow as hf
from hpcflow.plan.ir.program import Cluster, Plan
from hpcflow.plan.listing.picture_groups import MOST_BOXES, Picture, picture_of
from hpcflow.ps.sync_rules import All
from hpcflow.report.plan_labels import free_spots, meet, spots_of
from hpcflow.report.plan_layout import Frame, Layout, Route
from hpcflow.report.plan_picture import plan_page, plan_svg
from hpcflow.report.plan_svg import svg_of
from tests.plan.model import plan_of
from tests.plan.transformer import transformer_plan
from tests.test_page import HOSTILE, checked

WORKER = "/job:worker/task:0"
SVG = "{http://www.w3.org/2000/svg}"


@functools.cache
def single() -> tuple[Plan, Picture]:
    plan = transformer_plan(6)
    return plan, picture_of(plan)


@functools.cache
def with_server() -> tuple[Plan, Picture]:
    plan = transformer_plan(2, Cluster(3, 1))
    return plan, picture_of(plan)


def named(picture: Picture, *path: str) -> int:
    """The place of the box with these names from the outermost inwards."""
    places = picture.tops
    for name in path:
        (place,) = (p for p in places if picture.boxes[p].name == name)
        places = picture.boxes[place].children
    return place


def nodes_in(picture: Picture, place: int) -> set[str]:
    return {picture.operations[i].node_name for i in picture.boxes[place].members}


def test_each_layer_has_its_forward_operations_gradients_and_updates() -> None:
    plan, picture = single()
    drawn = {op.node_name for op in picture.operations}
    left = {n for n in plan.parts[WORKER].nodes if n not in drawn}
    assert {plan.parts[WORKER].nodes[n].type for n in left} <= {"Const", "NoOp"}
    tops = [picture.boxes[p].name for p in picture.tops]
    layers = [f"layer_{i}" for i in range(6)]
    assert [name for name in tops if name.startswith("layer")] == layers
    assert {"tokens", "targets", "embedding", "head", "loss"} <= {*tops}
    for name in layers:
        found = nodes_in(picture, named(picture, name))
        assert found >= {n for n in drawn if f"{name}/" in n}
        others = {n for n in found if f"{name}/" not in n}
        assert all(re.fullmatch(r"gradients/Add(N)?(_\d+)?", n) for n in others), others
        assert all(
            n.startswith("gradients/") for n in nodes_in(picture, named(picture, name, "backward"))
        )
        updates = nodes_in(picture, named(picture, name, "updates"))
        assert f"Adam/{name}/attention/query/kernel/ApplyAdam" in updates
        assert f"{name}/attention/query/kernel/Adam" in updates  # the slot
        assert f"{name}/attention/query/kernel" not in updates


def test_bytes_between_layers_are_those_of_the_values() -> None:
    plan, picture = single()
    part = plan.parts[WORKER]

    def layer(name: str) -> str:
        found = re.search(r"layer_\d|head|loss|embedding", name)
        return found[0] if found else name

    sums: dict[tuple[str, str], dict[object, int]] = {}
    for node in part.nodes.values():
        for ref in node.inputs:
            pair = layer(ref.node), layer(node.name)
            sums.setdefault(pair, {})[ref] = part.spec(ref).nbytes
    edges = picture.edges(picture.opened)
    for a, b in (("layer_1", "layer_2"), ("embedding", "layer_0"), ("layer_5", "head")):
        edge = edges[named(picture, a), named(picture, b)]
        assert edge.nbytes == sum(sums[a, b].values()) and edge.values == len(sums[a, b])
    back = edges[named(picture, "layer_2"), named(picture, "layer_1")]
    assert back.nbytes == 2 * 8 * 64 * 4 and back.values == 1


def test_bytes_between_tasks_are_those_of_the_messages() -> None:
    plan, picture = with_server()
    expected = {task: 0 for task in plan.parts}
    for task, part in plan.parts.items():
        parcels = set()
        for node in part.nodes.values():
            if node.type == "FromParcel":
                expected[task] += node.specs[0].nbytes
                parcels.add(node.inputs[0].node)
        for node in part.nodes.values():
            if node.type == "Recv" and node.name not in parcels:
                expected[task] += node.specs[0].nbytes
    for (_, user), edge in picture.edges(set()).items():
        assert edge.crosses and edge.nbytes == expected[picture.boxes[user].name]
    assert set(expected) == {picture.boxes[p].name for p in picture.tops} and min(expected.values())


def test_only_edges_between_tasks_cross() -> None:
    _, picture = with_server()
    for (source, user), edge in picture.edges(picture.opened).items():
        tasks = [
            {picture.operations[i].task for i in picture.boxes[p].members} for p in (source, user)
        ]
        assert edge.crosses == (tasks[0] != tasks[1])


def test_a_task_has_a_box_of_its_own() -> None:
    picture = picture_of(transformer_plan(2, Cluster(60, 55)))
    names = [picture.boxes[p].name for p in picture.tops]
    assert names[:2] == [WORKER, "/job:ps/task:0"]
    assert all(re.fullmatch(r"/job:(worker|ps)/task:\d+", name) for name in names)


@pytest.mark.parametrize(
    "cluster", [Cluster(3, 1), Cluster(3, 2, sync=All())], ids=["async", "all"]
)
def test_the_driver_shows_its_layers(cluster: Cluster) -> None:
    """Also if the update by servers has more operations than the driver's task."""
    picture = picture_of(transformer_plan(2, cluster))
    driver = named(picture, WORKER)
    names = {picture.boxes[place].name for place in picture.boxes[driver].children}
    assert driver in picture.opened and {"layer_0", "layer_1", "head", "loss"} <= names


def test_rows_follow_the_forward_data() -> None:
    _, picture = single()
    chain = ["tokens", "embedding", *(f"layer_{i}" for i in range(6)), "head", "loss"]
    rows = [picture.boxes[named(picture, name)].row for name in chain]
    assert rows == sorted(set(rows))
    inner = [("before",), ("attention",), ("feed_forward",), ("backward",), ("updates",)]
    rows = [picture.boxes[named(picture, "layer_1", *path)].row for path in inner]
    assert rows == sorted(set(rows))


def test_boxes_and_lanes_of_edges_do_not_meet() -> None:
    for _, picture in (single(), with_server()):
        layout = Layout(picture, list(picture.edges(picture.opened)))
        closed = [f for place, f in layout.frames.items() if place not in picture.opened]
        for a, b in itertools.combinations(closed, 2):
            apart = a.x + a.width <= b.x or b.x + b.width <= a.x
            assert apart or a.y + a.height <= b.y or b.y + b.height <= a.y
        for route in layout.routes.values():
            for (x1, y1), (x2, y2) in zip(route.points, route.points[1:], strict=False):
                low_x, high_x = sorted((x1, x2))
                low_y, high_y = sorted((y1, y2))
                assert 0 <= low_x and high_x <= layout.width
                for f in closed:
                    meets = low_x < f.x + f.width and f.x < high_x
                    assert not (meets and low_y < f.y + f.height and f.y < high_y)


def test_labels_of_the_largest_edges_choose_first_and_stay_apart() -> None:
    """Twenty edges on one lane have seven places between two boxes; a box takes one of them."""
    points = [(50.0, 0.0), (50.0, 10.0), (20.0, 10.0), (20.0, 210.0), (50.0, 210.0), (50.0, 220.0)]
    routes = {(k, k + 1): Route(False, True, points) for k in range(20)}
    texts = {pair: f"{pair[0]} B" for pair in routes}
    middle = Frame(0, 100, 19, 20)
    found = free_spots(routes, texts, [middle])
    assert list(found) == [(k, k + 1) for k in range(6)]
    frames = [spot.frame(texts[pair]) for pair, spot in found.items()]
    for one, other in itertools.combinations([middle, *frames], 2):
        assert not meet(one, other)
    assert all(f.x + f.width < 20 and 10 < f.y < 210 for f in frames)  # left of the lane


def test_labels_of_a_curve_are_beside_it() -> None:
    for x, is_up in itertools.product((-200.0, 0.0, 200.0), (False, True)):
        start, end = ((100.0, 0.0), (100.0 + x, 36.0))
        route = Route(is_up, False, [end, start] if is_up else [start, end])
        for spot in spots_of(route):
            frame = spot.frame("45.1 kB")
            for k in range(1001):  # points of the curve that plan_svg draws (Bezier)
                t = k / 1000
                at = start[0] + x * (3 * t * t - 2 * t**3)
                down = 36 * (1.5 * t * (1 - t) ** 2 + 1.5 * t * t * (1 - t) + t**3)
                inside = frame.x < at < frame.x + frame.width
                assert not (inside and frame.y + 1 < down < frame.y + frame.height - 1)


def test_a_graph_without_scopes_is_drawn_in_runs() -> None:
    with hf.Graph().as_default() as graph:
        x = y = hf.placeholder(hf.float32, [4, 4])
        for _ in range(400):
            y = hf.tanh(hf.matmul(y, x))
    picture = picture_of(plan_of(graph, [y], {x: (4, 4)}))
    assert len(picture.operations) == 801
    assert 5 < len(picture.tops) <= MOST_BOXES
    for box in picture.boxes:
        assert len(box.children) <= MOST_BOXES
        below = [i for child in box.children for i in picture.boxes[child].members]
        assert not box.children or sorted(below) == box.members


def test_a_model_inside_one_scope_opens_at_its_layers() -> None:
    with hf.Graph().as_default() as graph, hf.name_scope("model"):
        x = y = hf.placeholder(hf.float32, [4, 4])
        for i in range(8):
            with hf.name_scope(f"block{i}"):
                y = hf.tanh(hf.matmul(y, x))
    picture = picture_of(plan_of(graph, [y], {x: (4, 4)}))
    assert {f"block{i}" for i in range(8)} <= {*texts(str(svg_of(picture)))}


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ET.fromstring(svg).iter(f"{SVG}text")]


def test_the_svg_is_one_file_of_at_most_60_boxes() -> None:
    plan, _ = single()
    svg = plan_svg(plan)
    root = ET.fromstring(svg)
    cards = [node for node in root.iter(f"{SVG}rect") if "card" in (node.get("class") or "")]
    assert 8 < len(cards) <= MOST_BOXES and "http" not in svg.replace(
        "http://www.w3.org/2000/svg", ""
    )
    assert "layer_3" in texts(svg) and "4096 B" in texts(svg)
    titles = [node.text or "" for node in root.iter(f"{SVG}title")]
    (title,) = (text for text in titles if text.startswith("layer_3: "))
    assert re.search(r"[\d.]+ MFLOP; .* read and written; .* ms predicted \(forward", title)
    assert "layer_3 to layer_4: 1 values, 4096 B" in titles


def test_a_plan_without_operations_has_an_empty_picture() -> None:
    with hf.Graph().as_default() as graph:
        plan = plan_of(graph, [hf.constant([1.0, 2.0])])
    assert picture_of(plan).boxes == []
    ET.fromstring(plan_svg(plan))
    checked(plan_page(plan, "x.py"))


def test_hostile_names_are_escaped() -> None:
    plan, _ = with_server()
    part = plan.parts[WORKER]
    node = next(n for n in part.nodes.values() if n.type == "Softmax")
    evil = {**part.nodes, node.name: node.but(name=f"{HOSTILE}/{HOSTILE}")}
    bad = dataclasses.replace(
        plan, parts={**plan.parts, WORKER: dataclasses.replace(part, nodes=evil)}
    )
    page = plan_page(bad, HOSTILE)
    assert "alert(1)" in "".join(checked(page).texts)
    for text in (page, plan_svg(bad)):
        assert "<script>alert" not in text and "<img" not in text
    ET.fromstring(plan_svg(bad))


def test_the_command_writes_both_files(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import numpy as np, hpcflow as hf\n"
        "x = hf.placeholder(hf.float32, [2, 4])\n"
        "loss = hf.reduce_sum(hf.layers.dense(x, 3, name='one'))\n"
        "step = hf.train.GradientDescentOptimizer(0.1).minimize(loss)\n"
        "with hf.Session() as s:\n"
        "    s.run(hf.global_variables_initializer())\n"
        "    s.run(step, {x: np.zeros([2, 4], 'f4')})\n"
    )
    words = ["--svg", str(tmp_path / "p.svg"), "--html", str(tmp_path / "p.html"), str(script)]
    command = [sys.executable, "-m", "hpcflow", "plan", "--ranks", "2", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "one" in "".join(texts((tmp_path / "p.svg").read_text()))
    page = (tmp_path / "p.html").read_text()
    checked(page)
    data = json.loads(re.findall(r'<script type="application/json">(.*?)</script>', page)[0])
    assert any(box[0] == "one" for box in data["boxes"])
    words[1] = "/dev/null/p.svg"
    command = [sys.executable, "-m", "hpcflow", "plan", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1 and "cannot be written" in done.stderr
