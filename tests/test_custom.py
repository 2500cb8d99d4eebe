"""Gradients and ops of the user's own, second derivatives, recomputation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import GradientError, GraphError, PlacementError, ShapeError
from hpcflow.graph.op_registry import OPS, all_ops
from hpcflow.kernels import kernel_registry
from hpcflow.ops.shape_inference import make
from hpcflow.plan.ir.program import Cluster
from hpcflow.plan.pass_list import make_plan
from hpcflow.settings import Settings
from tests.ops.evaluate import evaluate


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


@pytest.fixture
def tables() -> Iterator[None]:
    """The op and kernel tables as they were, after the test."""
    kernel_registry.names()  # all kernels are imported
    ops, kernels = dict(all_ops()), dict(kernel_registry._TABLE)
    yield
    OPS.clear()
    kernel_registry._TABLE.clear()
    OPS.update(ops)
    kernel_registry._TABLE.update(kernels)


def run(fetches: Any, feeds: Any = None) -> Any:
    with hf.Session() as session:
        return session.run(fetches, feeds)


# -- custom_gradient


@hf.custom_gradient
def log1pexp(x: hf.Tensor) -> Any:
    """TensorFlow's own example: log(1 + exp x), whose ordinary gradient is NaN for a large x."""
    e = hf.exp(x)
    return hf.log(1 + e), lambda dy: dy * (1 - 1 / (1 + e))


def test_a_gradient_of_ones_own() -> None:
    x = hf.placeholder(hf.float32, [3])
    y = log1pexp(x)
    value, slope = run([y, hf.gradients(y, x)[0]], {x: [0, 1, 100]})
    np.testing.assert_allclose(value[:2], np.log1p(np.exp([0, 1])), rtol=1e-6)
    np.testing.assert_allclose(slope, [0.5, 1 / (1 + np.exp(-1)), 1], rtol=1e-6)


def test_many_arguments_and_results() -> None:
    @hf.custom_gradient
    def both(a: hf.Tensor, b: hf.Tensor, scale: float = 1) -> Any:
        def grad(da: hf.Tensor, db: hf.Tensor) -> Any:
            return 10 * da * scale, 100 * db

        return (a + b, a * b), grad

    a, b = hf.constant(2.0), hf.constant(3.0)
    total, product = both(a, b, scale=2)
    assert [v.item() for v in run([total, product])] == [5, 6]
    assert [v.item() for v in run(hf.gradients([total, product], [a, b]))] == [20, 100]
    assert [v.item() for v in run(hf.gradients(product, [a, b]))] == [0, 100]


def test_variables_of_a_function_with_its_own_gradient() -> None:
    w = hf.Variable(3.0)
    unused = hf.Variable(1.0)

    @hf.custom_gradient
    def f(x: hf.Tensor) -> Any:
        def grad(dy: hf.Tensor, variables: Any) -> Any:
            assert [v.name for v in variables] == [w.name]
            return dy * 7, [dy * 11]

        return x * w, grad

    x = hf.constant(2.0)
    y = f(x) * 2
    dx, dw, none = hf.gradients(y, [x, w, unused])
    assert none is None
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        assert [v.item() for v in session.run([y, dx, dw])] == [12, 14, 22]


def test_a_second_gradient_goes_through_the_rule() -> None:
    @hf.custom_gradient
    def cube(x: hf.Tensor) -> Any:
        return x * x * x, lambda dy: dy * 3 * x * x

    x = hf.constant(2.0)
    (first,) = hf.gradients(cube(x), x)
    (second,) = hf.gradients(first, x)
    assert [v.item() for v in run([first, second])] == [12, 12]


def test_a_gradient_function_that_does_not_fit() -> None:
    @hf.custom_gradient
    def f(x: hf.Tensor) -> Any:
        return x * 2, lambda dy: [dy, dy]

    x = hf.constant(1.0)
    with pytest.raises(GradientError, match="2 gradients for 1 arguments"):
        hf.gradients(f(x), x)
    with pytest.raises(GradientError, match="return"):
        hf.custom_gradient(lambda x: x)(x)


def test_a_gradient_of_ones_own_on_another_rank() -> None:
    """The rule is not part of the plan: the values may be computed anywhere."""
    with hf.device("/job:ps/task:0"):
        y = log1pexp(hf.ones([2]))
    plan = make_plan(hf.get_default_graph(), [y], {}, Cluster(workers=1, servers=1), Settings())
    assert "CustomGradient" not in {n.type for p in plan.parts.values() for n in p.nodes.values()}


def test_identity_n() -> None:
    x, y = hf.constant(1.0), hf.constant([2.0])
    a, b = hf.identity_n([x, y])
    assert run([a, b])[1].tolist() == [2]
    assert evaluate(hf.gradients(a * 3, x)[0]) == 3


# -- ops of one's own


def test_the_example_of_contributing_runs(tables: None) -> None:
    text = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()
    part = text[text.index("**Adding an op**") :]
    code = re.search(r"```python\n(.*?)```", part, re.S)
    assert code is not None
    lines = [line for line in code[1].splitlines() if line.strip()]
    assert len(lines) <= 10
    scope: dict[str, Any] = {}
    exec(code[1], scope)
    x = hf.placeholder(hf.float64, [None])
    y = scope["cube"](x)
    value, slope = run([y, hf.gradients(y, x)[0]], {x: [1.0, 2.0]})
    assert value.tolist() == [1, 8]
    assert slope.tolist() == [3, 12]


def test_a_gradient_is_registered_later(tables: None) -> None:
    double = hf.op("Double")

    @hf.kernel("Double", "out")
    def kernel(xp: Any, node: Any) -> Any:
        return lambda x, out: xp.multiply(x, 2, out)

    x = hf.constant(3.0)
    y = double(x, name="twice")
    assert y.op.name == "twice"
    with pytest.raises(GradientError, match="RegisterGradient"):
        hf.gradients(y, x)

    @hf.RegisterGradient("Double")
    def grad(op: hf.Operation, dy: hf.Tensor) -> hf.Tensor:
        return dy * 2

    assert [v.item() for v in run([y, hf.gradients(y, x)[0]])] == [6, 2]
    with pytest.raises(GraphError, match="already"):
        hf.RegisterGradient("Double")(grad)
    with pytest.raises(GraphError, match="already"):
        hf.NotDifferentiable("MatMul")
    with pytest.raises(GraphError, match="no op"):
        hf.RegisterGradient("Missing")(grad)


def test_an_op_that_is_not_differentiable(tables: None) -> None:
    hf.op("Count", infer=lambda inputs, attrs: [hf.Spec(hf.int32, ())])
    hf.NotDifferentiable("Count")
    with pytest.raises(GraphError, match="already"):
        hf.op("Count")


def test_an_own_op_runs_where_the_script_does(tables: None) -> None:
    double = hf.op("Double")
    with hf.device("/job:ps/task:0"):
        y = double(hf.ones([2]))
    with pytest.raises(PlacementError, match="script"):
        make_plan(hf.get_default_graph(), [y], {}, Cluster(workers=1, servers=1), Settings())


# -- hessians


def test_hessians() -> None:
    x = hf.placeholder(hf.float64, [3])
    y = hf.placeholder(hf.float64, [2, 2])
    a = np.array([[2.0, 1, 0], [1, 3, 1], [0, 1, 4]])
    loss = hf.reduce_sum(x * hf.squeeze(hf.matmul(a, hf.expand_dims(x, 1)), 1)) / 2
    loss = loss + hf.reduce_sum(hf.exp(y))
    hx, hy = hf.hessians(loss, [x, y])
    assert (hx.shape, hy.shape) == ((3, 3), (2, 2, 2, 2))
    at = np.array([[0.0, 1], [2, 3]])
    vx, vy = run([hx, hy], {x: [1, 2, 3], y: at})
    np.testing.assert_allclose(vx, a)
    np.testing.assert_allclose(vy.reshape(4, 4), np.diag(np.exp(at.ravel())))


def test_hessians_that_are_zero_and_that_cannot_be() -> None:
    x = hf.constant([1.0, 2.0])
    assert evaluate(hf.hessians(3 * hf.reduce_sum(x), x)[0]).tolist() == [[0, 0], [0, 0]]
    with pytest.raises(ShapeError, match="hessians needs known shapes"):
        hf.hessians(hf.placeholder(hf.float32, [None]), hf.placeholder(hf.float32, [None]))


# -- recompute


def block(x: hf.Tensor, w: hf.Variable) -> hf.Tensor:
    return hf.tanh(hf.matmul(hf.sin(x) * hf.exp(x * 0.1), w.value()))


def built(wrap: Any, depth: int = 4) -> tuple[hf.Tensor, hf.Tensor, list[Any]]:
    x = hf.placeholder(hf.float64, [None, 3], name="x")
    ws = [hf.Variable(np.eye(3) * (0.5 + i)) for i in range(depth)]
    h = x
    for w in ws:
        h = wrap(block)(h, w)
    loss = hf.reduce_sum(h * h)
    return x, loss, hf.gradients(loss, [x, *ws])


def test_recomputed_gradients_are_the_same_to_the_last_bit() -> None:
    at = np.random.default_rng(0).standard_normal((5, 3))
    results = []
    for wrap in (lambda f: f, hf.recompute):
        with hf.Graph().as_default():
            x, loss, grads = built(wrap)
            with hf.Session() as session:
                session.run(hf.global_variables_initializer())
                results.append(session.run([loss, *grads], {x: at}))
    for a, b in zip(*results, strict=True):
        assert a.tobytes() == b.tobytes()


def test_what_is_recomputed_runs_twice_and_is_not_merged() -> None:
    counts = {}
    for name, wrap in (("kept", lambda f: f), ("again", hf.recompute)):
        with hf.Graph().as_default():
            x, loss, grads = built(wrap)
            fed = {x: hf.Spec(x.dtype, (5, 3))}
            plan = make_plan(hf.get_default_graph(), [loss, *grads], fed, Cluster(), Settings())
            (part,) = plan.parts.values()
            types = [n.type for n in part.nodes.values()]
            counts[name] = {t: types.count(t) for t in ("Tanh", "Exp", "ReadVariable")}
    assert counts["kept"] == {"Tanh": 4, "Exp": 4, "ReadVariable": 4}
    assert counts["again"] == {"Tanh": 8, "Exp": 8, "ReadVariable": 4}


def test_recomputing_needs_less_memory() -> None:
    from hpcflow.kernels.kernel_registry import find_plain_kernel
    from hpcflow.lowering.kernel_metadata import KernelInfo
    from hpcflow.lowering.python_codegen import generate_code

    sizes = []
    for wrap in (lambda f: f, hf.recompute):
        with hf.Graph().as_default():
            x, _, grads = built(wrap, depth=12)
            fed = {x: hf.Spec(x.dtype, (1000, 3))}
            plan = make_plan(hf.get_default_graph(), [grads[0]], fed, Cluster(), Settings())
            (part,) = plan.parts.values()

            def info(node: Any) -> KernelInfo:
                row = find_plain_kernel(node.type, "cpu")
                return KernelInfo(row.form, row.inplace)

            sizes.append(generate_code(part, info).buffer_bytes)
    assert sizes[1] < sizes[0] / 2


def test_random_draws_are_not_drawn_again() -> None:
    @hf.recompute
    def noisy(x: hf.Tensor) -> hf.Tensor:
        return hf.exp(x * hf.random_uniform([4], seed=3))

    x = hf.placeholder(hf.float32, [4])
    y = noisy(x)
    (slope,) = hf.gradients(y, x)
    with hf.Session() as session:
        for _ in range(3):
            value, got = session.run([y, slope], {x: [1.0] * 4})
            np.testing.assert_allclose(got, np.log(value) * value, rtol=1e-5)


def test_what_a_block_uses_from_outside_has_its_gradient() -> None:
    a, b = hf.constant(2.0), hf.constant(3.0)
    outside = a * b

    @hf.recompute
    def f(x: hf.Tensor, k: int) -> Any:
        return [hf.square(x) * outside * k, x, hf.cast(x, hf.int32)]

    y, same, _ = f(a, 2)
    found = hf.gradients([y, same], [a, b])
    assert [v.item() for v in run(found)] == [6 * 3 * 4 + 1, 2 * 8]


def test_a_block_inside_a_block_and_second_derivatives() -> None:
    def f(x: hf.Tensor) -> hf.Tensor:
        return hf.sin(hf.recompute(hf.exp)(x) * x)

    x = hf.constant(0.3, hf.float64)
    plain = hf.sin(hf.exp(x) * x)
    nested = hf.recompute(f)(x)
    firsts = [hf.gradients(y, x)[0] for y in (plain, nested)]
    seconds = [hf.gradients(g, x)[0] for g in firsts]
    values = run([*firsts, *seconds])
    np.testing.assert_allclose(values[0], values[1], rtol=1e-14)
    np.testing.assert_allclose(values[2], values[3], rtol=1e-13)


# -- in loops


def test_recomputation_inside_a_loop_and_around_one() -> None:
    def step(x: hf.Tensor) -> hf.Tensor:
        return hf.tanh(hf.exp(x * 0.1) * x)

    def looped(wrap: Any) -> Any:
        def build(x: hf.Tensor) -> hf.Tensor:
            f = wrap(step)
            return hf.while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, f(y)), [0, x])[1]

        return build

    x = hf.placeholder(hf.float64, [3])
    results = []
    for build in (looped(lambda f: f), looped(hf.recompute), hf.recompute(looped(lambda f: f))):
        y = build(x)
        results.append(run([y, hf.gradients(y, x)[0]], {x: [0.1, 0.2, 0.3]}))
    for y, slope in results[1:]:
        np.testing.assert_array_equal(y, results[0][0])
        np.testing.assert_allclose(slope, results[0][1], rtol=1e-15)


def test_a_loop_keeps_only_what_enters_a_recomputed_block() -> None:
    def kept(wrap: Any) -> int:
        with hf.Graph().as_default() as graph:
            x = hf.placeholder(hf.float64, [3])
            f = wrap(lambda y: hf.tanh(hf.exp(hf.sin(y)) * y))
            y = hf.while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, f(y)), [0, x])[1]
            hf.gradients(y, x)
            return max(op.attrs["lists"] for op in graph.get_operations() if op.type == "While")

    assert kept(hf.recompute) == 1 < kept(lambda f: f)


def test_a_gradient_of_ones_own_inside_a_loop() -> None:
    w = hf.Variable(2.0)

    @hf.custom_gradient
    def f(x: hf.Tensor) -> Any:
        return x * w, lambda dy, variables: (dy * 10, [dy * x])

    x = hf.placeholder(hf.float32, [])
    y = hf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, f(y)), [0, x])[1]
    dx, dw = hf.gradients(y, [x, w])
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        values = [v.item() for v in session.run([y, dx, dw], {x: 1.0})]
    assert values == [8, 1000, 4 + 10 * 2 + 100]


def test_python_functions_and_prints_inside_a_loop(capfd: Any) -> None:
    x = hf.placeholder(hf.float64, [2])

    def body(i: hf.Tensor, y: hf.Tensor) -> Any:
        return i + 1, hf.py_func(lambda a: a + 1, [hf.Print(y, [i])], hf.float64)

    y = hf.while_loop(lambda i, y: i < 3, body, [0, x], shape_invariants=[(), None])[1]
    assert run(y, {x: [1.0, 2.0]}).tolist() == [4, 5]
    assert capfd.readouterr().err == "[0]\n[1]\n[2]\n"


@pytest.mark.parametrize("form", [np.ndarray.tolist, np.asfortranarray, lambda x: x[::-1][::-1]])
def test_what_a_kernel_gives_is_kept_by_a_loop_as_an_array_of_rows(form: Any, tables: None) -> None:
    """The gradient's generated loop takes it from the list as it lies in memory."""

    def squared(operation: Any, g: Any) -> list[Any]:
        return [2.0 * g * operation.inputs[0]]

    hf.op("SquaredHere", infer=lambda inputs, attrs: [inputs[0]], grad=squared)
    hf.kernel("SquaredHere", "new")(lambda xp, node: lambda x: form(np.asarray(x) ** 2))
    x, start = hf.placeholder(hf.float64, [3, 4]), np.linspace(-1, 1, 12).reshape(3, 4)

    def step(i: Any, a: Any) -> Any:
        y = make("SquaredHere", [a], {}).outputs[0]
        return i + 1, hf.tanh(y * y) * 0.5 + a

    y = hf.while_loop(lambda i, _: i < 3, step, [hf.constant(0), x])[1]
    (g,) = hf.gradients(hf.reduce_sum(y), [x])
    found = hf.Session().run(g, {x: start})
    a, slope = start, np.ones_like(start)
    for _ in range(3):
        t = np.tanh(a**4)
        slope = slope * (1 + 0.5 * (1 - t * t) * 4 * a**3)
        a = a + 0.5 * t
    np.testing.assert_allclose(found, slope, rtol=1e-12)
