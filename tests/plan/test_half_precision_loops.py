"""Generated loops of 16-bit floats: they load 16 bits, compute in float32 and store 16 bits."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.codegen.llvm_cpu_compiler import absent
from hpcflow.graph.dtypes import bfloat16, float16
from hpcflow.kernels import half_precision
from hpcflow.lowering.fusion import elementwise_fusion
from hpcflow.plan.ir.program import Partition
from hpcflow.runtime.job.rank_context import RankContext
from tests.runtime.ranks import run_ranks

pytestmark = pytest.mark.skipif(bool(absent()), reason=absent())


class Half(NamedTuple):
    """A type of 16-bit floats, its largest relative error, and a number near its end."""

    dtype: np.dtype
    unit: float
    large: float

    def rounded(self, wide: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return wide.astype(np.float32).astype(self.dtype)

    @property
    def x(self) -> np.ndarray:
        x = np.random.default_rng(12).standard_normal((6, 20)).astype(self.dtype)
        x[0, 0], x[1, 1], x[2, 2] = np.nan, np.inf, self.large  # the last overflows below
        return x

    @property
    def row(self) -> np.ndarray:
        return np.random.default_rng(13).standard_normal(20).astype(self.dtype)


HALVES = (Half(bfloat16, 2.0**-8, 3e38), Half(float16, 2.0**-11, 6e4))


@pytest.fixture(params=HALVES, ids=[str(half.dtype) for half in HALVES])
def half(request: pytest.FixtureRequest) -> Half:
    return request.param


def computed(half: Half, build: Any, exact: bool = False) -> tuple[list[np.ndarray], set[str]]:
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
            x, row = (hf.placeholder(half.dtype, a.shape) for a in (half.x, half.row))
            fetched = build(x, row)
            with hf.Session(context=context) as session:
                return session.run(fetched, {x: half.x, row: half.row})

        (values,) = run_ranks(1, body, exact=exact)
    return values, left


def test_values_are_rounded_where_they_are_stored(half: Half) -> None:
    def build(x: Any, row: Any) -> list[Any]:
        y = hf.nn.relu(x * row + 1.0)
        return [y, y * 3.0, x > row, hf.cast(x, hf.float32) * 0.1, hf.cast(y, hf.int32)]

    (y, third, mask, wide, whole), types = computed(half, build)
    x, row = half.x.astype(np.float32), half.row.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        exact = np.maximum(x * row + 1, 0)
        expected = [half.rounded(exact), half.rounded(exact * 3), x > row, x * np.float32(0.1)]
    for value, want in zip((y, third, mask, wide), expected, strict=True):
        assert value.dtype == want.dtype
        assert np.array_equal(value.astype("f8"), want.astype("f8"), equal_nan=True)
    assert whole.dtype == np.int32
    assert "Fused" in types and not {"Mul", "Add", "Relu", "Greater"} & set(types)


def test_reductions_of_rows_are_in_float32(half: Half) -> None:
    def build(x: Any, row: Any) -> list[Any]:
        return [hf.reduce_sum(x[3:] * row, 1), hf.nn.softmax(x[3:]), hf.concat([x, x + row], 1)]

    (sums, shares, joined), types = computed(half, build)
    x, row = half.x.astype(np.float32), half.row.astype(np.float32)
    part = x[3:].astype("f8")
    wanted = (part * row).sum(1)
    assert (np.abs(sums.astype("f8") - wanted) <= half.unit * np.abs(part * row).sum(1)).all()
    powers = np.exp(part - part.max(1, keepdims=True))
    np.testing.assert_allclose(
        shares.astype("f8"), powers / powers.sum(1, keepdims=True), rtol=2 * half.unit
    )
    assert np.array_equal(
        joined.astype("f4"),
        np.concatenate([half.x, half.rounded(x + row)], 1).astype("f4"),
        equal_nan=True,
    )
    assert "Fused" in types


def test_sums_of_columns_are_in_float32(half: Half) -> None:
    """Added up in 16 bits, 4,000 ones would be 256 or 2048."""
    ones = np.ones((4000, 24), half.dtype)

    def body(context: RankContext) -> list[np.ndarray]:
        x = hf.placeholder(half.dtype, ones.shape)
        y = x * x
        fetched = [hf.reduce_sum(y, 0), hf.reduce_sum(y, 0, keepdims=True), y]
        with hf.Session(context=context) as session:
            return session.run(fetched, {x: ones})

    ((flat, kept, _),) = run_ranks(1, body)
    assert flat.dtype == kept.dtype == half.dtype and kept.shape == (1, 24)
    assert (flat.astype("f4") == 4000).all() and (kept.astype("f4") == 4000).all()


def test_a_sum_of_columns_is_in_the_loop_of_what_it_sums(half: Half) -> None:
    def build(x: Any, row: Any) -> list[Any]:
        return [hf.reduce_sum(x[3:] * row, 0)]

    (sums,), types = computed(half, build)
    part = half.x[3:].astype("f8") * half.row.astype("f8")
    assert (np.abs(sums.astype("f8") - part.sum(0)) <= half.unit * np.abs(part).sum(0)).all()
    assert "Fused" in types and not {"Sum", "Mul"} & types
    (exact,), types = computed(half, build, exact=True)
    assert "Fused" not in types and exact.dtype == half.dtype


def test_exact_rounds_after_each_operation(half: Half) -> None:
    def build(x: Any, row: Any) -> list[Any]:
        return [x * row + row]

    (value,), types = computed(half, build, exact=True)
    x, row = half.x.astype("f4"), half.row.astype("f4")
    with np.errstate(over="ignore"):
        once = half.rounded(half.rounded(x * row).astype("f4") + row)
    assert np.array_equal(value.astype("f4"), once.astype("f4"), equal_nan=True)
    assert "Fused" not in types


def test_rounding_is_to_the_nearest_even(half: Half) -> None:
    """All exponents, signs and ends of significands, beside ml_dtypes."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        wide = (upper | np.uint32(low)).view(np.float32)
        value, kernel = np.zeros(wide.shape, half.dtype), half_precision._rounding(half.dtype)
        assert kernel is not None
        kernel(wide, value)
        with np.errstate(all="ignore"):
            expected = wide.astype(half.dtype)
        nan = np.isnan(wide)
        assert np.array_equal(np.isnan(value.astype("f4")), nan)
        assert np.array_equal(value.view("u2")[~nan], expected.view("u2")[~nan])


def test_a_cast_rounds_within_a_loop_too(half: Half) -> None:
    """A number split in two parts: their sum is the number."""
    with hf.Graph().as_default():
        x = hf.placeholder(hf.float32, [4])
        high = hf.cast(x, half.dtype)
        low = x - hf.cast(high, hf.float32)
        with hf.Session() as session:
            values = np.array([1.001, 2.003, 3.3, -1.7], np.float32)
            first, second = session.run([high, low], {x: values})
    assert np.array_equal(first.astype("f4"), half.rounded(values).astype("f4"))
    assert np.array_equal(second, values - first.astype("f4")) and second.all()


def test_in_control_flow_and_its_gradient(half: Half) -> None:
    with hf.Graph().as_default():
        x = hf.placeholder(half.dtype, [None, 4])
        step = lambda i, a: (i + 1, a * 0.5 + 1.0)  # noqa: E731
        y = hf.while_loop(lambda i, _: i < 3, step, [hf.constant(0), x])[1]
        z = hf.cond(hf.reduce_sum(hf.cast(x, hf.float32)) > 0, lambda: y * 2.0, lambda: y)
        (slope,) = hf.gradients(hf.reduce_sum(z), [x])
        with hf.Session() as session:
            value, back = session.run([z, slope], {x: np.full((2, 4), 4.0)})
    assert (value.astype("f4") == 4.5).all() and (back.astype("f4") == 0.25).all()


@pytest.mark.parametrize("servers", [0, 1])
def test_on_several_ranks(half: Half, servers: int) -> None:
    """Plans with messages predict the time of each kernel."""

    def body(context: RankContext) -> Any:
        w = hf.Variable(np.ones((4, 2)), dtype=half.dtype)
        x = hf.placeholder(half.dtype, [None, 4])
        loss = hf.reduce_mean(hf.square(hf.nn.relu(hf.matmul(x, w)) - 1.0))
        train = hf.train.GradientDescentOptimizer(0.125).minimize(loss)
        with hf.Session(context=context) as session:
            session.run(hf.global_variables_initializer())
            session.run(train, {x: np.full((2, 4), 0.5)})
            return session.run(w).astype("f4")

    mode = {"ps": 1, "sync": "all"} if servers else {}
    values = run_ranks(2 + servers, body, **mode)
    for value in values:
        np.testing.assert_allclose(value, np.full((4, 2), 0.9375), rtol=2 * half.unit)
