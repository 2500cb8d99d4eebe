"""`hpcflow prove-resume` on scripts that go on as if nothing had been, and on some that do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hpcflow as hf
from hpcflow.checkpoint.checkpoint_reader import SavedCheckpoint
from hpcflow.checkpoint.compare_checkpoints import CheckpointDifference
from hpcflow.cli.prove_resume import differences, reasons, rows
from tests.runtime.ranks import run_ranks

ROOT = Path(__file__).parent.parent
SCRIPT = """
import sys
import hpcflow as hf
import numpy as np
kind, epochs = sys.argv[1], int(sys.argv[2])
random = np.random.default_rng(None if kind == "unseeded" else 3)
x = hf.placeholder(hf.float32, [None, 4], name="x")
rate = hf.placeholder(hf.float32, [], name="rate")
w = hf.Variable(hf.random_normal([4, 2], seed=1), name="w")
noise = hf.random_normal([4, 2], stddev=0.01)
loss = hf.reduce_mean(hf.square(hf.matmul(x, w + noise)))
train = hf.train.AdamOptimizer(rate).minimize(loss)
samples = np.random.default_rng(5).normal(size=(40, 4)).astype("float32")
data = hf.data.Dataset({x: samples}, batch=8, seed=5)
with hf.train.TrainingSession() as sess:
    for step, batch in enumerate(data.epochs(epochs)):
        value = {"seeded": 0.01, "unseeded": random.random(), "counted": 0.1 / (1 + step)}
        sess.step(train, batch | {rate: value[kind]})
"""


def prove(folder: Path, *words: str, script: str = SCRIPT) -> tuple[int, str, str]:
    """The exit code, and what it prints."""
    (folder / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-m", "hpcflow", "prove-resume", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=220,
    )
    return done.returncode, done.stdout, done.stderr


def left(folder: Path) -> list[Path]:
    return list(folder.glob("prove-resume-*"))


@pytest.mark.slow
def test_two_ranks_that_are_stopped_end_with_the_same_bits(tmp_path: Path) -> None:
    code, out, err = prove(tmp_path, "-n", "2", "--steps", "7", "script.py", "seeded", "100")
    assert code == 0, out + err
    assert "rank 1 gets SIGTERM before its step 8" in out
    assert "bit-equal" in out and "NOT" not in out and "1 dataset" in out
    assert left(tmp_path) == []


@pytest.mark.slow(first=False)
@pytest.mark.parametrize(
    ("kind", "says"),
    [("counted", "state outside the graph"), ("unseeded", "resuming is not the cause")],
)
def test_what_differs_is_named_and_why(kind: str, says: str, tmp_path: Path) -> None:
    code, out, err = prove(tmp_path, "--steps", "4", "script.py", kind, "9")
    assert code == 1, out + err
    assert "NOT bit-equal" in out and says in out
    assert "values    w: 8 of 8 differ, by up to" in out
    assert str(left(tmp_path)[0]) in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "script", "says"),
    [
        (
            ("--steps", "40", "script.py", "seeded", "1"),
            SCRIPT,
            "ended at step 5, before all ranks knew",
        ),
        (("script.py",), "raise SystemExit(4)", "failed with exit code 4"),
        (("script.py",), "print('done')", "saved no checkpoint"),
        (("-n", "1", "--ps", "1", "script.py"), SCRIPT, "no worker"),
        (("--steps", "0", "script.py"), SCRIPT, "--steps 0"),
    ],
)
def test_what_says_nothing_is_told(
    words: tuple[str, ...], script: str, says: str, tmp_path: Path
) -> None:
    code, out, err = prove(tmp_path, *words, script=script)
    assert code == 2 and says in err, out + err


def saved(folder: Path, value: list[float], **more: Any) -> SavedCheckpoint:
    """A checkpoint of one variable."""

    def body(context: Any) -> Path:
        shape = [len(value)]
        v, x = hf.Variable(hf.zeros(shape), name="v"), hf.placeholder(hf.float32, shape)
        set_it = hf.assign(v, x)
        session = hf.Session(context=context)
        session.run(v.initializer)
        session.run(set_it, {x: value})
        return Path(hf.train.Saver([v]).save(session, folder, 1))

    found = SavedCheckpoint(run_ranks(1, body)[0])
    found.facts.update(more)
    return found


def test_equal_numbers_of_other_bits_differ(tmp_path: Path) -> None:
    zero, minus = saved(tmp_path / "a", [0.0, 1.0]), saved(tmp_path / "b", [-0.0, 1.0])
    assert differences(zero, saved(tmp_path / "c", [0.0, 1.0])) == []
    (one,) = differences(zero, minus)
    assert one.name == "v" and "different bits" in one.text


def test_draws_that_differ_between_ranks_alone_differ(tmp_path: Path) -> None:
    a, b = saved(tmp_path / "a", [1.0]), saved(tmp_path / "b", [1.0])
    b.facts["draws"] = {**a.facts["draws"], "tasks": {"/job:worker/task:1": []}}
    assert [one.name for one in differences(a, b)] == ["draws"]


def test_reasons(tmp_path: Path) -> None:
    value = CheckpointDifference("w", "values", "1 of 2 differ")
    place = CheckpointDifference("dataset 0", "position", "epoch 1 and 2")
    server = saved(tmp_path / "a", [1.0], sync="async", position=[{}])
    (said,) = reasons(server, [value], [value])
    assert "sync=async" in said and "--sync all" in said
    other = saved(tmp_path / "b", [1.0], position=[{}])
    assert "order of the data" in reasons(other, [value, place], [])[0]
    assert (
        "unchanged batches of hf.data" in reasons(other, [value], [])[0]
    )  # none of its samples counted
    other.facts["position"] = []
    assert "feeds its own" in reasons(other, [value], [])[0]


def test_the_first_that_differ_are_shown() -> None:
    found = [CheckpointDifference(f"v{i}", "values", "1 of 2 differ") for i in range(8)]
    assert len(rows(found)) == 6 and rows(found)[-1] == "  ... 3 more"
