"""Floats of 16 bits: stored so, computed with as float32; every case of the walk, and training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import DTypeError
from tests.ops.cases import CASES, F32, Case, for_each_case
from tests.ops.evaluate import call, evaluate
from tests.ops.test_table import as_list, made, wide

HALVES = [hf.float16, hf.bfloat16]


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def some() -> list[Case]:
    """A few cases of each op, but not of the one that rounds halves to a format itself."""
    found: dict[str, list[Case]] = {}
    for case in CASES:
        if F32 in case.dtypes and case.type != "RoundToFormat":
            found.setdefault(case.type, []).append(case)
    return [c for cases in found.values() for c in cases[:: max(1, len(cases) // 4)]]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@for_each_case(some())
def test_kernels_round_only_their_results(case: Case, dtype: np.dtype) -> None:
    with np.errstate(over="ignore"):
        inputs = made(case, dtype)
    try:
        with np.errstate(over="ignore"):
            got = call(case.type, case.attrs, inputs)
    except DTypeError:
        return  # LAPACK and the parts of complex numbers
    expected = as_list(case.oracle(*map(wide, inputs)))
    for g, e in zip(got, expected, strict=True):
        e = np.asarray(e)
        assert g.shape == e.shape
        if g.dtype == dtype:
            digits = 2**-8 if dtype == hf.bfloat16 else 2**-11
            np.testing.assert_allclose(wide(g), e, rtol=digits, atol=2e-5)
        elif g.dtype.kind in "fc":
            np.testing.assert_allclose(g, e, rtol=2e-5, atol=2e-5)
        else:
            np.testing.assert_array_equal(g, e)


def test_sums_are_taken_in_32_bits() -> None:
    x = hf.constant(np.ones((2, 4097)), hf.bfloat16)  # alone, 256 + 1 is 256 in bfloat16
    found = evaluate([hf.reduce_sum(x, 1), hf.matmul(x, x, transpose_b=True), hf.reduce_mean(x)])
    assert found[0].tolist() == [4096, 4096] and (found[1] == 4096).all() and found[2] == 1
    assert evaluate(hf.reduce_sum(hf.nn.softmax(hf.cast(x, hf.float16)))) == 2


def test_the_dtype_and_its_casts() -> None:
    assert hf.as_dtype("bfloat16") == hf.bfloat16
    with pytest.raises(DTypeError, match="bfloat16"):
        hf.constant([1.0]) + hf.constant([1.0], hf.bfloat16)
    x = hf.constant([1.00390625, -2.5, 3e38])
    y = hf.to_bfloat16(x)
    assert (y + 1).dtype == hf.bfloat16
    assert evaluate(hf.cast(y, hf.float32)).tolist()[1] == -2.5
    assert evaluate(hf.cast(hf.constant([3]), hf.bfloat16)).tolist() == [3]
    assert evaluate(hf.cast(y[:2], hf.int32)).tolist() == [1, -2]
    assert evaluate(hf.saturate_cast(hf.constant([1e39], hf.float64), hf.bfloat16)) < np.inf
    assert evaluate(hf.is_finite(y)).all()
    with np.errstate(over="ignore"):
        assert evaluate(hf.cast(y, hf.float16))[2] == np.inf
    assert hf.range(3, dtype=hf.bfloat16).dtype == hf.bfloat16


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: hf.train.GradientDescentOptimizer(0.1),
        lambda: hf.train.MomentumOptimizer(0.02, 0.9),
        lambda: hf.train.AdamOptimizer(0.05),
        lambda: hf.train.AdagradOptimizer(0.5),
        lambda: hf.train.RMSPropOptimizer(0.02),
    ],
    ids=["sgd", "momentum", "adam", "adagrad", "rmsprop"],
)
def test_variables_are_trained(optimizer, dtype: np.dtype) -> None:
    with hf.Graph().as_default():
        w = hf.Variable(hf.constant([3.0, -1.0, 0.5], dtype), name="w")
        rows = hf.Variable(hf.constant(np.ones((4, 2)), dtype), name="rows")
        picked = hf.gather(rows, [1, 3])
        loss = hf.reduce_sum(hf.square(w - 1)) + hf.reduce_sum(hf.square(picked))
        step = optimizer().minimize(loss)
        with hf.Session() as sess:
            sess.run(hf.global_variables_initializer())
            first = sess.run(loss)
            for _ in range(150):
                sess.run(step)
            last, value, table = sess.run([loss, w, rows])
    assert value.dtype == table.dtype == dtype
    assert last < 0.02 * first and (table[[0, 2]] == 1).all()


def test_draws_stay_below_their_limit() -> None:
    x = hf.random_uniform([4000], dtype=hf.bfloat16)
    y = hf.random_normal([4000], dtype=hf.bfloat16)
    with hf.Session() as sess:
        a, b = sess.run([x, y])
    assert a.dtype == b.dtype == hf.bfloat16
    assert a.max() < 1 and a.min() >= 0 and abs(wide(a).mean() - 0.5) < 0.02
    assert abs(wide(b).std() - 1) < 0.05


def test_fetches_feeds_and_a_session() -> None:
    x = hf.placeholder(hf.bfloat16, [None])
    y = hf.nn.relu(x) * 2
    with hf.Session() as sess:
        got = sess.run(y, {x: [1.5, -1]})
        assert got.dtype == hf.bfloat16 and got.tolist() == [3, 0]
        assert sess.run(y, {x: np.array([2], hf.bfloat16)}).tolist() == [4]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_checkpoints(dtype: np.dtype, tmp_path: Path) -> None:
    v = hf.Variable(hf.constant([1.5, -2.0, 3e4], dtype), name="v")
    saver = hf.train.Saver()
    with hf.Session() as sess:
        sess.run(v.initializer)
        path = saver.save(sess, tmp_path / "model")
        sess.run(v.assign(hf.zeros([3], dtype)))
        saver.restore(sess, path)
        got = sess.run(v)
    assert got.dtype == dtype and got.tolist() == np.array([1.5, -2, 3e4]).astype(dtype).tolist()
