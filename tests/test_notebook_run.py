"""`hpcflow.notebook.run`: results, errors, time limits and interrupts of functions on ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import hpcflow as hf
from hpcflow.notebook.rank_program import cloudpickle_module
from hpcflow.notebook.run_function import reason
from tests.comm.threads import until
from tests.processes import is_running

ROOT = Path(__file__).parents[1]
HEAD = """
import json, os, sys, time
import numpy as np
import hpcflow as hf

scale = 100

class Odd(Exception):
    def __init__(self, a, b):
        super().__init__(a, b)
"""
RESULTS = """
def work(a, b=1):
    x = hf.Variable(hf.constant([1.0, 2.0]), name="x")
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        print("a rank speaks")
        return {"rank": session.context.rank * scale + a + b, "x": session.run(x)}

def fails(on):
    with hf.Session() as session:
        if session.context.rank == on:
            raise Odd("boom\\nin two lines", 2)
        time.sleep(100)

results = hf.notebook.run(work, ranks=3, ps=1, args=[10], kwargs={"b": 5})
said = {"ranks": [r and r["rank"] for r in results], "x": results[0]["x"].tolist()}
try:
    hf.notebook.run(fails, ranks=2, args=[1])
except hf.errors.RankError as error:
    said |= {"rank": error.rank, "cause": repr(error.__cause__), "text": str(error)}
try:
    hf.notebook.run(os._exit, ranks=1, args=[5])
except hf.errors.LaunchError as error:
    said["exit"] = str(error)
def wrong():
    raise ValueError("first\\nsecond")
try:
    hf.notebook.run(wrong, ranks=1)
except hf.errors.RankError as error:
    said["lines"] = str(error).splitlines()
import threading
try:
    hf.notebook.run(threading.Lock, ranks=1)
except hf.errors.RankError as error:
    said["unsent"] = str(error)
print("SAID", json.dumps(said))
"""
SLEEP = """
def sleep(folder):
    with hf.Session() as session:
        open(f"{folder}/{session.context.rank}", "w").write(str(os.getpid()))
        time.sleep(300)

try:
    hf.notebook.run(sleep, ranks=2, args=[sys.argv[1]], time_limit=LIMIT)
except BaseException as error:
    print("SAID", type(error).__name__, error)
"""


def start(tmp_path: Path, text: str, *words: str) -> subprocess.Popen[str]:
    script = tmp_path / "cells.py"
    script.write_text(HEAD + text)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, str(script), *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_results_and_errors_come_back(tmp_path: Path) -> None:
    process = start(tmp_path, RESULTS)
    out, _ = process.communicate(timeout=400)
    assert process.returncode == 0 and out.count("a rank speaks") == 2  # the server is silent
    said = json.loads(out.rpartition("SAID ")[2])
    assert sorted(filter(None, said["ranks"])) == [15, 115] and said["ranks"].count(None) == 1
    assert said["x"] == [1.0, 2.0]
    assert said["rank"] == 1 and said["cause"].startswith("Odd('boom")
    assert said["text"].startswith("rank 1 raised ") and "in fails" in said["text"]
    assert said["lines"][:2] == ["rank 0 raised ValueError: first", "second"]
    assert said["lines"][2].split()[:3] == ["in", "cell,", "line"]
    assert "rank_program.py" not in "".join(said["lines"])
    assert said["exit"].startswith("the job failed") and "exit code 5" in said["exit"]
    assert "cannot be sent from its rank" in said["unsent"] and "history.history" in said["unsent"]
    assert [path.name for path in tmp_path.iterdir()] == ["cells.py"]


def stopped(tmp_path: Path, limit: float | None) -> int:
    """How many of two ranks ran before all were stopped, by a time limit or an interrupt."""
    pids = tmp_path / "pids"
    pids.mkdir()
    process = start(tmp_path, SLEEP.replace("LIMIT", str(limit)), str(pids))

    def running() -> list[int]:
        return [int(text) for path in pids.iterdir() if (text := path.read_text())]

    if limit is None:
        until(lambda: len(running()) == 2 or process.poll() is not None, 200)
        process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=200)
    error = "KeyboardInterrupt" if limit is None else "DeadlineExceededError"
    assert out.rpartition("SAID ")[2].startswith(error)
    assert not any(map(is_running, running()))
    assert {path.name for path in tmp_path.iterdir()} == {"cells.py", "pids"}
    return len(running())


@pytest.mark.slow
def test_an_interrupt_stops_the_ranks(tmp_path: Path) -> None:
    assert stopped(tmp_path, None) == 2


@pytest.mark.slow
def test_a_time_limit_stops_the_ranks(tmp_path: Path) -> None:
    """Both run by then on an idle machine; on a busy one they start more slowly."""
    for limit in (10, 20, 40, 80):
        (tmp_path / str(limit)).mkdir()
        if stopped(tmp_path / str(limit), limit) == 2:
            return
    raise AssertionError("no limit let both ranks start")


def test_the_reason_of_a_job_comes_first() -> None:
    output = ["hpcflow: starting 3 ranks\n", "hpcflow: the job failed on rank 1: KeyError: 'x'\n"]
    assert reason(output, 86) == "the job failed on rank 1: KeyError: 'x' (exit code 86)"
    assert reason(["noise\n"], 9) == "the job failed (exit code 9)"


def test_what_cannot_be_sent_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lock = threading.Lock()
    with pytest.raises(hf.errors.ArgumentError, match="inside the function"):
        hf.notebook.run(lambda: lock, ranks=1)
    for words in ({"ranks": 0}, {"ranks": 2.5}, {"ps": -1}, {"ranks": True}):
        with pytest.raises(hf.errors.ArgumentError, match="is not a number of ranks"):
            hf.notebook.run(print, **words)
    with pytest.raises(hf.errors.ArgumentError, match="is not a function"):
        hf.notebook.run(3)
    assert not list(tmp_path.iterdir())


def test_without_cloudpickle_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(hf.errors.MissingPackageError, match=r"hpcflow-mpi\[notebook\]"):
        cloudpickle_module()
