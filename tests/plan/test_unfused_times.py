"""Measured times in placement=auto: operations before fusion, plans, and keys of cached plans."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.graph.static_shape import Spec
from hpcflow.placement.topology import topology_of
from hpcflow.plan.cost.measured_rows import MeasuredRows
from hpcflow.plan.cost.op_flops_and_bytes import cost_input_specs
from hpcflow.plan.cost.operation_costs import OperationCosts
from hpcflow.plan.cost.unfused_times import UnfusedTimes
from hpcflow.plan.distribution.variable_placement import place_variables
from hpcflow.plan.frontend.graph_pruning import prune_to_fetches
from hpcflow.plan.ir.program import Cluster
from hpcflow.plan.serialization.plan_cache_key import plan_cache_key
from hpcflow.platform.measured_costs import OperationCost, OperationKey, SampleSummary
from hpcflow.settings import Settings

from .model import graph
from .test_automatic_placement import AUTO, ROWS, TWO, WIDTH, Towers, forecast, tasks_of

PRODUCT = 2 * ROWS * WIDTH * WIDTH, 4 * (2 * ROWS * WIDTH + WIDTH * WIDTH)  # FLOPs, bytes
ONE = 4 * ROWS * WIDTH  # bytes of an array


def row(type, flops, nbytes, seconds, threads=1, device="cpu", dtype="float32"):
    key = OperationKey(type, (dtype,), "llvm", threads, device, flops, nbytes)
    return OperationCost(key, SampleSummary.of([seconds]), 1)


def measured(*rows, threads=1):
    return MeasuredRows.of([each.as_data() for each in rows], threads, "cpu")


def law(flops, nbytes):
    return 2e-6 + flops / 5e10 + nbytes / 4e9


def machine(*types, threads=1):
    """Rows of these types of some sizes that follow the law."""
    sizes = [(f, b) for f in (0, 10**5, 10**7, 10**8) for b in (10**4, 10**6, 10**7)]
    return [row(type, f, b, law(f, b), threads) for type in types for f, b in sizes]


def times_of(made, fetches, feeds, rows):
    """The seconds of each operation that the fetches need."""
    specs = {t: Spec(t.dtype, shape) for t, shape in feeds.items()}
    program = prune_to_fetches(made, fetches, specs)
    found = UnfusedTimes(measured(*rows)).seconds(
        program, {n.name: n.specs for n in program.nodes.values()}
    )
    assert found.keys() == program.nodes.keys()
    return found


def test_a_product_has_the_time_of_its_row():
    made = Towers()
    rows = [row("MatMul", *PRODUCT, 0.0123), row("MatMul", *PRODUCT, 5.0, device="gpu")]
    found = times_of(made.graph, [made.loss], {made.x: (ROWS, WIDTH)}, rows)
    for k in range(3):
        assert found[f"left/dense_{k}/product"] == pytest.approx(0.0123)


def test_elementwise_operations_that_only_the_next_one_uses_are_one_loop():
    """Their loop reads x and writes the end: what is between them is never in memory."""
    loop = row("Fused: Tanh, Square, Neg", 3 * ROWS * WIDTH, 2 * ONE, 0.004)
    with graph() as g:
        x = hf.placeholder(hf.float32, [ROWS, WIDTH], name="x")
        end = hf.negative(hf.square(hf.tanh(x, name="a"), name="b"), name="c")
        times = times_of(g, [end], {x: (ROWS, WIDTH)}, [loop])
        assert sum(times[name] for name in "abc") == pytest.approx(0.004)
        assert all(times[name] > 0 for name in "abc")
        b = g.get_tensor_by_name("b:0")
        apart = times_of(g, [end, b], {x: (ROWS, WIDTH)}, [loop])
    assert sum(apart[name] for name in "abc") > 0.0045  # b is fetched: two loops


def test_a_loop_of_one_operation_has_the_row_of_its_loop_or_of_its_kernel():
    flops, nbytes = ROWS * WIDTH, 2 * ONE
    with graph() as g:
        x = hf.placeholder(hf.float32, [ROWS, WIDTH], name="x")
        end = hf.nn.relu(x, name="relu")
        given = g, [end], {x: (ROWS, WIDTH)}
        assert times_of(*given, [row("Fused: Relu", flops, nbytes, 0.5)])["relu"] == 0.5
        assert times_of(*given, [row("Relu", flops, nbytes, 0.25)])["relu"] == 0.25


def test_the_sum_is_near_that_of_the_fused_plan():
    """The oracle is the plan of one rank, whose operations are those that run."""
    made = Towers()
    rows = machine("MatMul", "Sum", "ApplyAdam", "Fused: Relu", "Fused: ReluGrad")
    costs = OperationCosts(rows)
    plan = made.plan(Cluster(), Settings())
    (part,) = plan.parts.values()
    fused = sum(
        costs.seconds(node, cost_input_specs(node, part), 1).median for node in part.nodes.values()
    )
    fetches = [made.train, made.loss]
    before = sum(times_of(made.graph, fetches, {made.x: (ROWS, WIDTH)}, rows).values())
    assert before == pytest.approx(fused, rel=0.15)


def placed(*rows):
    return Towers().plan(dataclasses.replace(TWO, times=measured(*rows)))


def test_measured_times_decide_where_operations_are():
    """Messages cost 50 us and more: they are worth it for slow products only."""
    slow = placed(row("MatMul", *PRODUCT, 0.1), *machine("Fused: Relu"))
    fast = placed(row("MatMul", *PRODUCT, 1e-6), row("Fused: Relu", 10, 10, 1e-7))
    assert set(tasks_of(slow).values()) == {0, 1} and set(tasks_of(fast).values()) == {0}
    assert forecast(slow)[1] > 16 * 100  # 16 products of 0.1 s on one rank, and the rest
    assert slow.forecast.endswith("times: 13 operations measured on this machine, 1 thread a rank")
    assert Towers().plan().forecast.endswith("times: cost model")


def test_speeds_of_a_topology_scale_measured_times():
    speeds = {"ranks": 2, "speed": [1.0, 4.0]}
    data = {"format": "hpcflow-topology-1", "racks": [{"nodes": [speeds]}]}
    times = measured(row("MatMul", *PRODUCT, 0.1))
    cluster = dataclasses.replace(TWO, times=times, topology=topology_of(data))
    plan = Towers().plan(cluster)
    assert forecast(plan)[0] < forecast(placed(row("MatMul", *PRODUCT, 0.1)))[0] / 1.5


def test_a_cached_plan_is_of_the_same_rows_and_threads():
    made = Towers()
    specs = {made.x: Spec(np.dtype("float32"), (ROWS, WIDTH))}
    program = prune_to_fetches(made.graph, [made.train], specs)

    def key(times):
        cluster = dataclasses.replace(TWO, times=times)
        places = place_variables(made.graph, cluster, AUTO)
        return plan_cache_key(program, made.graph, cluster, AUTO, places, 0, lambda: "")

    first, again, other = (row("MatMul", *PRODUCT, s) for s in (0.1, 0.1, 0.2))
    assert key(measured(first)) == key(measured(again))
    different = [key(None), key(measured(other)), key(measured(first, threads=2))]
    assert len({key(measured(first)), *different}) == 4


def test_tasks_of_variables_are_searched_anew_for_other_rows():
    """One graph, planned twice: the variables stay only where the times are equal."""
    made = Towers()
    slow, fast = (measured(row("MatMul", *PRODUCT, s)) for s in (0.1, 1e-6))
    for times, tasks in ((fast, {0}), (slow, {0, 1})):
        plan = made.plan(dataclasses.replace(TWO, times=times))
        found = tasks_of(plan)
        assert {found[f"{side}/dense_0/w"] for side in ("left", "right")} == tasks
