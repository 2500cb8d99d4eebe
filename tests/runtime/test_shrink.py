"""`hpcflow run --survive` in collective mode: the other replicas go on when one has died."""

from __future__ import annotations

import json
import os
import re
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
    import hashlib, json, os, signal, sys, time
    import numpy as np
    import hpcflow as hf

    if os.environ.get("RINGS"):  # as if each rank were on a node of its own, on a slow network
        from hpcflow.comm.shared_memory_allreduce import SharedCommunicator
        begin = SharedCommunicator.__init__

        def as_nodes(self, inner, node_of=None, rings=None):
            begin(self, inner, lambda rank: rank, True)

        SharedCommunicator.__init__ = as_nodes
    victims = {{int(r): int(step) for r, step in (w.split(":") for w in sys.argv[2:])}}
    data = np.random.default_rng(1).normal(size=({SAMPLES}, 20)).astype(np.float32)
    true = np.arange(20, dtype=np.float32) / 20
    numbers = np.arange({SAMPLES}, dtype=np.float32)
    x = hf.placeholder(hf.float32, [None, 20])
    y = hf.placeholder(hf.float32, [None])
    big = hf.Variable(np.zeros((20, 1), np.float32), name="w")
    wide = hf.Variable(np.zeros((20, 40_000), np.float32), name="wide")  # a bucket of its own
    count = hf.train.get_or_create_global_step()
    error = hf.reduce_sum(hf.matmul(x, big), 1) - y
    loss = hf.reduce_mean(hf.square(error)) + 0.0 * hf.reduce_sum(wide)
    optimizer = hf.train.MomentumOptimizer(0.05, 0.5)
    train = optimizer.minimize(loss, global_step=count)
    target, dealing, epochs = data @ true, os.environ.get("DEALING"), {EPOCHS}
    if dealing == "iterator":
        rows = ((data[n % {SAMPLES}], target[n % {SAMPLES}]) for n in range(epochs * {SAMPLES}))
        dataset, epochs = hf.data.Stream((x, y), rows, {BATCH}), 1
    else:
        by_speed = dealing == "speed"
        dataset = hf.data.Dataset({{x: data, y: target}}, {BATCH}, seed=3, balance=by_speed)
    seen, steps = [], 0
    with hf.train.TrainingSession(checkpoints="saved", save_every=5) as session:
        rank, where = session.context.rank, os.environ.get("WHERE", "before")
        if where == "made":
            from hpcflow.comm.shared_memory_allreduce import SharedCommunicator
            bucket = SharedCommunicator.bucket

            def falls(self, count, dtype):
                if count > 100 and victims.get(rank) == self.size:
                    os.kill(os.getpid(), signal.SIGKILL)
                return bucket(self, count, dtype)

            SharedCommunicator.bucket = falls
        for batch in dataset.epochs(epochs):
            if dealing == "speed":
                time.sleep(0.03 * (rank + 1))
            if victims.get(rank) == session.steps and where != "made":
                if where == "before":
                    os.kill(os.getpid(), signal.SIGKILL)
                if where == "raise":
                    raise ValueError("as asked")
                from hpcflow.runtime.step.step_channels import BucketViews
                start, left = BucketViews.start, [int(where)]

                def dies(self):
                    left[0] -= 1
                    if left[0] < 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    start(self)

                BucketViews.start = dies
            session.step(train, batch)
            seen.append([batch.epoch, batch.step, batch.indices.tolist()])
        session.wait()
        result = session.result()
        values = session.run([big, wide, count])
    digest = hashlib.sha256(b"".join(v.tobytes() for v in values)).hexdigest()
    found = [digest, seen, values[0][:, 0].tolist(), int(values[2])]
    open(f"{{sys.argv[1]}}-{{rank}}.json", "w").write(json.dumps(found))
    if result is not None:
        print("LOST", [one["rank"] for one in result["lost"]], result["replicas"], result["steps"])
"""
pytestmark = pytest.mark.skipif("mpich" in sys.prefix, reason="needs Open MPI 5")


def run(folder: Path, ranks: int, *victims: str, **environ: str) -> tuple[int, str]:
    (folder / "script.py").write_text(textwrap.dedent(SCRIPT))
    words = ["-n", str(ranks), "--survive", "script.py", "out", *victims]
    done = subprocess.run(
        [sys.executable, "-m", "hpcflow", "run", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=220,
    )
    return done.returncode, done.stdout


def joined() -> list[np.ndarray]:
    """The joined batches, in the order of the dealer."""
    epochs = (shard_epoch(SAMPLES, BATCH, 3, epoch, 1, 0) for epoch in range(EPOCHS))
    return [share.indices for shares in epochs for share in shares]


def trained_by_one(batches: list[np.ndarray]) -> np.ndarray:
    """The same by NumPy: momentum on the joined batches."""
    data = np.random.default_rng(1).normal(size=(SAMPLES, 20)).astype(np.float32)
    target = data @ (np.arange(20, dtype=np.float32) / 20)
    w, slot = np.zeros(20), np.zeros(20)
    for batch in batches:
        rows = data[batch]
        gradient = 2 * rows.T @ (rows @ w - target[batch]) / len(rows)
        slot = 0.5 * slot + gradient
        w -= 0.05 * slot
    return w


def check(
    folder: Path, survivors: list[int], output: str, batches: list[np.ndarray] | None = None
) -> None:
    """Survivors are equal to the bit, each sample was trained once an epoch, as by one process."""
    batches = joined() if batches is None else batches
    found = [json.loads((folder / f"out-{rank}.json").read_text()) for rank in survivors]
    assert len({digest for digest, *_ in found}) == 1, output
    _, _, w, count = found[0]
    assert count == len(batches)
    np.testing.assert_allclose(w, trained_by_one(batches), rtol=2e-4, atol=2e-5)


def dealt(folder: Path, ranks: list[int]) -> dict[tuple[int, int], list[int]]:
    """(epoch, step) -> the samples that the survivors trained in it, sorted."""
    found: dict[tuple[int, int], list[int]] = {}
    for rank in ranks:
        for epoch, step, indices in json.loads((folder / f"out-{rank}.json").read_text())[1]:
            found.setdefault((epoch, step), []).extend(indices)
    return {place: sorted(indices) for place, indices in found.items()}


@pytest.mark.slow
def test_the_others_make_the_same_joined_batches(tmp_path):
    """Killed between steps: the variables are those of one process on all joined batches."""
    code, output = run(tmp_path, 4, "2:9")
    assert code == 0, output
    assert output.count("rank 2 (/job:worker/task:2) on") == 1, output
    assert "has died: 3 of 4 workers go on without it\n" in output
    assert re.search(r"LOST \[2\] 3 \[24, 24, 24\]\n", output), output
    check(tmp_path, [0, 1, 3], output)
    trained = dealt(tmp_path, [0, 1, 3])
    for epoch in range(EPOCHS):
        for share in shard_epoch(SAMPLES, BATCH, 3, epoch, 1, 0):
            if (epoch, share.step) >= (1, 1):  # from the step in which it died
                assert trained[epoch, share.step] == sorted(share.indices.tolist())


@pytest.mark.slow
@pytest.mark.parametrize("where", ["before", "0", "1", "2"])
def test_rings_go_on_without_the_dead(tmp_path, where):
    """Killed between steps, and at the start of its first, second and third sum."""
    code, output = run(tmp_path, 4, "2:9", WHERE=where, RINGS="1")
    assert code == 0, output
    assert "LOST [2] 3" in output
    check(tmp_path, [0, 1, 3], output)


@pytest.mark.slow
def test_shares_by_speed_are_dealt_anew(tmp_path):
    """Between two sums; each rank has its own speed, before the death and after it."""
    code, output = run(tmp_path, 3, "1:11", WHERE="1", DEALING="speed")
    assert code == 0, output
    check(tmp_path, [0, 2], output)


@pytest.mark.slow
def test_what_an_iterator_gave_is_dealt_anew(tmp_path):
    """It cannot be begun again: the batch in flight and those read ahead are kept."""
    code, output = run(tmp_path, 3, "2:7", WHERE="1", DEALING="iterator")
    assert code == 0, output
    order = np.arange(EPOCHS * SAMPLES)
    batches = [order[at : at + BATCH] for at in range(0, len(order), BATCH)]
    trained = dealt(tmp_path, [0, 1])
    assert all(trained[0, step] == batches[step].tolist() for step in range(7, len(batches)))
    check(tmp_path, [0, 1], output, [batch % SAMPLES for batch in batches])


@pytest.mark.slow(first=False)
@pytest.mark.parametrize("sums", [1, 2])
def test_a_step_that_is_broken_off_between_its_sums_is_made_whole(tmp_path, sums):
    """One bucket has been summed with the dead; or all have, and only its vote is missing.

    Momentum would tell a step that was applied twice, or to some variables alone.
    """
    code, output = run(tmp_path, 3, "1:13", WHERE=str(sums))
    assert code == 0, output
    check(tmp_path, [0, 2], output)


@pytest.mark.slow
def test_two_die_one_after_the_other_where_all_are_about_to_save(tmp_path):
    """Steps 5 and 15: the others come to save, and share what the dead was to write."""
    code, output = run(tmp_path, 4, "1:5", "3:15")
    assert code == 0, output
    assert "LOST [1, 3] 2 [24, 24]\n" in output, output
    check(tmp_path, [0, 2], output)
    saved = {path.name for path in (tmp_path / "saved").iterdir() if path.name.startswith("step")}
    assert len(saved) == 5, saved


@pytest.mark.slow
def test_one_more_may_die_while_the_others_get_ready(tmp_path):
    """The first of four where windows are made at the start, the second where three make theirs."""
    code, output = run(tmp_path, 4, "1:4", "3:3", WHERE="made")
    assert code == 0, output
    assert "LOST [1, 3] 2 [24, 24]\n" in output, output
    check(tmp_path, [0, 2], output)


@pytest.mark.slow
def test_without_the_chief_the_job_ends_and_says_so(tmp_path):
    code, output = run(tmp_path, 3, "0:6")
    assert code != 0, output
    assert re.search(r"rank 0 \(/job:worker/task:0\) on \S+ has died", output), output
    assert "resume=True" in output
    assert "LOST" not in output and "Traceback" not in output


@pytest.mark.slow
@pytest.mark.parametrize("who", [["0:6"], ["0:6", "1:6"]])
def test_an_error_of_the_chief_ends_the_job_with_a_code(tmp_path, who):
    """Also where all ranks fail alike: Open MPI counts none that is killed as a failure."""
    code, output = run(tmp_path, 2, *who, WHERE="raise")
    assert code != 0, output
    assert "ValueError: as asked" in output
