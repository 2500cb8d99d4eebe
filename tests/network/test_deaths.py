"""A host dies with all its processes, or falls silent: `hpcflow run --survive` on several hosts."""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np
import pytest
from hosts import Hosts, missing

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
SAMPLES, BATCH, EPOCHS, LIMIT = 60, 12, 3, 200

# Ranks of the hosts that are named stop where they are to die, and write what they have trained.
JOB = f"""
    import json, os, sys, time
    import numpy as np
    import hpcflow as hf

    data = np.random.default_rng(1).normal(size=({SAMPLES}, 8)).astype(np.float32)
    x = hf.placeholder(hf.float32, [None, 8])
    y = hf.placeholder(hf.float32, [None])
    w = hf.Variable(np.zeros((8, 1), np.float32), name="w")
    count = hf.train.get_or_create_global_step()
    loss = hf.reduce_mean(hf.square(hf.reduce_sum(hf.matmul(x, w), 1) - y))
    train = hf.train.MomentumOptimizer(0.05, 0.5).minimize(loss, global_step=count)
    dataset = hf.data.Dataset({{x: data, y: data.sum(1)}}, {BATCH}, seed=3)
    seen = []
    kept = {{"checkpoints": "saved", "save_every": int(os.environ["EVERY"]), "resume": True}}
    with hf.train.TrainingSession(**kept) as session:
        context = session.context
        host = context.hosts[context.rank]
        for batch in dataset.epochs({EPOCHS}):
            if host in sys.argv[1:] and session.steps == 4:
                with open(f"draft-{{context.rank}}", "w") as file:
                    json.dump(seen, file)
                os.rename(f"draft-{{context.rank}}", f"ready-{{context.rank}}")
                time.sleep(1000)
            session.step(train, batch)
            seen.append([batch.epoch, batch.step, batch.indices.tolist()])
        session.wait()
        result = session.result()
        weights, steps = session.run([w, count])
    found = {{"seen": seen, "w": weights[:, 0].tolist(), "count": int(steps)}}
    with open(f"out-{{context.rank}}.json", "w") as file:
        json.dump(found, file)
    if result is not None:
        print("LOST", sorted((one["rank"], one["host"]) for one in result["lost"]), flush=True)
"""


def write(folder: pathlib.Path) -> None:
    lines = JOB.splitlines()
    (folder / "script.py").write_text("\n".join(line[4:] for line in lines))


def run(
    three: Hosts,
    folder: pathlib.Path,
    options: Sequence[str],
    victim: int | None = None,
    victims: int = 2,
    silent: bool = False,
    every: int = 3,
) -> tuple[int, str]:
    """The exit code and output of the script on all hosts; `victim` dies at its fifth step.

    `victims` of its ranks come there. It is saved each so many steps.
    """
    write(folder)
    words = [sys.executable, "-m", "hpcflow", "run", *options, "script.py"]
    doomed = [] if victim is None else [three.names[victim]]
    with open(folder / "log", "wb") as log:
        environ = {"PYTHONPATH": str(ROOT), "HPCFLOW_THREADS": "1", "EVERY": str(every)}
        job = three.start([*words, *doomed], environ, folder, log)
        late = time.monotonic() + LIMIT
        try:
            while victim is not None and len(list(folder.glob("ready-*"))) < victims:
                assert job.poll() is None and time.monotonic() < late, told(folder)
                time.sleep(0.1)
            if victim is not None:
                (three.silence if silent else three.kill)(victim)
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(max(1.0, late - time.monotonic()))
            assert job.poll() is not None, f"it does not end:\n{told(folder)}"
        finally:
            for index in range(len(three.names)):
                three.kill(index)
            job.wait()
    return job.returncode, told(folder)


def told(folder: pathlib.Path) -> str:
    return (folder / "log").read_text(errors="replace")


def all_of(three: Hosts) -> list[str]:
    return ["-n", "6", "--hostfile", three.hostfile(2)]


def trained_by_one() -> np.ndarray:
    """The joined batches by NumPy: each epoch's in the order that the dealer draws."""
    from hpcflow.data.global_batch_sharding import shard_epoch

    data = np.random.default_rng(1).normal(size=(SAMPLES, 8)).astype(np.float32)
    w, slot = np.zeros(8), np.zeros(8)
    for epoch in range(EPOCHS):
        for share in shard_epoch(SAMPLES, BATCH, 3, epoch, 1, 0):
            rows = data[share.indices]
            slot = 0.5 * slot + 2 * rows.T @ (rows @ w - rows.sum(1)) / len(rows)
            w -= 0.05 * slot
    return w


def check_collective(folder: pathlib.Path, ranks: Sequence[int]) -> None:
    """From the step in which the host died on, the survivors trained every sample once an epoch."""
    found = [json.loads((folder / f"out-{rank}.json").read_text()) for rank in ranks]
    np.testing.assert_allclose(found[0]["w"], trained_by_one(), rtol=2e-4, atol=2e-5)
    assert all(one["w"] == found[0]["w"] for one in found), "equal to the bit"
    assert found[0]["count"] == EPOCHS * SAMPLES // BATCH
    trained: dict[tuple[int, int], list[int]] = {}
    for epoch, step, indices in (batch for one in found for batch in one["seen"]):
        trained.setdefault((epoch, step), []).extend(indices)
    for epoch in range(1, EPOCHS):
        whole = [i for (e, _), indices in trained.items() if e == epoch for i in indices]
        assert sorted(whole) == list(range(SAMPLES)), epoch


@pytest.mark.limit(300)
@pytest.mark.parametrize("victim", [1, 2])
def test_replicas_go_on_without_a_host(tmp_path: pathlib.Path, victim: int) -> None:
    with Hosts(3, "1gbit") as three:
        code, output = run(three, tmp_path, [*all_of(three), "--survive"], victim)
        name = three.names[victim]
    dead = [2 * victim, 2 * victim + 1]
    assert code == 0, output
    assert f"hpcflow: host {name} is lost: the others go on" in output
    assert f"LOST {[(rank, name) for rank in dead]}" in output, output
    check_collective(tmp_path, [rank for rank in range(6) if rank not in dead])


@pytest.mark.limit(300)
@pytest.mark.parametrize("sync", ["async", "all"])
def test_workers_of_servers_go_on_without_a_host(tmp_path: pathlib.Path, sync: str) -> None:
    """Rank 1 serves; the dead host's two workers had made four steps each.

    No save is made: a worker that has come to its end would keep the other waiting there.
    """
    with Hosts(3, "1gbit") as three:
        options = [*all_of(three), "--ps", "1", "--sync", sync, "--survive"]
        code, output = run(three, tmp_path, options, victim=2, every=1000)
        name = three.names[2]
    assert code == 0, output
    assert f"LOST {[(4, name), (5, name)]}" in output, output
    found = [json.loads((tmp_path / f"out-{rank}.json").read_text()) for rank in (0, 2, 3)]
    dead = [json.loads((tmp_path / f"ready-{rank}").read_text()) for rank in (4, 5)]
    seen = [one["seen"] for one in found] + dead
    if sync == "async":
        assert found[0]["count"] == sum(map(len, seen)), "each step is in the model once"
    in_hand = [i for batches in dead for i in batches[-1][2]]  # the server may not know of these
    for epoch in range(EPOCHS):
        trained = [
            i for batches in seen for e, _, indices in batches if e == epoch for i in indices
        ]
        assert set(trained) == set(range(SAMPLES)), f"epoch {epoch}"
        twice = {i for i in trained if trained.count(i) > 1}
        assert twice <= set(in_hand), f"epoch {epoch}"


@pytest.mark.limit(400)
def test_without_a_host_that_is_needed_the_job_ends_and_can_go_on(tmp_path: pathlib.Path) -> None:
    """It holds rank 3, a server. The same job then goes on, on the hosts that are left."""
    with Hosts(3, "1gbit") as three:
        served = ["--ps", "2", "--sync", "all", "--survive"]
        code, output = run(three, tmp_path, [*all_of(three), *served], victim=1, victims=1)
        name = three.names[1]
        assert code == 86, output
        assert re.search(rf"rank 3 \(/job:ps/task:1\) on {name} has died", output), output
        assert "LOST" not in output
        file = tmp_path / "left"
        file.write_text("".join(f"{three.names[i]} slots=2\n" for i in (0, 2)))
        code, output = run(three, tmp_path, ["-n", "4", "--hostfile", str(file), *served])
    assert code == 0 and "LOST []" in output, output
    count = json.loads((tmp_path / "out-0.json").read_text())["count"]
    assert count == EPOCHS * SAMPLES // BATCH


@pytest.mark.limit(300)
def test_a_job_that_is_not_to_survive_does_not_end_with_0(tmp_path: pathlib.Path) -> None:
    """Open MPI's own code would be 0, though the ranks were ended in the middle."""
    with Hosts(3, "1gbit") as three:
        code, output = run(three, tmp_path, all_of(three), victim=1)
    assert code == 86, output
    assert not list(tmp_path.glob("out-*"))
