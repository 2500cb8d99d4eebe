"""Gradients as graphs: which nodes they are, where they lie, what they compute."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.errors import DTypeError, GradientError, GraphError, ShapeError
from hpcflow.graph.op_registry import OPS, NoGrad, op
from tests.ops.evaluate import evaluate


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def types(graph: hf.Graph, since: int = 0) -> list[str]:
    return [o.type for o in graph.get_operations()[since:] if o.type != "Const"]


# -- values


def test_a_chain() -> None:
    x = hf.constant(2.0)
    assert evaluate(hf.gradients(hf.exp(x * x), x)[0]) == pytest.approx(4 * np.exp(4), rel=1e-6)


def test_several_ys_and_xs() -> None:
    x, y = hf.constant(2.0), hf.constant(3.0)
    both = hf.gradients([x * y, x + y], [x, y])
    assert evaluate(both) == [4, 3]


def test_grad_ys() -> None:
    x = hf.constant([1.0, 2.0, 3.0])
    assert evaluate(hf.gradients(x * x, x, [[1.0, 0.5, 0]])[0]).tolist() == [2, 2, 0]
    two = hf.gradients([x, 2 * x], x, [None, [1.0, 1, 1]])
    assert evaluate(two[0]).tolist() == [3, 3, 3]


def test_a_diamond_and_many_uses() -> None:
    x = hf.constant(3.0)
    a, b = x * 2, x * x
    y = a * b + a + b + x
    assert evaluate(hf.gradients(y, x)[0]) == 6 * 9 + 2 + 6 + 1


def test_by_itself_and_by_what_is_between() -> None:
    x = hf.constant([1.0, 2.0])
    h = x * x
    y = 3 * h
    gx, gh, gy = hf.gradients(y, [x, h, y])
    assert [v.tolist() for v in evaluate([gx, gh, gy])] == [[6, 12], [3, 3], [1, 1]]


def test_a_variable_over_all_its_reads() -> None:
    v = hf.Variable([1.0, 2.0])
    y = v * v + v.read_value("again") * 10
    state: dict = {}
    evaluate(v.initializer, state=state)
    assert evaluate(hf.gradients(y, v), state=state)[0].tolist() == [12, 14]
    assert hf.gradients(y, [v.value()]) == [None]  # a read of its own, that y does not take


def test_second_order() -> None:
    x = hf.constant(0.7, "float64")
    for f, second in [
        (lambda t: t * t * t, 6 * 0.7),
        (hf.tanh, -2 * np.tanh(0.7) * (1 - np.tanh(0.7) ** 2)),
        (hf.sin, -np.sin(0.7)),
        (lambda t: hf.log(t) * t, 1 / 0.7),
        (lambda t: t**3.5, 3.5 * 2.5 * 0.7**1.5),
    ]:
        first = hf.gradients(f(x), x)[0]
        assert evaluate(hf.gradients(first, x)[0]) == pytest.approx(second, rel=1e-9)


def test_the_hessian_of_a_loss() -> None:
    """Second order through softmax cross entropy, whose gradient is its second output."""
    z = np.array([[0.3, -0.2, 0.9]])
    x = hf.constant(z)
    loss = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=[1], logits=x)
    first = hf.gradients(loss, x)[0]
    rows = [evaluate(hf.gradients(first[0, i], x)[0])[0] for i in range(3)]
    p = np.exp(z[0]) / np.exp(z[0]).sum()
    np.testing.assert_allclose(rows, np.diag(p) - np.outer(p, p), rtol=1e-9, atol=1e-12)


# -- where there is none


def test_not_connected() -> None:
    x, y = hf.constant(1.0), hf.constant(2.0)
    assert hf.gradients(x * 2, [x, y])[1] is None


def test_integers_carry_nothing() -> None:
    x = hf.constant([1.5, 2.5])
    y = hf.cast(hf.cast(x, "int32"), "float32") * 2
    assert hf.gradients(y, x) == [None]
    assert hf.gradients(hf.cast(hf.argmax(x), "float32"), x) == [None]
    n = hf.constant([1, 2])
    assert hf.gradients(hf.cast(n, "float32"), n) == [None]


def test_stop_gradient_and_stop_gradients() -> None:
    x = hf.constant(3.0)
    assert evaluate(hf.gradients(x * hf.stop_gradient(x), x)[0]) == 3
    h = x * x
    y = h * x
    assert evaluate(hf.gradients(y, x, stop_gradients=h)[0]) == 9
    assert evaluate(hf.gradients(y, [x, h], stop_gradients=[h])) == [9, 3]


def test_labels_are_constants() -> None:
    z, p = hf.zeros([1, 2]), hf.constant([[0.5, 0.5]])
    loss = hf.nn.softmax_cross_entropy_with_logits(labels=p, logits=z)
    assert hf.gradients(loss, p) == [None]


# -- errors


@pytest.fixture
def hopeless() -> Iterator[str]:
    rule = NoGrad("nobody has found one")
    op("Hopeless", infer=lambda inputs, attrs: [inputs[0]], grad=rule)
    yield "Hopeless"
    del OPS["Hopeless"]


def test_no_rule_on_the_way(hopeless: str, graph: hf.Graph) -> None:
    x, other = hf.constant(1.0), hf.constant(1.0)
    y = graph.create_op(hopeless, [x], name="lost").outputs[0] * other
    with pytest.raises(GradientError, match=r"Hopeless has no gradient .* 'Const:0': nob") as info:
        hf.gradients(y, x)
    assert info.value.op == "lost"
    assert "test_autodiff.py:" in str(info.value.line)
    assert evaluate(hf.gradients(hf.stop_gradient(y) + other, other)[0]) == 1
    assert hf.gradients(y, hf.constant(1.0)) == [None]


def test_a_rule_of_the_wrong_length(hopeless: str, graph: hf.Graph) -> None:
    OPS[hopeless] = type(OPS[hopeless])(hopeless, OPS[hopeless].infer, lambda op, g: [])
    x = hf.constant(1.0)
    with pytest.raises(GradientError, match="0 gradients for 1 inputs"):
        hf.gradients(graph.create_op(hopeless, [x]).outputs[0], x)


def test_wrong_arguments() -> None:
    x = hf.constant([1.0, 2.0])
    with pytest.raises(GradientError, match="grad_ys has 2 entries, but ys has 1"):
        hf.gradients(x, x, [x, x])
    with pytest.raises(ShapeError):
        hf.gradients(x, x, [hf.zeros([3])])
    with pytest.raises(DTypeError, match="float64"):
        hf.gradients(x, x, [hf.zeros([2], "float64")])
    with pytest.raises(GradientError, match="not a tensor"):
        hf.gradients(x, 3.0)


def test_integers_have_no_gradient() -> None:
    x = hf.constant([1.0, 2.0])
    count, total = hf.cast(x, "int32"), hf.reduce_sum(x)
    assert hf.gradients(count, x) == [None]
    assert evaluate(hf.gradients([count, total], x)[0]).tolist() == [1.0, 1.0]
    flag = hf.cond(total > 0, lambda: count + 1, lambda: count)
    assert hf.gradients(flag, x) == [None]


def test_what_nothing_depends_on_may_have_zeros_as_its_gradient() -> None:
    x, y, v = hf.constant([[1.0, 2.0]]), hf.constant(3.0), hf.Variable([1.0, 2.0, 3.0])
    assert hf.gradients(y, [x, v], unconnected_gradients="none") == [None, None]
    by_x, by_v, by_y = hf.gradients(
        y * 2.0, [x, v, y], unconnected_gradients=hf.UnconnectedGradients.ZERO
    )
    assert evaluate(by_x).tolist() == [[0.0, 0.0]] and evaluate(by_v).tolist() == [0.0, 0.0, 0.0]
    assert evaluate(by_y) == 2.0
    with pytest.raises(ValueError, match="unconnected_gradients 'nonsense' is not known"):
        hf.gradients(y, x, unconnected_gradients="nonsense")


def test_a_finalized_graph(graph: hf.Graph) -> None:
    x = hf.constant(1.0)
    y = x * x
    graph.finalize()
    with pytest.raises(GraphError, match="finalized"):
        hf.gradients(y, x)


# -- which nodes, and where


def test_names(graph: hf.Graph) -> None:
    x = hf.constant(1.0)
    with graph.name_scope("layer"):
        y = hf.exp(x, name="out")
    assert hf.gradients(y, x)[0].name == "gradients/layer/out_grad/Mul:0"
    assert hf.gradients(y, x)[0].name == "gradients_1/layer/out_grad/Mul:0"
    assert hf.gradients(y, x, name="again")[0].name == "again/layer/out_grad/Mul:0"


def test_only_what_is_needed(graph: hf.Graph) -> None:
    """No gradient of the constant, none of what lies beside the way."""
    x = hf.placeholder("float32", [3])
    y = hf.exp(x) * 2 + hf.log(hf.constant([1.0, 2, 3]))
    before = graph.version
    hf.gradients(y, x)
    assert types(graph, before) == ["Fill", "Mul", "Mul"]


def test_few_nodes_for_a_dense_network(graph: hf.Graph) -> None:
    x, labels = hf.placeholder("float32", [None, 8]), hf.placeholder("int32", [None])
    w1, b1 = hf.Variable(hf.zeros([8, 5])), hf.Variable(hf.zeros([5]))
    w2, b2 = hf.Variable(hf.zeros([5, 3])), hf.Variable(hf.zeros([3]))
    h = hf.nn.relu(hf.nn.bias_add(x @ w1, b1))
    logits = h @ w2 + b2
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = hf.reduce_mean(losses)
    before = graph.version
    hf.gradients(loss, [w1, b1, w2, b2])
    assert types(graph, before) == [
        *["Shape", "MeanGrad", "ExpandDims", "Mul", "SumToShape", "MatMul", "MatMul", "ReluGrad"],
        *["Sum", "MatMul"],
    ]


def test_sums(graph: hf.Graph) -> None:
    x = hf.placeholder("float32", [3])
    before = graph.version
    hf.gradients([hf.exp(x), hf.sin(x)], x)
    assert types(graph, before).count("Add") == 1
    before = graph.version
    hf.gradients([hf.exp(x), hf.sin(x), hf.cos(x), hf.tanh(x)], x)
    assert types(graph, before).count("AddN") == 1


def test_gradients_lie_where_their_ops_lie(graph: hf.Graph) -> None:
    x = hf.placeholder("float32", [3])
    with graph.device("/job:worker/task:1"):
        a = hf.exp(x)
    with graph.device("/job:worker/task:2"):
        b = hf.exp(a)
    with graph.device("/job:ps"):
        before = graph.version
        hf.gradients(b, x)
    places = {o.name: o.device for o in graph.get_operations()[before:] if o.type == "Mul"}
    assert places == {
        "gradients/Exp_1_grad/Mul": "/job:worker/task:2",
        "gradients/Exp_grad/Mul": "/job:worker/task:1",
    }


def test_gradients_are_colocated_like_their_ops(graph: hf.Graph) -> None:
    v = hf.Variable([1.0])
    with graph.colocate_with(v.op):
        y = hf.exp(v)
    assert hf.gradients(y, v)[0].op.colocate == ("Variable",)


def test_control_dependencies_bind_what_gradients_gives(graph: hf.Graph) -> None:
    """As TensorFlow's; what is computed on the way waits for nothing but its inputs."""
    x = hf.constant(1.0)
    y = hf.exp(hf.sin(x))
    before = hf.no_op()
    with graph.control_dependencies([before]):
        g = hf.gradients(y, x)[0]
    assert g.op.control_inputs == (before,)
    assert g.op.inputs[0].op.control_inputs == ()
    assert hf.gradients(y, x)[0].op.control_inputs == ()


# -- against finite differences


SMOOTH = [
    *[hf.tanh, hf.sin, hf.sigmoid, hf.nn.softplus, hf.square, hf.nn.softmax, lambda x: x * 0.5],
    *[lambda x: hf.matmul(x, x, transpose_b=True), lambda x: hf.reduce_mean(x, 0, True)],
    *[lambda x: hf.transpose(x), lambda x: hf.exp(0.3 * x), hf.reduce_logsumexp],
]


@pytest.mark.slow
@settings(max_examples=40)
@given(
    steps=st.lists(st.tuples(st.integers(0, len(SMOOTH) + 1), st.integers(0, 9)), max_size=8),
    static=st.booleans(),
)
def test_random_expressions(steps: list, static: bool) -> None:
    a = np.random.default_rng(1).uniform(-1, 1, (3, 3))
    with hf.Graph().as_default():
        x = hf.placeholder("float64", [3, 3] if static else [None, None])
        made = [x]
        for which, pick in steps:
            one, two = made[pick % len(made)], made[-1]
            if which < len(SMOOTH):
                y = SMOOTH[which](one)
            else:
                y = one + two if which == len(SMOOTH) else one * two
            made.append(y + x)  # keeps it 3 by 3
        y = hf.reduce_sum(hf.tanh(made[-1] * 0.1))
        grad = evaluate(hf.gradients(y, x)[0], {x: a})
        slope = np.zeros((3, 3))
        for place in np.ndindex(3, 3):
            step = np.zeros((3, 3))
            step[place] = 1e-6
            high, low = (evaluate(y, {x: a + s}) for s in (step, -step))
            slope[place] = (high - low) / 2e-6
    np.testing.assert_allclose(grad, slope, rtol=1e-5, atol=1e-7)


def test_training_by_hand() -> None:
    """A linear fit by gradient descent finds the weights it was made with."""
    rng = np.random.default_rng(0)
    true = np.array([[1.0], [-2.0], [0.5]], "f4")
    x, y = hf.placeholder("float32", [None, 3]), hf.placeholder("float32", [None, 1])
    w = hf.Variable(hf.zeros([3, 1]))
    loss = hf.reduce_mean(hf.square(x @ w - y))
    step = w.assign_sub(0.2 * hf.gradients(loss, w)[0])
    state: dict = {}
    evaluate(w.initializer, state=state)
    for _ in range(80):
        batch = rng.standard_normal((16, 3)).astype("f4")
        evaluate(step, {x: batch, y: batch @ true}, state)
    np.testing.assert_allclose(state["Variable"], true, atol=1e-3)
