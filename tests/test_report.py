"""`hpcflow report`: runs are read from their directories, compared and drawn."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hpcflow.cli import main as cli
from hpcflow.launch import time_limit
from hpcflow.platform.quantity_text import format_excess, format_ratio, format_seconds
from hpcflow.report import run_summary, run_tables, scaling_plots

ROOT = Path(__file__).parents[1]


def write(folder: Path, ranks: int, batch: int, rate: float, **more: Any) -> str:
    """A run directory as training leaves it; `more` are `mode`, `rows`, `servers` and so on."""
    folder.mkdir(parents=True)
    servers = more.get("servers", 0)
    mode = more.get("mode", "collective" if ranks > 1 else "single")
    result = {"mode": mode, "ranks": ranks, "servers": servers, "replicas": ranks - servers}
    result |= {"seconds": 12.5, **more.get("said", {})}
    result |= {"input_wait_seconds": more.get("waits", [0.5] * (ranks - servers))}
    result |= {"samples_per_second": rate, "steps": [100] * (ranks - servers)}
    manifest = {"script": "/home/u/digits.py", "batch": batch, "workers": ranks - servers}
    roles = [f"/job:ps/task:{i}" for i in range(servers)]
    roles += [f"/job:worker/task:{i}" for i in range(ranks - servers)]
    manifest |= {"nodes": {f"n{i}": [i] for i in range(ranks)}, "roles": roles}
    manifest |= {"finished": more.get("finished", True), **more.get("manifest", {})}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    if manifest["finished"]:
        (folder / "result.json").write_text(json.dumps(result))
    names = ["time", "seconds", "step", "epoch", "samples", "samples_per_second", "loss"]
    with open(folder / "metrics.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for step in more.get("rows", range(1, 11)):
            writer.writerow([step, step / 10, step, 1, step * batch, rate, 1 / step])
    return str(folder)


def test_strong_and_weak_are_told_by_the_batch(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "s1", 1, 64, 1000.0),
        write(tmp_path / "s2", 2, 64, 1800.0),
        write(tmp_path / "s4", 4, 64, 2000.0),
        write(tmp_path / "w2", 2, 128, 1900.0),
        write(tmp_path / "w4", 4, 256, 3600.0),
    ]
    strong, weak = run_summary.scalings(run_summary.load(paths))
    assert (strong.kind, weak.kind) == ("strong", "weak")
    assert "batch 64" in strong.description and "batch 64 a worker" in weak.description
    assert [point.workers for point in strong.points] == [1, 2, 4]
    assert [point.workers for point in weak.points] == [1, 2, 4]
    assert [point.efficiency for point in strong.points] == [1.0, 0.9, 0.5]
    assert [point.efficiency for point in weak.points] == [1.0, 0.95, 0.9]
    assert strong.points[2].speedup == 2.0


def test_waiting_and_slow_workers_are_told_apart(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "run", 4, 64, 1000.0))
    result = json.loads((path / "result.json").read_text())
    slow = [{"worker": 2, "rank": 3, "host": "nid42", "factor": 1.9}]
    (path / "result.json").write_text(
        json.dumps(result | {"wait_seconds": [4.0, 4.0, 0.0, 4.0], "stragglers": slow})
    )
    (run,) = run_summary.load([str(path)])
    assert (run.waited, run.input_wait, run.busy) == (3.0, 0.5, 9.0)
    told = run_tables.as_text([run], [])
    assert "3 s (24%)" in told and "500 ms (4%)" in told
    assert "worker 2 (rank 3 on nid42) was slow for a long time" in told and "1.9 times" in told
    # of a run that has not ended the manifest knows
    (path / "result.json").unlink()
    manifest = json.loads((path / "manifest.json").read_text()) | {"finished": False}
    (path / "manifest.json").write_text(json.dumps(manifest | {"stragglers": slow}))
    assert run_summary.load([str(path)])[0].stragglers == slow


def test_the_time_to_the_first_step_is_shown_by_ranks(tmp_path: Path) -> None:
    """Of a run that has not ended the manifest tells it; of an old one nothing does."""
    paths = [
        write(tmp_path / "one", 1, 64, 1000.0, said={"seconds_to_first_step": 2.5}),
        write(tmp_path / "two", 2, 64, 1900.0, said={"seconds_to_first_step": 125.0}),
        write(tmp_path / "three", 2, 64, 1900.0, said={"seconds_to_first_step": 65}),
        write(tmp_path / "old", 4, 64, 3000.0),
        write(
            tmp_path / "killed", 4, 64, 1.0, manifest={"seconds_to_first_step": 7.0}, finished=False
        ),
        write(tmp_path / "wrong", 8, 64, 1.0, said={"seconds_to_first_step": "soon"}),
    ]
    runs = run_summary.load(paths)
    assert [r.seconds_to_first_step for r in runs] == [2.5, 125.0, 65, None, 7.0, None]
    assert runs[-1].faults and not runs[0].faults
    (curve,) = (c for c in run_summary.scalings(runs[:4]) if c.kind == "strong")
    assert [p.seconds_to_first_step for p in curve.points] == [2.5, 95.0, None]
    told = run_tables.as_text(runs[:4], [curve])
    assert "2:05 min" in told and "95 s" in told
    assert cli.main(["report", *paths[:4], "--json", str(tmp_path / "f.json")]) == 0
    figures = json.loads((tmp_path / "f.json").read_text())
    assert [r["seconds_to_first_step"] for r in figures["runs"]] == [2.5, 125.0, 65, None]
    (points,) = (c["points"] for c in figures["scaling"] if c["kind"] == "strong")
    assert [p["seconds_to_first_step"] for p in points] == [2.5, 95.0, None]


FIRST_STEP = """
import os, sys, time
import hpcflow as hf
import numpy as np
x = hf.placeholder(hf.float32, [None, 2])
w = hf.Variable(hf.zeros([2, 1]))
train = hf.train.GradientDescentOptimizer(0.1).minimize(hf.reduce_mean(hf.matmul(x, w)))
data = hf.data.Dataset({x: np.ones((32, 2), "float32")}, batch=8)
with hf.train.TrainingSession() as sess:
    assert "HPCFLOW_LAUNCH_TIME" in os.environ
    for i, batch in enumerate(data.epochs(1)):
        begins = time.time()
        sess.step(train, batch)
        if i == 0:
            assert "HPCFLOW_LAUNCH_TIME" not in os.environ
            print(f"first {begins} {time.time()}", flush=True)
        time.sleep(0.2)
    sess.wait()
    sess.result()
"""


@pytest.mark.slow
def test_the_time_to_the_first_step_begins_with_the_launcher(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FIRST_STEP)
    run = [sys.executable, "-m", "hpcflow", "run", "-n", "2", "--run-dir", "run", "train.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    before = time.time()
    process = subprocess.Popen(run, env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    after = time.time()  # the launcher has been started in between
    said, _ = process.communicate()
    assert process.returncode == 0
    steps = [tuple(map(float, m)) for m in re.findall(r"first ([0-9.]+) ([0-9.]+)", said)]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert len(steps) == 2
    (first, last), latest = zip(*steps, strict=True), 0.02  # the kernel's clock has ticks of 10 ms
    latest += max(last) - before
    assert max(first) - after - 0.02 <= result["seconds_to_first_step"] <= latest
    assert min(first) - after - 0.02 <= manifest["seconds_to_first_step"] <= latest


@pytest.mark.parametrize(
    ("text", "launched"), [("1000.5", True), ("99999999999", False), ("soon", False), ("", False)]
)
def test_a_launch_time_that_cannot_be_is_that_of_the_process(
    text: str, launched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(time_limit.LAUNCH_TIME, text)
    time_limit.launch_time.cache_clear()
    own = time.time() - time_limit.seconds_running()
    try:
        assert time_limit.launch_time() == pytest.approx(1000.5 if launched else own, abs=0.1)
        assert time_limit.LAUNCH_TIME not in os.environ
    finally:
        time_limit.launch_time.cache_clear()


def test_modes_are_not_mixed_and_begin_with_the_single_rank(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "one", 1, 64, 1000.0),
        write(tmp_path / "collective", 4, 64, 3000.0),
        write(tmp_path / "ps", 4, 64, 2000.0, mode="ps", servers=1),
    ]
    curves = [
        curve for curve in run_summary.scalings(run_summary.load(paths)) if curve.kind == "strong"
    ]
    assert {curve.description.split(", ")[1]: curve.points[-1].efficiency for curve in curves} == {
        "collective": 0.75,
        "ps": 2 / 3,  # of three workers
    }


def test_servers_are_no_workers(tmp_path: Path) -> None:
    """Neither in the table nor on a curve, which begins with the mode's own run of one worker."""
    paths = [
        write(tmp_path / "one", 1, 64, 1000.0),
        write(tmp_path / "ps1", 2, 64, 800.0, mode="ps", servers=1),
        write(tmp_path / "ps2", 4, 64, 1200.0, mode="ps", servers=2),
    ]
    found = run_summary.load(paths)
    assert [(run.workers, run.servers) for run in found] == [(1, 0), (1, 1), (2, 2)]
    (curve,) = (curve for curve in run_summary.scalings(found) if curve.kind == "strong")
    assert [(p.workers, p.rate, p.efficiency) for p in curve.points] == [
        (1, 800, 1),
        (2, 1200, 0.75),
    ]
    told = run_tables.as_text(found, [curve])
    row = next(line.split() for line in told.splitlines() if line.startswith("ps2"))
    assert row[1:4] == ["ps", "2", "2"]
    # of a run without a result the names of its tasks tell
    (killed,) = run_summary.load(
        [write(tmp_path / "k", 4, 64, 9.0, mode="ps", servers=1, finished=False)]
    )
    assert (killed.workers, killed.servers) == (3, 1)


def command(*words: str) -> list[str]:
    return ["/usr/bin/python", "-m", "hpcflow", "run", "-n", "2", "/home/u/digits.py", *words]


def test_options_that_differ_are_shown_and_no_others(tmp_path: Path) -> None:
    said = [
        {"command": command("--", "--lr=0.1", "--epochs", "5", "--fast", "-x", "-1", "a", "b")},
        {"command": command("--epochs", "5", "--lr", "0.2", "-x", "-1", "a", "b")},
        {"command": command("--lr", "0.1", "--epochs", "5", "--fast", "-x", "-1", "a", "b")},
    ]
    settings = [
        {"run_dir": "r1", "sync": "all"},
        {"run_dir": "r2", "sync": "all"},
        {"sync": "async"},
    ]
    versions = [{"numpy": "2.4"}, {"numpy": "2.4", "MPI": "X"}, {"numpy": "2.4", "MPI": "X"}]
    commits = ["c" * 40, "c" * 40, "d" * 40]
    paths = [
        write(tmp_path / f"r{i}", 2, 64, 9.0, manifest={
            **said[i], "settings": settings[i], "versions": versions[i],
            "git": {"commit": commits[i], "changed": ["a.py"] if i == 2 else []},
        })
        for i in range(3)
    ]  # fmt: skip
    told = run_tables.as_text(run_summary.load(paths), [])
    lines = told[told.index("options that differ") :].splitlines()[1:5]
    assert [line.split() for line in lines] == [
        ["run", "--lr", "--fast", "sync", "commit"],
        ["r0", "0.1", "yes", "all", "cccccccccc"],
        ["r1", "0.2", "-", "all", "cccccccccc"],
        ["r2", "0.1", "yes", "async", "dddddddddd", "with", "changes"],
    ]
    assert "options that differ" not in run_tables.as_text(
        run_summary.load([paths[0], paths[0]]), []
    )
    assert "options that differ" not in run_tables.as_text(run_summary.load(paths[:1]), [])


def test_what_a_script_gave_to_its_result_is_shown(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "a", 1, 8, 9.0, said={"accuracy": 0.123456789, "note": "x\x1b[2J"}),
        write(tmp_path / "b", 1, 8, 9.0, said={"accuracy": 1, "confusion": [[1, 2], [3, 4]]}),
    ]
    told = run_tables.as_text(run_summary.load(paths), [])
    lines = told[told.index("results") :].splitlines()[1:4]
    assert [line.split() for line in lines] == [
        ["run", "accuracy", "note", "confusion"],
        ["a", "0.123457", r"x\x1b[2J", "-"],
        ["b", "1", "-", "2", "values"],
    ]


FAILURE = {"rank": 2, "task": "/job:worker/task:2", "host": "nid3", "step": 1200}


@pytest.mark.parametrize(
    ("manifest", "failure", "state", "line"),
    [
        ({"stopped": {"by": "SIGTERM", "step": 65}}, None, "cancelled", "before step 65: SIGTERM"),
        (
            {"stopped": {"by": "the end of the job's time", "step": 6500}},
            None,
            "stopped",
            "stopped before step 6,500: the end of the job's time",
        ),
        ({"end": "2026-05-06"}, None, "ended", "has written no result"),
        ({"end": None}, None, "died", "no process of it has told why"),
        (
            {},
            {"kind": "death", "cause": "process 7 was killed by SIGKILL", "checkpoint": "c/step-9"},
            "died",
            "died in step 1,200: rank 2 (/job:worker/task:2) on nid3: process 7 was killed by "
            "SIGKILL; saved: c/step-9",
        ),
        ({}, {"kind": "stall", "cause": "StallError: x"}, "stalled", "StallError: x"),
        ({}, {"kind": "error", "cause": "ValueError: x"}, "failed", "on nid3: ValueError: x"),
        (
            {},
            {"kind": "error", "error": "KeyboardInterrupt", "cause": "KeyboardInterrupt: "},
            "cancelled",
            "cancelled in step 1,200",
        ),
    ],
)
def test_what_became_of_a_run(
    tmp_path: Path,
    manifest: dict[str, Any],
    failure: dict[str, Any] | None,
    state: str,
    line: str,
) -> None:
    path = write(tmp_path / "r", 3, 8, 9.0, finished=False, manifest=manifest)
    if failure is not None:
        (Path(path) / "failure.json").write_text(json.dumps(FAILURE | failure))
    (run,) = run_summary.load([path])
    assert run.state == state
    assert line in run_tables.as_text([run], [])


def test_a_result_of_an_earlier_run_in_the_folder_is_not_this_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "r", 2, 8, 9.0, said={"accuracy": 0.9})
    manifest = json.loads((Path(path) / "manifest.json").read_text())
    (Path(path) / "manifest.json").write_text(json.dumps(manifest | {"finished": False}))
    (run,) = run_summary.load([path])
    assert (run.state, run.results) == ("died", {})


def test_ranks_that_were_lost_on_the_way_are_told(tmp_path: Path) -> None:
    lost = {"lost": [{"rank": 2, "task": "x", "host": "y"}]}
    (run,) = run_summary.load([write(tmp_path / "r", 3, 8, 9.0, said=lost)])
    assert run.state == "finished" and "finished without rank 2" in run_tables.as_text([run], [])


TRAIN = """
import sys
import hpcflow as hf
import numpy as np
x = hf.placeholder(hf.float32, [None])
w = hf.Variable(hf.zeros([1]), name="w")
train = hf.train.GradientDescentOptimizer(0.1).minimize(hf.reduce_mean(hf.square(x - w)))
data = hf.data.Dataset({x: np.ones(8, "f4")}, batch=4)
with hf.train.TrainingSession() as sess:
    for batch in data.epochs(1):
        sess.step(train, batch)
        if sys.argv[1:] == ["--wait"]:
            print("begun", flush=True)
            sys.stdin.readline()
    sess.wait()
    sess.result(accuracy=0.5)
"""


@pytest.mark.slow
def test_a_real_run_is_running_then_stopped_and_one_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    words = [sys.executable, "-m", "hpcflow", "run", "--run-dir", "r", "train.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    report = ["report", str(tmp_path / "r"), "--out", str(tmp_path)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*words, "--wait"], cwd=tmp_path, env=env, **pipes) as going:
        assert going.stdin is not None and going.stdout is not None
        while going.stdout.readline() != "begun\n":
            assert going.poll() is None
        assert cli.main(report) == 0
        assert "running" in capsys.readouterr().out
        going.send_signal(signal.SIGTERM)
        going.communicate("\n" * 9)
    assert going.returncode == 75
    assert cli.main(report) == 0
    assert "cancelled before step 1: SIGTERM" in capsys.readouterr().out
    subprocess.run(words, cwd=tmp_path, env=env, check=True, timeout=100)
    (run,) = run_summary.load([str(tmp_path / "r")])
    assert (run.state, run.results) == ("finished", {"accuracy": "0.5"})


def test_a_folder_that_is_not_there_is_not_taken_for_the_one_above(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "run", 1, 8, 10.0)
    assert cli.main(["report", path + "/misspelt", "--out", str(tmp_path)]) == 1
    assert "no run in" in capsys.readouterr().err
    (run,) = run_summary.load([path + "/result.json"])
    assert run.ranks == 1


def test_waiting_for_input_is_told_apart(tmp_path: Path) -> None:
    (run,) = run_summary.load([write(tmp_path / "r", 2, 8, 10.0, waits=[2.0, 3.0])])
    assert (run.seconds, run.input_wait, run.busy) == (12.5, 2.5, 10.0)
    assert "2.5 s (20%)" in run_tables.as_text([run], [])
    (none,) = run_summary.load([write(tmp_path / "old", 2, 8, 10.0, waits=[])])
    assert none.input_wait is None and "%" not in run_tables.as_text([none], [])


def test_repeated_runs_are_one_point_at_their_median(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"a{i}", 1, 64, rate) for i, rate in enumerate((900, 1000, 5000))]
    paths.append(write(tmp_path / "b", 2, 64, 2000.0))
    (curve,) = run_summary.scalings(run_summary.load(paths))
    assert (curve.points[0].runs, curve.points[0].rate) == (3, 1000)
    point = curve.points[1]
    assert point.efficiency == 1.0
    assert point.efficiency_low == pytest.approx(2000 / 5000 / 2)
    assert point.efficiency_high == pytest.approx(2000 / 900 / 2)
    assert "20% to 111%" in run_tables.as_text([], [curve])


def test_steps_that_were_done_again_count_once(tmp_path: Path) -> None:
    path = write(tmp_path / "r", 1, 8, 10.0, rows=[1, 2, 3, 4, 3, 4, 5])
    (run,) = run_summary.load([path])
    assert run.curve("step", "loss")[0] == [1, 2, 3, 4, 5]


def test_a_last_row_that_follows_at_once_has_no_rate(tmp_path: Path) -> None:
    path = write(tmp_path / "r", 1, 8, 10.0)
    with open(Path(path) / "metrics.csv", "a") as file:
        file.write("11,1.001,11,1,88,99999,0.5\n")
    (run,) = run_summary.load([path])
    assert run.curve("step", "loss")[1][-1] == 0.5
    assert run.curve("seconds", "samples_per_second")[1] == [10.0] * 10


def test_a_run_that_was_killed_is_shown_as_far_as_it_came(tmp_path: Path) -> None:
    path = write(tmp_path / "r", 2, 8, 10.0, finished=False)
    with open(Path(path) / "metrics.csv", "a") as file:
        file.write("11,1.1,1")
    (run,) = run_summary.load([path])
    assert (run.ranks, run.workers, run.rate, run.steps) == (2, 2, 10.0, 10)
    assert "died" in run_tables.as_text([run], [])


@pytest.mark.slow
def test_the_command_writes_text_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [write(tmp_path / f"r{n}", n, 64, 900.0 * n) for n in (1, 2, 4)]
    assert cli.main(["report", *paths, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "strong scaling: digits.py, collective, batch 64" in said
    assert "1 -> 0.1" in said and "100%" in said
    assert (tmp_path / "out" / "report.txt").read_text() in said
    png = (tmp_path / "out" / "report.png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    wide, high = struct.unpack(">II", png[16:24])
    assert wide > 1000 and high > 1500  # five panels


@pytest.mark.slow
def test_one_run_alone_has_a_picture(tmp_path: Path) -> None:
    found = run_summary.load([write(tmp_path / "r", 1, 8, 10.0, rows=range(1, 500))])
    scaling_plots.draw(found, [], tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 10_000


def test_without_matplotlib_the_extra_is_named_and_the_table_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = write(tmp_path / "r", 1, 8, 10.0)
    assert cli.main(["report", path, "--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "hpcflow-mpi[plot]" in said.err and "report.txt alone" in said.err
    assert "samples/s" in said.out and (tmp_path / "report.txt").exists()


def test_a_folder_without_a_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(tmp_path)]) == 1
    assert "--run-dir" in capsys.readouterr().err


def test_a_mean_that_forgets_has_no_bias_at_the_start() -> None:
    assert scaling_plots.smooth([2.0, 2.0, 2.0], 10) == pytest.approx([2.0, 2.0, 2.0])
    assert scaling_plots.smooth([0.0, 1.0], 1) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0 s"),
        (3.2e-6, "3.2 us"),
        (0.99951e-3, "1 ms"),
        (0.71234, "712 ms"),
        (0.99996, "1 s"),
        (99.9, "99.9 s"),
        (99.96, "1:40 min"),
        (245, "4:05 min"),
        (3599.6, "1:00 h"),
        (12000, "3:20 h"),
        (264 * 86400 + 5, "264 days"),
        (-0.0125, "-12.5 ms"),
        (math.inf, "inf s"),
    ],
)
def test_times(seconds: float, told: str) -> None:
    assert format_seconds(seconds) == told


@pytest.mark.parametrize(
    ("share", "told"),
    [(0.0254, "2.54 %"), (9.98, "998 %"), (24.6, "26 times"), (1e4, "10,001 times")],
)
def test_an_excess_of_more_than_1000_percent_is_a_ratio(share: float, told: str) -> None:
    assert format_excess(share) == told
    assert format_ratio(2.5) == "2.5 times" and format_ratio(9.96) == "10 times"


def test_a_report_writes_files_only_if_it_is_asked(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    """Without --out there is no picture, so no package is missed, and no file."""
    run = write(tmp_path / "run", 2, 64, 900.0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main(["report", run]) == 0
    printed = capsys.readouterr()
    assert "900" in printed.out and not printed.err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert cli.main(["report", run, "--out", "o"]) == 1
    assert "matplotlib" in capsys.readouterr().err and (tmp_path / "o" / "report.txt").is_file()
