"""TensorFlow 1's clusters over ranks: ClusterSpec, Server, and who gets which operation."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import LaunchError, PlacementError
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from tests.runtime.ranks import run_ranks

ROOT = Path(__file__).parents[2]
CLUSTER = {"ps": ["p0:1"], "worker": ["w0:1", "w1:2"]}


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as made:
        yield made


# -- ClusterSpec


def test_a_cluster_knows_its_tasks() -> None:
    spec = hf.train.ClusterSpec({"worker": ["a:1", "b:2"], "ps": {1: "d:4", 0: "c:3"}})
    assert spec.jobs == ["ps", "worker"] and bool(spec) and not hf.train.ClusterSpec({})
    assert spec.as_dict() == {"ps": ["c:3", "d:4"], "worker": ["a:1", "b:2"]}
    assert hf.train.ClusterSpec(spec) == spec != hf.train.ClusterSpec({"worker": ["a:1"]})
    assert spec.num_tasks("worker") == 2 and spec.task_indices("ps") == [0, 1]
    assert spec.task_address("ps", 1) == "d:4"


def test_numbers_may_be_left_out() -> None:
    spec = hf.train.ClusterSpec({"worker": {1: "a:1", 3: "b:2"}})
    assert spec.task_indices("worker") == [1, 3]
    assert spec.job_tasks("worker") == [None, "a:1", None, "b:2"]
    assert spec.as_dict() == {"worker": {1: "a:1", 3: "b:2"}}


@pytest.mark.parametrize(
    "given, words",
    [
        ("localhost:1", "is not a cluster"),
        ({"worker": "a:1,b:2"}, "tasks of job 'worker'"),
        ({"worker": [1]}, "task 0 of job 'worker'"),
        ({"worker": {"0": "a:1"}}, "task '0'"),
    ],
)
def test_what_is_no_cluster_is_refused(given: Any, words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        hf.train.ClusterSpec(given)


def test_a_task_that_is_not_there_is_named() -> None:
    spec = hf.train.ClusterSpec(CLUSTER)
    with pytest.raises(LaunchError, match="no job 'chief'"):
        spec.num_tasks("chief")
    with pytest.raises(LaunchError, match="/job:ps/task:1 is not in the cluster"):
        spec.task_address("ps", 1)


# -- device functions


def devices(setter: Any, *outer: Any) -> dict[str, str]:
    """Five variables of 1 to 5 numbers, one in a scope of its own, and an operation."""
    with hf.device(*outer) if outer else hf.device(""), hf.device(setter):
        variables = [hf.Variable(np.zeros(n + 1, np.float32), name=f"v{n}") for n in range(4)]
        with hf.device("/job:ps/task:2/cpu:0"):
            variables.append(hf.Variable(np.zeros(5, np.float32), name="own"))
        with hf.device("/cpu:0"):
            half = hf.identity(variables[0], name="half")
        total = hf.add(variables[0], 1.0, name="total")
    ops = [*(v.op for v in variables), half.op, total.op]
    return {op.name: op.device for op in ops}


def test_variables_go_round_the_servers() -> None:
    found = devices(hf.train.replica_device_setter(ps_tasks=3, worker_device="/job:worker/gpu:0"))
    assert [found[f"v{n}"][-1] for n in range(4)] == ["0", "1", "2", "0"]
    assert found["own"] == "/job:ps/task:2/cpu:0"
    assert found["half"] == "/job:worker/cpu:0" and found["total"] == "/job:worker/gpu:0"


def test_an_operation_with_its_own_scope_is_left_to_it() -> None:
    setter = hf.train.replica_device_setter(
        3, worker_device="/job:worker/gpu:0", merge_devices=False
    )
    found = devices(setter)
    assert found["own"] == "/job:ps/task:2/cpu:0"
    assert found["half"] == "/cpu:0" and found["total"] == "/job:worker/gpu:0"


def test_an_outer_scope_adds_what_the_function_leaves_open() -> None:
    assert devices(hf.train.replica_device_setter(2), "/cpu:0")["v1"] == "/job:ps/task:1/cpu:0"
    assert set(devices(None, "/cpu:0").values()) == {"", "/cpu:0", "/job:ps/task:2/cpu:0"}


def test_by_bytes_each_variable_goes_to_the_least_loaded_server() -> None:
    strategy = hf.train.GreedyLoadBalancingStrategy(2, hf.train.byte_size_load_fn)
    setter = hf.train.replica_device_setter(2, ps_strategy=strategy)
    sizes = [5, 1, 2, 3, 1, 9]
    with hf.device(setter):
        made = [hf.Variable(np.zeros(n, np.float32)) for n in sizes]
    loads, expected = [0, 0], []
    for size in sizes:  # the rule in words: the first of the least loaded
        task = 0 if loads[0] <= loads[1] else 1
        loads[task] += size
        expected.append(f"/job:ps/task:{task}")
    assert [v.device for v in made] == expected
    with pytest.raises(PlacementError, match=r"\(Const\) is not known"):
        hf.train.byte_size_load_fn(hf.constant(1.0).op)


def test_the_number_of_servers_is_the_clusters() -> None:
    spec = hf.train.ClusterSpec({"ps": ["a:1", "b:1"], "worker": ["c:1"]})
    for cluster in (spec, spec.as_dict()):
        with hf.device(hf.train.replica_device_setter(cluster=cluster)):
            tasks = [hf.Variable(0.0).device for _ in range(3)]
        assert tasks == ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:0"]
    assert hf.train.replica_device_setter() is None
    assert hf.train.replica_device_setter(cluster={"worker": ["a:1"]}) is None
    with pytest.raises(PlacementError, match="is not a function"):
        hf.train.replica_device_setter(1, ps_strategy=1)  # type: ignore[arg-type]


def test_a_function_sees_what_inner_scopes_ask_for() -> None:
    seen = []

    def device_of(op: hf.Operation) -> str:
        seen.append(op.device)
        return "/job:ps" if op.type == "Neg" else ""

    with hf.device(device_of):
        a = hf.constant(1.0)
        with hf.device("/cpu:0"), hf.device("/job:worker"):
            b = hf.negative(a)
        with hf.device(None):
            hf.negative(a)
    assert seen == ["", "/job:worker/cpu:0"] and b.op.device == "/job:worker/cpu:0"


def test_only_gradients_and_values_travel_with_a_device_setter() -> None:
    """Constants of the optimizer are where it runs: two messages a variable and step."""

    def body(context: RankContext) -> int:
        with hf.device(hf.train.replica_device_setter(cluster={"ps": ["a:1"]})):
            w = hf.Variable(np.zeros(3, np.float32))
            x = hf.placeholder(hf.float32, [3])
            loss = hf.reduce_sum(hf.square(w - x))
            train = hf.train.AdamOptimizer(0.1).minimize(loss)
        plan = hf.Session().plan(train, {x: np.ones(3, np.float32)})
        return sum(n.type == "Send" for part in plan.parts.values() for n in part.nodes.values())

    assert run_ranks(2, body, ps=1) == [3]  # the value, its gradient, and that it was applied


# -- Server


def test_ranks_become_the_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    def body(context: RankContext) -> tuple[str, int, str]:
        server = hf.train.Server(hf.train.ClusterSpec(CLUSTER), protocol="grpc")
        made = server.server_def
        with hf.Session(server.target) as session:
            assert session.context is context
        return made.job_name, made.task_index, server.target

    found = run_ranks(3, body, ps=1)
    assert found == [("worker", 0, "mpi://worker/0"), ("worker", 1, "mpi://worker/1")]
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        "/job:ps/task:0 (p0:1) is rank 2" in line and "/job:worker/task:1 (w1:2) is rank 1" in line
    )


def test_what_every_rank_was_told_alike_does_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    def body(context: RankContext) -> int:
        return hf.train.Server(CLUSTER, "worker", 0).server_def.task_index

    assert run_ranks(3, body, ps=1) == [0, 1]
    assert "All command lines say /job:worker/task:0; the ranks decide" in capsys.readouterr().err


def test_each_rank_may_be_told_its_own_task(capsys: pytest.CaptureFixture[str]) -> None:
    def body(context: RankContext) -> int:
        return hf.train.Server(CLUSTER, "worker", context.replica).server_def.task_index

    assert run_ranks(3, body, ps=1) == [0, 1]
    assert "decide" not in capsys.readouterr().err


def test_a_rank_that_was_told_anothers_task_is_named() -> None:
    def body(context: RankContext) -> None:
        with pytest.raises(
            LaunchError, match=r"rank 0 is /job:worker/task:0, but its command line says .*:1"
        ):
            hf.train.Server(CLUSTER, "worker", 1 - context.replica)

    run_ranks(3, body, ps=1)


@pytest.mark.parametrize("ranks, ps", [(3, 0), (4, 1), (2, 1)])
def test_a_list_of_another_length_tells_the_line_that_fits(
    ranks: int, ps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--rate", "0.1"])

    def body(context: RankContext) -> None:
        with pytest.raises(LaunchError) as caught:
            hf.train.Server(CLUSTER)
        assert "lists 1 ps and 2 worker tasks" in str(caught.value)
        assert f"has {ranks} ranks" in str(caught.value)
        assert "hpcflow run -n 3 --ps 1 train.py --rate 0.1" in str(caught.value)

    run_ranks(ranks, body, ps=ps)


def test_a_process_without_a_launcher_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcflow.tf1.server.has_joined", lambda: False)
    monkeypatch.setattr("hpcflow.launch.launcher_detection.detect_launcher", lambda: None)
    with pytest.raises(LaunchError, match=r"started alone.*\n.*hpcflow run -n 3 --ps 1"):
        hf.train.Server(CLUSTER, "worker", 0)


def test_jobs_have_two_names() -> None:
    with (
        use_context(RankContext(Settings())),
        pytest.raises(LaunchError, match="not chief, worker"),
    ):
        hf.train.Server({"chief": ["a:1"], "worker": ["b:1"]})


def test_a_rank_that_runs_the_script_does_not_join() -> None:
    with use_context(RankContext(Settings())):
        server = hf.train.Server({"worker": ["a:1"]})
        with pytest.raises(LaunchError, match=r"join\(\) on /job:worker/task:0, which runs"):
            server.join()


def test_what_is_no_target_is_refused() -> None:
    with pytest.raises(LaunchError, match="target of no"):
        hf.Session("grpc://localhost:2222")


def test_a_local_server_is_a_cluster_of_its_own(graph: hf.Graph) -> None:
    server = hf.train.Server.create_local_server()
    server.start()
    with hf.Session(server.target, graph) as session:
        assert session.run(hf.constant(2) * 3) == 6
        assert session.context.size == 1


def train_on(server: hf.train.Server, steps: int, found: list[Any]) -> None:
    """Count the steps of all workers, and let each add 1 to an element of its own."""
    with hf.Graph().as_default():
        with hf.device(hf.train.replica_device_setter(cluster=server.server_def.cluster)):
            w = hf.Variable(np.zeros(2, np.float32), name="w")
            count = hf.train.get_or_create_global_step()
            mine = np.eye(2, dtype=np.float32)[server.server_def.task_index]
            step = hf.group(w.assign_add(mine), count.assign_add(1))
        start = hf.global_variables_initializer()
        with hf.Session(server.target) as session:
            session.run(start)
            for _ in range(steps):
                session.run(step)
            server.context.barrier()
            found.append([session.run(w).tolist(), int(session.run(count)), count.device])


def test_a_cluster_of_threads_in_one_process() -> None:
    workers, servers = hf.test.create_local_cluster(num_workers=2, num_ps=2)
    assert [s.target for s in (*workers, *servers)] == [
        *("mpi://worker/0", "mpi://worker/1"),
        *("mpi://ps/0", "mpi://ps/1"),
    ]
    found: list[Any] = []
    threads = [threading.Thread(target=train_on, args=(w, 10, found)) for w in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [[[10.0, 10.0], 20, "/job:ps/task:1"]] * 2
    hf.test.end_local_cluster(workers)
    for server in servers:
        server.join()
    with pytest.raises(LaunchError, match="0 workers"):
        hf.test.create_local_cluster(0, 1)


# -- real ranks, started in the ways that people of TensorFlow start them

SCRIPT = """
import sys
import numpy as np
import hpcflow as hf
cluster = hf.train.ClusterSpec({"ps": ["a:1"], "worker": ["b:1", "c:1"]})
job, task = (sys.argv[1], int(sys.argv[2])) if len(sys.argv) > 1 else (None, None)
server = hf.train.Server(cluster, job_name=job, task_index=task)
if job == "ps":
    server.join()
    print("a server came back")
with hf.device(hf.train.replica_device_setter(cluster=cluster)):
    count = hf.train.get_or_create_global_step()
    step = count.assign_add(1)
start = hf.global_variables_initializer()
with hf.Session(server.target) as session:
    session.run(start)
    session.run(step)
    session.context.barrier()
    print(f"task {server.server_def.task_index} counts {session.run(count)}\\n", end="", flush=True)
"""


MPIRUN = str(ROOT / "tools/mpirun.py")
ALLOWED = {  # of Open MPI: root, and more ranks than cores
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": "slot:oversubscribe",
}


def started(folder: Path, *words: str) -> str:
    (folder / "script.py").write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **ALLOWED, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=220,
    )
    assert done.returncode == 0, done.stdout
    assert "came back" not in done.stdout
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("told", [[], ["worker", "0"]])
def test_a_plain_launcher_needs_no_options(told: list[str], tmp_path: Path) -> None:
    """The cluster says how many ranks serve."""
    output = started(
        tmp_path, str(ROOT / "tools/mpirun.py"), "3", sys.executable, "script.py", *told
    )
    assert "task 0 counts 2" in output and "task 1 counts 2" in output
    assert ("the ranks decide" in output) == bool(told)


@pytest.mark.slow
def test_ranks_with_command_lines_of_their_own_keep_their_tasks(tmp_path: Path) -> None:
    ranks = [["1", "ps", "0"], ["1", "worker", "0"], ["1", "worker", "1"]]
    words: list[str] = []
    for n, job, task in ranks:
        words += [":", "-n", n] if words else []
        words += [sys.executable, "script.py", job, task]
    output = started(tmp_path, MPIRUN, "1", *words)
    assert "/job:ps/task:0 (a:1) is rank 0" in output and "the ranks decide" not in output
    assert "task 0 counts 2" in output and "task 1 counts 2" in output
