"""`hpcflow run --survive`: asynchronous workers go on when another has died."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from hpcflow.comm.fault_tolerant_collectives import FaultTolerantCollectives
from hpcflow.comm.polling_backoff import wait_for_requests
from hpcflow.comm.thread_communicator import thread_world
from hpcflow.errors import LaunchError
from hpcflow.launch import launcher_detection
from hpcflow.runtime.failure.replica_loss_recovery import ReplicaLossRecovery
from tests.comm.threads import on_all

ROOT = Path(__file__).parents[2]
SIZE = 300_000  # floats: its messages need both sides
SCRIPT = f"""
    import os, signal, sys, time
    import numpy as np
    import hpcflow as hf

    victim, folder = int(sys.argv[1]), sys.argv[2]
    ones = np.ones({SIZE}, np.float32)
    w = hf.Variable(np.zeros({SIZE}, np.float32), name="w")
    count = hf.Variable(np.zeros((), np.int64), name="count")
    x = hf.placeholder(hf.float32, [{SIZE}])
    with hf.device("/job:worker/task:0"):
        gradient = w.value() * 0.0 + x
    train = hf.group(w.assign_add(gradient), count.assign_add(np.int64(1)))
    with hf.train.TrainingSession(checkpoints=folder, save_every=10) as session:
        context = session.context
        reports = context.reports()
        for _ in range(25):
            session.step(train, {{x: ones}})
            if session.steps == 8 and session.is_chief and victim in context.roles.servers:
                os.kill(next(r["pid"] for r in reports if r["rank"] == victim), signal.SIGKILL)
            if session.steps == 8 and context.rank == victim:
                os.kill(os.getpid(), signal.SIGKILL)
        session.wait()
        result = session.result()
        if session.is_chief:
            values = session.run([w, count])
            print("FINISHED", result["steps"], values[0].min(), values[0].max(), values[1])
            print("LOST", *[(one["rank"], one["task"]) for one in result["lost"]])
"""
JOINED = """
    import os, signal, sys
    import numpy as np
    import hpcflow as hf

    victim = int(sys.argv[1])
    w = hf.Variable(np.zeros(1000, np.float32), name="w")
    count = hf.train.get_or_create_global_step()
    x = hf.placeholder(hf.float32, [1000])
    optimizer = hf.train.GradientDescentOptimizer(1.0)
    train = optimizer.minimize(hf.reduce_sum(w * x), global_step=count)
    with hf.train.TrainingSession() as session:
        for _ in range(25):
            session.step(train, {x: np.ones(1000, np.float32)})
            if session.steps == 8 and session.context.rank == victim:
                os.kill(os.getpid(), signal.SIGKILL)
        session.wait()
        result = session.result()
        if session.is_chief:
            weights, updates = session.run([w, count])
            assert (weights == -updates).all(), (weights, updates)
            print("FINISHED", result["steps"], updates, [one["rank"] for one in result["lost"]])
"""


def run(
    folder: Path, victim: int, *options: str, script: str = SCRIPT, ranks: int = 5
) -> tuple[int, str]:
    (folder / "script.py").write_text(textwrap.dedent(script))
    words = ["-n", f"{ranks}", "--ps", "2", "--survive", "--set", "shard_bytes=800000", "script.py"]
    done = subprocess.run(
        [sys.executable, "-m", "hpcflow", "run", *options, *words, str(victim), "saved"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=220,
    )
    return done.returncode, done.stdout


@pytest.mark.slow
@pytest.mark.skipif("mpich" in sys.prefix, reason="needs Open MPI 5")
@pytest.mark.verifies("ULFM", ranks=3)
def test_the_others_go_on_without_a_worker_that_was_killed(tmp_path):
    """Every step of the others, and those it had done, are in the model once; meetings go on."""
    code, output = run(tmp_path, 1)
    assert code == 0, output
    assert output.count("rank 1 (/job:worker/task:1) on") == 1, output
    assert "has died: 2 of 3 workers go on without it" in output
    assert re.search(r"FINISHED \[25, 25\] 58\.0 58\.0 58\n", output), output
    assert "LOST (1, '/job:worker/task:1')\n" in output, output
    assert list((tmp_path / "saved").glob("step-*")), "saved after the death"


@pytest.mark.slow
@pytest.mark.skipif("mpich" in sys.prefix, reason="needs Open MPI 5")
def test_who_tells_the_chief_for_others_may_die(tmp_path):
    """Worker 1 passes on what worker 5 tells."""
    code, output = run(tmp_path, 1, ranks=9)
    assert code == 0, output
    assert "has died: 6 of 7 workers go on without it" in output
    total = 6 * 25 + 8
    assert re.search(rf"FINISHED \[[25, ]+\] {total}\.0 {total}\.0 {total}\n", output), output
    assert list((tmp_path / "saved").glob("step-*")), "saved after the death"


@pytest.mark.slow
@pytest.mark.skipif("mpich" in sys.prefix, reason="needs Open MPI 5")
def test_nobody_waits_for_the_slowest_when_it_is_dead(tmp_path):
    """No worker may be two steps ahead of another; the dead one stands at 8."""
    code, output = run(tmp_path, 2, "--sync", "stale:1")
    assert code == 0, output
    assert "has died: 2 of 3 workers go on without it" in output
    assert re.search(r"FINISHED \[25, 25\] 58\.0 58\.0 58\n", output), output


@pytest.mark.slow
@pytest.mark.skipif("mpich" in sys.prefix, reason="needs Open MPI 5")
def test_a_backup_worker_may_die_as_it_may_be_late(tmp_path):
    """An update is by two of three workers; each is by the mean of their gradients, which is 1."""
    code, output = run(tmp_path, 1, "--sync", "backup:1", script=JOINED)
    assert code == 0, output
    found = re.search(r"FINISHED \[25, 25\] (\d+) \[1\]\n", output)
    assert found is not None, output
    assert 25 <= int(found[1]) <= 58  # after the death both survivors make each update


@pytest.mark.slow
@pytest.mark.skipif("mpich" in sys.prefix, reason="needs Open MPI 5")
@pytest.mark.parametrize(
    ("victim", "task", "sync"),
    [
        (4, "/job:ps/task:1", "async"),
        (0, "/job:worker/task:0", "all"),
    ],
)
def test_without_a_rank_that_is_needed_the_job_ends_and_says_so(tmp_path, victim, task, sync):
    """A server, and the chief."""
    code, output = run(tmp_path, victim, "--sync", sync)
    assert code != 0, output
    assert "FINISHED" not in output and "Traceback" not in output
    assert re.search(rf"rank {victim} \({task}\) on \S+ has died", output), output
    assert "resume=True" in output


@pytest.mark.parametrize(
    "options",
    [{"ps": 1, "tasks_per_replica": 2}, {"ps": 1, "dense": "replicas", "sync": "all"}],
)
def test_jobs_of_which_no_rank_can_be_spared_are_refused(options):
    from tests.runtime.ranks import run_ranks

    with pytest.raises(LaunchError, match="no rank of this job can be spared"):
        run_ranks(3, lambda context: None, survive=True, **options)


def test_sums_on_gpus_are_refused():
    class Fake:
        devices_sum, rank = True, 3

    with pytest.raises(LaunchError, match="NCCL") as found:
        ReplicaLossRecovery(Fake(), None, None, None)
    assert found.value.rank == 3


@pytest.mark.parametrize("why", ["mpirun of MPICH", "srun, in SLURM job 7"])
def test_launchers_that_end_all_ranks_are_refused(why):
    with pytest.raises(LaunchError, match="ends all ranks when one dies"):
        launcher_detection.with_survival_option(
            launcher_detection.StartCommand(["mpirun"], {}, why)
        )


def test_open_mpi_is_told_and_its_version_4_refused():
    start = launcher_detection.StartCommand(
        ["mpirun", "-n", "2"], {}, "mpirun of Open MPI, 2 ranks on 1 cores"
    )
    assert launcher_detection.with_survival_option(start).argv == [
        "mpirun",
        "--with-ft",
        "ulfm",
        "-n",
        "2",
    ]
    old = launcher_detection.StartCommand(
        ["mpirun"], {"OMPI_MCA_hwloc_base_binding_policy": "none"}, start.reason
    )
    with pytest.raises(LaunchError):
        launcher_detection.with_survival_option(old)


def test_ranks_that_come_together_at_a_chair_agree_as_by_mpi():
    """Numbers and texts of any length, round by round; not all ranks are members."""
    members, found = (3, 1, 0), {}

    def body(comm):
        if comm.rank not in members:
            return
        group = FaultTolerantCollectives(comm, members, 10)
        total = np.array([comm.rank + 1, -comm.rank], np.int64)
        largest = np.array([comm.rank, -comm.rank])
        wait_for_requests(group.all_reduce(total), timeout=60)
        wait_for_requests(group.all_reduce(largest, "max"), timeout=60)
        texts = group.gather_text("x" * comm.rank)
        said = group.broadcast_text("é" * 1000 if group.rank == 0 else None)
        found[comm.rank] = total.tolist(), largest.tolist(), texts, said

    on_all(thread_world(4, seed=4), body)
    for rank in members:
        total, largest, texts, said = found[rank]
        assert (total, largest, said) == ([7, -4], [3, 0], "é" * 1000)
        assert texts == (["xxx", "x", ""] if rank == 3 else None)


def test_rounds_keep_their_order_whichever_is_waited_for_first():
    """One that was begun early may be read late; the next one is not mixed with it."""
    found = {}

    def body(comm):
        group = FaultTolerantCollectives(comm, (0, 1, 2), 10)
        early, late = np.array([comm.rank]), np.array([10 * comm.rank])
        first, second = group.all_reduce(early), group.all_reduce(late)
        order = (second, first) if comm.rank != 1 else (first, second)
        for request in order:
            wait_for_requests(request, timeout=60)
        found[comm.rank] = int(early[0]), int(late[0])

    on_all(thread_world(3, seed=1), body)
    assert found == dict.fromkeys(range(3), (3, 30))


def test_those_left_go_on_by_their_own_numbers():
    found = {}

    def body(comm):
        group = FaultTolerantCollectives(comm, (0, 1, 2), 10)
        if comm.rank != 1:
            group.continue_with((0, 2))
            found[comm.rank] = group.rank, group.size, group.all_gather_text(f"{comm.rank}")

    on_all(thread_world(3, seed=1), body)
    assert found == {0: (0, 2, ["0", "2"]), 2: (1, 2, ["0", "2"])}
