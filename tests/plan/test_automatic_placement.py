"""placement=auto: which tasks a plan uses, what it obeys, its reasons, forecasts and errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

import hpcflow as hf
from hpcflow.errors import HpcflowError, PlacementError
from hpcflow.graph.device_names import parse_device
from hpcflow.placement import placement_search
from hpcflow.plan.distribution import step_problem_builder
from hpcflow.plan.distribution.automatic_placement import automatic_facts
from hpcflow.plan.ir.program import Cluster
from hpcflow.plan.listing.plan_text import plan_data, plan_text
from hpcflow.settings import Settings

from .model import Net, by_name, graph, plan_of
from .test_random_graphs import RandomGraph, check

TWO, THREE = Cluster(2, tasks_per_replica=2), Cluster(3, tasks_per_replica=3)
AUTO = Settings(placement="auto", tasks_per_replica=2)
ROWS, WIDTH = 256, 256
WEIGHTS = 4 * WIDTH * WIDTH  # bytes


def limited(nbytes):
    return Settings(placement="auto", tasks_per_replica=2, memory_limit=str(nbytes))


class Towers:
    """Two towers of products of large matrices whose sums meet in a loss, and its training."""

    def __init__(self, layers=3, wish="", optimizer=None):
        with graph() as self.graph:
            self.x = hf.placeholder(hf.float32, [ROWS, WIDTH], name="x")
            ends = []
            for tower in ("left", "right"):
                h = self.x
                with hf.device(wish if tower == "right" else None):
                    for k in range(layers):
                        start = hf.random_normal([WIDTH, WIDTH], seed=k)
                        w = hf.Variable(start, name=f"{tower}/dense_{k}/w")
                        with hf.name_scope(f"{tower}/dense_{k}/"):
                            h = hf.nn.relu(hf.matmul(h, w, name="product"), name="relu")
                    ends.append(hf.reduce_sum(h, name=f"{tower}/end"))
            self.loss = hf.square(ends[0] - ends[1], name="loss")
            self.train = (optimizer or hf.train.AdamOptimizer(0.01)).minimize(self.loss)
            self.init = hf.global_variables_initializer()

    def plan(self, cluster=TWO, settings=AUTO):
        return plan_of(
            self.graph, [self.train, self.loss], {self.x: (ROWS, WIDTH)}, cluster, settings
        )

    def start(self, cluster=TWO, settings=AUTO):
        return plan_of(self.graph, [self.init], {}, cluster, settings)


def tasks_of(plan):
    """Node -> number of its worker task, without constants and messages."""
    return {
        name: parse_device(node.device).task
        for name, node in by_name(plan).items()
        if node.row.source != "constant" and not node.row.message
    }


def forecast(plan):
    """The predicted milliseconds of a step: as placed, and all on the driver."""
    units = {"s": 1e3, "ms": 1.0, "us": 1e-3}
    found = re.findall(r"([\d.e+-]+) (s|ms|us)\b", plan.forecast)
    return [float(number) * units[unit] for number, unit in found]


def test_two_independent_towers_are_on_two_tasks_with_their_gradients_and_updates():
    plan = Towers().plan()
    tasks = tasks_of(plan)
    towers = {
        side: {task for name, task in tasks.items() if f"{side}/dense" in name}
        for side in ("left", "right")
    }
    assert sorted(map(tuple, towers.values())) == [(0,), (1,)]
    placed, default = forecast(plan)
    assert 0.4 < placed / default < 0.65


def test_reasons_and_forecast_are_in_the_listing():
    plan = Towers().plan()
    moved = [name for name, task in tasks_of(plan).items() if task == 1]
    reasons = {plan.reasons.get(name, "") for name in moved}  # later passes add nodes
    told = r"placement=auto: with layer \w+/dense_1 on task 1: saves [\d.]+ ms of a step"
    assert any(re.fullmatch(told, why) for why in reasons)
    assert plan.forecast in plan_text(plan) and plan_data(plan)["forecast"] == plan.forecast


def test_without_the_setting_all_is_on_the_driver():
    made = Towers()
    plan = made.plan(TWO, Settings(tasks_per_replica=2))
    assert set(tasks_of(plan).values()) == {0} and plan.forecast == ""


def test_a_chain_of_small_operations_stays_on_the_driver():
    with graph() as g:
        h = x = hf.placeholder(hf.float32, [8, 4], name="x")
        for _ in range(30):
            h = hf.tanh(h)
    plan = plan_of(g, [h], {x: (8, 4)}, THREE, AUTO)
    assert set(tasks_of(plan).values()) == {0}
    assert len(set(forecast(plan))) == 1


def test_device_scopes_of_the_script_are_obeyed():
    for task in (0, 1, 2):
        plan = Towers(wish=f"/job:worker/task:{task}").plan(THREE)
        right = {t for name, t in tasks_of(plan).items() if re.match(r"right/dense_\d/", name)}
        assert right == {task}
        assert plan.reasons["right/dense_0/relu"] == f"asked for: /job:worker/task:{task}"


def test_a_kind_of_device_leaves_the_task_open():
    plan = Towers(wish="cpu:0").plan()
    assert set(tasks_of(plan).values()) == {0, 1}


def test_what_shares_a_device_is_moved_together():
    made = Towers(optimizer=hf.train.MomentumOptimizer(0.1, 0.9))
    with made.graph.as_default():
        left = made.graph.get_operation_by_name("left/dense_0/w")
        with hf.colocate_with(left):
            mate = hf.matmul(made.x, made.x, transpose_a=True, name="mate")
    shape = {made.x: (ROWS, WIDTH)}
    plan = plan_of(made.graph, [made.train, mate], shape, TWO, AUTO)
    tasks = tasks_of(plan)
    assert tasks["mate"] == tasks["left/dense_0/w"]
    for name, node in by_name(plan).items():
        for ref in node.inputs:
            if by_name(plan)[ref.node].is_state:
                assert tasks[name] == tasks[ref.node], name


def test_variables_have_one_task_in_all_steps_of_a_graph():
    made = Towers()
    homes = {}
    for plan in (made.start(), made.plan()):
        for name, task in tasks_of(plan).items():
            if by_name(plan)[name].row.variable == "handle":
                homes.setdefault(name, set()).add(task)
    assert len(homes) > 12 and all(len(tasks) == 1 for tasks in homes.values())
    assert set().union(*homes.values()) == {0, 1}


def test_variables_keep_their_tasks_when_the_graph_grows():
    made = Towers()
    before = tasks_of(made.start())
    with made.graph.as_default():
        big = hf.Variable(hf.zeros([WIDTH, WIDTH]), name="new")
        step = big.assign_add(hf.matmul(big, big))
    plan_of(made.graph, [step], {}, TWO, AUTO)
    after = tasks_of(made.start())
    variables = [n for n in before if n.endswith("/w")]
    assert len(variables) == 6 and all(before[n] == after[n] for n in variables)


def test_a_device_scope_that_comes_after_the_choice_is_an_error_if_it_differs():
    made = Towers()
    homes = {n: task for n, task in tasks_of(made.start()).items() if n.endswith("/w")}
    for name, task in homes.items():
        for wish in (0, 1):
            variable = made.graph.get_operation_by_name(name)
            with made.graph.as_default(), hf.colocate_with(variable):
                with hf.device(f"/job:worker/task:{wish}"):
                    mate = hf.identity(made.x * 2.0)
            shape = {made.x: (ROWS, WIDTH)}
            if wish == task:
                plan_of(made.graph, [mate, made.init], shape, TWO, AUTO)
            else:
                with pytest.raises(PlacementError, match="its task in other steps"):
                    plan_of(made.graph, [mate, made.init], shape, TWO, AUTO)


def test_feeds_fetches_scripts_strings_and_loops_stay_on_the_driver():
    with graph() as g:
        x = hf.placeholder(hf.float32, [ROWS, WIDTH], name="x")
        sides = []
        for k in range(2):
            w = hf.Variable(hf.ones([WIDTH, WIDTH]), name=f"w{k}")
            sides.append(hf.matmul(hf.matmul(x, w), w))
        called = hf.py_func(lambda a: a, [sides[0]], hf.float32, name="called")
        text = hf.as_string(hf.reduce_sum(sides[1]), name="text")
        inner = hf.Variable(hf.ones([WIDTH, WIDTH]), name="inner")
        loop = hf.while_loop(
            lambda i, a: i < 3, lambda i, a: (i + 1, hf.matmul(a, inner)), [0, sides[0]]
        )
    plan = plan_of(g, [called, text, loop[1]], {x: (ROWS, WIDTH)}, TWO, AUTO)
    tasks = tasks_of(plan)
    assert 1 in tasks.values()
    assert {tasks[name] for name in ("x", "called", "text", "inner")} == {0}
    assert {tasks[n] for n, node in by_name(plan).items() if node.row.control_flow} == {0}
    assert set(plan.parts[plan.driver].fetches) and not plan.parts["/job:worker/task:1"].fetches


def test_variables_on_servers_stay_there():
    cluster = Cluster(2, 1, tasks_per_replica=2)
    plan = Towers(optimizer=hf.train.GradientDescentOptimizer(0.1)).plan(cluster)
    for name, node in by_name(plan).items():
        if node.is_state or node.row.writes:
            assert node.device.startswith("/job:ps/task:0"), name
    products = {n.device for n in by_name(plan).values() if n.type == "MatMul"}
    assert products == {f"/job:worker/task:{k}/cpu:0" for k in (0, 1)}


def test_sums_of_replicas_do_not_depend_on_the_shapes_of_feeds():
    cluster = Cluster(4, tasks_per_replica=2)
    net = Net(rows=64, width=512)

    def devices(rows):
        feeds = {net.x: (rows, 64), net.y: (rows, 4)}
        plan = plan_of(net.graph, net.updates, feeds, cluster, AUTO)
        return [(n.name, n.device) for n in by_name(plan).values() if n.row.collective]

    assert devices(1) == devices(7) == devices(100_000) != []


def predicted(made, optimizer, rows):
    """The predicted milliseconds of a step on the driver: rows of a variable, and its update."""
    with graph() as g:
        w = hf.Variable(hf.zeros([made, 64]), name="w")
        used = hf.nn.embedding_lookup(w, hf.constant(list(range(rows)))) if rows else w * 2.0
        train = optimizer.minimize(hf.reduce_sum(used))
    return forecast(plan_of(g, [train], {}, TWO, AUTO))[1]


def test_updates_count_the_bytes_of_their_variables():
    slots = {
        name: predicted(20_000, optimizer, 0)
        for name, optimizer in (
            ("none", hf.train.GradientDescentOptimizer(0.1)),
            ("one", hf.train.MomentumOptimizer(0.1, 0.9)),
            ("two", hf.train.AdamOptimizer(0.1)),
        )
    }
    pass_ms = 1e3 * 20_000 * 64 * 4 / 1e10  # the cost model reads each input once, at 10 GB/s
    for fewer, more in (("none", "one"), ("one", "two")):
        assert slots[more] - slots[fewer] == pytest.approx(pass_ms, rel=0.05)


def test_rows_of_a_variable_count_without_the_others():
    optimizer = hf.train.GradientDescentOptimizer(0.1)
    few, many = (predicted(count, optimizer, 16) for count in (1_000, 100_000))
    assert few == pytest.approx(many, rel=0.01) and many < 0.1


# -- memory


def variable_bytes(plan):
    """Bytes of variables on each task."""
    counted = [0] * plan.cluster.tasks_per_replica
    for name, node in by_name(plan).items():
        if node.row.variable == "handle":
            size = node.attrs["dtype"].itemsize
            for d in node.attrs["shape"]:
                size *= d
            counted[tasks_of(plan)[name]] += size
    return counted


def chain(layers=4):
    """Layers that run one after the other, so that only memory is a reason to cut them."""
    with graph() as g:
        h = x = hf.placeholder(hf.float32, [2, WIDTH], name="x")
        for k in range(layers):
            w = hf.Variable(hf.ones([WIDTH, WIDTH]), name=f"dense_{k}/w")
            with hf.name_scope(f"dense_{k}/"):
                h = hf.tanh(hf.matmul(h, w))
        train = hf.train.MomentumOptimizer(0.1, 0.9).minimize(hf.reduce_sum(h))
    return g, x, train


def test_what_exceeds_the_memory_of_a_task_is_split():
    g, x, train = chain()
    plan = plan_of(g, [train], {x: (2, WIDTH)}, TWO, limited(9 * WEIGHTS))
    assert sorted(variable_bytes(plan)) == [4 * WEIGHTS, 4 * WEIGHTS]
    assert "more than its memory_limit if all were on the driver" in plan.forecast
    assert any("task 0 has no memory for it" in why for why in plan.reasons.values())


def test_variables_that_fit_nowhere_are_an_error_that_names_the_remedies():
    g, x, train = chain()
    limit = 4 * WEIGHTS + 50_000
    with pytest.raises(PlacementError) as caught:
        plan_of(g, [train], {x: (2, WIDTH)}, TWO, limited(limit))
    (tasks,) = re.findall(r"--tasks-per-replica (\d+)", caught.value.hint)
    (need,) = re.findall(r"to ([\d,]+)", caught.value.hint)
    assert int(need.replace(",", "")) >= 4 * WEIGHTS
    for cluster, settings in (
        (Cluster(int(tasks), tasks_per_replica=int(tasks)), limited(limit)),
        (TWO, limited(int(need.replace(",", "")) + 2 * WEIGHTS)),
    ):
        g, x, train = chain()
        plan = plan_of(g, [train], {x: (2, WIDTH)}, cluster, settings)
        assert max(variable_bytes(plan)) <= int(settings.memory_limit)


def test_a_variable_larger_than_a_task_needs_more_memory_not_more_tasks():
    g, x, train = chain(1)
    with pytest.raises(PlacementError, match="would hold") as caught:
        plan_of(g, [train], {x: (2, WIDTH)}, TWO, limited(WEIGHTS))
    assert caught.value.hint.startswith("raise memory_limit by")


def test_variables_that_no_update_reaches_count_too():
    with graph() as g:
        table = hf.Variable(hf.ones([WIDTH, WIDTH]), name="table", trainable=False)
        w = hf.Variable(hf.ones([WIDTH, WIDTH]), name="w")
        w.assign_add(hf.matmul(w, w))
        init = hf.global_variables_initializer()
    tasks = tasks_of(plan_of(g, [init], {}, TWO, limited(2 * WEIGHTS + 1000)))
    assert tasks[table.op.name] != tasks["w"]


# -- the same plan everywhere

SCRIPT = """
import json
from tests.plan.test_automatic_placement import AUTO, THREE, Towers, tasks_of
for made in (Towers(), Towers(5)):
    print(json.dumps(sorted(tasks_of(made.plan(THREE)).items())), made.plan(THREE).forecast)
"""


@pytest.mark.slow
def test_processes_with_other_hash_seeds_and_repeated_plans_agree():
    outputs = set()
    for seed in ("1", "2"):
        environ = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environ, capture_output=True, text=True, timeout=400
        )
        assert done.returncode == 0, done.stderr
        outputs.add(done.stdout)
    mine = "".join(
        f"{json.dumps(sorted(tasks_of(made.plan(THREE)).items()))} {made.plan(THREE).forecast}\n"
        for made in (Towers(), Towers(5))
    )
    assert outputs == {mine}


def test_the_cache_key_has_what_the_placement_depends_on():
    made = Towers()
    facts = automatic_facts(made.graph, TWO, AUTO, {})
    assert facts == automatic_facts(made.graph, TWO, AUTO, {})
    assert facts != automatic_facts(made.graph, THREE, AUTO, {})


def test_one_task_has_no_automatic_placement():
    with pytest.raises(HpcflowError, match="has 1") as caught:
        Settings.from_environ({"HPCFLOW_PLACEMENT": "auto"})
    assert "--tasks-per-replica 2" in caught.value.hint


# -- any graph gives the values of its operations one by one


@pytest.mark.parametrize("scatter", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_random_graphs(seed, scatter, monkeypatch):
    for name in ("MESSAGE_S", "MESSAGE_OVERHEAD_S"):
        monkeypatch.setattr(step_problem_builder, name, 1e-9)  # so that small operations are moved
    monkeypatch.setattr(placement_search, "MOST_MOVES", 300)  # values are right in any placement
    cluster = Cluster(4, tasks_per_replica=4, devices=("cpu:0", "cpu:1"))
    made = RandomGraph(seed, scatter=scatter)
    plan = check(made, cluster, seed, AUTO)
    assert scatter or len(plan.parts) > 1
