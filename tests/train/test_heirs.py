"""`hpcflow run --survive` with servers: the living train the samples of those that have died."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAMPLES, BATCH, EPOCHS = 50, 12, 3
SCRIPT = f"""
    import json, os, signal, sys, time
    import numpy as np
    import hpcflow as hf

    # rank -> (after how many steps it dies, seconds between its steps)
    victims = {{int(r): (int(n), float(s)) for r, n, s in (w.split(":") for w in sys.argv[1:])}}
    kind, where = os.environ["KIND"], os.environ["WHERE"]
    numbers = hf.placeholder(hf.int64, [None])
    used = hf.Variable(np.zeros({SAMPLES}, np.float32), name="used")
    last, pause = victims.get(int(os.environ["OMPI_COMM_WORLD_RANK"]), (-1, 0.0))

    def falls(values):
        if where == "inside" and session.steps == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return values

    rows = hf.gather(used, numbers)
    factor = hf.py_func(falls, [hf.stop_gradient(hf.ones_like(rows))], hf.float32)
    factor.set_shape([None])
    factor = hf.stop_gradient(factor)
    train = hf.train.GradientDescentOptimizer(1.0).minimize(-hf.reduce_sum(rows * factor))
    if kind == "stream":
        samples = np.arange({SAMPLES})
        data = hf.data.Stream(numbers, lambda epoch: iter(np.roll(samples, epoch)), {BATCH})
    else:
        data = hf.data.Dataset({{numbers: np.arange({SAMPLES})}}, {BATCH}, seed=3)
    file = os.open("trained", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with hf.train.TrainingSession(checkpoints="saved", save_every=8, resume=True) as session:
        rank = f"{{session.context.rank}} of {{session.context.size}}"
        rounds = [[e] for e in range({EPOCHS})] if kind == "epochs" else [range({EPOCHS})]
        for some in rounds:
            for batch in data.epochs(len(some), some[0]):
                told = [rank, batch.epoch, batch.step, batch.indices.tolist()]
                os.write(file, ("begun " + json.dumps(told) + "\\n").encode())
                time.sleep(pause)
                session.step(train, batch)
                os.write(file, ("ended " + json.dumps(told) + "\\n").encode())
                if where == "between" and session.steps == last:
                    os.kill(os.getpid(), signal.SIGKILL)
        session.wait()
        result = session.result()
        if session.is_chief:
            counts = np.rint(session.run(used)).astype(int).tolist()
            lost = [one["rank"] for one in result["lost"]]
            open("found", "w").write(json.dumps([lost, counts]))
"""
pytestmark = pytest.mark.skipif("mpich" in sys.prefix, reason="needs Open MPI 5")


def run(
    folder: Path,
    sync: str,
    *victims: str,
    kind: str = "epochs",
    where: str = "between",
    ranks: int = 6,
    stop_at: int = 0,
) -> str:
    (folder / "script.py").write_text(textwrap.dedent(SCRIPT))
    words = ["-n", str(ranks), "--ps", "2", "--survive", "--sync", sync]
    words += ["--set", f"stop_at={stop_at}", "script.py", *victims]
    done = subprocess.run(
        [sys.executable, "-m", "hpcflow", "run", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "KIND": kind, "WHERE": where},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=220,
    )
    assert done.returncode == (75 if stop_at else 0), done.stdout
    return done.stdout


def check(folder: Path, output: str, dead: list[int], exact: bool = True, ranks: int = 6) -> None:
    """Every sample was trained once an epoch, the last batch of each of the `dead` perhaps twice.

    `exact`: the servers have counted how often each sample was used, as each gradient is applied.
    """
    lost, counts = json.loads((folder / "found").read_text())
    assert sorted(lost) == (dead if ranks == 6 else []), output
    lines = [line.split(" ", 1) for line in (folder / "trained").read_text().splitlines()]
    told = [(what, json.loads(text)) for what, text in lines]
    names = [f"{rank} of 6" for rank in dead]
    last = {rank: (epoch, set(indices)) for _, (rank, epoch, _, indices) in told if rank in names}
    ended = collections.Counter(
        (epoch, one) for what, (_, epoch, _, some) in told if what == "ended" for one in some
    )
    doubtful = {(epoch, one) for epoch, some in last.values() for one in some}
    for epoch in range(EPOCHS):
        for one in range(SAMPLES):
            times = ended[epoch, one]
            assert times in ((1, 2) if (epoch, one) in doubtful else (1,)), (epoch, one, output)
    unsure = collections.Counter(one for _, one in doubtful)
    for one, count in enumerate(counts) if exact else ():
        assert EPOCHS <= count <= EPOCHS + unsure[one], (one, output)


@pytest.mark.slow
def test_what_a_quick_worker_leaves_is_trained(tmp_path):
    """It dies between steps, while the others go on."""
    output = run(tmp_path, "async", "1:2:0")
    check(tmp_path, output, [1])


@pytest.mark.slow
def test_two_die_in_steps_when_the_others_have_no_batches_left(tmp_path):
    """One after the other; the second while it trains what the first has left, or before."""
    output = run(tmp_path, "async", "2:1:0.6", "3:4:0.3", kind="whole", where="inside")
    check(tmp_path, output, [2, 3])


@pytest.mark.slow
def test_bounded_staleness_over_a_stream(tmp_path):
    output = run(tmp_path, "stale:1", "3:3:0.1", kind="stream")
    check(tmp_path, output, [3])


@pytest.mark.slow
def test_backup_workers(tmp_path):
    """Late gradients are dropped; of each sample one was made."""
    output = run(tmp_path, "backup:1", "1:3:0.1")
    check(tmp_path, output, [1], exact=False)


@pytest.mark.slow
def test_updates_by_all_who_live(tmp_path):
    """In its step, for whose update the others wait; saves before the same number of steps."""
    output = run(tmp_path, "all", "2:5:0.1", kind="epochs", where="inside")
    check(tmp_path, output, [2], exact=False)


@pytest.mark.slow
def test_a_checkpoint_knows_what_is_left(tmp_path):
    """Stopped after the death; three workers go on where three of four had come."""
    run(tmp_path, "async", "1:2:0", "0:99:0.3", kind="whole", stop_at=14)
    output = run(tmp_path, "async", kind="whole", ranks=5)
    assert "resumed step=" in output
    check(tmp_path, output, [1], ranks=5)
