"""Sweeps on this machine: what runs, how often, and what is left when processes are killed."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.comm.threads import until

ROOT = Path(__file__).parents[2]
END_S = 200  # for a command that ends by itself, on a busy machine
# A run without MPI: it writes a line when it begins and one when it ends.
SCRIPT = """
import argparse, os, sys, time
options = argparse.ArgumentParser()
options.add_argument("--run")
options.add_argument("--seconds", type=float, default=0.0)
options.add_argument("--until")  # a file
options = options.parse_args()
name = options.run
def say(word):
    with open("lines.txt", "a") as file:
        file.write(f"{word} {name} {sorted(os.sched_getaffinity(0))}\\n")
say("begin")
while options.until and not os.path.exists(options.until):
    time.sleep(0.02)
time.sleep(options.seconds)
exec(os.environ.get("DO", ""))
say("end")
"""


class Place:
    """A folder with a script, and sweeps of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").write_text(SCRIPT)

    def start(self, *words: str, do: str = "") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "hpcflow", "sweep", *words],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "DO": do},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def sweep(self, *words: str, do: str = "", code: int = 0) -> list[dict[str, Any]]:
        """The runs of the results, after a sweep that ends with `code`."""
        process = self.start(*words, "--json", do=do)
        said, told = process.communicate(timeout=END_S)
        assert process.returncode == code, told
        return list(json.loads(said)["runs"])

    def lines(self) -> Counter[tuple[str, str]]:
        """How often each run has begun and ended."""
        path = self.folder / "lines.txt"
        text = path.read_text() if path.exists() else ""
        return Counter((line.split()[0], line.split()[1]) for line in text.splitlines())

    def wait_for(self, word: str, count: int) -> None:
        until(lambda: sum(n for (what, _), n in self.lines().items() if what == word) >= count)

    def processes(self) -> list[int]:
        """The processes of runs (ledger_run) in this folder."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                where = os.readlink(entry / "cwd")
            except OSError:
                continue
            if b"hpcflow.sweep.ledger_run" in words and where == str(self.folder):
                found.append(int(entry.name))
        return found


def grid(count: int) -> list[str]:
    return [word for n in range(count) for word in ("--grid", f"run={n}")]


def expected(count: int) -> Counter[tuple[str, str]]:
    return Counter({(word, str(n)): 1 for n in range(count) for word in ("begin", "end")})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.slow
def test_one_failed_run_stops_nobody_and_nothing_runs_twice(place: Place) -> None:
    words = ["train.py", *grid(3), "--at-once", "2"]
    runs = place.sweep(*words, do="if name == '1': raise ValueError('too large')", code=1)
    assert [run["state"] for run in runs] == ["done", "failed", "done"]
    assert runs[1]["exit_code"] == 1 and runs[1]["reason"] == "ValueError: too large"
    assert place.lines() == expected(3) - Counter({("end", "1"): 1})
    lines = (place.folder / "lines.txt").read_text().splitlines()
    cores = {line.partition(" [")[2] for line in lines}
    assert len(cores) == 2 or len(os.sched_getaffinity(0)) < 2  # each slot has its own
    again = place.sweep(*words, code=1)
    assert again == runs and place.lines()["begin", "0"] == 1
    retried = place.sweep(*words, "--retry")
    assert [run["state"] for run in retried] == ["done"] * 3
    assert place.lines() == expected(3) + Counter({("begin", "1"): 1})
    table = (place.folder / "sweeps/train/results.csv").read_text().splitlines()
    assert table[0] == "id,state,exit_code,seconds,metric,attempts,run"
    assert [row.split(",")[1] for row in table[1:]] == ["done"] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("do", "limit", "state", "reason"),
    [
        ("time.sleep(60)", "2", "timeout", "more than 2 s"),
        ("raise MemoryError('no room')", "60", "out_of_memory", "MemoryError: no room"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "60", "failed", "exit code 137"),
        ("sys.exit(3)", "60", "failed", "exit code 3"),
    ],
)
def test_a_state_tells_how_a_run_ended(
    place: Place, do: str, limit: str, state: str, reason: str
) -> None:
    do = f"import signal; {do}"
    (run,) = place.sweep("train.py", *grid(1), "--limit", limit, do=do, code=1)
    assert run["state"] == state and reason in run["reason"]
    assert run["attempts"] == 1 and ("end", "0") not in place.lines()


@pytest.mark.slow
def test_a_run_that_saves_and_stops_begins_again_by_itself(place: Place) -> None:
    do = "first = not os.path.exists('mark'); open('mark', 'w'); first and sys.exit(75)"
    (run,) = place.sweep("train.py", *grid(1), do=do)
    assert (run["state"], run["attempts"]) == ("done", 2)
    assert place.lines() == Counter({("begin", "0"): 2, ("end", "0"): 1})


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_runs_and_the_same_command_goes_on(place: Place, number: int) -> None:
    words = ["train.py", *grid(3), "--at-once", "2"]
    first = place.start(*words, "--arg=--seconds=300")
    place.wait_for("begin", 2)
    first.send_signal(number)
    told = first.communicate(timeout=END_S)[1]
    assert first.returncode == 130 and "the same command goes on" in told
    assert place.processes() == []
    data = [json.loads((place.folder / f"sweeps/train/ledger/000{n}/state.json").read_text())
            for n in (0, 1)]  # fmt: skip
    assert [one["state"] for one in data] == ["preempted"] * 2
    assert "they differ in the arguments of the script" in place.start(*words).communicate()[1]
    script = place.folder / "sweeps/train/code/train.py"
    script.write_text(script.read_text().replace("options.seconds", "0"))  # it sleeps no more
    runs = place.sweep("sweeps/train")
    assert [run["state"] for run in runs] == ["done"] * 3
    assert [run["attempts"] for run in runs] == [2, 2, 1]


@pytest.mark.slow
def test_a_signal_while_runs_are_started_stops_them_all(place: Place) -> None:
    command = place.start("train.py", *grid(4), "--at-once", "4", "--arg=--seconds=300")
    until(place.processes)
    command.send_signal(signal.SIGINT)
    command.communicate(timeout=END_S)
    assert command.returncode == 130 and place.processes() == []
    assert not any(word == "end" for word, _ in place.lines())


@pytest.mark.slow
def test_a_second_signal_ends_runs_that_ignore_the_first(place: Place) -> None:
    do = "import signal; signal.signal(signal.SIGTERM, lambda *_: say('heard')); say('deaf')"
    do += "\nfor _ in range(3000): time.sleep(0.1)"
    command = place.start("train.py", *grid(1), do=do)
    place.wait_for("deaf", 1)
    command.send_signal(signal.SIGINT)
    place.wait_for("heard", 1)
    assert command.poll() is None
    command.send_signal(signal.SIGINT)
    command.communicate(timeout=END_S)
    assert command.returncode == 130 and place.processes() == []
    state = json.loads((place.folder / "sweeps/train/ledger/0000/state.json").read_text())
    assert (state["state"], state["exit_code"], state["lost"]) == ("preempted", 137, 0)


@pytest.mark.slow
def test_modules_of_the_current_folder_are_not_imported(place: Place) -> None:
    (place.folder / "code").mkdir()
    (place.folder / "train.py").rename(place.folder / "code" / "train.py")
    (place.folder / "queue.py").write_text("raise RuntimeError('shadow')\n")
    (run,) = place.sweep("code/train.py", *grid(1))
    assert run["state"] == "done"


@pytest.mark.slow
def test_a_dry_run_of_a_sweep_shows_what_is_left(place: Place) -> None:
    place.sweep("train.py", *grid(2))
    shutil.rmtree(place.folder / "sweeps/train/ledger/0001")
    before = place.lines()
    process = place.start("sweeps/train", "--dry-run")
    shown = process.communicate(timeout=END_S)[0]
    assert process.returncode == 0 and shown.count("hpcflow run") == 1 and "--run=1" in shown
    assert place.lines() == before


@pytest.mark.slow
def test_a_command_that_is_killed_again_and_again_runs_each_run_once(place: Place) -> None:
    """Its runs outlive it, and the next command waits for them."""
    count, generator = 12, random.Random(5)
    words = ["train.py", *grid(count), "--at-once", "3", "--arg=--seconds=0.3"]
    for _ in range(8):
        command = place.start(*words)
        time.sleep(generator.uniform(0.2, 2.5))
        command.kill()
        command.communicate()
    runs = place.sweep(*words)
    assert [run["state"] for run in runs] == ["done"] * count
    assert place.lines() == expected(count)


@pytest.mark.slow
def test_runs_whose_processes_are_killed_are_run_again(place: Place) -> None:
    count, generator = 8, random.Random(7)
    words = ["train.py", *grid(count), "--at-once", "3", "--arg=--until=over", "--json"]
    command = place.start(*words)
    for _ in range(6):
        time.sleep(generator.uniform(0.3, 0.8))
        found: list[int] = []
        until(lambda found=found: found.extend(place.processes()) or found)
        os.kill(generator.choice(found), signal.SIGKILL)
    (place.folder / "over").touch()
    runs = json.loads(command.communicate(timeout=END_S)[0])["runs"]
    states = Counter(run["state"] for run in runs)
    assert set(states) <= {"done", "failed"} and states["done"] >= count - 2  # 3 kills of one
    for run in runs:
        if run["state"] == "done":
            assert place.lines()["end", run["values"]["run"]] >= 1
        else:
            assert "3 times" in run["reason"]


@pytest.mark.slow
def test_a_second_command_in_the_same_folder_is_refused(place: Place) -> None:
    words = ["train.py", *grid(2), "--arg=--until=over"]
    first = place.start(*words)
    place.wait_for("begin", 1)
    second = place.start(*words)
    told = second.communicate(timeout=END_S)[1]
    assert second.returncode == 2 and "is in use by another job" in told
    (place.folder / "over").touch()
    first.communicate(timeout=END_S)
    assert first.returncode == 0 and place.lines() == expected(2)


@pytest.mark.slow
def test_editing_the_script_does_not_change_runs_that_have_not_begun(place: Place) -> None:
    words = ["train.py", *grid(3), "--at-once", "1", "--arg=--seconds=1"]
    first = place.start(*words)
    place.wait_for("begin", 1)
    (place.folder / "train.py").write_text("raise SystemExit(9)\n")
    assert first.communicate(timeout=END_S) and first.returncode == 0
    assert place.lines() == expected(3)
    other = place.start(*words)
    told = other.communicate(timeout=END_S)[1]
    assert other.returncode == 2 and "train.py has changed since" in told


@pytest.mark.slow
def test_watch_and_report_show_a_sweep_while_it_runs_and_after(place: Place) -> None:
    def ask(*words: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "hpcflow", *words],
            cwd=place.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=END_S,
            check=True,
        ).stdout

    (place.folder / "train.py").write_text(WATCHED)
    words = ["train.py", *grid(3), "--at-once", "2", "--metric", "loss", "--mode", "max"]
    command = place.start(*words)
    place.wait_for("begin", 2)
    data = json.loads(ask("watch", "sweeps/train", "--once", "--json"))
    assert [run["state"] for run in data["runs"]] == ["running", "running", "pending"]
    assert [run["name"] for run in data["running"]] == ["0000", "0001"]
    (place.folder / "go").touch()
    shown = ask("watch", "sweeps/train")  # until all have ended
    command.communicate(timeout=END_S)
    assert shown.rstrip().endswith("best: 0002, loss 2: run=2\n3 runs: 3 done")
    table = ask("report", "sweeps/train", "--out", "out")
    assert re.search(r"^0002 +2$", table, re.MULTILINE), table
    assert "default_checkpoints" not in table and "--run" in table


WATCHED = """
import os, sys, time
import hpcflow as hf
w = hf.Variable(hf.zeros([1]))
name = sys.argv[1].partition("=")[2]
with hf.train.TrainingSession() as session:
    with open("lines.txt", "a") as file:
        file.write(f"begin {name} []\\n")
    while not os.path.exists("go"):
        time.sleep(0.05)
    session.result(loss=float(name))
"""
HALVING = """
import argparse, json, os, pathlib
options = argparse.ArgumentParser()
options.add_argument("--rate", type=float)
options.add_argument("--epochs", type=int)
options = options.parse_args()
loss = (options.rate - 3) ** 2 + 1 / options.epochs if options.rate != 4 else float("nan")
folder = pathlib.Path(os.environ["HPCFLOW_RUN_DIR"])
(folder / "result.json").write_text(json.dumps({"loss": loss}))
"""


@pytest.mark.slow
def test_successive_halving_gives_the_best_more_and_more(place: Place) -> None:
    (place.folder / "train.py").write_text(HALVING)
    grid_of_rates = [word for rate in range(9) for word in ("--grid", f"rate={rate}")]
    words = ["--search", "halving", "--metric", "loss", "--mode", "min"]
    runs = place.sweep("train.py", *grid_of_rates, *words, "--budget", "epochs=1:9")
    chosen = [(run["group"], run["values"]["rate"], run["values"]["epochs"]) for run in runs]
    assert chosen[:9] == [(0, str(rate), "1") for rate in range(9)]
    assert chosen[9:12] == [(1, "3", "3"), (1, "2", "3"), (1, "1", "3")]  # 4 has no number
    assert chosen[12:] == [(2, "3", "9")]
    assert runs[-1]["metric"] == pytest.approx(1 / 9)
    assert "no finite number" in runs[4]["reason"]
    again = place.sweep("train.py", *grid_of_rates, *words, "--budget", "epochs=1:9")
    assert again == runs
