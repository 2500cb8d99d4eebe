"""Servers: their own work, their ports and slow workers are told apart as limits of a run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcflow.cli import main as cli
from hpcflow.report import run_limits, scaling_limits
from hpcflow.report.run_view import RunView, views_of
from hpcflow.report.server_limits import MESSAGES, PORT, SERVER, Servers, cause
from tests.test_report import write

ROOT = Path(__file__).parents[1]
LARGE, SMALL = 1e6, 200.0  # bytes of a message


@pytest.mark.parametrize(
    ("waits", "busy", "more", "resource", "words"),
    [
        ([8.0] * 4, [0.93], {}, SERVER, "the work of s0: it is busy 93% of the time"),
        ([8.0] * 4, [0.12], {}, PORT, "all 4 workers send: s0 at 9 MB/s; the servers themselves"),
        ([8.0] * 4, [0.12], {"nodes": 1}, MESSAGES, "work at most 12% of the time"),
        ([8.0] * 4, [0.12], {"message_bytes": SMALL}, MESSAGES, "many small messages"),
        ([8.0], [0.12], {}, MESSAGES, "work at most 12%"),  # the port of the worker has as much
        ([4.0], [0.4], {}, SERVER, "busy 40%"),  # a worker alone waits for each of its updates
        ([2.5] * 8, [0.3], {}, PORT, "at most 30%"),  # few of its updates wait behind others
        ([4.0] * 4, [0.4], {"joins": True}, SERVER, "busy 40%"),  # all wait while it works
        ([8.0] * 4, [], {}, MESSAGES, "the servers, to which all 4 workers send"),  # old files
    ],
    ids=str,
)
def test_the_cause_of_waiting_for_servers(
    waits: list[float], busy: list[float], more: dict[str, Any], resource: str, words: str
) -> None:
    facts = {"nodes": 5, "message_bytes": LARGE, **more}
    found = cause(10.0, [1.0] * len(waits), waits, Servers(["s0"], [" at 9 MB/s"], busy, **facts))
    assert found.resource == resource and words in found.text


def test_workers_that_wait_for_each_other_blame_no_port() -> None:
    facts = Servers(["s0"], [], [0.05], nodes=5, message_bytes=LARGE, joins=True)
    work, waits = [6.0, 7.0, 9.0, 6.0], [3.0, 2.0, 0.2, 3.0]
    found = cause(9.5, work, waits, facts)
    assert found.resource == MESSAGES and "own work of workers is 6 s to 9 s" in found.text
    assert cause(9.5, work, waits, facts._replace(joins=False)).resource == PORT


def test_one_loaded_server_among_idle_ones_asks_for_another_placement() -> None:
    facts = Servers(["s0", "s1", "s2"], [], [0.1, 0.9, 0.1], nodes=5, message_bytes=LARGE)
    found = cause(10.0, [1.0] * 4, [8.0] * 4, facts)
    assert "s1: it is busy 90% of the time, the others 10% on average" in found.text
    assert "placement=" in found.remedy
    even = cause(10.0, [1.0] * 4, [8.0] * 4, facts._replace(busy=[0.9, 0.9, 0.8]))
    assert "--ps" in even.remedy and "placement" not in even.remedy


def test_a_slow_worker_and_its_own_waiting_are_both_named() -> None:
    facts = Servers(["s0"], [], [0.1], nodes=5, message_bytes=LARGE)
    names = ["w0", "w1", "w2"]
    found = run_limits.limits(100.0, [], [10, 10, 70], [60, 60, 30], names, {}, facts)
    assert [one.resource for one in found] == ["slow worker", PORT]
    assert found[0].text.startswith("w2") and found[1].seconds == 30
    # own work that differs much, but takes little of the run, hides nothing
    found = run_limits.limits(100.0, [], [1, 1, 3], [90, 90, 90], names, {}, facts)
    assert [one.resource for one in found] == [PORT]


def test_only_the_work_of_a_server_has_an_estimate_without_it() -> None:
    """A port shares its bytes with latencies that nobody has measured."""
    names, work, waits = ["w0", "w1"], [1.0, 1.0], [8.0, 8.0]
    busy = Servers(["s0"], [], [0.9], nodes=5, message_bytes=LARGE, joins=True)
    (found,) = run_limits.limits(10.0, [], work, waits, names, {}, busy)
    assert found.resource == SERVER
    assert found.text.endswith("took no time, the run would take about 2 s, not 10 s")
    idle = Servers(["s0"], [], [0.1], nodes=5, message_bytes=LARGE)
    (found,) = run_limits.limits(10.0, [], work, waits, names, {}, idle)
    assert found.resource == PORT and "would take" not in found.text


def test_what_all_wait_for_at_once_counts_only_where_workers_wait_for_each_other() -> None:
    names, work, waits = ["w0", "w1"], [1.0, 2.0], [8.0, 7.0]
    facts = Servers(["s0"], [], [0.1], nodes=5, message_bytes=LARGE)
    joint = run_limits.Joint(3.0, 4.5)
    for joins, seconds in ((False, 7.0), (True, 3.0)):
        servers = facts._replace(joins=joins)
        found = run_limits.limits(10.0, [], work, waits, names, {}, servers, joint)
        assert {one.resource: one.seconds for one in found}[PORT] == seconds


def run_of(folder: Path, loads: dict[str, Any], **more: Any) -> RunView:
    """A run of 12.5 s on 5 nodes: two workers that wait for a server most of the time."""
    said = {"work_seconds": [2.0, 2.0], "wait_seconds": [10.0, 10.0]}
    said |= {"bytes_sent": [10**9] * 3, "messages_sent": [500] * 3, **loads}
    write(folder, 3, 64, 900.0, servers=1, mode="ps", said=said, **more)
    (view,) = views_of([folder], is_over=True)
    return view


def test_loads_of_files_reach_the_limits_of_a_run_and_of_a_scaling(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = {"server_work_seconds": [11.4], "server_wait_seconds": [0.6]}
    idle = {"server_work_seconds": [0.6], "server_wait_seconds": [11.4]}
    for name, loads, words in (("busy", busy, "busy 95%"), ("idle", idle, "at most 5%")):
        view = run_of(tmp_path / name, loads)
        (limit,) = view.limits
        assert limit.resource == (SERVER if name == "busy" else PORT) and words in limit.text
        (line,) = scaling_limits.scaling_limits(view, view, 2.0, "weak", None)
        assert "waiting for other ranks: 10 s" in line and words in line and "--ps" in line
        assert cli.main(["report", str(tmp_path / name), "--out", str(tmp_path)]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert f"limited by {limit.resource} {limit.resource}: " in told and words in told
    old = run_of(tmp_path / "old", {})
    assert [one.resource for one in old.limits] == [MESSAGES] and old.waiting_cause is None


def test_loads_of_a_running_job_are_those_since_its_last_start(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write(folder, 3, 64, 900.0, servers=1, mode="ps", finished=False)
    lines = ["seconds,step,worker,steps,work,wait,samples,server", "9,900,,,8,1,,0"]
    lines += ["1,10,0,10,0.01,0.09,1,", "1,10,1,10,0.01,0.09,1,", "1,10,,,0.2,0.6,,0"]
    lines += ["2,20,,,0.3,0.7,,0", "3,30,,,0.1,0.9,,", "3,30,,,0.1,0.9,,70000"]
    (folder / "paces.csv").write_text("\n".join(lines) + "\n")
    (view,) = views_of([folder], is_over=False)
    assert view.server_work == pytest.approx([0.5]) and view.server_waits == pytest.approx([1.3])
    assert len(view.waits) == 2  # rows of servers are no workers


SCRIPT = """
import sys, time
import numpy as np
import hpcflow as hf
nap, steps, size = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
x = hf.placeholder(hf.float32, [None])
ws = [hf.Variable(np.ones(size, "f4"), name=f"w{i}") for i in range(4)]
loss = hf.add_n([hf.reduce_sum(hf.square(w)) for w in ws]) * hf.reduce_mean(x)
train = hf.train.AdamOptimizer(1e-3).minimize(loss)
data = hf.data.Dataset({x: np.ones(64, "f4")}, batch=16)
with hf.train.TrainingSession() as session:
    for batch in data.epochs(steps):
        time.sleep(nap)
        session.step(train, batch)
        if session.steps == steps:
            break
    session.wait()
    session.result()
"""


def trained(place: Path, ranks: int, inject: str, *words: str) -> RunView:
    """The view of a job of `ranks`, the last of them a server."""
    script, folder = place / "train.py", place / "run"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "hpcflow", "run", "-n", str(ranks), "--ps", "1"]
    command += ["--inject", inject, "--run-dir", str(folder), str(script), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (view,) = views_of([folder], is_over=True)
    result = json.loads((folder / "result.json").read_text())
    sums = zip(result["server_work_seconds"], result["server_wait_seconds"], strict=True)
    ((work, wait),) = sums
    # from the first answer after the first step until all workers are done
    assert 0.3 * result["seconds"] < work + wait < 1.02 * result["seconds"]
    return view


def once_of_three(place: Path, check: Callable[[Path], None]) -> None:
    """Check up to three runs, each in a folder of its own, until one is as it should be.

    The times of a run are also those of what else stops its processes on this machine.
    """
    for number in range(3):
        folder = place / str(number)
        folder.mkdir()
        try:
            return check(folder)
        except AssertionError:
            if number == 2:
                raise


@pytest.mark.slow
def test_a_server_with_heavy_updates_is_named(tmp_path: Path) -> None:
    """Adam on four variables; each segment of the server takes eight times as long."""

    def check(folder: Path) -> None:
        view = trained(folder, 3, "slow:rank=2x8@step=1", "0", "40", "200000")
        # on crowded cores a worker may be slow too
        (found,) = [one for one in view.limits if one.resource == SERVER]
        assert "/job:ps/task:0 (rank 2 on " in found.text and "--ps" in found.remedy
        assert view.server_facts.busy[0] > 0.7
        assert SERVER in (folder / "run" / "report.html").read_text()

    once_of_three(tmp_path, check)


@pytest.mark.slow
def test_a_slow_worker_beside_a_server_is_named(tmp_path: Path) -> None:
    def check(folder: Path) -> None:
        view = trained(folder, 5, "slow:rank=2x4@step=100", "0.005", "200", "100")
        first = view.limits[0]
        assert first.resource == "slow worker" and first.text.startswith("worker 2 (rank 2")
        assert first.seconds > 0.1 * view.run.seconds

    once_of_three(tmp_path, check)
