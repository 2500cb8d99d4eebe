"""The examples, run as users run them: what they claim about ranks, samples and accuracy."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests import light
from tests.light.sklearn import datasets

ROOT = Path(__file__).parent.parent
TRAINED_ON, HELD_OUT = 1437, 360
# mode -> (ranks, options, seeds): how far seeds lie apart is seen on one rank
MODES = {
    "single": (0, [], 3),  # no launcher
    "collective": (4, [], 1),
    "ps": (4, ["--ps", "1"], 1),
}


def run(script: str, folder: Path, ranks: int, *options: str) -> tuple[dict[str, Any], str]:
    """What `result.json` says, and what was printed."""
    start = ["-m", "hpcflow", "run", "-n", str(ranks), "--run-dir", str(folder)] if ranks else []
    first = light.path() if ranks else str(ROOT)
    path = os.pathsep.join([first, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environ = {**os.environ, "PYTHONPATH": path, "HPCFLOW_RUN_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, *start, str(ROOT / "examples" / script), *options],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "result.json").read_text()), done.stdout


def check_counts(result: dict[str, Any], epochs: int, folder: Path) -> None:
    """Updates are those of the mode, and every sample was drawn once an epoch by one worker."""
    steps, counts = result["steps"], set(result["updates"].values())
    assert counts == {sum(steps) if result["mode"] == "ps" else steps[0]}
    assert len(set(steps)) == 1 or result["mode"] == "ps"
    drawn = [np.load(folder / f"indices-{w}.npy") for w in range(result["replicas"])]
    assert [len(d) for d in drawn] == result["samples"]
    together = np.bincount(np.concatenate(drawn), minlength=TRAINED_ON)
    assert together.tolist() == [epochs] * TRAINED_ON


def test_jobs_of_several_ranks_read_the_digits_of_scikit_learn() -> None:
    ours, theirs = datasets.load_digits(), load_digits()
    for name in ("data", "target", "images"):
        mine, right = getattr(ours, name), getattr(theirs, name)
        assert mine.dtype == right.dtype
        np.testing.assert_array_equal(mine, right)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_digits_is_learned_in_every_mode(mode: str, tmp_path: Path) -> None:
    ranks, options, seeds = MODES[mode]
    scores, first = [], set()
    for seed in range(seeds):
        folder = tmp_path / str(seed)
        folder.mkdir()
        result, text = run(
            "digits.py", folder, ranks, *options, "--seed", str(seed), "--record-samples"
        )
        assert result["mode"] == mode and f"{mode} mode: held-out accuracy" in text
        check_counts(result, 30, folder)
        assert (min(result["bytes_sent"]) > 0) == (mode != "single")
        scores.append(result["accuracy"])
        first.add(tuple(np.load(folder / "indices-0.npy")[:20]))
    assert np.mean(scores) >= (0.965 if seeds > 1 else 0.95), scores
    assert len(first) == seeds, "each draws its samples in an order of its own"


@pytest.mark.slow
def test_weak_scaling_and_a_plain_start(tmp_path: Path) -> None:
    """`python examples/digits.py` needs no launcher; the batch may be given per rank."""
    result, text = run("digits.py", tmp_path, 0, "--batch-per-rank", "500", "--epochs", "2")
    assert result["mode"] == "single" and result["steps"] == [6]
    assert "mpi4py" not in result["versions"]  # login nodes forbid MPI
    assert "a batch of 500 is 500 for one worker" in text
    result, text = run("digits.py", tmp_path, 3, "--batch-per-rank", "500", "--epochs", "2")
    assert result["mode"] == "collective" and result["steps"] == [2, 2, 2]
    assert "a batch of 1,437 is 479 for each of 3 workers" in text


@pytest.mark.slow(first=False)
@pytest.mark.parametrize("ranks", [3, 6])
def test_a_network_cut_over_three_ranks_learns(ranks: int, tmp_path: Path) -> None:
    result, _ = run("model_parallel.py", tmp_path, ranks, "--tasks-per-replica", "3")
    assert result["replicas"] == ranks // 3 and result["accuracy"] > 0.965
    assert set(result["updates"].values()) == {result["steps"][0]}


@pytest.mark.slow(first=False)
@pytest.mark.parametrize("options", [["3"], ["4", "--ps", "1"]], ids=["driver", "server"])
def test_towers_of_one_graph_learn(options: list[str], tmp_path: Path) -> None:
    ranks, *more = options
    result, text = run(
        "in_graph.py", tmp_path, int(ranks), *more, "--tasks-per-replica", "3", "--epochs", "10"
    )
    assert result["replicas"] == 1 and result["accuracy"] > 0.955
    assert set(result["updates"].values()) == {result["steps"][0]}
    assert "3 towers: held-out accuracy" in text


@pytest.mark.slow(first=False)
@pytest.mark.parametrize("ranks", [3, 6])
def test_stages_with_steps_in_flight_learn(ranks: int, tmp_path: Path) -> None:
    result, _ = run("stages.py", tmp_path, ranks, "--tasks-per-replica", "3", "--epochs", "6")
    assert result["replicas"] == ranks // 3 and result["accuracy"] > 0.95
    assert set(result["updates"].values()) == {result["steps"][0]}


@pytest.mark.slow(first=False)
@pytest.mark.parametrize("ranks", [0, 2])
def test_four_subgraphs_at_once(ranks: int, tmp_path: Path) -> None:
    """The paper's Figure 2, on one rank and with the parameters on a server."""
    start = ["-m", "hpcflow", "run", "-n", str(ranks), "--ps", "1"] if ranks else []
    path = light.path() if ranks else str(ROOT)
    done = subprocess.run(
        [sys.executable, *start, str(ROOT / "examples" / "pipeline.py"), "--epochs", "12"],
        env={**os.environ, "PYTHONPATH": path, "HPCFLOW_RUN_DIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.search(r"(\d+) steps, (\d+) checkpoints kept, held-out accuracy (\S+)", done.stdout)
    assert told is not None, done.stdout
    steps, kept, accuracy = int(told[1]), int(told[2]), float(told[3])
    assert steps == -(-12 * TRAINED_ON // 64) and kept >= 1 and accuracy > 0.94


NEED_DIGITS = sorted(
    path.relative_to(ROOT / "examples")
    for path in (ROOT / "examples").rglob("*.py")
    if "sklearn" in path.read_text()
)


@pytest.mark.parametrize("script", NEED_DIGITS, ids=str)
def test_an_example_without_scikit_learn_says_what_to_install(script: Path, tmp_path: Path) -> None:
    (tmp_path / "sklearn").mkdir()
    (tmp_path / "sklearn" / "__init__.py").write_text("raise ModuleNotFoundError('no sklearn')\n")
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    words = [sys.executable, str(ROOT / "examples" / script)]
    words += ["--data", "x.h5"] if script.stem == "hdf5_job" else []
    words += ["--seeds", "0"] if script.parent.name == "learn" else []
    done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode != 0
    assert "needs scikit-learn" in done.stderr
    assert "next  pip install scikit-learn" in done.stderr


def test_all_examples_that_need_scikit_learn_are_tried() -> None:
    assert {path.stem for path in NEED_DIGITS} >= {"digits", "in_graph", "stages", "dense"}
