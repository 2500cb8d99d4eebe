"""Plans as step templates: their work and bytes are those of the plan, in every mode."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import hpcflow as hf
from hpcflow.cli.plan import plans_of
from hpcflow.graph.device_names import parse_device
from hpcflow.placement.durations import Seconds
from hpcflow.placement.job_replay import JobSettings, ReplicaClass, replay_job
from hpcflow.placement.network import Network
from hpcflow.placement.step_template import StepTemplate
from hpcflow.plan.cost.cost_model import message_traffic
from hpcflow.plan.cost.replay_of_plan import (
    model_seconds,
    one_rank_seconds,
    own_seconds,
    samples_of,
    servers_seconds,
    template_of,
)
from hpcflow.plan.cost.step_prediction import predict_step
from hpcflow.plan.ir.program import Cluster, Plan, Ref
from hpcflow.plan.serialization.graph_fingerprint import plan_digest
from hpcflow.settings import Settings

from .model import graph, plan_of

SCRIPT = """
import sys
import numpy as np
import hpcflow as hf

layers, width = int(sys.argv[1]), int(sys.argv[2])
x = hf.placeholder(hf.float32, [None, width], name="x")
y = x
for i in range(layers):
    with hf.device(f"/job:worker/task:{i % 2}" if "split" in sys.argv else ""):
        w = hf.Variable(np.ones((width, width), "f4"), name=f"w{i}")
        y = hf.nn.relu(hf.matmul(y, w))
loss = hf.reduce_mean(y)
train = hf.train.GradientDescentOptimizer(0.01).minimize(loss)
with hf.Session() as session:
    session.run(hf.global_variables_initializer())
    feeds = {x: np.zeros((32, width), "f4")}
    session.run([loss, train], feeds)
"""
TABLE = """
import sys
import hpcflow as hf

ids = hf.placeholder(hf.int32, [16, 24])
table = hf.get_variable("table", [int(sys.argv[1]), 64])
loss = hf.reduce_mean(hf.nn.embedding_lookup(table, ids))
train = hf.train.GradientDescentOptimizer(0.01).minimize(loss)
with hf.Session() as session:
    session.run(train, {ids: [[0] * 24] * 16})
"""
NETWORK = Network(bandwidth=1e9, latency=1e-5)
QUIET = JobSettings(sigma=0.0, steps=10)


@pytest.fixture
def planned(tmp_path: Path):
    """A function that plans a network of matrices."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)

    def plan(ranks: int, *more: str, layers: int = 3, width: int = 64, **settings) -> Plan:
        words = [str(layers), str(width), *more]
        with hf.Graph().as_default():
            plans, _, code = plans_of(str(path), words, ranks, Settings(**settings))
        assert code == 0
        return plans[-1][0]

    return plan


def computed(template: StepTemplate, job: str) -> float:
    tasks = [t for t in template.tasks if parse_device(t.rank).job == job and not t.to]
    return sum(task.seconds.median for task in tasks if not task.is_collective)


MODES = [
    {},
    {"ps": 1},
    {"ps": 2, "sync": "all"},
    {"ps": 2, "sync": "backup:1"},
    {"ps": 3, "sync": "stale:2"},
]


@pytest.mark.parametrize("settings", MODES)
def test_a_template_has_the_work_and_the_bytes_of_the_plan(planned, settings) -> None:
    plan = planned(4 + settings.get("ps", 0), **settings)
    template = template_of(plan, NETWORK)
    assert computed(template, "worker") == pytest.approx(own_seconds(plan).median)
    moved: dict[tuple[str, str], list[float]] = {}
    for task in template.tasks:
        if task.to:
            row = moved.setdefault((task.rank, task.to), [0, 0])
            row[0], row[1] = row[0] + 1, row[1] + task.nbytes
    traffic = {(t.source, t.dest): [t.messages, t.nbytes] for t in message_traffic(plan)}
    assert moved == traffic
    assert sum(task.is_collective for task in template.tasks) == len(plan.collectives)
    assert template.is_synchronous == (settings.get("sync", "all") not in ("async", "stale:2")
                                       and settings != {"ps": 1})  # fmt: skip
    assert template.replicas == 4 and samples_of(plan) == 32


@pytest.mark.parametrize("settings", MODES)
@pytest.mark.parametrize("ranks", [2, 8])
def test_every_mode_can_be_replayed_and_takes_at_least_its_work(planned, settings, ranks) -> None:
    plan = planned(ranks + settings.get("ps", 0), **settings)
    template = template_of(plan, NETWORK)
    times = replay_job(template, NETWORK, [ReplicaClass(ranks)], QUIET)
    assert times.quantile(0.5) >= own_seconds(plan).median * 0.999
    assert 0 < times.steps_per_second <= ranks / own_seconds(plan).median * 1.001


def test_one_rank_takes_the_time_of_its_operations(planned) -> None:
    plan = planned(1)
    template = template_of(plan, NETWORK)
    times = replay_job(template, NETWORK, [ReplicaClass(1)], QUIET)
    assert times.quantile(0.5) == pytest.approx(one_rank_seconds(plan).median)


def test_the_times_of_nodes_are_those_that_are_passed_in(planned) -> None:
    plan = planned(1, layers=5)
    products = [n for p in plan.parts.values() for n in p.nodes.values() if n.type == "MatMul"]

    def seconds(node, inputs) -> Seconds:
        return Seconds(2.0, 1.0, 4.0) if node.type == "MatMul" else Seconds(0.0, 0.0, 0.0)

    found = predict_step(plan, NETWORK, {}, QUIET, seconds=seconds)
    count = len(products)
    assert count >= 9
    assert (found.median, found.low, found.high) == pytest.approx((2 * count, count, 4 * count))


@pytest.mark.parametrize(("sync", "sums"), [("async", 0), ("all", 3), ("backup:1", 3)])
def test_servers_update_for_each_replica_or_once_a_round(planned, sync, sums) -> None:
    """An update takes 2 s, a sum as many as it has gradients; adding to a round takes nothing."""
    plan = planned(4, ps=1, sync=sync)

    def seconds(node, inputs) -> Seconds:
        of = {"ApplyGradientDescent": 2.0, "RoundAdd": 50.0, "RoundReady": 50.0, "RoundEnd": 50.0}
        value = inputs[0].shape[0] if node.type == "RoundSum" else of.get(node.type, 0.0)
        return Seconds(value, value, value)

    gradients = {"async": 1, "all": 3, "backup:1": 2}[sync]
    updates = 3 * 2.0 * (3 if sync == "async" else 1)
    assert servers_seconds(plan, seconds) == updates + sums * gradients
    template = template_of(plan, NETWORK, seconds)
    own = sum(task.seconds.median for task in (*template.tasks, *template.update))
    assert own == 3 * 2.0 + sums * gradients


def test_collectives_go_on_beside_the_backward_pass(planned) -> None:
    """With a bucket for each matrix. One bucket of all goes on when nothing is left to compute."""
    network = Network(bandwidth=1e9, latency=0.0)
    steps = []
    for nbytes in (256 * 256 * 4, 1 << 30):
        plan = planned(2, layers=8, width=256, bucket_bytes=nbytes)
        template = template_of(plan, network)
        sums = [t.seconds.median for t in template.tasks if t.is_collective]
        assert sum(sums) == pytest.approx(8 * 256 * 256 * 4 / 1e9, rel=0.01)  # 2 (n - 1) / n is 1
        own = own_seconds(plan).median
        steps.append(replay_job(template, network, [ReplicaClass(2)], QUIET).quantile(0.5))
        assert len(sums) > 4 or nbytes == 1 << 30
    assert own * 0.999 < steps[0] < own + 0.5 * sum(sums)
    assert steps[1] == pytest.approx(own + sum(sums), rel=0.01)


@pytest.mark.parametrize("device", ["cpu:0", "gpu:0"])
def test_latencies_of_sums_add_up_on_gpus_only(device: str) -> None:
    """Between two nodes: 30 sums of 4 bytes, each with two messages of a millisecond."""
    with graph() as g:
        made = [hf.replica_sum(hf.tanh(hf.zeros([1]))) for _ in range(30)]
    cluster = Cluster(2, devices=(device,))
    plan = plan_of(g, made, {}, cluster, Settings(bucket_bytes=1))
    assert len(plan.collectives) == 30
    network = Network(bandwidth=1e9, latency=1e-3)
    template = template_of(plan, network)
    step = replay_job(template, network, [ReplicaClass(2)], QUIET).quantile(0.5)
    assert step == pytest.approx(0.06 if device == "gpu:0" else 0.002, rel=0.1)


def test_gathered_rows_of_a_table_are_those_that_each_replica_reads(tmp_path: Path) -> None:
    """Of 16 x 24 rows of 64 floats and their numbers, whatever the size of the table."""
    path = tmp_path / "table.py"
    path.write_text(TABLE)
    network, times = Network(bandwidth=1e8, latency=0.0), []
    for rows in (512, 1 << 16):
        with hf.Graph().as_default():
            plans, _, code = plans_of(str(path), [str(rows)], 4, Settings())
        assert code == 0
        plan = plans[-1][0]
        template = template_of(plan, network)
        (gather,) = [task.seconds.median for task in template.tasks if task.is_collective]
        assert gather == pytest.approx(3 * 16 * 24 * (64 * 4 + 4) / 1e8)
        times.append(own_seconds(plan).median)
    assert times[0] == times[1] > 16 * 24 * 64 * 4 / 1e10


def test_one_worker_and_one_server_take_turns(planned) -> None:
    """No step overlaps with the next: its time is that of the longest chain."""
    plan = planned(2, layers=1, ps=1)
    network = Network(bandwidth=1e9, latency=0.01)
    times = replay_job(template_of(plan, network), network, [ReplicaClass(1)], QUIET)
    # the header, the variable, the gradient and the token, one after the other
    nbytes = 64 * 64 * 4
    chain = 4 * 0.01 + (64 + 2 * nbytes) / 1e9 + one_rank_seconds(plan).median
    assert times.quantile(0.5) == pytest.approx(chain, rel=0.01)


def test_the_sum_of_a_round_grows_with_its_gradients(planned) -> None:
    times = [
        sum(t.seconds.median for t in template_of(planned(n + 1, ps=1, sync="all"), NETWORK).update)
        for n in (2, 32)
    ]
    assert times[1] > 3 * times[0]


def test_servers_that_are_alike_are_replayed_as_one(planned) -> None:
    plan = planned(4 + 12, layers=24, ps=12)
    template = template_of(plan, NETWORK)
    assert len(template.servers) == NETWORK.most_servers
    assert sum(template.servers.values()) == 12
    assert template.servers["/job:ps/task:0"] == 1
    loads = {task: 0.0 for task in plan.parts}
    for edge in plan.edges:
        for task in (edge.source, edge.dest):
            loads[task] += edge.spec.nbytes
    servers = {task: load for task, load in loads.items() if "/job:ps" in task}
    assert max(servers.values()) == max(servers[task] for task in template.servers)


def test_several_tasks_of_a_replica_send_to_each_other(planned) -> None:
    plan = planned(4, "split", tasks_per_replica=2)
    template = template_of(plan, NETWORK)
    assert template.replicas == 2 and len(template.ranks) == 2
    pairs = {(task.rank, task.to) for task in template.tasks if task.to}
    assert ("/job:worker/task:0", "/job:worker/task:1") in pairs
    assert ("/job:worker/task:1", "/job:worker/task:0") in pairs
    slow = dataclasses.replace(NETWORK, latency=1.0)
    step = replay_job(template_of(plan, slow), slow, [ReplicaClass(2)], QUIET).quantile(0.5)
    together = dataclasses.replace(slow, ranks_per_node=4)
    near = replay_job(template_of(plan, together), together, [ReplicaClass(2)], QUIET)
    assert near.quantile(0.5) < 0.1 < 4.0 < step


def test_a_digest_tells_plans_apart_and_knows_equal_ones(planned) -> None:
    plans = [
        planned(4),
        planned(8),
        planned(4, layers=4),
        planned(4, width=32),
        planned(5, ps=1),
        planned(5, ps=1, sync="all"),
        planned(5, ps=1, sync="stale:1"),
        planned(4, tasks_per_replica=2),
    ]
    digests = [plan_digest(plan) for plan in plans]
    assert len(set(digests)) == len(plans)
    assert plan_digest(planned(4)) == digests[0]


def test_the_interval_of_a_known_error_is_a_factor_either_way(planned) -> None:
    """A replay that is 5 times too short has an error of 4; no time is negative."""
    found = predict_step(planned(2), NETWORK, {}, QUIET, error=4.0)
    assert found.low == pytest.approx(found.median / 5)
    assert found.high == pytest.approx(found.median * 5)


def test_a_digest_ignores_names_that_fusion_changes(planned) -> None:
    plan = planned(2)
    part = plan.parts[plan.driver]
    fetch = next(ref for ref in part.fetches if part.spec(ref).shape == ())
    fused = dataclasses.replace(part.nodes[fetch.node], name="fused")
    fetches = tuple(Ref("fused", r.index) if r == fetch else r for r in part.fetches)
    lowered = dataclasses.replace(part, nodes={**part.nodes, "fused": fused}, fetches=fetches)
    changed = dataclasses.replace(plan, parts={**plan.parts, plan.driver: lowered})
    assert plan_digest(changed) == plan_digest(plan)
    fewer = dataclasses.replace(part, fetches=())
    assert plan_digest(
        dataclasses.replace(plan, parts={**plan.parts, plan.driver: fewer})
    ) != plan_digest(plan)


def test_the_cost_model_is_wide_and_its_median_inside(planned) -> None:
    plan = planned(2)
    part = plan.parts[plan.driver]
    for node in part.nodes.values():
        time = model_seconds(node, [part.spec(ref) for ref in node.inputs])
        assert time.low <= time.median <= time.high


@pytest.mark.parametrize("sync", ["async", "all"])
def test_rows_of_a_tables_gradient_are_sent_to_its_server_once(tmp_path: Path, sync: str) -> None:
    """They are reshaped and summed on the worker: from the server come only the rows that it reads.

    To the server go the 16 x 24 ids, and the summed rows, whose number the plan does not know.
    """
    path = tmp_path / "table.py"
    path.write_text(TABLE.replace("reduce_mean(", "nn.l2_loss("))
    with hf.Graph().as_default():
        plans, _, code = plans_of(str(path), ["512"], 3, Settings(ps=1, sync=sync))
    assert code == 0
    plan = plans[-1][0]
    sent: dict[bool, list[tuple[int | None, ...]]] = {True: [], False: []}
    for edge in plan.edges:
        sent[edge.dest.startswith("/job:ps")].append(edge.spec.shape or ())
    no_bytes = (), (0,)  # tokens
    assert [shape for shape in sent[False] if shape not in no_bytes] == [(16, 24, 64)]
    rows = [shape for shape in sent[True] if shape not in no_bytes]
    assert sorted(map(str, rows)) == ["(16, 24)", "(None, 64)", "(None,)"]
