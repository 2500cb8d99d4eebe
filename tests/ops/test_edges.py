"""Where the incoming gradient is 0: no 0 times infinity is made where TensorFlow has 0."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.graph.op_registry import NoGrad, all_ops
from tests.ops.edges import ONE, TWO, inputs, where_nan
from tests.ops.sessions import graph, run  # noqa: F401

TENSORFLOW = json.loads((Path(__file__).parent / "edges_tf.json").read_text())
KEPT = {"Elu", "selu"}  # NaN stays NaN, which TensorFlow forgets
OTHERWISE = {
    "AddN Cast CheckNumerics Conj Cross BiasAdd": "sums, products and copies of the gradient",
    "Ceil Floor FloorDiv Rint Sign": "no gradient",
    "NextAfter": "a copy of the gradient, and zeros",
    "ClipByValue Select ReluGrad Relu6Grad": "choices among gradients",
    "MatMul": "sums of products",
    "EluGrad SigmoidGrad TanhGrad SoftmaxGrad LogSoftmaxGrad": "gradients of what is walked",
    "SoftmaxCrossEntropy SparseSoftmaxCrossEntropy": "tests/ops/test_losses.py",
    "TruncateMod TruncateDiv": "TensorFlow has no gradient of it",
    "Betainc Polygamma Zeta": "series that are not finite themselves at the edges",
}


def test_every_row_is_walked() -> None:
    """Of the families of functions of floats, all ops that have a gradient.

    A row that is not listed fails. If TensorFlow has the function, add it to ONE or TWO of edges.py
    and run edges_tf.py with TensorFlow. If not, add it to OTHERWISE with the reason.
    """
    math = ("arithmetic", "elementwise_math", "special_function", "gamma")
    names = [*(f"ops.math.{name}_kernels" for name in math), "ops.nn.nn_kernels"]
    families = {f"hpcflow.{name}" for name in names}
    listed = [row for row in all_ops().values() if families & {*row.kernels}]
    rules = {row.name for row in listed if not isinstance(row.grad, NoGrad)}
    listed_types = {*ONE, *TWO} | {t for types in OTHERWISE for t in types.split()}
    assert rules <= listed_types, "add to ONE or TWO of edges.py, or to OTHERWISE here"


@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("float16", marks=pytest.mark.slow(first=False))]
)
@pytest.mark.parametrize("type", [*ONE, *TWO])
def test_nothing_comes_of_no_gradient(type: str, dtype: str) -> None:
    """Where TensorFlow's gradient is 0, ours is: a masked root of 0 does not spoil a step."""
    theirs = TENSORFLOW[dtype].get(type)
    if theirs is None:
        return
    kept = np.flatnonzero(np.isnan(inputs(type, np.dtype(dtype))[0])) if type in KEPT else ()
    for ours, expected in zip(where_nan(hf, type, np.dtype(dtype)), theirs, strict=True):
        assert set(ours) <= {*expected, *kept}


def test_what_is_masked_does_not_count() -> None:
    """The values are TensorFlow's."""
    x = hf.placeholder(hf.float32, [4])
    at = np.array([0, -4, 4, 9], "f4")
    slopes = {hf.sqrt: [0, 0, 0.25, 1 / 6], hf.rsqrt: [0, 0, -0.0625, -1 / 54]}
    slopes[hf.reciprocal] = [0, 0, -0.0625, -1 / 81]
    for f, expected in slopes.items():
        (g,) = hf.gradients(hf.where(x > 0, f(x), 2.0 * x), x)
        np.testing.assert_allclose(run(g, {x: at}), np.where(at > 0, expected, 2), rtol=1e-6)


def test_norms_of_nothing_and_of_what_is_not_a_number() -> None:
    """The values are TensorFlow's."""
    x = hf.placeholder(hf.float32, [2])
    masked = hf.gradients(hf.norm(x) * 0.0, x)[0]
    clipped = hf.clip_by_norm(x, 2.0)
    average = hf.gradients(hf.clip_by_average_norm(x, 2.0), x)[0]
    with hf.Session() as session:
        assert session.run(masked, {x: [0, 0]}).tolist() == [0, 0]
        assert session.run(average, {x: [0, 0]}).tolist() == [1, 1]
        assert np.isnan(session.run(clipped, {x: [np.nan, 1]})).all()


@pytest.mark.parametrize("value", [0.0, -0.0])
def test_the_slope_of_selu_at_0(value: float) -> None:
    x = hf.placeholder(hf.float32, [])
    (g,) = hf.gradients(hf.nn.selu(x), x)
    assert run(g, {x: value}) == np.float32(1.0507009873554805)  # as TensorFlow's


def test_the_slope_of_expm1_far_below_0() -> None:
    x = hf.placeholder(hf.float32, [])
    (g,) = hf.gradients(hf.math.expm1(x), x)
    np.testing.assert_allclose(run(g, {x: -10.0}), np.exp(-10), rtol=1e-6)
