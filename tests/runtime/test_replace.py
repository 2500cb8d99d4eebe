"""A job that has lost a worker comes back with all of them, and trains every sample once."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from hpcflow.data.global_batch_sharding import shard_epoch

ROOT = Path(__file__).parents[2]
SAMPLES, BATCH, EPOCHS = 90, 12, 3
SCRIPT = f"""
    import json, os, signal, sys, time
    import numpy as np
    import hpcflow as hf

    dies, stops = (int(word) for word in sys.argv[1:])  # before these steps of this start
    data = np.random.default_rng(1).normal(size=({SAMPLES}, 20)).astype(np.float32)
    true = np.arange(20, dtype=np.float32) / 20
    x = hf.placeholder(hf.float32, [None, 20])
    y = hf.placeholder(hf.float32, [None])
    w = hf.Variable(np.zeros((20, 1), np.float32), name="w")
    count = hf.train.get_or_create_global_step()
    loss = hf.reduce_mean(hf.square(hf.reduce_sum(hf.matmul(x, w), 1) - y))
    train = hf.train.MomentumOptimizer(0.05, 0.5).minimize(loss, global_step=count)
    dataset = hf.data.Dataset({{x: data, y: data @ true}}, {BATCH}, seed=3)
    with hf.train.TrainingSession(checkpoints="saved", save_every=1000, resume=True) as session:
        rank = session.context.rank
        for batch in dataset.epochs({EPOCHS}):
            if (rank, session.steps) == (1, dies):
                os.kill(os.getpid(), signal.SIGKILL)
            if (rank, session.steps) == (2, stops):
                os.kill(os.getpid(), signal.SIGTERM)
            session.step(train, batch)
            with open(f"trained-{{rank}}.txt", "a") as file:
                print(json.dumps([batch.epoch, batch.indices.tolist()]), file=file)
            time.sleep(0.02)  # all look for a wish to stop before each step
        session.wait()
        values = session.run([w, count])
    if rank == 0:
        print("ENDED", session.context.roles.replicas)
        np.save("w.npy", values[0][:, 0])
"""
pytestmark = pytest.mark.skipif("mpich" in sys.prefix, reason="needs Open MPI 5")


def start(
    folder: Path, *words: str, ranks: int = 3, dies: int = -1, stops: int = -1
) -> tuple[int, str]:
    (folder / "script.py").write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, "-m", "hpcflow", "run", "-n", str(ranks), "--survive", *words]
    done = subprocess.run(
        [*command, "script.py", str(dies), str(stops)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
    )
    return done.returncode, done.stdout


def trained(folder: Path) -> collections.Counter[tuple[int, int]]:
    """How often each (epoch, sample) was trained, over all starts."""
    lines = [line for file in folder.glob("trained-*") for line in file.read_text().splitlines()]
    rows = [json.loads(line) for line in lines]
    return collections.Counter((epoch, i) for epoch, indices in rows for i in indices)


def check_each_sample_was_trained_once_an_epoch(folder: Path) -> None:
    assert trained(folder) == dict.fromkeys(np.ndindex(EPOCHS, SAMPLES), 1)


def check_it_trained_as_one_process(folder: Path) -> None:
    """Momentum by NumPy on the joined batches, in the order of the dealer."""
    data = np.random.default_rng(1).normal(size=(SAMPLES, 20)).astype(np.float32)
    target = data @ (np.arange(20, dtype=np.float32) / 20)
    w, slot = np.zeros(20), np.zeros(20)
    for epoch in range(EPOCHS):
        for share in shard_epoch(SAMPLES, BATCH, 3, epoch, 1, 0):
            rows = data[share.indices]
            gradient = 2 * rows.T @ (rows @ w - target[share.indices]) / len(rows)
            slot = 0.5 * slot + gradient
            w -= 0.05 * slot
    np.testing.assert_allclose(np.load(folder / "w.npy"), w, rtol=2e-4, atol=2e-5)


@pytest.mark.slow
def test_a_job_of_survivors_that_is_stopped_starts_again_with_all(tmp_path):
    code, output = start(tmp_path, dies=5, stops=9)
    assert code == 75, output
    assert "has died: 2 of 3 workers go on without it\n" in output
    assert "SIGTERM: stopped before step 1" in output, output
    code, output = start(tmp_path)
    assert code == 0 and "ENDED 3\n" in output, output
    check_each_sample_was_trained_once_an_epoch(tmp_path)
    check_it_trained_as_one_process(tmp_path)


@pytest.mark.slow
def test_with_replace_they_stop_by_themselves(tmp_path):
    code, output = start(tmp_path, "--replace", dies=5)
    assert code == 75, output
    assert "the death of a worker: stopped before step " in output, output
    code, output = start(tmp_path, "--replace")
    assert code == 0 and "ENDED 3\n" in output, output
    check_each_sample_was_trained_once_an_epoch(tmp_path)
    check_it_trained_as_one_process(tmp_path)


@pytest.mark.slow(first=False)
@pytest.mark.parametrize("rule", ["async", "all"])
def test_workers_of_servers_stop_and_start_again_with_all(tmp_path, rule):
    words = ["--ps", "1", "--sync", rule, "--replace"]
    code, output = start(tmp_path, *words, ranks=4, dies=2)
    assert code == 75, output
    assert "the death of a worker: stopped before step " in output, output
    code, output = start(tmp_path, *words, ranks=4)
    assert code == 0 and "ENDED 3\n" in output, output
    times = trained(tmp_path)
    assert set(times) == set(np.ndindex(EPOCHS, SAMPLES))
    again = [place for place, count in times.items() if count > 1]
    assert len(again) <= BATCH  # the last batch of the dead, if nobody has heard of its end


@pytest.mark.slow
def test_where_it_may_not_start_again_they_go_on_to_the_end(tmp_path):
    code, output = start(tmp_path, "--replace", "--max-restarts", "0", dies=5)
    assert code == 0 and "ENDED 2\n" in output, output
    check_each_sample_was_trained_once_an_epoch(tmp_path)
    check_it_trained_as_one_process(tmp_path)
