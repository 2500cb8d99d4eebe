"""The line about a setting that was set by hand: after a run, in its report, and on its page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hpcflow as hf
from hpcflow.cli import main as cli
from hpcflow.cli.plan import plans_of
from hpcflow.cli.run import advice_line
from hpcflow.report.plan_file import write_plan
from hpcflow.report.setting_advice import advice_of
from hpcflow.settings import Settings
from tests.advice_after_runs import (
    check_page_shows_advice,
    check_spoilt_run_has_no_advice,
    stderr_of_run,
)
from tests.test_report import write

LAYERS, WIDTH = 30, 8
SCRIPT = """
import sys
import numpy as np
import hpcflow as hf

layers, width, steps = map(int, sys.argv[1:4])
x = hf.placeholder(hf.float32, [None, width], name="x")
y = x
for i in range(layers):
    w = hf.Variable(np.eye(width, dtype="f4"), name=f"w{i}")
    y = hf.nn.relu(hf.matmul(y, w))
loss = hf.reduce_mean(y)
train = hf.train.GradientDescentOptimizer(0.01).minimize(loss)
data = hf.data.Dataset({x: np.ones((256, width), "f4")}, batch=32, seed=1)
with hf.train.TrainingSession() as session:
    for step, batch in enumerate(data.epochs(100000)):
        session.step([loss, train], batch)
        if step == steps:
            break
    session.result()
if session.context.is_chief and "waits" in sys.argv:  # how long ranks wait here depends on the host
    with open(session.run_dir / "paces.csv", "w") as file:
        file.write("seconds,step,worker,steps,work,wait\\n")
        for i in range(24):
            file.write(f"{i // 2},{10 * i},{i % 2},10,0.02,0.02\\n")
if "fails" in sys.argv:
    raise SystemExit(7)
"""
SLOW = {
    "format": "hpcflow-topology-1",
    "memory_bytes_per_s": 3e6,
    "racks": [{"nodes": [{"ranks": 2}]}],
}
ONE_BUCKET: dict[str, Any] = {"wait": 0.032, "work": 0.02, "width": 512, "bucket_bytes": 10**9}


@pytest.fixture
def finished(tmp_path: Path):
    """A function that makes the folder of a run on two nodes.

    Its workers waited `wait` seconds of a step and worked `work`, by `count` rows of each.
    """
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def make(
        wait: float,
        work: float = 0.002,
        count: int = 12,
        latency: float = 1e-4,
        width: int = WIDTH,
        **settings: Any,
    ) -> Path:
        folder = tmp_path / "run"
        nodes = {"latency_s": latency, "racks": [{"nodes": [{"count": 2, "bytes_per_s": 1e9}]}]}
        (tmp_path / "topology.json").write_text(
            json.dumps({"format": "hpcflow-topology-1"} | nodes)
        )
        settings = {"topology": str(tmp_path / "topology.json"), **settings}
        words = [str(LAYERS), str(width), "1"]
        chosen = Settings(**settings)
        with hf.Graph().as_default():
            plans, _, code = plans_of(str(script), words, 2, chosen)
        assert code == 0
        told = {name: str(value) for name, value in vars(chosen).items()}
        manifest = {"mode": "collective", "settings": told, "folder": str(tmp_path)}
        write(folder, 2, 64, 20_000.0, manifest=manifest)
        rows = ["seconds,step,worker,steps,work,wait,samples"]
        rows += [f"{i},{i},{w},4,{work},{wait},32" for i in range(count) for w in (0, 1)]
        (folder / "paces.csv").write_text("\n".join(rows) + "\n")
        write_plan(folder, plans[-1][0])
        return folder

    return make


def test_a_large_bucket_begins_when_nothing_is_left_to_compute(finished) -> None:
    """30 gradients of 1 MB pass a network of 1 GB/s behind 20 ms of work, or beside most of it."""
    folder = finished(**ONE_BUCKET)
    advice = advice_of(folder)
    assert advice is not None
    assert (advice.setting, advice.given) == ("bucket_bytes", str(10**9))
    assert advice.better == "2200000 by the topology"
    assert advice.measured == pytest.approx(0.052)
    # all of the backward pass, which is about two thirds of the work, but the first bucket of it
    assert 0.008 < advice.measured - advice.predicted < 0.015
    line = advice_line(str(folder))
    assert line == advice.text(str(folder))
    assert line.startswith(f"bucket_bytes={10**9} was set by hand: the model predicts ")
    assert f"instead of 52 ms a step with the default {advice.better}" in line
    assert line.endswith(f"(hpcflow predict --compare {folder})")


def test_no_more_is_saved_than_the_ranks_have_waited(finished) -> None:
    """They waited a third of what the model has them wait, so a third of the gain is left."""
    advice = advice_of(finished(**ONE_BUCKET | {"wait": 0.0107}))
    assert advice is not None
    assert 0.008 / 3 < advice.measured - advice.predicted < 0.015 / 3


def test_without_overlap_the_backward_pass_hides_no_transfer(finished) -> None:
    """30 gradients of 1 MB: 30 ms of transfer after 2 ms of work, or beside most of it."""
    folder = finished(0.032, latency=1e-6, width=512, overlap=False, topology="")
    assert advice_of(folder) is None  # on a fast network 3 ms at most, of which 2 can be hidden
    # by a slow one the gain is bounded by the work, 2 of 34 ms
    (folder / "paces.csv").write_text(
        "seconds,step,worker,steps,work,wait,samples\n"
        + "".join(f"{i},{i},{w},4,0.004,0.004,32\n" for i in range(12) for w in (0, 1))
    )
    advice = advice_of(folder)
    assert advice is not None and (advice.setting, advice.given) == ("overlap", "0")
    assert advice.better == "1"
    assert 0.8e-3 < advice.measured - advice.predicted < 3e-3


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"topology": ""},
        {"threads": 1},
        {"bucket_bytes": 10**7},  # as good as the default
        {"bucket_bytes": 1},  # the latencies of its many allreduces overlap
        ONE_BUCKET | {"topology": ""},  # on a fast network it costs a millisecond
        ONE_BUCKET | {"wait": 0.002},  # less than a tenth of a step
        ONE_BUCKET | {"count": 5},  # a short run: four rows without the first
    ],
)
def test_a_run_without_a_sure_gain_has_no_line(finished, settings) -> None:
    folder = finished(**{"wait": 0.006} | settings)
    assert advice_of(folder) is None and advice_line(str(folder)) == ""


def _failed(folder: Path) -> None:
    (folder / "failure.json").write_text(json.dumps({"kind": "death", "rank": 1, "cause": "x"}))


def _died(folder: Path) -> None:
    _changed(folder, finished=False)


def _changed(folder: Path, **more: Any) -> None:
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | more))


SPOILT = {
    "failed": _failed,
    "died": _died,
    "of servers": lambda folder: _changed(folder, mode="ps"),
    "without a plan": lambda folder: (folder / "plan.json").unlink(),
    "with a damaged plan": lambda folder: (folder / "plan.json").write_text('{"format": 3}'),
    "without paces": lambda folder: (folder / "paces.csv").unlink(),
    "with a damaged manifest": lambda folder: (folder / "manifest.json").write_text("{"),
    "without its topology": lambda folder: (folder.parent / "topology.json").unlink(),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_run_that_cannot_be_judged_has_no_line_and_no_error(finished, how, capsys) -> None:
    folder = finished(**ONE_BUCKET)
    check_spoilt_run_has_no_advice(folder, SPOILT[how], capsys)


def test_the_report_and_the_page_show_it(finished, tmp_path, capsys) -> None:
    folder = finished(**ONE_BUCKET)
    assert cli.main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.count("settings: bucket_bytes=1000000000 was set by hand") == 1
    check_page_shows_advice(folder, tmp_path)


@pytest.mark.slow
def test_after_a_run_the_launcher_prints_one_line_if_it_ended_well(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "slow.json").write_text(json.dumps(SLOW))

    def run(name: str, code: int, *words: str, more: tuple[str, ...] = ()) -> str:
        script = ["train.py", "60", "8", "200", "waits", *more]
        setting = "--set=topology=slow.json"
        return stderr_of_run(tmp_path, code, setting, *words, f"--run-dir={name}", *script)

    told = run("bad", 0, "--set=bucket_bytes=1000000")
    assert told.count("was set by hand") == 1
    line = told.strip().splitlines()[-1]
    assert line.startswith("hpcflow: bucket_bytes=1000000 was set by hand: the model predicts")
    assert line.endswith("(hpcflow predict --compare bad)")
    assert "was set by hand: the model" in (tmp_path / "bad" / "report.html").read_text()
    assert "was set by hand" not in run("usual", 0)
    failed = run("failed", 7, "--set=bucket_bytes=1000000", more=("fails",))
    assert "was set by hand" not in failed
    (tmp_path / "bad" / "plan.json").unlink()  # written by the page of a run
    assert "was set by hand" not in run("bare", 0, "--set=bucket_bytes=1000000", "--set=page=0")
