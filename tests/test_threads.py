"""Threads per rank: the share of the cores, the user's own values, the warnings, the cost."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcflow.errors import HpcflowError
from hpcflow.platform import cpu_threads
from hpcflow.platform.cpu_threads import (
    CHOSEN,
    SPIN_COUNT,
    VARIABLES,
    CpuCores,
    find_cores,
    planned_threads,
    set_up_threads,
)

ROOT = Path(__file__).parent.parent


def rank(local_size: int, **more: str) -> dict[str, str]:
    """The environment of a rank of Open MPI's mpirun, alone on its node with its like."""
    return {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": str(local_size),
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size),
        **more,
    }


@pytest.fixture(autouse=True)
def numpy_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy", raising=False)


@pytest.mark.parametrize(
    ("cores", "local_size", "threads"),
    [
        (CpuCores(64, 64, 64), 1, 64),  # alone on the node
        (CpuCores(64, 64, 64), 4, 16),  # four ranks, none bound
        (CpuCores(64, 64, 64), 3, 21),
        (CpuCores(16, 64, 64), 4, 16),  # four ranks, each bound to its quarter
        (CpuCores(32, 64, 64), 8, 8),  # eight ranks bound to two sockets
        (CpuCores(16, 16, 64), 4, 4),  # a container or a job with 16 CPUs, shared by four ranks
        (CpuCores(2, 2, 2), 4, 1),  # more ranks than cores
        (CpuCores(128, 128, 128, siblings=2), 4, 16),  # hyper-threads do not help BLAS
    ],
)
def test_a_rank_gets_its_share_of_the_cores(cores: CpuCores, local_size: int, threads: int) -> None:
    environ = rank(local_size)
    chosen = set_up_threads(environ, cores)
    assert chosen.threads == threads and chosen.warning is None
    assert {environ[name] for name in VARIABLES} == {str(threads)}


def test_a_plan_assumes_the_threads_that_a_rank_would_choose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu_threads, "find_cores", lambda _: CpuCores(16, 64, 64))
    for name in (*VARIABLES, CHOSEN, "HPCFLOW_THREADS"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    for ranks in (1, 4, 8, 200):
        assert planned_threads(ranks) == set_up_threads(rank(ranks), CpuCores(16, 64, 64)).threads
    assert planned_threads(8) == 8 and planned_threads(8, threads=3) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert planned_threads(8) == 5 and planned_threads(8, threads=3) == 3
    del os.environ["OMP_NUM_THREADS"]
    assert dict(os.environ) == before  # the pools of this process are not resized


def test_the_users_values_are_honoured() -> None:
    environ = rank(4, OMP_NUM_THREADS="3")
    assert set_up_threads(environ, CpuCores(64, 64, 64)).threads == 3
    assert {environ[name] for name in VARIABLES} == {"3"}
    environ = rank(4, MKL_NUM_THREADS="5", OMP_NUM_THREADS="2,1")
    assert "OMP_NUM_THREADS" in set_up_threads(environ, CpuCores(64, 64, 64)).reason
    assert environ["OMP_NUM_THREADS"] == "2,1" and environ["MKL_NUM_THREADS"] == "5"
    assert environ["OPENBLAS_NUM_THREADS"] == "2"


def test_hpcflow_threads_counts_before_all_others() -> None:
    environ = rank(4, HPCFLOW_THREADS="7", OMP_NUM_THREADS="3")
    assert set_up_threads(environ, CpuCores(64, 64, 64)).threads == 7
    assert {environ[name] for name in VARIABLES} == {"7"}
    assert set_up_threads(rank(4, HPCFLOW_THREADS="0"), CpuCores(64, 64, 64)).threads == 16


@pytest.mark.parametrize("name", ["HPCFLOW_THREADS", "OMP_NUM_THREADS"])
def test_a_value_that_is_no_number_is_an_error(name: str) -> None:
    with pytest.raises(HpcflowError, match=name):
        set_up_threads({name: "many"}, CpuCores(4, 4, 4))


def test_what_was_chosen_here_is_chosen_anew_in_the_ranks_started_from_here() -> None:
    parent: dict[str, str] = {}
    assert set_up_threads(parent, CpuCores(8, 8, 8)).threads == 8
    child = rank(4, **parent)
    assert set_up_threads(child, CpuCores(8, 8, 8)).threads == 2
    users: dict[str, str] = {"OMP_NUM_THREADS": "8"}
    set_up_threads(users, CpuCores(8, 8, 8))
    assert CHOSEN in users
    assert set_up_threads(rank(4, **users), CpuCores(8, 8, 8)).threads == 8


def test_threads_of_libgomp_sleep_soon_unless_the_user_says_how_they_wait() -> None:
    environ = rank(4)
    set_up_threads(environ, CpuCores(64, 64, 64))
    assert environ["GOMP_SPINCOUNT"] == str(SPIN_COUNT)
    environ = rank(4, GOMP_SPINCOUNT="7")
    set_up_threads(environ, CpuCores(64, 64, 64))
    assert environ["GOMP_SPINCOUNT"] == "7"
    environ = rank(4, OMP_WAIT_POLICY="active")
    set_up_threads(environ, CpuCores(64, 64, 64))
    assert "GOMP_SPINCOUNT" not in environ


IDLE = """
import hpcflow as hf, numpy as np, os, time
x = hf.placeholder(hf.float32, [1 << 18])
with hf.Session() as session:
    step = session.make_callable(hf.tanh(hf.square(x) + 1.0), [x])
    fed = np.ones(1 << 18, "f")
    for _ in range(60):
        step(fed)
        time.sleep(0.004)
    tasks = sorted(map(int, os.listdir("/proc/self/task")))
    used = [int(open(f"/proc/self/task/{t}/schedstat").read().split()[0]) for t in tasks[1:]]
    from hpcflow.codegen import thread_team
    print(thread_team.size(), max(used))
"""


@pytest.mark.slow
def test_a_pool_that_waits_leaves_its_core_to_others() -> None:
    """The pool's thread runs as long as its kernels do, not while the main thread sleeps."""
    pytest.importorskip("llvmlite")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "_HPC"))}
    used = []
    for more in ({}, {"GOMP_SPINCOUNT": "300000"}):  # as hpcflow sets it; libgomp's own
        environ = {**clean, "HPCFLOW_THREADS": "2", "PYTHONPATH": str(ROOT), **more}
        words = [sys.executable, "-c", IDLE]
        done = subprocess.run(words, env=environ, capture_output=True, text=True, check=True)
        threads, ns = map(int, done.stdout.split())
        assert threads == 2
        used.append(ns)
    assert used[0] < used[1] / 2, used


def test_one_core_of_many_warns_unless_it_was_asked_for() -> None:
    one = CpuCores(1, 64, 64)
    warning = set_up_threads(rank(2), one).warning
    assert warning is not None and "1 of the node's 64 CPUs" in warning
    assert "--bind-to none" in warning
    srun = {
        "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
    }  # fmt: skip
    assert "srun --cpus-per-task=32" in (set_up_threads(dict(srun), one).warning or "")
    for asked in ({"SLURM_CPUS_PER_TASK": "1"}, {"OMP_NUM_THREADS": "1"}, {"HPCFLOW_THREADS": "1"}):
        assert set_up_threads({**srun, **asked}, one).warning is None
    assert set_up_threads(rank(64), one).warning is None  # every core has its rank
    assert set_up_threads({}, CpuCores(1, 1, 1)).warning is None


def test_numpy_loaded_first_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no package can change the size of its pool."""
    monkeypatch.setitem(sys.modules, "numpy", json)
    chosen = set_up_threads(rank(4), CpuCores(64, 64, 64))
    assert chosen.is_late and chosen.warning is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "before hpcflow" in (set_up_threads(rank(4), CpuCores(64, 64, 64)).warning or "")
    chosen = set_up_threads({}, CpuCores(64, 64, 64))
    assert chosen.warning is None and not chosen.is_late  # its own choice is the same


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="BLAS has one thread anyway")
def test_the_pool_of_a_numpy_that_was_loaded_first_is_resized() -> None:
    """Else two ranks of one thread each would compute their products with all cores."""
    program = """
import numpy
import hpcflow as hf
from threadpoolctl import threadpool_info
pools = lambda: {p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"}
before = pools()
x = hf.placeholder("float32", [70, 70])
hf.Session().run(hf.matmul(x, x), {x: numpy.ones((70, 70), "f4")})
print(before, pools())
"""
    names = ("HPCFLOW_THREADS", CHOSEN, *VARIABLES)
    environ = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environ, "HPCFLOW_THREADS": "1", "HPCFLOW_KERNELS": "plain"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    before, after = done.stdout.strip().split("} {")
    assert before != "{1" and after == "1}", done.stdout + done.stderr
    assert "before hpcflow" not in done.stderr


def test_slurms_share_bounds_the_cores() -> None:
    assert find_cores({"SLURM_CPUS_ON_NODE": "1"}).owned == 1
    assert find_cores({}).mask <= find_cores({}).node


PROBE = """
import json, os, sys
from hpcflow.platform import cpu_threads
started = []
starts = ("subprocess.", "os.fork", "os.posix_spawn", "os.system", "os.exec")
sys.addaudithook(lambda event, args: started.append(event) if event.startswith(starts) else None)
chosen = cpu_threads.set_up_threads(dict(os.environ))
print(json.dumps([chosen.threads, chosen.cores, started]))
"""


def probe(cpus: set[int], **environ: str) -> tuple[int, int, list[str]]:
    clean = {k: v for k, v in os.environ.items() if k not in (*VARIABLES, CHOSEN)}
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        env={**clean, "PYTHONPATH": str(ROOT), **environ},
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        capture_output=True,
        check=True,
    )
    threads, cores, started = json.loads(done.stdout)
    return threads, cores, started


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux's CPU masks")
def test_real_masks_are_read_without_a_subprocess() -> None:
    cpus = os.sched_getaffinity(0)
    threads, cores, started = probe({min(cpus)})
    assert (threads, cores, started) == (1, 1, [])
    threads, cores, _ = probe(cpus)
    assert threads == cores == max(1, len(cpus) // find_cores({}).siblings)
    shared, _, _ = probe(cpus, **rank(len(cpus)))
    assert shared == 1
