"""Jobs of training.py that are started, killed, and looked at."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hpcflow.checkpoint import checkpoint_directory
from hpcflow.checkpoint.checkpoint_reader import SavedCheckpoint
from tests.chaos.training import BATCH, SAMPLES
from tests.runtime.nets import data

ROOT = Path(__file__).parents[2]
JOB = Path(__file__).with_name("training.py")
END_S = 220.0  # for a job to end, by itself or after one of its ranks was killed
MODES = {
    "sums": ("-n", "2"),
    "all": ("-n", "3", "--ps", "1", "--sync", "all"),
    "async": ("-n", "3", "--ps", "1"),
}


def command(where: Path, *options: str, epochs: int, every: int = 2) -> list[str]:
    """The command line of a job, the same each time it is started."""
    words = [sys.executable, "-m", "hpcflow", "run", *options]
    return [*words, str(JOB), str(where), str(epochs), str(every)]


def environ() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "HPCFLOW_PART_BYTES": "1"}  # all ranks write


def finish(words: Sequence[str], cwd: Path | None = None) -> str:
    """Run a job that is left alone; what it printed."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(words, env=environ(), cwd=cwd, timeout=END_S, **pipes)
    assert done.returncode == 0, done.stdout
    return done.stdout


def killed(words: Sequence[str], draw: random.Random, most_steps: int = 10) -> str:
    """Start a job and kill one of its ranks, or all at once, at a random moment; what it printed.

    Up to so many steps of the chief after it has begun to train, and up to 50 ms later.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    job = subprocess.Popen(words, env=environ(), **pipes)
    text, left = "", draw.randint(1, most_steps)
    for line in job.stdout:
        text += line
        left -= line.startswith(("RANKS", "STEP"))
        if not left:
            (pids,) = re.findall(r"^RANKS (.*)", text, re.MULTILINE)
            victims = [int(pid) for pid in pids.split()]
            time.sleep(draw.random() * 0.05)
            for pid in victims if draw.random() < 0.2 else [draw.choice(victims)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            left = -1
    job.stdout.close()
    code = job.wait(END_S)
    assert code or "ENDED" in text, text
    return text


def good(where: Path) -> list[checkpoint_directory.CheckpointEntry]:
    """The checkpoints of a folder, newest first; all that have a name must be whole."""
    found = checkpoint_directory.find_checkpoints(where)
    for one in found:
        assert one.error is None and SavedCheckpoint(one.path, one.facts).problems() == [], one
    return found


def counted(one: checkpoint_directory.CheckpointEntry) -> set[int]:
    """The updates that a checkpoint has of each variable, and of the counter beside them."""
    saved = SavedCheckpoint(one.path, one.facts)
    names = [n for n in saved.arrays if n.endswith("Adam_step") or n == "global_step"]
    assert len(names) > 1
    return {int(saved.read(name)) for name in names}


def weights(where: Path) -> dict[str, np.ndarray]:
    return dict(np.load(where / "weights.npz"))


def same(mine: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        np.testing.assert_array_equal(value, theirs[name])


def loss_of(found: dict[str, np.ndarray]) -> float:
    """The loss of saved weights on all samples, by NumPy alone."""
    h, labels = data(SAMPLES)
    for k in range(3):
        h = h @ found[f"layer{k}/w"] + found[f"layer{k}/b"]
        h = np.maximum(h, 0) if k < 2 else h
    h -= h.max(axis=1, keepdims=True)
    return float(np.mean(np.log(np.exp(h).sum(axis=1)) - h[np.arange(SAMPLES), labels]))


def steps_of(epochs: int) -> int:
    """The joined batches of so many epochs."""
    return epochs * -(-SAMPLES // BATCH)
