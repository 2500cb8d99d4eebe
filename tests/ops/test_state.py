"""Updates of variables: against the textbooks' formulas, tile by tile, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from hpcflow.errors import DTypeError, ShapeError
from hpcflow.graph.dtypes import float32
from hpcflow.graph.graph import Graph
from hpcflow.kernels.kernel_registry import KernelNode, find_plain_kernel
from hpcflow.ops.array.array_ops import constant
from hpcflow.ops.variables.variable_kernels import TILE
from hpcflow.ops.variables.variable_ops import Variable, update
from tests.ops.evaluate import evaluate

SHAPES = [(), (5,), (3, 4), (0, 3), (2 * TILE + 17,)]


def kernel(type: str, shape: tuple, dtype: str, **attrs: object):
    attrs = {"shape": shape, "dtype": np.dtype(dtype), **attrs}
    return find_plain_kernel(type, "cpu").make(np, KernelNode(type, attrs, [], []))


def arrays(shape: tuple, dtype: str, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [np.asarray(rng.random(shape) + 0.1, dtype) for _ in range(count)]


def close(got: np.ndarray, expected: np.ndarray) -> None:
    tolerance = 1e-5 if got.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
class TestUpdates:
    def test_add_and_subtract(self, shape: tuple, dtype: str) -> None:
        var, x = arrays(shape, dtype, 2)
        before = var.copy()
        kernel("AssignAdd", shape, dtype)(var, x)
        close(var, before + x)
        kernel("AssignSub", shape, dtype)(var, x)
        close(var, before)

    def test_gradient_descent(self, shape: tuple, dtype: str) -> None:
        var, grad = arrays(shape, dtype, 2)
        before = var.astype(float)
        kernel("ApplyGradientDescent", shape, dtype)(var, np.array(0.1, dtype), grad)
        close(var, before - 0.1 * grad)

    @pytest.mark.parametrize("nesterov", [False, True])
    def test_momentum(self, shape: tuple, dtype: str, nesterov: bool) -> None:
        var, accum, grad = arrays(shape, dtype, 3)
        x, a = var.astype(float), accum.astype(float)
        run = kernel("ApplyMomentum", shape, dtype, use_nesterov=nesterov)
        for _ in range(3):
            run(var, accum, np.array(0.1, dtype), np.array(0.9, dtype), grad)
            a = 0.9 * a + grad
            x = x - 0.1 * (grad + 0.9 * a if nesterov else a)
        close(var, x)
        close(accum, a)

    def test_adam(self, shape: tuple, dtype: str) -> None:
        var, grad = arrays(shape, dtype, 2)
        m, v, step = np.zeros_like(var), np.zeros_like(var), np.zeros((), np.int64)
        facts = [np.array(c, dtype) for c in (0.01, 0.9, 0.999, 1e-8)]
        x, first, second = var.astype(float), 0.0, 0.0
        run = kernel("ApplyAdam", shape, dtype)
        for t in range(1, 4):
            run(var, m, v, step, *facts, grad * t)
            g = grad.astype(float) * t
            first = 0.9 * first + 0.1 * g
            second = 0.999 * second + 0.001 * g * g
            rate = 0.01 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            x = x - rate * first / (np.sqrt(second) + 1e-8)
        close(var, x)
        assert step == 3

    def test_the_same_to_the_bit(self, shape: tuple, dtype: str) -> None:
        """Tiles, and kernels made anew, do not change a bit."""
        results = []
        for _ in range(2):
            var, m, v, grad = arrays(shape, dtype, 4)
            step = np.zeros((), np.int64)
            facts = [np.array(c, dtype) for c in (0.01, 0.9, 0.999, 1e-8)]
            kernel("ApplyAdam", shape, dtype)(var, m, v, step, *facts, grad)
            results.append(var.tobytes() + m.tobytes() + v.tobytes())
        assert results[0] == results[1]


def test_update_through_the_graph() -> None:
    with Graph().as_default():
        w = Variable(constant([1.0, 2.0]))
        step = update("ApplyGradientDescent", [w], [constant(0.5), constant([2.0, 4.0])])
        state: dict = {}
        evaluate(w.initializer, state=state)
        assert evaluate([step, w], state=state)[1].tolist() == [1, 2]  # a read is of the start
        assert evaluate(w, state=state).tolist() == [0, 0]


def test_errors() -> None:
    with Graph().as_default():
        w = Variable(constant([1.0, 2.0]))
        with pytest.raises(ShapeError, match=r"input 1 is \[3\]; the variable needs \[2\]"):
            w.assign([1.0, 2.0, 3.0])
        with pytest.raises(DTypeError, match="float32"):
            w.assign(constant([1.0, 2.0], "float64"))
        with pytest.raises(ShapeError, match="input 1"):
            update("ApplyGradientDescent", [w], [constant([1.0, 2.0]), constant([1.0, 2.0])])
        assert w.dtype == float32
