"""The training session: counts, the result of a job, and progress for people and logs."""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import pty
import struct
import termios
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import GraphError
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from hpcflow.train import run_records
from hpcflow.train.job_result import job_summary, update_counts
from hpcflow.train.progress_bar import Progress
from hpcflow.train.result_files import write_json
from tests.runtime.ranks import run_ranks

from .reference import OPTIMIZERS, data, net


def train(
    context: RankContext, samples: int = 10, batch: int = 4, waits: bool = True
) -> dict[str, Any] | None:
    features, labels = data(samples)
    x, y, _, step, _ = net(OPTIMIZERS["adam"][0]())
    dataset = hf.data.Dataset({x: features, y: labels}, batch=batch)
    with hf.train.TrainingSession() as session:
        for dealt in dataset.epochs(2):
            session.step(step, dealt)
        if waits:
            session.wait()
        return session.result(accuracy=np.float32(0.5), mine=[np.int64(3)])


def test_synchronous_workers_write_one_result(tmp_path: Path) -> None:
    (found,) = run_ranks(4, train, run_dir=str(tmp_path / "new" / "folder"))
    assert found == json.loads((tmp_path / "new" / "folder" / "result.json").read_text())
    assert (found["mode"], found["ranks"], found["servers"]) == ("collective", 4, 0)
    assert found["steps"] == [6, 6, 6, 6]
    assert found["samples"] == [6, 6, 4, 4] and sum(found["samples"]) == 20
    assert found["updates"] == {"p0": 6, "p1": 6, "p2": 6, "p3": 6}
    assert len(found["bytes_sent"]) == 4 and min(found["bytes_sent"]) > 0
    assert found["accuracy"] == 0.5 and found["mine"] == [3]
    assert found["seconds"] > 0 and found["samples_per_second"] > 0
    assert set(found["versions"]) >= {"hpcflow", "numpy", "python"}
    written = {path.name for path in (tmp_path / "new" / "folder").iterdir()}
    # paces of long jobs only, events where a busy machine gives a warning
    assert written - {run_records.PACES, run_records.EVENTS} == {"manifest.json", "result.json"}


@pytest.mark.parametrize("mode", [{}, {"ps": 1}, {"ps": 1, "sync": "all"}], ids=str)
def test_a_result_waits_for_all_workers_where_the_script_does_not(
    mode: dict[str, Any], tmp_path: Path
) -> None:
    def work(context: RankContext) -> dict[str, Any] | None:
        return train(context, waits=False)

    (found,) = run_ranks(3, work, run_dir=str(tmp_path), **mode)
    assert found["seconds"] > 0 and found["samples_per_second"] > 0
    assert sum(found["samples"]) == 20  # none was still running


def test_asynchronous_updates_are_the_sum_of_the_workers_steps(tmp_path: Path) -> None:
    """The variables are cut over two servers; workers take different numbers of steps."""
    (found,) = run_ranks(5, train, ps=2, shard_bytes=32, run_dir=str(tmp_path))
    assert (found["mode"], found["servers"], found["replicas"]) == ("ps", 2, 3)
    assert found["steps"] == [6, 6, 4]
    assert set(found["updates"].values()) == {16}
    assert sum(found["samples"]) == 20


def test_a_finished_graph_takes_no_more_operations() -> None:
    with use_context(RankContext(Settings())), hf.Graph().as_default():
        w = hf.Variable(np.float32(1), name="w")
        with hf.train.TrainingSession() as session:
            assert session.run(w) == 1 and session.is_chief and session.worker == 0
            with pytest.raises(GraphError, match="finalized"):
                hf.constant(1)


def test_copies_that_differ_are_listed(caplog: pytest.LogCaptureFixture) -> None:
    reports = [{"updates": {"w": 3, "w/Adam": 3}}, {"updates": {"w": 4}}]
    assert update_counts("w", reports) == [3, 4]
    assert update_counts("w/Adam", reports) == 3
    assert update_counts("other", reports) == 0


def test_a_worker_without_steps_is_no_division_by_zero() -> None:
    context = RankContext(Settings())
    report = {
        **context.report(),
        "steps": 0,
        "samples": 0,
        "seconds": 0.0,
        "seconds_to_first_step": None,
        "input_wait_seconds": 0.0,
        "work_seconds": 0.0,
        "wait_seconds": 0.0,
    }
    assert job_summary(context, [report], [])["samples_per_second"] == 0


def test_a_result_holds_plain_values(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not set"):
        write_json(tmp_path / "r.json", {"a": {1, 2}})
    assert not (tmp_path / "r.json").exists()


# -- progress


def told(stream: Any, every_s: float, is_chief: bool = True) -> Any:
    dataset = SimpleNamespace(steps_per_epoch=2, describe=lambda: "two batches of 8")
    context: Any = SimpleNamespace(is_chief=is_chief, settings=Settings())
    with Progress(dataset, 3, every_s, stream, context) as progress:
        for epoch in range(3):
            for step in range(2):
                batch = SimpleNamespace(epoch=epoch, step=step, joined_size=8)
                progress.update(batch, loss=np.float32(0.25))
    return stream


def test_a_log_gets_lines() -> None:
    lines = told(io.StringIO(), every_s=0).getvalue().splitlines()
    assert lines[0] == "two batches of 8" and len(lines) == 7
    assert lines[-1].startswith("epoch 3/3  step 2/2  loss 0.25  ")
    assert lines[-1].endswith(" samples/s")
    lines = told(io.StringIO(), every_s=60).getvalue().splitlines()
    assert len(lines) == 2 and lines[1].startswith("epoch 3/3  step 2/2")  # the last is always told


def test_a_run_that_had_nothing_left_to_do_says_so() -> None:
    dataset: Any = SimpleNamespace(steps_per_epoch=2, describe=lambda: "two batches of 8")
    context: Any = SimpleNamespace(is_chief=True, settings=Settings())
    stream = io.StringIO()
    with Progress(dataset, 3, 0, stream, context):
        pass
    assert stream.getvalue().splitlines()[1:] == ["no steps are left of 3 epochs"]
    with pytest.raises(ValueError), Progress(dataset, 3, 0, stream, context):
        raise ValueError
    assert len(stream.getvalue().splitlines()) == 3


@pytest.fixture
def said() -> Iterator[list[str]]:
    """The lines that are logged, as they come."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def test_a_loss_that_is_nan_is_told_once_with_what_finds_it(said: list[str]) -> None:
    dataset: Any = SimpleNamespace(steps_per_epoch=2, describe=lambda: "")
    context: Any = SimpleNamespace(is_chief=True, settings=Settings())
    batch = SimpleNamespace(epoch=0, step=0, joined_size=8)
    with Progress(dataset, 1, 60.0, io.StringIO(), context) as progress:
        progress.update(batch, loss=np.float32(1.0), rate=float("inf"))
        assert said == []
        progress.update(batch, loss=np.float32("nan"))
        progress.update(batch, loss=np.float32("nan"))
    (line,) = said
    assert "loss is NaN" in line and "--set check_numerics=1" in line


@pytest.mark.parametrize("named", [False, True])
def test_ranks_that_no_operation_asks_for_are_told(named: bool, said: list[str]) -> None:
    def work(context: RankContext) -> None:
        x = net(OPTIMIZERS["adam"][0]())[0]
        if named:
            for k in (1, 2):
                with hf.device(f"/job:worker/task:{k}"):
                    hf.square(x)
        with hf.train.TrainingSession():
            pass

    run_ranks(6, work, tasks_per_replica=3)
    lines = [line for line in said if "are idle" in line]
    if named:
        assert lines == []
    else:
        (line,) = lines
        assert line.startswith("4 of 6 worker ranks") and "task:1-2, of 3" in line


def test_only_the_chief_speaks() -> None:
    assert told(io.StringIO(), every_s=0, is_chief=False).getvalue() == ""


def test_a_terminal_gets_a_bar() -> None:
    ours, theirs = pty.openpty()
    with open(theirs, "w") as stream:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 80, 0, 0))
        told(stream, every_s=0)
        text = ""
        while "samples/s\033[K\r\n" not in text:
            text += os.read(ours, 10_000).decode()
    os.close(ours)
    assert "\r[########################] epoch 3/3  step 2/2" in text
