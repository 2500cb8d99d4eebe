"""Supervisor, and TensorFlow 1's classic script for servers and workers, in one process and not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import GraphError, OutOfRangeError
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from tests import light
from tests.runtime.ranks import run_ranks
from tests.train import replica_script

train = hf.train
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    with use_context(RankContext(Settings())), hf.Graph().as_default():
        yield


def counting() -> tuple[hf.Variable, hf.Operation]:
    """A global step, and a step of training that adds 1 to it and to a variable."""
    step = train.get_or_create_global_step()
    w = hf.Variable(np.zeros(3, np.float32), name="w")
    return w, hf.group(w.assign_add(hf.ones([3])), step.assign_add(1))


def test_a_session_begins_saves_and_goes_on(tmp_path: Path) -> None:
    w, step = counting()
    more = w.assign_add(hf.ones([3]))
    for begun, done in ((1, 4), (4, 7)):  # init_fn is not called after a restore
        supervisor = train.Supervisor(
            logdir=tmp_path,
            init_op=hf.get_default_graph().get_operation_by_name("init")
            if done > 4
            else hf.global_variables_initializer(),
            init_fn=lambda session: session.run(more),
        )
        assert supervisor.is_chief and supervisor.saver is not None
        with supervisor.managed_session() as session:
            assert session.run(w).tolist() == [begun] * 3
            for _ in range(3):
                session.run(step)
            assert session.steps == 3  # those that change variables
            assert session.run(w).tolist() == [done] * 3
        assert supervisor.should_stop()
        supervisor.stop()  # again, as scripts do
    names = sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("step-"))
    assert names == ["step-3", "step-6"]


def test_the_graph_is_complete() -> None:
    counting()
    train.Supervisor()
    with pytest.raises(GraphError, match="finalized"):
        hf.constant(1)


def test_threads_run_until_the_end() -> None:
    w, step = counting()
    supervisor, seen = train.Supervisor(), []
    with supervisor.managed_session() as session:
        there = threading.Event()

        def look(sess: Any, more: int) -> None:
            seen.append(float(sess.run(w)[0]) + more)
            there.set()

        thread = supervisor.loop(0.01, look, args=(session,), kwargs={"more": 1})
        session.run(step)
        assert there.wait(60)
    assert not thread.is_alive() and set(seen) <= {1.0, 2.0}


def test_errors_reach_who_ends_it() -> None:
    _, step = counting()
    supervisor = train.Supervisor()
    with pytest.raises(ValueError, match="by test"), supervisor.managed_session() as session:
        session.run(step)
        raise ValueError("by test")
    with supervisor.managed_session() as session:
        assert not supervisor.should_stop()
        raise OutOfRangeError("the end of the data")
    with pytest.raises(KeyError, match="thread"), supervisor.managed_session():
        with supervisor.stop_on_exception():
            raise KeyError("thread")
        supervisor.wait_for_stop()


def test_queue_runners_are_started() -> None:
    (number,) = train.slice_input_producer([np.arange(4)], num_epochs=1, shuffle=False)
    supervisor, found = train.Supervisor(), []
    with supervisor.managed_session() as session:
        while not supervisor.should_stop():
            found.append(int(session.run(number)))
    assert found == [0, 1, 2, 3]
    with supervisor.managed_session(start_standard_services=False) as session:
        assert supervisor.start_queue_runners(session, []) == []
        assert supervisor.start_queue_runners(session)


def test_workers_save_with_the_chief(tmp_path: Path) -> None:
    def body(context: RankContext) -> list[Any]:
        w, step = counting()
        supervisor = train.Supervisor(
            is_chief=context.is_chief, logdir=tmp_path, save_model_secs=0.05
        )
        session = supervisor.prepare_or_wait_for_session(
            train.Server({"ps": ["a:1"], "worker": ["b:1", "c:1"]}).target
        )
        for _ in range(20):
            session.run(step)
            supervisor.coord.wait_for_stop(0.01)
        supervisor.stop()
        return session.run(w).tolist()

    assert run_ranks(3, body, ps=1) == [[40.0] * 3] * 2
    names = [p.name for p in tmp_path.iterdir() if p.name.startswith("step-")]
    assert "step-40" in names and len(names) > 1


# -- the classic script

CLUSTER = {"ps": ["localhost:2222"], "worker": ["localhost:2223", "localhost:2224"]}


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["replica_script.py", "--train_steps=200"])
    replica_script.FLAGS._parse_flags()


@pytest.mark.slow
@pytest.mark.usefixtures("flags")
@pytest.mark.parametrize("supervisor", [False, True])
def test_the_classic_script_in_one_process(supervisor: bool) -> None:
    def body(context: RankContext) -> Any:
        return replica_script.run_task(CLUSTER, "worker", context.replica, supervisor)

    found = run_ranks(3, body, ps=1)
    assert len(found) == 2
    for accuracy, steps in found:
        assert accuracy > 0.93 and 200 <= steps <= 205


def supervised(server: hf.train.Server, folder: Path, found: list[Any]) -> None:
    """Ten steps of a worker whose thread knows its task by the server's target alone."""
    with hf.Graph().as_default():
        w, step = counting()
        supervisor = train.Supervisor(logdir=folder, save_model_secs=0.01)
        with supervisor.managed_session(server.target) as session:
            assert supervisor.is_chief == (server.server_def.task_index == 0)
            for _ in range(10):
                session.run(step)
        with train.MonitoredTrainingSession(server.target, checkpoint_dir=folder) as monitored:
            found.append(monitored.run(w).tolist())


def test_sessions_of_a_cluster_of_threads(tmp_path: Path) -> None:
    workers, _ = hf.test.create_local_cluster(num_workers=2, num_ps=1)
    found: list[Any] = []
    threads = [threading.Thread(target=supervised, args=(w, tmp_path, found)) for w in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [[20.0] * 3] * 2
    hf.test.end_local_cluster(workers)


def test_the_classic_script_is_planned() -> None:
    """Without ranks: its variables on the server, nothing but values and gradients on the way."""
    output = started("-m", "hpcflow", "plan", "--ranks", "3", "--ps", "1", SCRIPT)
    assert "proved: every Send has its Recv" in output
    assert output.count("parcel_to_worker_0") == output.count("parcel_to_ps_0") == 1


def started(*words: str) -> str:
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **allowed, "PYTHONPATH": light.path()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=220,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


SCRIPT = str(ROOT / "tests/train/replica_script.py")


@pytest.mark.slow
def test_the_classic_script_on_three_ranks(tmp_path: Path) -> None:
    """Under `hpcflow run` job_name and task_index are those of the ranks; it goes on."""
    start = ["-m", "hpcflow", "run", "-n", "3", "--ps", "1", SCRIPT, "--train_dir", str(tmp_path)]
    output = started(*start, "--train_steps", "200")
    found = re.findall(r"worker (\d): accuracy ([\d.]+) after (\d+) steps", output)
    assert sorted(worker for worker, _, _ in found) == ["0", "1"]
    for _, accuracy, steps in found:
        assert float(accuracy) > 0.93 and 200 <= int(steps) <= 202
    assert "/job:ps/task:0 (localhost:2222) is rank 2" in output
    output = started(*start, "--train_steps", "230", "--supervisor")
    (resumed,) = re.findall(r"resumed step=(\d+)", output)
    assert 200 <= int(resumed) <= 202
    assert all(230 <= int(n) <= 235 for n in re.findall(r"after (\d+) steps", output))


@pytest.mark.slow
def test_the_classic_script_under_a_plain_launcher() -> None:
    """Every rank is told to be worker 0; the last one serves, as the cluster has it."""
    output = started(
        str(ROOT / "tools/mpirun.py"), "3", sys.executable, SCRIPT, "--job_name=worker"
    )
    assert output.count("worker 0: accuracy 0.9") == 2 and "the ranks decide" in output


def test_the_basic_loop() -> None:
    count = hf.Variable(0)
    up = count.assign_add(1)
    sv, seen = train.Supervisor(), []

    def step(session: Any, most: int, by: int = 1) -> None:
        session.run(up)
        seen.append(int(session.run(count)))
        if len(seen) == most:
            sv.request_stop()

    train.basic_train_loop(sv, step, [4], {"by": 2})
    assert seen == [1, 2, 3, 4]
