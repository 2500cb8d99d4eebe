"""`plan.json` of a run: what a page draws of it, damaged and hostile files, real jobs."""

from __future__ import annotations

import copy
import functools
import gc
import json
import os
import random
import re
import subprocess
import sys
import threading
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hpcflow.errors import HpcflowError
from hpcflow.launch import launcher_detection
from hpcflow.plan.ir.program import Cluster, Plan
from hpcflow.plan.listing.picture_groups import MOST_BOXES, picture_of
from hpcflow.plan.listing.picture_reduction import reduced
from hpcflow.platform.measured_step_costs import StepFeatures
from hpcflow.ps.sync_rules import All
from hpcflow.report import plan_file, run_page
from hpcflow.report.live_page import LivePage
from hpcflow.report.plan_facts import PictureFacts
from hpcflow.report.plan_file import NAME, plan_json, read_plan, write_plan
from hpcflow.report.plan_svg import svg_of
from tests.plan.transformer import transformer_plan
from tests.test_page import HOSTILE, checked
from tests.test_report import write

ROOT = Path(__file__).parents[1]
WORKER, SERVER = "/job:worker/task:0", "/job:ps/task:0"
CLUSTERS = {
    "single": Cluster(),
    "server": Cluster(3, 1),
    "all": Cluster(3, 2, sync=All()),
    "collective": Cluster(2),
}


@functools.cache
def plan(kind: str = "server") -> Plan:
    return transformer_plan(2, CLUSTERS[kind])


@functools.cache
def data() -> dict[str, Any]:
    return plan_json(plan())


def run_with(folder: Path, text: str) -> Path:
    """The directory of a run with this `plan.json`."""
    write(folder, 2, 64, 1000.0)
    (folder / NAME).write_text(text)
    return folder


NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")


def check_same(one: str, other: str) -> None:
    """Check that two drawings have the same texts, which differ at most in digits of their times.

    Edges, and so their labels, may come in another order.
    """
    texts = [sorted(re.findall(r"<(?:title|text)[^>]*>([^<]*)", text)) for text in (one, other)]
    assert [NUMBER.sub("#", text) for text in texts[0]] == [
        NUMBER.sub("#", text) for text in texts[1]
    ]
    for a, b in zip(*(NUMBER.findall(" ".join(text)) for text in texts), strict=True):
        assert float(a) == pytest.approx(float(b), rel=0.01, abs=0.11)
    assert len(re.findall("<(?:path|rect)", one)) == len(re.findall("<(?:path|rect)", other))


def section(page: str) -> str:
    """The part of a page that is about the plan; "" if it has none."""
    found = page.partition("<h2>Plan of a step</h2>")[2].partition("</main>")[0]
    return found.partition("<h2>")[0]


@pytest.mark.parametrize("kind", CLUSTERS)
def test_the_file_holds_all_that_is_drawn(kind: str, tmp_path: Path) -> None:
    write_plan(tmp_path, plan(kind))
    assert os.listdir(tmp_path) == [NAME]
    found = read_plan(tmp_path / NAME)
    assert found is not None
    check_same(svg_of(found.picture), svg_of(picture_of(plan(kind))))
    cluster = CLUSTERS[kind]
    assert (found.workers, found.servers) == (cluster.workers, cluster.servers)


@pytest.mark.parametrize("kind", CLUSTERS)
def test_a_large_plan_keeps_sums(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drawing is the same, but for operations that stand for several."""
    whole = picture_of(plan(kind))
    less = reduced(whole)
    check_same(svg_of(less), svg_of(whole))
    assert sum(op.count for op in less.operations) == len(whole.operations)
    assert sum(op.flops for op in less.operations) == sum(op.flops for op in whole.operations)
    assert len(less.operations) < 8 * MOST_BOXES < len(whole.operations)
    monkeypatch.setattr(plan_file, "MOST_OPERATIONS", 100)
    write_plan(tmp_path, plan(kind))
    found = read_plan(tmp_path / NAME)
    assert found is not None and len(found.picture.operations) == len(less.operations)
    check_same(svg_of(found.picture), svg_of(whole))
    assert (tmp_path / NAME).stat().st_size < 50_000


def test_messages_are_those_of_the_plan(tmp_path: Path) -> None:
    write_plan(tmp_path, plan())
    found = read_plan(tmp_path / NAME)
    assert found is not None
    expected = Counter[tuple[str, str]]()
    for message in plan().messages:
        expected[message.source, message.dest] += sum(share.nbytes for share in message.shares)
    assert {(one.source, one.dest): one.nbytes for one in found.traffic} == dict(expected)


def test_measured_costs_are_in_the_texts(tmp_path: Path) -> None:
    folder = run_with(tmp_path / "run", json.dumps(data()))
    up, task = "layer_1/feed_forward/up/", data()["tasks"].index(WORKER)
    names = [op[0] for op in data()["operations"] if op[0].startswith(up) and op[1] == task]
    row = {"kind": "kernels", "task": WORKER, "calls": 10}
    ops = [{**row, "name": name, "seconds": 0.25} for name in names]
    ops += [{**row, "name": "layer_1/other", "seconds": 99.0}, {**row, "name": 5}, 5]
    other = [{**row, "name": names[0], "seconds": 77.0}]
    (folder / "profile.json").write_text(json.dumps({"ranks": [{"ops": ops}, {"ops": other}]}))
    page = section(run_page.page_of([folder]).text)
    took = f"{1e3 * 0.025 * len(names):.3g} ms"
    assert f"; {took} measured in {len(names)} of them; on {WORKER}/cpu:0" in page
    assert f"<td>{took} ({len(names)} of " in page
    before = page
    (folder / "profile.json").unlink()
    page = section(run_page.page_of([folder]).text)
    assert page != before and " measured in " not in page


def test_a_plan_of_an_earlier_start_is_named(tmp_path: Path) -> None:
    folder = run_with(tmp_path / "run", json.dumps(data() | {"written": 1795953600.0}))
    told = {}
    for start in ("2026-11-29T11:00:00+00:00", "2026-11-29T13:00:00+00:00"):
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(manifest | {"start": start}))
        told[start] = "an earlier start" in section(run_page.page_of([folder]).text)
    assert list(told.values()) == [False, True]


def refused(folder: Path, redacted: bool = False) -> str:
    """The line that says why the plan is not drawn; the rest of the page is there."""
    page = run_page.page_of([folder], redacted=redacted).text
    checked(page)
    assert "loss" in page and "hpcflow-plan" not in page
    (line,) = re.findall(r'<p class="bad">(no picture of the plan: .*?)</p>', section(page))
    return str(line)


def changed(**values: Any) -> str:
    return json.dumps(data() | values)


def chain(depth: int) -> dict[str, Any]:
    """Boxes in each other around all operations."""
    inner = [[f"b{k}", 0, 0, [k + 1], []] for k in range(depth)]
    inner.append(["last", 0, 0, [], list(range(len(data()["operations"])))])
    return {"boxes": inner, "tops": [0], "opened": []}


BROKEN = {
    "empty": "",
    "cut": json.dumps(data())[:1000],
    "other": json.dumps({"format": "hpcflow-plan-1"}),
    "list": "[1]",
    "deep": "[" * 100_000,
    "depth": changed(**chain(5000)),
    "operation": changed(operations=[["x", 0, 0, 0, 0, 0, 0, 0.0, 0, 10**30]]),
    "nan": json.dumps(data()).replace("0.0,", "NaN,", 1),
    "endless": json.dumps(data()).replace("0.0,", "1e999,", 1),
    "host": changed(tasks=["node17.cluster.example"] * len(data()["tasks"])),
    "box twice": changed(tops=[*data()["tops"], data()["tops"][0]]),
    "no parent": changed(tops=[]),
    "circle": changed(boxes=[["a", 0, 0, [0], []], *data()["boxes"][1:]]),
    "user": changed(values=[[0, 1, 1, 10**9]]),
    "all open": changed(opened=[place for place, box in enumerate(data()["boxes"]) if box[3]]),
    "large": json.dumps({"format": data()["format"], "x": "x" * (17 << 20)}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_a_page_with_a_line_that_says_why(name: str, tmp_path: Path) -> None:
    folder = run_with(tmp_path / "alice", BROKEN[name])
    assert NAME in refused(folder)
    assert "alice" not in refused(folder, redacted=True)
    assert "node17" not in run_page.page_of([folder]).text


def test_a_pipe_in_place_of_the_file_does_not_block(tmp_path: Path) -> None:
    folder = Path(write(tmp_path / "run", 2, 64, 1000.0))
    os.mkfifo(folder / NAME)
    assert "no plain file" in refused(folder)


STRANGE = (None, True, -1, 0, 1, 7, 10**20, 0.5, "", "\ud800", HOSTILE, [], [0], [[]], {}, {"a": 1})


def mutated(rng: random.Random, value: Any) -> Any:
    """The value with one part replaced by something strange, or left out, or there twice."""
    if isinstance(value, (list, dict)) and value and rng.random() < 0.97:
        found = copy.copy(value)
        key = rng.choice(list(found)) if isinstance(found, dict) else rng.randrange(len(found))
        how = rng.random()
        if how < 0.1:
            del found[key]
        elif how < 0.2 and isinstance(found, list):
            found.append(found[key])
        else:
            found[key] = mutated(rng, found[key])
        return found
    return rng.choice(STRANGE)


@pytest.mark.slow
def test_no_changed_file_breaks_a_page(tmp_path: Path) -> None:
    """Each is drawn, or refused with a reason."""
    folder = run_with(tmp_path / "run", "")
    rng, drawn, left_out = random.Random(5), 0, 0
    small = plan_json(_small())
    for _ in range(150):
        text = json.dumps(mutated(rng, small))
        (folder / NAME).write_text(text)
        try:
            found = read_plan(folder / NAME)
            assert found is not None
            drawing = svg_of(found.picture)
            assert "<script" not in drawing and "<img" not in drawing
            drawn += 1
        except HpcflowError as error:
            assert NAME in error.message
            left_out += 1
        page = run_page.page_of([folder]).text
        page.encode()
        assert "<script>alert" not in page
    assert drawn > 20 and left_out > 30


def _small() -> Plan:
    return transformer_plan(1, Cluster(2, 1))


def test_texts_of_the_file_are_escaped(tmp_path: Path) -> None:
    hostile = copy.deepcopy(data())
    for row in (*hostile["boxes"], *hostile["operations"]):
        row[0] = HOSTILE
    hostile["types"] = [HOSTILE for _ in hostile["types"]]
    page = run_page.page_of([run_with(tmp_path / "run", json.dumps(hostile))]).text
    checker = checked(page)
    assert "alert(1)" in "".join(checker.texts) and "<svg" in section(page)
    assert "<script>alert" not in page and "<img src=x" not in page


def test_a_redacted_page_has_the_picture_without_places(tmp_path: Path) -> None:
    folder = run_with(tmp_path / "alice", json.dumps(data()))
    page = section(run_page.page_of([folder], redacted=True).text)
    assert "<svg" in page and "layer_1" in page and "alice" not in page
    text = (folder / NAME).read_text()
    assert str(ROOT) not in text and ".py" not in text and os.uname().nodename not in text


def test_the_thread_of_the_page_writes_the_file_and_lets_the_plan_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, threads = Path(write(tmp_path / "run", 2, 64, 1000.0)), []

    def noted(folder: Path, plan: Plan) -> None:
        threads.append(threading.current_thread().name)
        write_plan(folder, plan)

    monkeypatch.setattr(plan_file, "write_plan", noted)
    page = LivePage(str(folder), every_s=60)
    mine = transformer_plan(1)
    kept = weakref.ref(mine)
    page.take_plan(mine, lambda: StepFeatures(()))
    assert not (folder / NAME).exists()
    del mine
    page.close()
    gc.collect()
    assert threads == ["page"] and kept() is None
    assert "<svg" in section((folder / "report.html").read_text())
    assert not list(folder.glob(".*"))


def test_a_folder_that_cannot_be_written_is_no_failure_of_the_job(tmp_path: Path) -> None:
    page = LivePage("/dev/null/run", every_s=60)
    page.take_plan(plan(), lambda: StepFeatures(()))
    page.close()


TRAIN = """
import sys
import hpcflow as hf, numpy as np
x = hf.placeholder(hf.float32, [None, 64], name="x")
h = hf.layers.dense(x, 256, hf.nn.relu, name="first")
h = hf.layers.dense(h, 256, hf.nn.relu, name="second")
y = hf.layers.dense(h, 10, name="third")
loss = hf.reduce_mean(hf.square(y), name="loss")
train = hf.train.AdamOptimizer(0.001).minimize(loss)
data = hf.data.Dataset({x: np.ones([256, 64], "f4")}, batch=64, seed=1)
epochs = int(sys.argv[1])
saved = {"checkpoints": "CHECKPOINTS", "resume": epochs > 1}
with hf.train.TrainingSession(**saved) as sess, hf.train.Progress(data, epochs) as progress:
    for batch in data.epochs(epochs):
        sess.step(train, batch)
        progress.update(batch)
    sess.wait()
    sess.result()
"""
SHARED = [[SERVER, WORKER], [WORKER, SERVER]]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hpcflow", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(
    launcher_detection.detect_launcher() is not None, reason="a job cannot start jobs"
)
@pytest.mark.parametrize("mode", ["--ps=1", "--ps=1 --sync=all", ""])
def test_the_page_of_a_job_has_the_picture_of_its_plan(mode: str, tmp_path: Path) -> None:
    """Bytes between tasks are those that `hpcflow plan --json` tells of the same script."""
    script, folder = tmp_path / "train.py", tmp_path / "run"
    script.write_text(TRAIN.replace("CHECKPOINTS", str(tmp_path / "saved")))
    words = mode.split()
    told = json.loads(command("plan", "--ranks=2", *words, "--json", str(script), "1").stdout)
    expected = Counter[tuple[str, str]]()
    for edge in told["edges"]:
        expected[edge["source"], edge["dest"]] += edge["bytes"]
    written = []
    for epochs in (1, 2):  # the second job resumes
        command("run", "-n", "2", *words, f"--run-dir={folder}", str(script), "--", str(epochs))
        page = section((folder / "report.html").read_text())
        checked(f"<script></script>{page}")
        heights = []
        for name in ("first", "second", "third"):
            found_at = re.search(rf'<text class="name"[^>]* y="([\d.]+)">{name}<', page)
            assert found_at, name
            heights.append(float(found_at[1]))
        assert heights == sorted(set(heights))  # from top to bottom
        rows = re.findall(r'<th scope="row">(\S+) to (\S+)</th><td>[\d,]+</td><td>([\d,]+)', page)
        between = {(a, b): int(nbytes.replace(",", "")) for a, b, nbytes in rows}
        assert between == {pair: nbytes for pair, nbytes in expected.items() if nbytes}
        assert sorted(map(list, between)) == (SHARED if words else [])
        found = read_plan(folder / NAME)
        assert found is not None
        written.append(found.written)
        edges = found.picture.edges(found.picture.opened)
        sent = {SERVER: 0, WORKER: 0}
        for (source, _), edge in edges.items():
            if edge.crosses:
                first = found.picture.boxes[source].members[0]
                sent[found.picture.operations[first].task] += edge.nbytes
        for (task, _), nbytes in between.items():
            assert nbytes - 64 * 8 <= sent[task] <= nbytes  # parcels align their values
        facts = PictureFacts(found.picture)
        assert all(facts.text(box) for box in found.picture.boxes)
    assert written[0] < written[1]
    (folder / NAME).unlink()
    more = ["--set=page=0", f"--run-dir={folder}", str(script), "--", "3"]
    command("run", "-n", "2", *words, *more)
    assert not (folder / NAME).exists()
