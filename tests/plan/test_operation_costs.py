"""Predicted seconds of operations: measured rows, the law that rows follow, and what is without."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize

from hpcflow.graph.static_shape import Spec
from hpcflow.plan.cost import operation_time_models
from hpcflow.plan.cost.cost_model import predicted_seconds, roofline_seconds
from hpcflow.plan.cost.operation_costs import OperationCosts
from hpcflow.plan.cost.operation_time_models import CONSTANTS, MEASURED, OTHER_TYPES, SAME_TYPE
from hpcflow.plan.cost.profile_costs import log_ratio, percent
from hpcflow.plan.ir.program import Node
from hpcflow.platform.measured_costs import OperationCost, OperationKey, SampleSummary

F32 = np.dtype("float32")


def row(flops, nbytes, samples, type="MatMul", dtypes=("float32",), by="numpy", threads=1):
    key = OperationKey(type, dtypes, by, threads, "cpu", flops, nbytes)
    return OperationCost(key, SampleSummary.of(samples))


def product(n, k, m):
    """A node that multiplies n x k by k x m, and the specs of its inputs."""
    attrs = {"transpose_a": False, "transpose_b": False}
    node = Node("p", "MatMul", attrs=attrs, specs=(Spec(F32, (n, m)),), device="/task:0/cpu:0")
    return node, [Spec(F32, (n, k)), Spec(F32, (k, m))]


def elementwise(type, n):
    spec = Spec(F32, (n,))
    return Node("e", type, specs=(spec,), device="/task:0/cpu:0"), [spec]


def law(flops, nbytes):
    return 3e-6 + flops / 5e10 + nbytes / 8e9


def products(noise=0.0, threads=1):
    """Rows of products that follow the law, each with 21 samples."""
    draw, rows = np.random.default_rng(3), []
    for n in (8, 16, 50, 64, 128, 300, 512, 1024):
        for k in (16, 200, 700):
            flops, nbytes = 2 * n * n * k, 4 * (2 * n * k + n * n)
            factors = np.exp(noise * draw.standard_normal(21))
            rows.append(row(flops, nbytes, [law(flops, nbytes) * f for f in factors],
                            threads=threads))  # fmt: skip
    return rows


def test_a_measured_operation_has_the_quantiles_of_its_calls():
    node, inputs = product(2, 3, 5)
    samples = [i * 1e-6 for i in range(1, 22)]
    costs = OperationCosts([row(2 * 2 * 3 * 5, 4 * (6 + 15 + 10), samples), *products()])
    found = costs.seconds(node, inputs, threads=1)
    assert found.source == MEASURED and found.median == pytest.approx(11e-6)
    assert found.low == pytest.approx(np.quantile(samples, 0.1), abs=5e-7)
    assert found.high == pytest.approx(np.quantile(samples, 0.9), abs=5e-7)


def test_a_provider_that_is_asked_for_has_its_own_row():
    features = 60, 124
    rows = [row(*features, [1e-6] * 9), row(*features, [5e-6] * 3, by="onednn")]
    node, inputs = product(2, 3, 5)
    seconds = OperationCosts(rows).seconds
    assert seconds(node, inputs, 1).median == pytest.approx(1e-6)  # most calls
    assert seconds(node, inputs, 1, "onednn").median == pytest.approx(5e-6)


@pytest.mark.parametrize("size", [(40, 30, 90), (256, 256, 256), (2000, 400, 700)])
def test_other_sizes_follow_the_law_of_the_rows(size):
    n, k, m = size
    node, inputs = product(*size)
    found = OperationCosts(products()).seconds(node, inputs, 1)
    expected = law(2 * n * k * m, 4 * (n * k + k * m + n * m))
    assert found.source == SAME_TYPE
    assert found.median == pytest.approx(expected, rel=1e-3)
    assert found.low < expected < found.high < 1.2 * expected


def test_rows_of_a_law_are_predicted_by_the_others():
    exact, noisy = OperationCosts(products()), OperationCosts(products(noise=0.1))
    errors = [
        [percent(log_ratio(costs.held_out(r).median, r.seconds.median)) for r in costs.rows]
        for costs in (exact, noisy)
    ]
    assert max(errors[0]) < 0.1
    assert 0 < np.median(errors[1]) < 10


def test_a_row_that_breaks_the_law_is_not_predicted_by_itself():
    flops, nbytes = 2 * 20_000**3, 12 * 20_000**2  # no row of similar size
    odd = row(flops, nbytes, [100 * law(flops, nbytes)])
    costs = OperationCosts([*products(), odd])
    assert percent(log_ratio(costs.held_out(odd).median, odd.seconds.median)) > 5000


def test_coefficients_are_never_negative_and_minimize_the_error():
    """Beside the solver of SciPy."""
    draw = np.random.default_rng(0)
    for _ in range(50):
        columns = np.exp(draw.uniform(-8, 8, (6, 3)))
        found = operation_time_models._non_negative_least_squares(columns)
        _, error = scipy.optimize.nnls(columns, np.ones(6))
        assert found.min() >= 0
        assert np.linalg.norm(columns @ found - 1) == pytest.approx(error, rel=1e-6)


def test_one_row_scales_the_constants():
    flops, nbytes = 2 * 64**3, 12 * 64**2
    slow = 7 * roofline_seconds(flops, nbytes)
    node, inputs = product(128, 128, 128)
    found = OperationCosts([row(flops, nbytes, [slow])]).seconds(node, inputs, 1)
    assert found.median == pytest.approx(7 * predicted_seconds(node, inputs), rel=1e-6)
    assert found.source == SAME_TYPE


def test_a_type_without_rows_has_the_law_of_others_then_the_constants():
    node, inputs = elementwise("Tanh", 10_000)
    others = OperationCosts(products()).seconds(node, inputs, 1)
    assert others.source == OTHER_TYPES
    assert others.median == pytest.approx(law(10_000, 80_000), rel=1e-3)
    none = OperationCosts([]).seconds(node, inputs, 1)
    assert none.source == CONSTANTS
    assert none.median == pytest.approx(predicted_seconds(node, inputs))
    assert none.low == pytest.approx(none.median / 10) and none.high > none.median


def test_sizes_that_only_the_step_knows_have_the_constants():
    spec = Spec(F32, (None, 4))
    node = Node("e", "Tanh", specs=(spec,), device="/task:0/cpu:0")
    found = OperationCosts(products()).seconds(node, [spec], 1)
    assert found.source == CONSTANTS and found.median == predicted_seconds(node, [spec])


def test_nothing_is_faster_than_the_fastest_kernel_that_was_measured():
    """The constant term of rows of large sizes is not known."""
    rows = [row(n, n, [n / 1e9]) for n in (10**6, 10**7, 10**8, 10**9)]
    fast = row(10, 10, [4e-7], type="Add")
    node, inputs = product(2, 2, 2)
    assert OperationCosts([*rows, fast]).seconds(node, inputs, 1).median == pytest.approx(4e-7)


def test_the_nearest_number_of_threads_counts():
    fast = [
        r._replace(key=r.key._replace(threads=8), seconds=SampleSummary.of([r.seconds.mean / 4]))
        for r in products()
    ]
    costs, (node, inputs) = OperationCosts([*products(), *fast]), product(256, 256, 256)
    one, six = (costs.seconds(node, inputs, threads).median for threads in (1, 6))
    assert six == pytest.approx(one / 4, rel=0.01)


def test_a_gpu_has_no_rows_of_cpus():
    node, inputs = product(64, 64, 64)
    found = OperationCosts(products()).seconds(node.but(device="/task:0/gpu:0"), inputs, 1)
    assert found.source == CONSTANTS


def test_nothing_to_do_takes_no_time():
    found = OperationCosts(products()).seconds(Node("c", "Const", attrs={}), [], 1)
    assert found.median == found.high == 0.0


def test_rows_whose_order_differs_predict_the_same():
    node, inputs = product(99, 88, 77)
    rows = products(noise=0.3)
    forward, backward = (OperationCosts(each).seconds(node, inputs, 1) for each in (
        rows, rows[::-1]))  # fmt: skip
    assert math.isclose(forward.median, backward.median, rel_tol=1e-9)
