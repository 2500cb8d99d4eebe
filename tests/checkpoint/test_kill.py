"""Real jobs that are killed in a save, or stopped, and go on as if they had not been.

Those killed at random moments of training: tests/chaos.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from hpcflow.checkpoint import checkpoint_directory
from hpcflow.checkpoint.checkpoint_reader import SavedCheckpoint
from tests import light

ROOT = Path(__file__).parents[2]
SCRIPT = """
    import os, signal, sys, time
    import numpy as np
    import hpcflow as hf
    from tests.runtime.nets import data, net

    where, epochs, die_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    calls = 0

    def counted(name):
        before = getattr(os, name)

        def call(*args, **kwargs):
            global calls
            calls += 1
            if calls == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return before(*args, **kwargs)

        setattr(os, name, call)

    features, labels = data(96)
    x, y, loss, train, variables = net()
    dataset = hf.data.Dataset({x: features, y: labels}, batch=8, seed=1)
    session = hf.train.TrainingSession(
        checkpoints=where, save_every=int(sys.argv[4]), resume=True, max_to_keep=3
    )
    if die_at:
        for name in ("fsync", "pwrite", "rename", "replace", "mkdir", "unlink", "open"):
            counted(name)
    with session:
        for batch in dataset.epochs(epochs):
            session.step([train, loss], batch)
            if session.steps == 12 and os.environ.get("SIGNALLED") == str(session.worker):
                os.kill(os.getpid(), signal.SIGUSR1)
        session.wait()
        if session.is_chief:
            every = session.graph.get_collection("variables")
            np.savez(f"{where}/weights.npz", **{v.name: session.run(v) for v in every})
            print("CALLS", calls)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


def command(script, where, *options, epochs=2, die_at=0, every=1):
    alone = not options
    words = [sys.executable] if alone else [sys.executable, "-m", "hpcflow", "run", *options]
    return [*words, str(script), str(where), str(epochs), str(die_at), str(every)]


def environ():
    return {**os.environ, "PYTHONPATH": str(ROOT), "HPCFLOW_PART_BYTES": "1"}  # all ranks write


def run(words, folder, **more):
    return subprocess.run(
        words, cwd=folder, env={**environ(), **more}, capture_output=True, text=True, timeout=220
    )


def finish(words, folder, **more):
    done = run(words, folder, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def weights(where):
    return dict(np.load(where / "weights.npz"))


def same(mine, theirs):
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        np.testing.assert_array_equal(value, theirs[name])


@pytest.mark.chaos
def test_killed_at_any_call_of_a_save_the_job_resumes_to_the_same_weights(tmp_path, script):
    """SIGKILL at each call that changes the disk, of a save that replaces none and of one later."""
    whole = tmp_path / "whole"
    text = finish(command(script, whole, epochs=1, die_at=10**9, every=3), tmp_path)
    calls = int(re.search(r"CALLS (\d+)", text).group(1))  # of four saves
    assert calls > 60
    draw = random.Random(1)
    for die_at in sorted({1, 2, *draw.sample(range(3, calls), 9), calls}):
        where = tmp_path / f"die-{die_at}"
        words = command(script, where, epochs=1, die_at=die_at, every=3)
        done = subprocess.run(words, cwd=tmp_path, env=environ(), capture_output=True, timeout=220)
        assert done.returncode == -signal.SIGKILL
        for one in checkpoint_directory.find_checkpoints(where):  # what has a name is whole
            assert SavedCheckpoint(one.path, one.facts).problems() == []
        finish(command(script, where, epochs=1, every=3), tmp_path)
        same(weights(where), weights(whole))
        assert not list(where.glob("*.tmp"))
        assert (where / "latest").read_text() == checkpoint_directory.find_checkpoints(where)[
            0
        ].path.name + "\n"


@pytest.mark.slow
@pytest.mark.parametrize("options", [("-n", "3"), ("-n", "2", "--ps", "1")], ids=["sums", "server"])
def test_a_signal_to_one_rank_saves_and_the_job_resumes_bit_equal(tmp_path, script, options):
    whole, where = tmp_path / "whole", tmp_path / "stopped"
    finish(command(script, whole, *options, epochs=40, every=10**6), tmp_path)
    words = command(script, where, *options, epochs=40, every=10**6)
    done = run(words, tmp_path, SIGNALLED="1" if "3" in options else "0")
    assert "stopped before step" in done.stderr, done.stderr
    assert len(checkpoint_directory.find_checkpoints(where)) == 1
    text = finish(words, tmp_path)
    assert "resumed step=" in text
    same(weights(where), weights(whole))


@pytest.mark.slow
def test_the_example_goes_from_servers_to_sums_and_back(tmp_path):
    """Three workers and a server, then four synchronous ranks, then servers again."""
    where = tmp_path / "checkpoints"
    drawn = []
    for epochs, options in (
        (3, ("-n", "4", "--ps", "1")),
        (5, ("-n", "4")),
        (6, ("-n", "4", "--ps", "2")),
    ):
        out = tmp_path / f"run-{epochs}"
        words = [sys.executable, "-m", "hpcflow", "run", *options, "--run-dir", str(out)]
        words += [str(ROOT / "examples/digits.py"), "--epochs", str(epochs), "--record-samples"]
        words += ["--checkpoints", str(where), "--resume", "--save-every", "25"]
        text = finish(words, tmp_path, PYTHONPATH=light.path())
        if epochs > 3:
            assert re.search(r"^resumed step=\d+ samples=\d+$", text, re.M), text
        drawn += [np.load(file) for file in sorted(out.glob("indices-*.npy"))]
        score = json.loads((out / "result.json").read_text())["accuracy"]
        assert score > 0.85, text
    assert score > 0.94
    assert np.bincount(np.concatenate(drawn)).tolist() == [6] * 1437


@pytest.mark.slow
def test_inspect_tells_what_is_in_the_newest_good_checkpoint(tmp_path, script):
    finish(command(script, tmp_path / "c", epochs=1, every=5), tmp_path)
    words = [sys.executable, "-m", "hpcflow", "inspect", str(tmp_path / "c")]
    text = finish(words, tmp_path)
    assert re.search(r"step-12(\.h5)?: step 12, 96 samples", text)
    assert "digests  ok" in text
    assert re.search(r"layer0/w\s+float32\s+\[6, 8\]\s+192", text)
    told = json.loads(finish([*words, "--json"], tmp_path))
    assert (told["step"], told["samples"], told["mode"]) == (12, 96, "single")
    assert told["variables"]["layer0/w"] == {"shape": [6, 8], "dtype": "float32", "bytes": 192}
    part = Path(told["checkpoint"])
    part = part / "part-00000.h5" if part.is_dir() else part
    part.write_bytes(part.read_bytes()[:-1])
    done = subprocess.run(words, env=environ(), capture_output=True, text=True)
    assert done.returncode == 1
    assert re.search(r"step-10(\.h5)?: step 10", done.stdout)
    assert re.search(r"DAMAGED .*" + re.escape(str(part)), done.stdout)
    done = subprocess.run(
        [*words[:-1], str(tmp_path)], env=environ(), capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "no checkpoint in" in done.stderr
