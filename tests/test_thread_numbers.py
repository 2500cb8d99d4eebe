"""`hpcflow predict --compare` and `--search` with numbers of threads of made profiles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpcflow as hf
from hpcflow.cli import main as cli
from hpcflow.cli.thread_numbers import thread_numbers
from hpcflow.kernels.machine_facts import machine_facts
from hpcflow.platform import cpu_threads
from hpcflow.platform.cpu_threads import CpuCores
from hpcflow.platform.machine_profile import MachineProfile, profile_file
from hpcflow.platform.measured_costs import OperationCost, OperationKey, SampleSummary
from tests.test_predict import run_folder
from tests.test_setting_search import SCRIPT

ROOT = Path(__file__).parents[1]
SIZES = [3**k * 1000 for k in range(14)]
FOUR = CpuCores(4, 4, 4)


def rows(threads: int, seconds: Callable[[int], float]) -> list[OperationCost]:
    found = []
    for type_ in ("MatMul", "Fused: Relu", "Sum"):
        for size in SIZES:
            key = OperationKey(type_, ("float32",), "numpy", threads, "cpu", size, size)
            found.append(OperationCost(key, SampleSummary.of([seconds(size)])))
    return found


def profile(**times: float) -> None:
    """Make the profile of this machine: `t2=0.5` are rows of 2 threads, half as long as with 1."""
    for name, factor in times.items():
        made = rows(int(name[1:]), lambda size, by=factor: by * (1e-6 + size / 2e9))  # type: ignore[misc]
        file = profile_file(machine_facts())
        assert file is not None and file.add(MachineProfile(tuple(made)))


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script; this machine has no profile, and 4 cores."""
    monkeypatch.setenv("HPCFLOW_COST_CACHE", str(tmp_path / "costs"))
    monkeypatch.delenv("HPCFLOW_THREADS", raising=False)
    monkeypatch.setattr(cpu_threads, "find_cores", lambda *_: FOUR)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def predict(script: Path, capsys: pytest.CaptureFixture[str]):
    """A function that predicts the script in this process: its JSON or its text."""

    def run(*words: Any, text: bool = False) -> Any:
        given = ["predict", *([] if text else ["--json"]), "--noise", "0", *words, script, 4, 256]
        with hf.Graph().as_default():
            assert cli.main([str(word) for word in given]) == 0
        told = capsys.readouterr().out
        return told if text else json.loads(told)

    return run


@pytest.mark.slow
def test_threads_that_are_faster_are_chosen_if_the_cores_suffice(predict, script):
    profile(t1=1.0, t2=0.5)
    words = ["--ranks", 2, "--set", "threads=1"]
    data = predict("--search", "--compare", "--cores", 2, *words)
    found = data["search"]
    assert found["best"]["threads"] == 2 and found["given"]["threads"] == 1
    assert found["run"][-5:] == ["--set", "threads=2", str(script), "4", "256"]
    (change,) = [one for one in found["changes"] if one["setting"] == "threads"]
    assert change["saves_seconds"] > 0 and "threads=2 (given 1): saves " in change["reason"]
    (row,) = [one for one in data["comparison"]["values"] if one["setting"] == "threads"]
    assert row["value"] == "2" and not row["equal"]
    # all of a step but the allreduces takes half as long
    assert row["gain"]["median"] == pytest.approx(0.5, abs=0.1)
    again = predict("--cores", 2, "--ranks", 2, "--set", "threads=2")
    assert again["step_seconds"] == row["step_seconds"]
    assert again["plan"] == found["plan"] == data["plan"]
    text = predict("--search", "--cores", 2, *words, text=True)
    assert "  threads=2 (given 1): saves " in text and "run it: hpcflow run -n 2 " in text

    one_each = ["--cores", 2, "--ranks-per-node", 2]
    data = predict("--search", "--compare", *one_each, *words)
    assert data["search"]["best"]["threads"] == 1
    assert not [one for one in data["comparison"]["values"] if one["setting"] == "threads"]
    for left_out in (data["search"]["left_out"], data["comparison"]["left_out"]):
        assert left_out["threads=2"].startswith("2 ranks with 2 threads need 4 cores of the 2 ")


@pytest.mark.slow
def test_threads_that_are_slower_are_not_chosen_and_the_command_keeps_the_number(predict):
    profile(t1=1.0, t2=1.3, t4=2.0)
    data = predict("--search", "--compare", "--ranks", 2)
    found = data["search"]
    assert found["best"]["threads"] == 1  # a prediction without --cores is of one thread
    assert found["run"][4:6] == ["--set", "threads=1"]  # a run would take all cores
    values = {one["value"]: one for one in data["comparison"]["values"]
              if one["setting"] == "threads"}  # fmt: skip
    assert values.keys() == {"2", "4"}  # the cores are those of this machine
    assert values["4"]["gain"]["median"] < values["2"]["gain"]["median"] < 0
    given = predict("--search", "--ranks", 2, "--set", "threads=4")["search"]
    assert given["given"]["threads"] == 4 and given["best"]["threads"] == 1


@pytest.mark.slow
def test_threads_are_chosen_together_with_other_settings(predict, script):
    """One bucket of all gradients is summed behind all work, which takes the rest of a step."""
    profile(t1=1.0, t4=0.25)
    slow = ["--latency", "1us", "--bandwidth", "1GB/s", "--set", "bucket_bytes=20000000"]
    found = predict("--search", "--ranks", 4, *slow)["search"]
    changed = {one["setting"] for one in found["changes"]}
    assert "threads" in changed and changed & {"bucket_bytes", "overlap"}
    runs = len((script.parent / "train.py.runs").read_text())
    assert runs == found["script_runs"] < found["predicted"]  # threads need no run of the script


@pytest.mark.slow
def test_numbers_without_rows_are_named_with_the_command_that_measures_them(predict):
    command = "`hpcflow costs --calibrate --threads"
    data = predict("--search", "--compare", "--ranks", 2)
    for name in ("search", "comparison"):  # no profile
        assert f"{command} 1,2,4`" in data[name]["left_out"]["threads=2,4"]
    profile(t1=1.0)
    text = predict("--compare", "--ranks", 2, text=True)
    (line,) = [line for line in text.splitlines() if line.startswith("not compared: threads")]
    assert line.startswith("not compared: threads=2,4: ") and f"{command} 1,2,4`" in line
    assert "--set" not in " ".join(predict("--search", "--ranks", 2)["search"]["run"])
    profile(t2=0.5)
    left_out = predict("--search", "--ranks", 2)["search"]["left_out"]
    assert f"{command} 1,4`" in left_out["threads=4"]


@pytest.mark.parametrize(
    ("given", "ranks", "cores", "here", "left_out"),
    [
        (1, 1, None, CpuCores(8, 8, 8, siblings=2), {"threads=4": "`hpcflow costs"}),
        (1, 1, 16, CpuCores(4, 4, 4), {"threads=4": "--threads 1,4`"}),  # as many as it has
        (1, 4, 6, CpuCores(6, 6, 6), {"threads=2": "4 ranks with 2 threads need 8 cores"}),
        (1, 8, 4, CpuCores(4, 4, 4), {"threads=2": "8 ranks with 2 threads need 16 cores"}),
        (3, 1, 3, CpuCores(4, 4, 4), {"threads=1,2": "--threads 1,2,3`"}),
        (1, 2, 12, CpuCores(1, 1, 1), {}),
        (64, 1, 64, CpuCores(4, 4, 4), {"threads": "measures with at most 4 threads"}),
    ],
)
def test_which_numbers_fit_the_cores_of_a_node(given, ranks, cores, here, left_out):
    """Rows are of 1 and 2 threads."""
    known = [*rows(1, lambda size: 1.0), *rows(2, lambda size: 0.5)]
    found = thread_numbers(known, given, ranks, cores, here)
    most = (cores or here.node // here.siblings) // ranks
    assert found.given == given
    assert found.others == tuple(n for n in (2,) if n <= most and given == 1)
    assert found.left_out.keys() == left_out.keys()
    assert all(text in found.left_out[name] for name, text in left_out.items())


def test_a_node_without_cores_for_more_threads_is_named():
    found = thread_numbers([], 1, 4, 4, FOUR)
    assert found.others == () and "4 cores for 4 ranks" in found.left_out["threads"]


@pytest.mark.slow
def test_threads_of_a_run_or_of_a_topology_are_left_out_with_the_reason(predict, script, capsys):
    profile(t1=1.0, t2=0.5)
    words = ["hpcflow", "run", str(script), "--", "4", "64"]
    manifest = {"script": str(script), "command": words, "nodes": {"n0": [0, 1]}}
    folder = run_folder(script.parent / "run", manifest=manifest)
    assert cli.main(["predict", "--json", "--compare", "--search", str(folder)]) == 0
    data = json.loads(capsys.readouterr().out)
    for name in ("search", "comparison"):
        assert "predict its script" in data[name]["left_out"]["threads"]
    assert not any("threads=" in word for word in data["search"]["run"])
    racks = [{"nodes": [{"count": 2, "bytes_per_s": 1e9}]}]
    file = script.parent / "topology.json"
    file.write_text(json.dumps({"format": "hpcflow-topology-1", "racks": racks}))
    data = predict("--compare", "--search", "--topology", file)
    for name in ("search", "comparison"):
        assert "does not say how many cores" in data[name]["left_out"]["threads"]


def scaled(seconds: dict[str, Any], factor: float) -> dict[str, Any]:
    """The JSON of a summary of times that are `factor` as long."""
    changed = {"mean": factor * seconds["mean"], "variance": factor**2 * seconds["variance"]}
    return {**seconds, **changed, "points": [[factor * x, n] for x, n in seconds["points"]]}


@pytest.mark.slow
def test_a_calibration_of_several_threads_is_what_a_search_predicts_by(script):
    """Through the command line: calibrate, show, change the times of 2 threads, search."""
    if (most := len(os.sched_getaffinity(0))) < 2:
        pytest.skip(f"{most} CPU has one number of threads")

    def hpcflow(*words: Any) -> str:
        command = [sys.executable, "-m", "hpcflow", *map(str, words)]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return done.stdout

    shown = hpcflow("costs", "--calibrate", "--threads", "1,2", "--seconds", 6)
    lines = shown[shown.index("threads of a rank") :].splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["1", "2"]
    (file,) = (script.parent / "costs").glob("*.json")
    data = json.loads(file.read_text())
    ones = [row for row in data["operations"] if row["threads"] == 1]
    words = ["--search", "--json", "--noise", 0, "--ranks", 2, "--cores", 2]
    words += ["--set", "threads=1", script, 4, 256]
    for factor, best in ((0.5, 2), (2.0, 1)):
        twos = [{**row, "threads": 2, "seconds": scaled(row["seconds"], factor)} for row in ones]
        file.write_text(json.dumps({**data, "operations": [*ones, *twos]}))
        found = json.loads(hpcflow("predict", *words))["search"]
        assert found["best"]["threads"] == best
        at = found["run"].index(f"threads={best}")
        assert found["run"][at - 1] == "--set"
