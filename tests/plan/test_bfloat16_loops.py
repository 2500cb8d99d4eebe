"""Generated loops of bfloat16: they load 16 bits, compute in float32 and store 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.codegen.llvm_cpu_compiler import absent
from hpcflow.graph.dtypes import bfloat16
from hpcflow.kernels import half_precision
from hpcflow.lowering.fusion import elementwise_fusion
from hpcflow.plan.ir.program import Partition
from hpcflow.runtime.job.rank_context import RankContext
from tests.runtime.ranks import run_ranks

pytestmark = pytest.mark.skipif(bool(absent()), reason=absent())
RNG = np.random.default_rng(12)
X, ROW = RNG.standard_normal((6, 20)).astype(bfloat16), RNG.standard_normal(20).astype(bfloat16)
X[0, 0], X[1, 1], X[2, 2] = np.nan, np.inf, 3e38  # the last overflows below


def rounded(wide: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return wide.astype(np.float32).astype(bfloat16)


def computed(build: Any, exact: bool = False) -> tuple[list[np.ndarray], set[str]]:
    """The values of tensors of x and of a row, and the types of the nodes that are left.

    Fused nodes count as "Fused" alone.
    """
    left: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        original = elementwise_fusion.replace_nodes

        def replaced(*arguments: Any) -> Partition:
            part = original(*arguments)
            left.update(node.type for node in part.nodes.values())
            return part

        patch.setattr(elementwise_fusion, "replace_nodes", replaced)

        def body(context: RankContext) -> list[np.ndarray]:
            x, row = hf.placeholder(hf.bfloat16, X.shape), hf.placeholder(hf.bfloat16, ROW.shape)
            fetched = build(x, row)
            with hf.Session(context=context) as session:
                return session.run(fetched, {x: X, row: ROW})

        (values,) = run_ranks(1, body, exact=exact)
    return values, left


def test_values_are_rounded_where_they_are_stored() -> None:
    def build(x: Any, row: Any) -> list[Any]:
        y = hf.nn.relu(x * row + 1.0)
        return [y, y * 3.0, x > row, hf.cast(x, hf.float32) * 0.1, hf.cast(y, hf.int32)]

    (y, third, mask, wide, whole), types = computed(build)
    x, row = X.astype(np.float32), ROW.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        exact = np.maximum(x * row + 1, 0)
        expected = [rounded(exact), rounded(exact * 3), x > row, x * np.float32(0.1)]
    for value, want in zip((y, third, mask, wide), expected, strict=True):
        assert value.dtype == want.dtype
        assert np.array_equal(value.astype("f8"), want.astype("f8"), equal_nan=True)
    assert whole.dtype == np.int32
    assert "Fused" in types and not {"Mul", "Add", "Relu", "Greater"} & set(types)


def test_reductions_of_rows_are_in_float32() -> None:
    def build(x: Any, row: Any) -> list[Any]:
        return [hf.reduce_sum(x[3:] * row, 1), hf.nn.softmax(x[3:]), hf.concat([x, x + row], 1)]

    (sums, shares, joined), types = computed(build)
    x, row = X.astype(np.float32), ROW.astype(np.float32)
    part = x[3:].astype("f8")
    unit = 2.0**-8
    wanted = (part * row).sum(1)
    assert (np.abs(sums.astype("f8") - wanted) <= unit * np.abs(part * row).sum(1)).all()
    powers = np.exp(part - part.max(1, keepdims=True))
    np.testing.assert_allclose(
        shares.astype("f8"), powers / powers.sum(1, keepdims=True), rtol=unit
    )
    assert np.array_equal(
        joined.astype("f4"), np.concatenate([X, rounded(x + row)], 1).astype("f4"), equal_nan=True
    )
    assert "Fused" in types


def test_sums_of_columns_are_in_float32() -> None:
    """Added up in bfloat16, 4,000 ones would be 256."""
    ones = np.ones((4000, 24), bfloat16)

    def body(context: RankContext) -> list[np.ndarray]:
        x = hf.placeholder(hf.bfloat16, ones.shape)
        y = x * x
        fetched = [hf.reduce_sum(y, 0), hf.reduce_sum(y, 0, keepdims=True), y]
        with hf.Session(context=context) as session:
            return session.run(fetched, {x: ones})

    ((flat, kept, _),) = run_ranks(1, body)
    assert flat.dtype == kept.dtype == bfloat16 and kept.shape == (1, 24)
    assert (flat.astype("f4") == 4000).all() and (kept.astype("f4") == 4000).all()


def test_a_sum_of_columns_is_in_the_loop_of_what_it_sums() -> None:
    def build(x: Any, row: Any) -> list[Any]:
        return [hf.reduce_sum(x[3:] * row, 0)]

    (sums,), types = computed(build)
    part = X[3:].astype("f8") * ROW.astype("f8")
    assert (np.abs(sums.astype("f8") - part.sum(0)) <= 2.0**-8 * np.abs(part).sum(0)).all()
    assert "Fused" in types and not {"Sum", "Mul"} & types
    (exact,), types = computed(build, exact=True)
    assert "Fused" not in types and exact.dtype == bfloat16


def test_exact_rounds_after_each_operation() -> None:
    def build(x: Any, row: Any) -> list[Any]:
        return [x * row + row]

    (value,), types = computed(build, exact=True)
    x, row = X.astype("f4"), ROW.astype("f4")
    with np.errstate(over="ignore"):
        once = rounded(rounded(x * row).astype("f4") + row)
    assert np.array_equal(value.astype("f4"), once.astype("f4"), equal_nan=True)
    assert "Fused" not in types


def test_rounding_is_to_the_nearest_even() -> None:
    """All exponents, signs and ends of significands, beside ml_dtypes."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        wide = (upper | np.uint32(low)).view(np.float32)
        value, kernel = np.zeros(wide.shape, bfloat16), half_precision._rounding()
        assert kernel is not None
        kernel(wide, value)
        with np.errstate(all="ignore"):
            expected = wide.astype(bfloat16)
        nan = np.isnan(wide)
        assert np.array_equal(np.isnan(value.astype("f4")), nan)
        assert np.array_equal(value.view("u2")[~nan], expected.view("u2")[~nan])


def test_a_cast_rounds_within_a_loop_too() -> None:
    """A number split in two parts: their sum is the number."""
    with hf.Graph().as_default():
        x = hf.placeholder(hf.float32, [4])
        high = hf.cast(x, hf.bfloat16)
        low = x - hf.cast(high, hf.float32)
        with hf.Session() as session:
            values = np.array([1.001, 2.003, 3.3, -1.7], np.float32)
            first, second = session.run([high, low], {x: values})
    assert np.array_equal(first.astype("f4"), rounded(values).astype("f4"))
    assert np.array_equal(second, values - first.astype("f4")) and second.all()


def test_in_control_flow_and_its_gradient() -> None:
    with hf.Graph().as_default():
        x = hf.placeholder(hf.bfloat16, [None, 4])
        step = lambda i, a: (i + 1, a * 0.5 + 1.0)  # noqa: E731
        y = hf.while_loop(lambda i, _: i < 3, step, [hf.constant(0), x])[1]
        z = hf.cond(hf.reduce_sum(hf.cast(x, hf.float32)) > 0, lambda: y * 2.0, lambda: y)
        (slope,) = hf.gradients(hf.reduce_sum(z), [x])
        with hf.Session() as session:
            value, back = session.run([z, slope], {x: np.full((2, 4), 4.0)})
    assert (value.astype("f4") == 4.5).all() and (back.astype("f4") == 0.25).all()


@pytest.mark.parametrize("servers", [0, 1])
def test_on_several_ranks(servers: int) -> None:
    """Plans with messages predict the time of each kernel."""

    def body(context: RankContext) -> Any:
        w = hf.Variable(np.ones((4, 2)), dtype=hf.bfloat16)
        x = hf.placeholder(hf.bfloat16, [None, 4])
        loss = hf.reduce_mean(hf.square(hf.nn.relu(hf.matmul(x, w)) - 1.0))
        train = hf.train.GradientDescentOptimizer(0.125).minimize(loss)
        with hf.Session(context=context) as session:
            session.run(hf.global_variables_initializer())
            session.run(train, {x: np.full((2, 4), 0.5)})
            return session.run(w).astype("f4")

    mode = {"ps": 1, "sync": "all"} if servers else {}
    values = run_ranks(2 + servers, body, **mode)
    for value in values:
        np.testing.assert_allclose(value, np.full((4, 2), 0.9375), rtol=2**-7)
