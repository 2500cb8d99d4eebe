"""`hpcflow watch`: what the files of runs tell while they go on, and how little of them is read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcflow.cli import main as cli
from hpcflow.report import run_watch
from tests.comm.threads import until
from tests.test_report import write

ROOT = Path(__file__).parents[1]


def known(folder: Path, capsys: Any) -> list[dict[str, Any]]:
    assert cli.main(["watch", str(folder), "--once", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["format"] == "hpcflow-watch-1"
    return list(data["runs"])


def test_progress_rate_and_loss_of_a_run(tmp_path: Path, capsys: Any) -> None:
    folder = Path(write(tmp_path / "run", 4, 64, 900.0, manifest={"steps_in_all": 40}))
    (one,) = known(folder, capsys)
    assert (one["step"], one["steps"], one["ranks"], one["mode"]) == (10, 40, 4, "")
    assert one["samples_per_second"] == 900.0 and one["values"] == {"loss": 0.1}
    assert one["left_seconds"] == pytest.approx(3.0)  # 30 steps of 0.1 s
    assert one["state"] == "finished"


def test_a_folder_of_runs_in_order(tmp_path: Path, capsys: Any) -> None:
    for name in ("b", "a"):
        write(tmp_path / name, 2, 64, 1.0)
    (tmp_path / "notes").mkdir()
    assert [one["name"] for one in known(tmp_path, capsys)] == ["a", "b"]
    assert cli.main(["watch", str(tmp_path), "--once"]) == 0
    assert capsys.readouterr().out.count("finished") == 2


def test_names_and_labels_move_no_cursor(tmp_path: Path, capsys: Any) -> None:
    slow = {"worker": 1, "rank": 1, "host": "n\x1b[2J1", "factor": 3.0}
    folder = Path(write(tmp_path / "r\x1b[31m", 2, 64, 1.0, manifest={"stragglers": [slow]}))
    text = (folder / "metrics.csv").read_text().replace("loss", "lo\x07ss")
    (folder / "metrics.csv").write_text(text)
    assert cli.main(["watch", str(folder), "--once"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\x07" not in shown and "3 times" in shown


def test_only_the_end_of_a_long_table_is_read(tmp_path: Path, monkeypatch: Any) -> None:
    folder = Path(write(tmp_path / "run", 2, 64, 1.0, rows=range(1, 50_001)))
    read: list[int] = []
    pread = os.fdopen

    class Counted:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __getattr__(self, name: str) -> Any:
            value = getattr(self.file, name)
            if name not in ("read", "readline"):
                return value

            def call(*arguments: Any) -> Any:
                data = value(*arguments)
                read.append(len(data))
                return data

            return call

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: Any) -> None:
            self.file.close()

    monkeypatch.setattr(run_watch, "open", lambda d, mode: Counted(pread(d, mode)), raising=False)
    rows = run_watch.tail_rows(folder / "metrics.csv")
    assert rows[-1]["step"] == 50_000 and sum(read) <= 40 << 10


@pytest.mark.parametrize(
    "damage",
    ["", "step", "step,seconds,epoch\n1,nan,inf\n", "\x00" * 100, "a,b\n1,2\n", "step,seconds\n1,"],
)
def test_damaged_tables_are_no_error(damage: str, tmp_path: Path, capsys: Any) -> None:
    folder = Path(write(tmp_path / "run", 2, 64, 1.0))
    (folder / "metrics.csv").write_text(damage)
    (one,) = known(folder, capsys)
    assert one["step"] == 0


def test_a_loss_that_is_no_number_is_json_all_the_same(tmp_path: Path, capsys: Any) -> None:
    folder = Path(write(tmp_path / "run", 2, 64, 1.0))
    text = (folder / "metrics.csv").read_text().replace("0.1\n", "nan\n")
    (folder / "metrics.csv").write_text(text)
    assert cli.main(["watch", str(folder), "--once", "--json"]) == 0
    printed = capsys.readouterr().out
    assert "NaN" not in printed and json.loads(printed)["runs"][0]["values"] == {"loss": None}


def test_no_run_is_an_error_that_says_what_to_do(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "notes.txt").write_text("of no run")
    assert cli.main(["watch", str(tmp_path)]) == 1
    assert cli.main(["watch", str(tmp_path / "notes.txt")]) == 1
    for every in ("0", "nan", "inf", "-1"):
        assert cli.main(["watch", str(tmp_path), "--every", every]) == 2
    assert "--run-dir" in capsys.readouterr().err


def test_the_queue_is_asked_where_there_is_one(tmp_path: Path, monkeypatch: Any) -> None:
    """A squeue that answers, one that does not exist, and a job id that is none."""
    tool = tmp_path / "bin" / "squeue"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "$@" > "$0.asked"\necho "RUNNING, 1:00 left (None)"\n')
    tool.chmod(0o755)
    folder = tmp_path / "run"
    write(folder, 2, 64, 1.0, finished=False, manifest={"environment": {"SLURM_JOB_ID": "17"}})
    monkeypatch.setattr(run_watch.run_outcome, "outcome_of", lambda *a: ("running", ""))
    monkeypatch.setenv("PATH", str(tool.parent), prepend=os.pathsep)
    assert run_watch.WatchedRun(folder).look()["queue"] == "RUNNING, 1:00 left (None)"
    assert "--jobs 17" in Path(f"{tool}.asked").read_text()
    monkeypatch.setenv("PATH", "")
    assert run_watch.WatchedRun(folder).look()["queue"] == ""


def test_a_job_that_waits_for_its_next_start_is_shown_in_the_queue(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    tool = tmp_path / "bin" / "squeue"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "PENDING, 1:00 left (BeginTime)"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=os.pathsep)
    manifest = {"environment": {"SLURM_JOB_ID": "17"}, "stopped": {"by": "SIGUSR1", "step": 9}}
    folder = Path(write(tmp_path / "run", 2, 64, 1.0, finished=False, manifest=manifest))
    (one,) = known(folder, capsys)
    assert (one["state"], one["queue"]) == ("stopped", "PENDING, 1:00 left (BeginTime)")


def test_several_runs_are_a_table_by_state(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    for name in ("a", "b", "c", "d"):
        write(tmp_path / name, 2, 64, 1.0, finished=name in ("a", "d"))
    (tmp_path / "b" / "failure.json").write_text('{"rank": 1, "cause": "no \\u001b[2J disk"}')
    outcome = run_watch.run_outcome.outcome_of
    monkeypatch.setattr(
        run_watch.run_outcome, "outcome_of",
        lambda f, *a: ("running", "") if f.name == "c" else outcome(f, *a))  # fmt: skip
    assert cli.main(["watch", str(tmp_path), "--once"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[:2] for row in rows] == [
        ["c", "running"], ["b", "failed"], ["a", "finished"], ["d", "finished"]]  # fmt: skip
    assert head.split()[:4] == ["run", "state", "ranks", "step"] and "disk" in rows[1]
    assert rows[0].split()[2:4] == ["2", "10"] and "\x1b" not in rows[1]


def test_the_last_warning_is_shown(tmp_path: Path, capsys: Any) -> None:
    folder = Path(write(tmp_path / "run", 2, 64, 1.0))
    rows = [f"{1e9 + k},{k},warning,warning number {k}" for k in range(5000)]
    rows += ["1e9,1,save,step-1", "1e99,1,warning,late", 'x,,warning,"cut off']
    (folder / "events.csv").write_text("time,step,event,text\n" + "\n".join(rows))
    (one,) = known(folder, capsys)
    assert one["warning"].endswith(" warning number 4999")
    assert cli.main(["watch", str(folder), "--once"]) == 0
    assert "warning number 4999" in capsys.readouterr().out


def test_a_file_that_is_unchanged_is_not_read_again(tmp_path: Path, monkeypatch: Any) -> None:
    folder = Path(write(tmp_path / "run", 2, 64, 1.0))
    read: list[Path] = []
    rows = run_watch.tail_rows
    monkeypatch.setattr(run_watch, "tail_rows", lambda path: read.append(path) or rows(path))
    run = run_watch.WatchedRun(folder)
    assert [run.look()["step"] for _ in range(3)] == [10] * 3 and len(read) == 1
    with open(folder / "metrics.csv", "a") as file:
        file.write("11,1.1,11,1,704,1.0,0.09\n")
    assert run.look()["step"] == 11 and len(read) == 2


def test_sparks() -> None:
    assert run_watch.sparks([1, 2, 3, 8]) == "▁▂▃█"
    assert run_watch.sparks([1]) == "" and run_watch.sparks([2, 2]) == "▁▁"
    assert len(run_watch.sparks([float(i) for i in range(1000)])) <= run_watch.WIDTH


def test_a_run_that_has_not_begun_is_said_once(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "none", tmp_path / "empty"):
        assert cli.main(["watch", str(folder), "--once"]) == 1
        assert f"{folder} has not begun" in capsys.readouterr().err


@pytest.mark.parametrize("stage", ["no folder", "an empty folder", "a locked folder with files"])
def test_watch_waits_for_a_run_to_begin(
    stage: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    """The third look finds the run; it is shown, and the wait is told once."""
    folder, looks = tmp_path / "run", []
    if stage != "no folder":
        folder.mkdir()
    if stage == "a locked folder with files":
        (folder / "plan.json").write_text("{}")
        monkeypatch.setattr(
            run_watch.run_directory_lock, "is_free", lambda place: place != folder or len(looks) > 1
        )

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            shutil.rmtree(folder, ignore_errors=True)
            Path(write(tmp_path / "made", 2, 64, 1.0)).rename(folder)

    monkeypatch.setattr("hpcflow.cli.watch.time.sleep", sleep)
    assert cli.main(["watch", str(folder), "--every", "0.25"]) == 0
    printed = capsys.readouterr()
    assert looks == [0.25, 0.25] and "run: finished" in printed.out
    assert printed.err.count("waiting for") == 1


def test_ctrl_c_ends_the_wait(tmp_path: Path, monkeypatch: Any) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hpcflow.cli.watch.time.sleep", interrupt)
    assert cli.main(["watch", str(tmp_path / "none")]) == 0


TRAIN = """
import os, sys, time
import numpy as np
import hpcflow as hf
x = hf.placeholder(hf.float32, [None, 2])
w = hf.Variable(hf.zeros([2, 1]))
train = hf.train.GradientDescentOptimizer(0.01).minimize(hf.reduce_mean(hf.matmul(x, w)))
data = hf.data.Dataset({x: np.ones((64, 2), "float32")}, batch=16)
with hf.train.TrainingSession() as sess, hf.train.Progress(data, 50) as progress:
    for batch in data.epochs(50):
        sess.step(train, batch)
        progress.update(batch, loss=1.0)
        while sess.steps == 100 and not os.path.exists(sys.argv[1]):
            time.sleep(0.05)
"""


def test_a_run_is_watched_until_it_ends(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    folder, go = tmp_path / "run", tmp_path / "go"
    hpcflow = [sys.executable, "-m", "hpcflow"]
    run = subprocess.Popen([*hpcflow, "run", "--run-dir", folder, script, go], cwd=ROOT,
                           stdout=subprocess.DEVNULL)  # fmt: skip
    try:
        until((folder / "metrics.csv").exists, 200)
        watch = subprocess.Popen([*hpcflow, "watch", str(folder), "--json", "--every", "0.3"],
                                 cwd=ROOT, stdout=subprocess.PIPE, text=True)  # fmt: skip
        assert watch.stdout is not None
        lines = [watch.stdout.readline() for _ in range(2)]  # while the run waits at step 100
    finally:
        go.touch()
        run.wait(200)
    lines += watch.communicate(timeout=200)[0].splitlines()
    looks = [json.loads(line)["runs"][0] for line in lines]
    assert watch.returncode == 0 and len(looks) > 2
    assert looks[0]["state"] == "running" and looks[-1]["state"] != "running"
    assert looks[0]["steps"] == 200 and looks[-1]["step"] > looks[0]["step"]
