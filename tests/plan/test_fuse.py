"""Fused operations compute what they compute one by one, whatever stands between them."""

from __future__ import annotations

import operator
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.lowering.fusion import elementwise_fusion as module
from hpcflow.lowering.fusion import iteration_space, recompute
from hpcflow.plan.ir.program import Partition
from hpcflow.platform import cpu_threads
from hpcflow.runtime.step import kernel_selection

SHAPES = [(4, 6), (6,), (1, 6), (4, 1), (), (1,)]
BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, hf.maximum, hf.minimum]
UNARY = [hf.abs, hf.square, hf.nn.relu, lambda x: hf.sqrt(hf.abs(x)), operator.neg, hf.identity]
BETWEEN = [
    lambda x: hf.reduce_sum(x, -1, keepdims=True) if x.shape else x,
    lambda x: hf.matmul(x, x, transpose_b=True)[:, :1] if len(x.shape) == 2 else x,
    lambda x: hf.transpose(hf.transpose(x)),
    lambda x: hf.reverse(x, [0]) if x.shape else x,
    hf.reduce_mean,
]


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with np.errstate(all="ignore"):
        yield


def context(**given: Any) -> Any:
    """A single rank with these settings."""
    from hpcflow.runtime.job.rank_context import RankContext
    from hpcflow.settings import Settings

    return RankContext(Settings(**given))


def results(program: Any, fuse: bool) -> tuple[list[bytes], int]:
    """What a random program leaves in its variables and fetches; how many kernels were fused."""
    made: list[Partition] = []
    with pytest.MonkeyPatch.context() as patch, hf.Graph().as_default():
        original = module.replace_nodes
        patch.setattr(module, "replace_nodes", lambda *a: made.append(original(*a)) or made[-1])
        rng = np.random.default_rng(3)
        variables = [
            hf.Variable(rng.standard_normal(shape).astype("f4"), name=f"v{i}")
            for i, shape in enumerate([(4, 6), (6,)])
        ]
        feeds = [hf.placeholder(hf.float32, shape) for shape in SHAPES]
        values, done = list(feeds), []
        for kind, a, b, which in program:
            x, y = values[a % len(values)], values[b % len(values)]
            with hf.control_dependencies(done[-1:]):
                if kind == "read":
                    values.append(variables[which % 2].read_value())
                elif kind == "unary":
                    values.append(UNARY[which % len(UNARY)](x))
                elif kind == "binary":
                    values.append(BINARY[which % len(BINARY)](x, y))
                elif kind == "where":
                    values.append(
                        hf.where(hf.broadcast_to(hf.greater(x, y), (x + y).shape), x + y, y - x)
                    )
                elif kind == "between":
                    values.append(BETWEEN[which % len(BETWEEN)](x))
                elif x.shape == variables[which % 2].shape:
                    done.append(getattr(variables[which % 2], kind)(x))
        session = hf.Session(context=context(kernels="auto" if fuse else "plain", exact=True))
        session.run(hf.global_variables_initializer())
        fed = {x: rng.standard_normal(x.shape).astype("f4") for x in feeds}
        fetched = [values[-1], values[len(values) // 2], *done[-1:]]
        found = [session.run(fetched, fed) for _ in range(2)]
        end = session.run(variables)
    arrays = [x for step in found for x in step if x is not None] + end
    return [np.asarray(x).tobytes() for x in arrays], sum(
        node.type == "Fused" for part in made for node in part.nodes.values()
    )


STEP = st.tuples(
    st.sampled_from(
        "read unary unary binary binary binary where between assign assign_add assign_sub".split()
    ),
    *(st.integers(0, 50) for _ in range(3)),
)


@pytest.fixture(params=["handed on", "computed again"])
def values(request: Any) -> Any:
    """What becomes of values that one kernel makes for another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            recompute, "LARGE_VALUE_BYTES", 1 << 60 if request.param == "handed on" else 0
        )
        yield


@pytest.mark.slow
@settings(max_examples=100, suppress_health_check=list(hypothesis.HealthCheck))
@given(program=st.lists(STEP, min_size=3, max_size=30))
def test_any_program_gives_the_same_bits(values: Any, program: Any) -> None:
    plain, none = results(program, fuse=False)
    assert none == 0
    assert results(program, fuse=True)[0] == plain


def test_a_chain_is_one_kernel() -> None:
    chain = [("binary", 0, 1, 0)] + [("unary", 6 + i, 0, i % 3) for i in range(20)]
    assert results(chain, fuse=True)[1] == 1


def test_without_llvmlite_nothing_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_selection, "absent", lambda: "it is not here")
    assert results([("binary", 0, 1, 0), ("unary", 6, 0, 1)], fuse=True)[1] == 0


ROWS = [
    hf.nn.softmax,
    hf.nn.log_softmax,
    lambda x: hf.reduce_mean(x, -1, keepdims=True),
    lambda x: hf.expand_dims(hf.reduce_sum(x, -1), -1),
    lambda x: hf.reduce_sum(x, 0),
    lambda x: hf.tanh(hf.reduce_mean(hf.square(x), [0, 1])),
    lambda x: hf.nn.moments(x, [-1], keep_dims=True)[1],
]
CALM = [hf.tanh, hf.nn.sigmoid, lambda x: hf.exp(-hf.square(x)), operator.neg, hf.nn.relu]


def over_rows(program: Any, kernels: str) -> list[np.ndarray]:
    """Values and gradients of a random program of sums, softmaxes and bounded functions."""
    with hf.Graph().as_default():
        rng = np.random.default_rng(4)
        feeds = [hf.placeholder(hf.float32, shape) for shape in [(4, 6), (6,), (4, 1), ()]]
        values: list[Any] = list(feeds)
        for kind, a, b, which in program:
            x, y = values[a % len(values)], values[b % len(values)]
            if kind == "rows" and len(x.shape) == 2 and x.shape[-1] > 1:
                values.append(ROWS[which % len(ROWS)](x))
            elif kind == "calm":
                values.append(CALM[which % len(CALM)](x))
            elif kind == "two":
                values.append(BINARY[which % 3](hf.tanh(x), hf.tanh(y)))
        total = sum(hf.reduce_sum(v) for v in values)
        session = hf.Session(context=context(kernels=kernels))
        fed = {x: rng.standard_normal(x.shape).astype("f4") for x in feeds}
        return [np.asarray(x) for x in session.run([*values, *hf.gradients(total, feeds)], fed)]


BY_ROWS = st.tuples(
    st.sampled_from(["rows", "rows", "calm", "two", "two"]), *(st.integers(0, 50) for _ in range(3))
)


# What is computed again in one kernel is an operand of another one.
SPLIT = [("rows", 0, 0, 0), ("rows", 0, 0, 3), ("calm", 0, 0, 22), *[("rows", 0, 0, 0)] * 3,
         ("two", 0, 35, 0)]  # fmt: skip


@pytest.mark.slow(first=False)
@settings(max_examples=50, suppress_health_check=list(hypothesis.HealthCheck))
@given(program=st.lists(BY_ROWS, min_size=3, max_size=14))
@example(program=SPLIT)
def test_any_program_over_rows_gives_nearly_the_same(values: Any, program: Any) -> None:
    plain, fused = over_rows(program, "plain"), over_rows(program, "auto")
    for mine, right in zip(fused, plain, strict=True):
        scale = max(1.0, float(np.abs(right).max()))
        np.testing.assert_allclose(mine, right, atol=2e-5 * scale)


def kinds(build: Any, rows: int = 4) -> list[list[str]]:
    """The types of the operations in each fused kernel of what `build` makes of a [rows, 6]."""
    made: list[Partition] = []
    with pytest.MonkeyPatch.context() as patch, hf.Graph().as_default():
        original = module.replace_nodes
        patch.setattr(module, "replace_nodes", lambda *a: made.append(original(*a)) or made[-1])
        x = hf.placeholder(hf.float32, [rows, 6])
        fetches, session = build(x), hf.Session()
        session.run(hf.global_variables_initializer())
        session.run(fetches, {x: np.ones((rows, 6), "f4")})
    nodes = [node for part in made for node in part.nodes.values()]
    return [list(node.attrs["types"]) for node in nodes if node.type == "Fused"]


def test_values_that_a_loop_has_kept_do_not_split_its_gradient() -> None:
    """The gradients of an LSTM's gates, of which each takes a value off a list, are one kernel."""

    def gradients(x: Any) -> Any:
        cell = hf.nn.rnn_cell.BasicLSTMCell(8)
        lengths = hf.constant([3, 1, 2, 3])
        inputs = hf.reshape(hf.tile(x, [1, 2]), [4, 3, 4])
        h, _ = hf.nn.dynamic_rnn(cell, inputs, lengths, dtype=hf.float32)
        return hf.gradients(hf.reduce_sum(h * h), hf.trainable_variables())

    backward = [types for types in kinds(gradients) if "SigmoidGrad" in types]
    assert [types.count("SigmoidGrad") for types in backward] == [3]
    assert [types.count("TanhGrad") for types in backward] == [2]


def test_layer_normalization_is_one_kernel() -> None:
    def normalized(x: Any) -> Any:
        mean = hf.reduce_mean(x, -1, keepdims=True)
        centered = x - mean
        variance = hf.reduce_mean(hf.square(centered), -1, keepdims=True)
        return centered * hf.rsqrt(variance + 1e-5)

    (one,) = kinds(normalized)
    assert one.count("Mean") == 2 and one[-1] == "Mul"


def test_what_needs_a_sum_of_columns_is_another_kernel() -> None:
    found = kinds(lambda x: hf.tanh(hf.reduce_sum(hf.square(x), 0)))
    assert found == [["Square", "Sum"], ["Tanh"]]


def test_large_operations_are_kernels_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    many, ops = module.LARGE_ELEMENTS // 6 + 1, [lambda x: hf.reduce_sum(x, 0), lambda x: x + x]
    for number, larger in ((1, []), (2, [["Add"]])):
        chosen = cpu_threads.ThreadChoice(number, number, "a test")
        monkeypatch.setattr(cpu_threads, "chosen_threads", lambda chosen=chosen: chosen)
        assert [kinds(op, many) for op in ops] == [[["Sum"]], larger]
    assert [kinds(op, many // 2) for op in ops] == [[], []]


def test_a_sum_of_all_is_a_loop_if_it_is_of_few() -> None:
    for name, op in (("Mean", hf.reduce_mean), ("Sum", hf.reduce_sum)):
        assert kinds(op, 20) == [[name]]
        assert kinds(op, iteration_space.MIN_SUM_ELEMENTS) == []
        assert kinds(lambda x, op=op: op(hf.square(x)), 20) == [["Square", name]]


@pytest.mark.parametrize(
    "size", [1, 2, 700, iteration_space.MIN_SUM_ELEMENTS, iteration_space.MIN_SUM_ELEMENTS + 1]
)
def test_a_sum_of_all_is_that_of_numpy(size: int) -> None:
    x = hf.placeholder(hf.float32, [size])
    drawn = np.random.default_rng(size).standard_normal(size).astype("f4")
    found = hf.Session().run([hf.reduce_mean(x), hf.reduce_sum(hf.square(x))], {x: drawn})
    wide = drawn.astype("f8")
    np.testing.assert_allclose(found, [wide.mean(), (wide**2).sum()], rtol=1e-5, atol=1e-6)


def test_a_label_outside_the_classes_is_an_error_still() -> None:
    logits = hf.placeholder(hf.float32, [2, 3])
    labels = hf.placeholder(hf.int32, [2])
    loss = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits * 2.0)
    with pytest.raises(hf.errors.RangeError, match="label 3 is outside"):
        hf.Session().run(loss, {logits: np.ones((2, 3), "f4"), labels: [0, 3]})


def test_a_wrong_label_names_the_loss_not_its_gradient() -> None:
    x, labels = hf.placeholder(hf.float32, [2, 4]), hf.placeholder(hf.int32, [2])
    logits = hf.matmul(x, w := hf.Variable(np.ones((4, 3), "f4")))
    loss = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits, name="xent")
    train = hf.train.GradientDescentOptimizer(0.1).minimize(hf.reduce_mean(loss))
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    with pytest.raises(hf.errors.RangeError, match="label -1 is outside") as caught:
        session.run(train, {x: np.ones((2, 4), "f4"), labels: [0, -1]})
    assert caught.value.op == "xent" and caught.value.line == loss.op.line
    np.testing.assert_array_equal(session.run(w), np.ones((4, 3)))


@pytest.mark.parametrize("kernels", ["auto", "plain"])
@pytest.mark.parametrize("dtype", [hf.int8, hf.int16, hf.int64])
def test_a_negative_label_of_few_bits_is_outside(dtype: Any, kernels: str) -> None:
    logits, labels = hf.placeholder(hf.float32, [2, 200]), hf.placeholder(dtype, [2])
    loss = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    with hf.Session(context=context(kernels=kernels)) as session:
        fed = np.zeros((2, 200), "f4")
        right = session.run(loss, {logits: fed, labels: [0, 100]})
        np.testing.assert_allclose(right, np.full(2, np.log(200)), rtol=1e-5)
        with pytest.raises(hf.errors.RangeError, match="label -100 is outside"):
            session.run(loss, {logits: fed, labels: [0, -100]})


def outputs_of_forward(shape: list[int]) -> int:
    """How many values the first kernel of gelu and its gradient writes."""
    made: list[Partition] = []
    with pytest.MonkeyPatch.context() as patch, hf.Graph().as_default():
        original = module.replace_nodes
        patch.setattr(module, "replace_nodes", lambda *a: made.append(original(*a)) or made[-1])
        x, w = hf.placeholder(hf.float32, shape), hf.placeholder(hf.float32, [shape[1], 2])
        y = x * (1.0 + hf.tanh(0.8 * (x + 0.04 * hf.square(x) * x)))
        g = hf.gradients(hf.matmul(y, w), x)[0]
        rng = np.random.default_rng(1)
        fed = [rng.standard_normal(t.shape).astype("f4") for t in (x, w)]
        found = hf.Session().run(g, dict(zip((x, w), fed, strict=True)))
    a, back = fed[0].astype("f8"), fed[1].astype("f8").sum(1)
    t = np.tanh(0.8 * (a + 0.04 * a**3))
    slope = 1 + t + a * (1 - t * t) * 0.8 * (1 + 0.12 * a * a)
    np.testing.assert_allclose(found, slope * back, rtol=1e-4, atol=1e-4)
    nodes = [node for part in made for node in part.nodes.values() if node.type == "Fused"]
    return len(nodes[0].specs)


def test_a_gradient_computes_again_what_is_large() -> None:
    assert outputs_of_forward([8, 16]) > 1
    assert outputs_of_forward([1024, 512]) == 1


def test_sums_that_are_only_asked_to_be_made() -> None:
    """The gradients of a bias: nobody takes them, but a group says that they are to run."""
    with hf.Graph().as_default(), hf.Session() as session:
        x = hf.placeholder(hf.float32, [6, 8])
        bias = hf.Variable(np.zeros(8, "f4"))
        session.run(bias.initializer)
        loss = hf.reduce_sum(hf.square(hf.tanh(hf.nn.bias_add(x, bias))))
        made = hf.group(*hf.gradients(loss, [bias]))
        given = np.arange(48, dtype="f4").reshape(6, 8) / 48
        found, _ = session.run([loss, made], {x: given})
    np.testing.assert_allclose(found, np.square(np.tanh(given)).sum(), rtol=1e-5)
