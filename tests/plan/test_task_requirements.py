"""hf.device(requires=, near=): which tasks plans use, and the errors of what no task offers."""

from __future__ import annotations

import json

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import PlacementError
from hpcflow.graph.device_names import parse_device
from hpcflow.placement.topology import topology_of
from hpcflow.plan.ir.program import Cluster
from hpcflow.settings import Settings

from .model import by_name, graph, plan_of

BY_HAND = Settings(tasks_per_replica=2)
AUTO = Settings(tasks_per_replica=2, placement="auto")
BOTH = pytest.mark.parametrize("settings", [BY_HAND, AUTO], ids=["by hand", "auto"])
TWO = Cluster(2, tasks_per_replica=2)


def ranks(*nodes, servers=0):
    """A cluster of one replica: each node has tasks of (gigabytes, gpus); the last are servers."""
    rows = [
        {"ranks": len(tasks), "memory_bytes": tasks[0][0] * 1e9}
        | ({"gpus": tasks[0][1]} if tasks[0][1] else {})
        for tasks in nodes
    ]
    topology = topology_of({"format": "hpcflow-topology-1", "racks": [{"nodes": rows}]})
    workers = topology.size - servers
    return Cluster(workers, servers, tasks_per_replica=workers, topology=topology)


SMALL_AND_LARGE = ranks([(8, 0)], [(40, 0)])


def tasks_of(plan):
    """Operation -> number of its worker task, without constants and messages."""
    return {
        name: parse_device(node.device).task
        for name, node in by_name(plan).items()
        if node.row.source != "constant" and not node.row.message
    }


class Layers:
    """Two layers, the second in a scope with a requirement, and their training."""

    def __init__(self, **scope):
        with graph() as self.graph:
            self.x = hf.placeholder(hf.float32, [4, 4], name="x")
            w0 = hf.Variable(hf.ones([4, 4]), name="first/w")
            h = hf.tanh(hf.matmul(self.x, w0, name="first/product"))
            with hf.device(**scope):
                w1 = hf.Variable(hf.ones([4, 4]), name="second/w")
                h = hf.matmul(h, w1, name="second/product")
            self.loss = hf.reduce_sum(h, name="loss")
            self.train = hf.train.AdamOptimizer(0.01).minimize(self.loss)
            self.init = hf.global_variables_initializer()

    def plans(self, cluster, settings):
        step = plan_of(self.graph, [self.train, self.loss], {self.x: (4, 4)}, cluster, settings)
        return [step, plan_of(self.graph, [self.init], {}, cluster, settings)]


def plan_one(cluster=SMALL_AND_LARGE, settings=BY_HAND, **scope):
    """The plan of one operation `y` in a device scope."""
    with graph() as g:
        x = hf.placeholder(hf.float32, [4], name="x")
        with hf.device(**scope):
            y = hf.tanh(x, name="y")
    return plan_of(g, [y], {x: (4,)}, cluster, settings)


@BOTH
def test_a_layer_with_its_variable_gradient_and_slots_is_on_the_task_with_the_memory(settings):
    for plan in Layers(requires="20 GB").plans(SMALL_AND_LARGE, settings):
        tasks = tasks_of(plan)
        own = {t for n, t in tasks.items() if "second/" in n and "Fill" not in n}
        assert own == {1}
        if not settings.automatic:  # a search may put the other layer beside it
            assert {t for n, t in tasks.items() if n.startswith("first/")} == {0}
        assert plan.reasons["second/w"].startswith("requires 20 GB; ")


def test_the_reason_of_what_shares_the_device_names_the_requirement():
    plan = Layers(requires="20 GB").plans(SMALL_AND_LARGE, BY_HAND)[0]
    assert plan.reasons["second/w"] == "requires 20 GB; on the first task that has it"
    assert plan.reasons["second/w/Adam"] == "with second/w, which requires 20 GB"


@BOTH
def test_a_task_with_a_gpu_runs_it_on_the_gpu(settings):
    cluster = ranks([(8, 0)], [(8, 1)])
    plan = plan_one(cluster, settings, requires="gpu")
    assert by_name(plan)["y"].device == "/job:worker/task:1/gpu:0"


def test_devices_of_the_ranks_tell_gpus_where_no_topology_does():
    cluster = Cluster(2, tasks_per_replica=2, devices=("cpu:0", "gpu:0"))
    assert by_name(plan_one(cluster, requires="gpu"))["y"].device == "/job:worker/task:0/gpu:0"
    plan = plan_one(cluster, name="/cpu:0", requires="gpu")
    assert by_name(plan)["y"].device == "/job:worker/task:0/cpu:0"


def test_the_driver_is_used_if_it_has_enough():
    assert tasks_of(plan_one(requires="8 GB"))["y"] == 0


@BOTH
def test_near_a_task_means_on_it(settings):
    for cluster in (SMALL_AND_LARGE, TWO):
        for task in (0, 1):
            plan = plan_one(cluster, settings, near=f"/job:worker/task:{task}")
            assert tasks_of(plan)["y"] == task


@BOTH
def test_near_a_task_that_lacks_something_means_on_its_node(settings):
    one = {"ranks": 1, "memory_bytes": 8e9}
    data = {"format": "hpcflow-topology-1", "racks": [{"nodes": [one, one, one]}]}
    topology = topology_of(data)
    object.__setattr__(topology, "nodes", (0, 1, 1))
    object.__setattr__(topology, "gpus", (1, 0, 1))
    cluster = Cluster(3, tasks_per_replica=3, topology=topology)
    plan = plan_one(cluster, settings, near="task:1", requires="gpu")
    assert by_name(plan)["y"].device == "/job:worker/task:2/gpu:0"


def test_near_a_server_is_a_worker_of_its_node():
    cluster = ranks([(8, 0)], [(8, 0), (8, 0)], servers=1)
    assert tasks_of(plan_one(cluster, near="/job:ps/task:0"))["y"] == 1


@BOTH
def test_nested_scopes_add_up_and_none_clears(settings):
    cluster = ranks([(30, 0)], [(30, 1)], [(40, 1)])
    with graph() as g:
        h = hf.placeholder(hf.float32, [4], name="x")
        x = h
        with hf.device(requires="20 GB"):
            outer = hf.tanh(h, name="outer")
            with hf.device(requires="gpu, 15 GB"):
                h = hf.tanh(outer, name="inner")
                with hf.device(None):
                    h = hf.tanh(h, name="free")
    plan = plan_of(g, [h], {x: (4,)}, cluster, settings)
    assert by_name(plan)["inner"].device == "/job:worker/task:2/gpu:0"
    assert tasks_of(plan)["free"] == 0
    assert plan.reasons["inner"].startswith("requires gpu, 20 GB + 15 GB; ")


@BOTH
def test_scopes_share_the_memory_of_a_task_and_a_scope_counts_once(settings):
    limited = Settings(tasks_per_replica=2, placement=settings.placement, memory_limit="30 GB")
    with graph() as g:
        x = hf.placeholder(hf.float32, [4], name="x")
        ends = []
        for k in range(2):
            with hf.device(requires="20 GB"):
                ends += [hf.tanh(hf.sin(x, name=f"sin{k}"), name=f"tanh{k}")]
    tasks = tasks_of(plan_of(g, ends, {x: (4,)}, TWO, limited))
    assert [tasks[n] for n in ("sin0", "tanh0")] == [0, 0]
    assert [tasks[n] for n in ("sin1", "tanh1")] == [1, 1]


def test_a_search_does_not_fill_memory_that_a_scope_reserves():
    size = 4 * 256 * 256
    limited = Settings(tasks_per_replica=2, placement="auto", memory_limit=str(10 * size))
    for reserved, is_room in ((1, True), (7.5, False)):
        with graph() as g:
            x = hf.placeholder(hf.float32, [256, 256], name="x")
            with hf.device("/job:worker/task:0", requires=f"{reserved * size / 1e6} MB"):
                kept = hf.tanh(x, name="kept")
            h = x
            for k in range(3):
                h = hf.matmul(h, hf.Variable(hf.ones([256, 256]), name=f"w{k}"), name=f"m{k}")
        tasks = tasks_of(plan_of(g, [kept, h], {x: (256, 256)}, TWO, limited))
        homes = {tasks[f"w{k}"] for k in range(3)}
        assert tasks["kept"] == 0 and (homes == {0}) == is_room


def test_a_search_says_that_requirements_do_not_fit_and_what_would_do():
    size = 4 * 256 * 256
    limited = Settings(tasks_per_replica=2, placement="auto", memory_limit=str(4 * size))
    with graph() as g:
        x = hf.placeholder(hf.float32, [256, 256], name="x")
        h = x
        for task in (0, 1):
            with hf.device(f"/job:worker/task:{task}", requires=f"{4 * size / 1e6} MB"):
                h = hf.tanh(h)
        h = hf.matmul(h, hf.Variable(hf.ones([256, 256]), name="w"))
    with pytest.raises(PlacementError, match=r"hf\.device\(requires=") as error:
        plan_of(g, [h], {x: (256, 256)}, TWO, limited)
    assert "--tasks-per-replica 3" in str(error.value) and "raise memory_limit" in str(error.value)


def test_variables_keep_the_task_when_the_graph_grows():
    made = Layers(requires="20 GB")
    before = tasks_of(made.plans(SMALL_AND_LARGE, BY_HAND)[1])
    with made.graph.as_default(), hf.device(requires="15 GB"):
        more = hf.tanh(made.x, name="more")
    grown = plan_of(made.graph, [more], {made.x: (4, 4)}, SMALL_AND_LARGE, BY_HAND)
    assert tasks_of(grown)["more"] == 1
    assert tasks_of(made.plans(SMALL_AND_LARGE, BY_HAND)[1]) == before


# -- the graph


def test_requirements_are_in_a_graph_def_and_imported_scopes_reserve_for_themselves():
    made = Layers(requires="gpu, 20 GB", near="task:1")
    data = json.loads(json.dumps(made.graph.as_graph_def()))
    with graph() as g:
        for name in ("a", "b"):
            hf.import_graph_def(data, name=name)
    first = parse_device(made.graph.get_operation_by_name("second/product").device).needs
    a, b = (
        parse_device(g.get_operation_by_name(f"{name}/second/product").device).needs
        for name in ("a", "b")
    )
    assert a.gpu and a.near == first.near == (("worker", 1),) and a.nbytes == 20_000_000_000
    assert a == first and {r.scope for r in a.memory}.isdisjoint(r.scope for r in b.memory)


def test_names_of_devices_are_as_before_where_nothing_is_required():
    with graph():
        with hf.device("/job:worker/task:1"):
            y = hf.tanh(1.0)
            with hf.device("/gpu:0"):
                z = hf.tanh(1.0)
    assert (y.device, z.device) == ("/job:worker/task:1", "/job:worker/task:1/gpu:0")


def test_a_function_of_a_device_scope_keeps_the_requirement():
    with graph(), hf.device(lambda op: "/job:worker/task:1"), hf.device(requires="gpu"):
        y = hf.tanh(1.0)
    wish = parse_device(y.device)
    assert wish.task == 1 and wish.needs.gpu


# -- errors


@BOTH
@pytest.mark.parametrize("cluster, scope, told", [
    (SMALL_AND_LARGE, {"requires": "50 GB"}, r"a task has is 40 GB \(/job:worker/task:1\)"),
    (SMALL_AND_LARGE, {"requires": "gpu"}, "no task has a GPU"),
    (TWO, {"requires": "1 GB"}, "nothing tells how much memory"),
    (TWO, {"near": "/job:worker/task:7"}, "there is no /job:worker/task:7"),
    (TWO, {"near": "/job:ps/task:0"}, "there is no /job:ps/task:0"),
    (SMALL_AND_LARGE, {"name": "/task:0", "requires": "20 GB"},
     r"requires 20 GB, but is on /job:worker/task:0 \(asked for: /task:0\), which has 8 GB"),
    (ranks([(8, 1)], [(40, 0)]), {"requires": "gpu, 20 GB"},
     "requires 20 GB and gpu: no task has both"),
    (SMALL_AND_LARGE, {"requires": "20 GB", "near": "task:0"}, "no task has both"),
])  # fmt: skip
def test_what_no_task_offers_is_an_error_with_the_line(settings, cluster, scope, told):
    with pytest.raises(PlacementError, match=told) as error:
        plan_one(cluster, settings, **scope)
    assert error.value.op == "y" and "test_task_requirements.py" in error.value.line
    assert error.value.hint


@BOTH
def test_colocated_operations_whose_requirements_no_task_has_name_both_lines(settings):
    with graph() as g:
        x = hf.placeholder(hf.float32, [4], name="x")
        with hf.device(requires="gpu"):
            a = hf.tanh(x, name="a")
        with hf.colocate_with(a), hf.device(requires="20 GB"):
            b = hf.tanh(a, name="b")
    told = r"'b' requires 20 GB, and shares a device with 'a', made at .*py:\d+, which requires gpu"
    with pytest.raises(PlacementError, match=told) as error:
        plan_of(g, [b], {x: (4,)}, ranks([(8, 1)], [(40, 0)]), settings)
    assert error.value.line != a.op.line and a.op.line in str(error.value)


@BOTH
def test_a_colocated_operation_on_an_explicit_task_is_named_with_its_line(settings):
    with graph() as g:
        x = hf.placeholder(hf.float32, [4], name="x")
        with hf.device("/job:worker/task:0"):
            a = hf.tanh(x, name="a")
        with hf.colocate_with(a), hf.device(requires="20 GB"):
            b = hf.tanh(a, name="b")
    told = r"'b' requires 20 GB, but shares a device with 'a' \(made at (.*)\), which is on"
    with pytest.raises(PlacementError, match=told) as error:
        plan_of(g, [b], {x: (4,)}, SMALL_AND_LARGE, settings)
    assert a.op.line in str(error.value)


def test_a_variable_on_a_server_cannot_require_a_gpu():
    cluster = ranks([(8, 1)], [(8, 0)], servers=1)
    with pytest.raises(PlacementError, match="a variable on a server") as error:
        Layers(requires="gpu").plans(cluster, BY_HAND)
    assert "hf.device(None)" in (error.value.hint or "")


@BOTH
def test_more_scopes_than_memory_name_what_is_reserved(settings):
    with graph() as g:
        x = hf.placeholder(hf.float32, [4], name="x")
        for k in range(2):
            with hf.device(requires="25 GB"):
                y = hf.tanh(x, name=f"y{k}")
    told = r"'y1' requires 25 GB, but /job:worker/task:1 has 40 GB, of which .* 25 GB for 'y0'"
    with pytest.raises(PlacementError, match=told):
        plan_of(g, [y], {x: (4,)}, SMALL_AND_LARGE, settings)


@pytest.mark.parametrize("text, instead", [
    ("20", "'20 GB'"), ("20G", "'20 GB'"), ("2 gpus", "'gpu'"), ("gpu 20 gb", "'gpu, 20 GB'"),
    ("tpu", "'gpu, 20 GB'"), ("", "'gpu, 20 GB'"), ("gpu,", "'gpu'"), ("16 Gi", "'16 GiB'"),
    ("near task 3", "near='/job:worker/task:3'"), (5, "'gpu, 20 GB'"), (["gpu"], "'gpu, 20 GB'"),
    ("0 GB", "'20 GB'"), ("1e30 GB", "'20 GB'"), ("4 GB, 5 GB", "'4 GB'"), ("-3 GB", "'3 GB'"),
])  # fmt: skip
def test_a_malformed_requirement_is_refused_with_the_nearest_text(text, instead):
    with graph(), pytest.raises(PlacementError) as error, hf.device(requires=text):
        pass
    assert instead in (error.value.hint or "")


@pytest.mark.parametrize("text", ["task 3", "3", "worker 3", "/task 3"])
def test_a_malformed_task_is_refused_with_the_nearest_name(text):
    with graph(), pytest.raises(PlacementError, match="names no task") as error:
        with hf.device(near=text):
            pass
    assert error.value.hint == "write near='/job:worker/task:3'"


@pytest.mark.parametrize("text", [3, "gpu:0", "/job:worker", "/job:chief/task:0", "\x1b[31m"])
def test_what_names_no_task_is_refused(text):
    with graph(), pytest.raises(PlacementError, match="names no task") as error:
        with hf.device(near=text):
            pass
    assert "\x1b" not in str(error.value)


@pytest.mark.parametrize("text, nbytes", [
    ("20 GB", 20e9), ("20gb", 20e9), ("1.5 GiB", 1.5 * 2**30), ("512MB", 512e6),
])  # fmt: skip
def test_sizes(text, nbytes):
    with graph(), hf.device(requires=f"GPU, {text}"):
        needs = parse_device(hf.tanh(np.float32(1)).device).needs
    assert needs.gpu and needs.nbytes == nbytes
