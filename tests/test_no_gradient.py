"""Where no gradient goes: None where TensorFlow gives None, an error where it has no rule.

What TensorFlow 2.21 gives, with graphs and resource variables, is written beside each case.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import hpcflow as hf
from hpcflow.errors import GradientError
from hpcflow.graph.op_registry import NoGrad, all_ops, op

NONE, REFUSED, REAL = "None", "LookupError", "a gradient"


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def queue() -> Any:
    return hf.FIFOQueue(8, [hf.float32], [[]])


def behind_an_enqueue(x: hf.Tensor) -> hf.Tensor:
    q = queue()
    with hf.control_dependencies([q.enqueue(x)]):
        return q.dequeue() * 2.0


def taken(x: hf.Tensor) -> hf.Tensor:
    total = hf.ConditionalAccumulator(hf.float32, [])
    with hf.control_dependencies([total.apply_grad(x)]):
        return total.take_grad(1)


def in_a_branch(make: Callable[[], Callable[[], hf.Tensor]]) -> Callable[[hf.Tensor], hf.Tensor]:
    """x times what is read in a branch from state that was made outside."""

    def build(x: hf.Tensor) -> hf.Tensor:
        read = make()
        return hf.cond(x > 0, lambda: x * read(), lambda: x)

    return build


def in_a_loop(make: Callable[[], Callable[[], hf.Tensor]]) -> Callable[[hf.Tensor], hf.Tensor]:
    def build(x: hf.Tensor) -> hf.Tensor:
        read = make()
        return hf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * read()), [0, x])[1]

    return build


def rows_of_data() -> Callable[[], hf.Tensor]:
    data = hf.data.Dataset.range(9)
    iterator = hf.data.make_initializable_iterator(data)
    return lambda: hf.cast(iterator.get_next(), hf.float32)


def sparse(x: hf.Tensor) -> hf.SparseTensor:
    return hf.SparseTensor([[0, 0]], hf.reshape(x, [1]), [1, 1])


def vector(x: hf.Tensor) -> hf.Tensor:
    return hf.stack([x, x + 1])


def logits(x: hf.Tensor) -> hf.Tensor:
    return hf.reshape(hf.stack([x, x, x]), [3, 1, 1]) * [0.5, 1.0, 2.0]


def ctc(x: hf.Tensor) -> hf.Tensor:
    labels = hf.SparseTensor([[0, 0]], [1], [1, 1])
    loss = hf.nn.ctc_loss(labels, logits(x), [3])
    return hf.gradients(loss, x)[0]


CASES: list[tuple[str, str, Callable[[hf.Tensor], hf.Tensor]]] = [
    ("dequeue", NONE, behind_an_enqueue),
    ("dequeue of a batch", NONE, lambda x: hf.train.batch([x], 4)),
    ("dequeue in a branch", REAL, in_a_branch(lambda: queue().dequeue)),
    ("dequeue in a loop", REAL, in_a_loop(lambda: queue().dequeue)),
    ("dequeue in map_fn", REAL, lambda x: hf.map_fn(lambda y: y * queue().dequeue(), vector(x))),
    ("accumulator", NONE, taken),
    ("iterator in a branch", REAL, in_a_branch(rows_of_data)),
    ("iterator in a loop", REAL, in_a_loop(rows_of_data)),
    ("range", NONE, lambda x: hf.range(x, 5.0, 1.0)),
    ("py_func", NONE, lambda x: hf.py_func(lambda a: a, [x], hf.float32)),
    ("pure py_func", NONE, lambda x: hf.py_func(lambda a: a, [x], hf.float32, stateful=False)),
    ("linspace", REAL, lambda x: hf.linspace(x, 5.0, 4)),
    ("zeta by its exponent", NONE, lambda x: hf.zeta(x, 2.0)),
    ("zeta", REAL, lambda x: hf.zeta(2.0, x)),
    ("polygamma by its order", NONE, lambda x: hf.polygamma(x, 2.0)),
    ("polygamma", REAL, lambda x: hf.polygamma(1.0, x)),
    ("betainc by a", NONE, lambda x: hf.betainc(x, 1.0, 0.5)),
    ("betainc by b", NONE, lambda x: hf.betainc(1.0, x, 0.5)),
    ("betainc", REAL, lambda x: hf.betainc(1.0, 2.0, x)),
    ("beam search", NONE, lambda x: hf.nn.ctc_beam_search_decoder(logits(x), [3])[1]),
    ("edit distance", NONE, lambda x: hf.edit_distance(sparse(x), sparse(x))),
    ("a stateless Poisson draw", NONE, lambda x: hf.random.stateless_poisson([], [1, 2], x)),
    ("a Poisson draw", REFUSED, lambda x: hf.random_poisson(x, [])),
    ("the gradient of CTC", REFUSED, ctc),
    ("unique", REFUSED, lambda x: hf.unique(vector(x))[0]),
    ("unique_with_counts", REFUSED, lambda x: hf.unique_with_counts(vector(x))[0]),
    ("setdiff1d", REFUSED, lambda x: hf.setdiff1d(vector(x), [1.0])[0]),
    ("bitcast", REFUSED, lambda x: hf.real(hf.bitcast(vector(x), hf.complex64))),
    ("the slope of igamma", REFUSED, lambda x: hf.gradients(hf.igamma(x, 2.0), x)[0]),
    ("a count", NONE, lambda x: hf.cast(hf.size(vector(x)), hf.float32)),
    ("argmax", NONE, lambda x: hf.cast(hf.argmax(vector(x)), hf.float32)),
    ("equal", NONE, lambda x: hf.cast(hf.equal(x, 1.0), hf.float32)),
    ("in_top_k", NONE, lambda x: hf.cast(hf.nn.in_top_k([vector(x)], [1], 1), hf.float32)),
    ("a class", NONE, lambda x: hf.cast(hf.multinomial([vector(x)], 3), hf.float32)),
    ("text", NONE, lambda x: hf.string_to_number(hf.as_string(x))),
    ("floordiv", NONE, lambda x: hf.floordiv(x, 2.0)),
    ("rint", NONE, hf.rint),
    ("stop_gradient", NONE, hf.stop_gradient),
    ("ones_like", NONE, hf.ones_like),
]
MORE = [  # a gradient that hpcflow has and TensorFlow has not
    ("one_hot", NONE, lambda x: hf.one_hot([1], 3, x, 0.0)),
    ("random_shuffle", NONE, lambda x: hf.random_shuffle(vector(x))),
    ("greedy decoder", NONE, lambda x: hf.nn.ctc_greedy_decoder(logits(x), [3])[1]),
    ("sparse_concat", NONE, lambda x: hf.sparse_concat(0, [sparse(x), sparse(x)]).values),
    ("bincount", REFUSED, lambda x: hf.bincount([1, 0], vector(x))),
    ("truncatemod", REFUSED, lambda x: hf.truncatemod(x, 2.0)),
]
LESS = [  # a gradient that TensorFlow has and hpcflow has not
    ("random_gamma", REAL, lambda x: hf.random_gamma([], x)),
    ("twice a product", REAL, lambda x: hf.gradients(hf.reduce_prod(vector(x)), x)[0]),
]


@pytest.mark.parametrize(("told", "build"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_where_a_gradient_goes(told: str, build: Callable[[hf.Tensor], hf.Tensor]) -> None:
    x = hf.placeholder(hf.float32, [], name="x")
    y = build(x)
    if told == REFUSED:
        with pytest.raises(GradientError, match="has no gradient with respect to") as error:
            hf.gradients(y, x)
        assert "test_no_gradient.py" in str(error.value.line)
    else:
        (found,) = hf.gradients(y, x)
        assert (found is None) == (told == NONE)


@pytest.mark.parametrize("build", [c[2] for c in MORE], ids=[c[0] for c in MORE])
def test_gradients_that_tensorflow_has_not(build: Callable[[hf.Tensor], hf.Tensor]) -> None:
    x = hf.placeholder(hf.float32, [])
    assert hf.gradients(build(x), x) != [None]


@pytest.mark.parametrize("build", [c[2] for c in LESS], ids=[c[0] for c in LESS])
def test_a_gradient_that_is_missing_is_an_error(build: Callable[[hf.Tensor], hf.Tensor]) -> None:
    x = hf.placeholder(hf.float32, [])
    with pytest.raises(GradientError, match="has no gradient with respect to"):
        hf.gradients(build(x), x)


def test_the_gradient_around_a_dequeue() -> None:
    """The formula: of x u, where u comes from a queue, it is u."""
    x, q = hf.placeholder(hf.float32, []), queue()
    put = q.enqueue_many([[3.0, 5.0, 7.0, 11.0]])
    once = hf.cond(x > 0, lambda: x * q.dequeue(), lambda: x)
    thrice = hf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * q.dequeue()), [0, x])[1]
    slopes = [hf.gradients(y, x)[0] for y in (once, thrice)]
    with hf.Session() as session:
        session.run(put)
        assert session.run(slopes[0], {x: 2.0}) == 3
        assert session.run(slopes[1], {x: 2.0}) == 5 * 7 * 11


# -- the whole table

# TensorFlow says that these are not differentiable, or gives None by a rule.
SILENT = """CTCBeamSearch EditDistance PyFunc PyFuncStateless PyFuncThread Range
StatelessRandomPoisson"""
# What is read through a handle: in TensorFlow no gradient comes to it.
HANDLES = """AccumulatorApplyGradient AccumulatorNumAccumulated AccumulatorSetGlobalStep
AccumulatorTakeGradient Iterator IteratorGetNext IteratorGetNextOf IteratorToHandle MakeIterator
QueueClose QueueDequeue QueueDequeueMany QueueDequeueUpTo QueueEnqueue QueueEnqueueMany
QueueIsClosed QueueSize"""


def test_the_rows_through_which_none_goes() -> None:
    silent = {n for n, row in all_ops().items() if isinstance(row.grad, NoGrad) and row.grad.none}
    assert silent == {*SILENT.split(), *HANDLES.split()}


def test_an_own_op_that_was_said_to_have_none() -> None:
    """tf.NotDifferentiable: None; without it a LookupError."""
    made = hf.op("Blunt")
    try:
        x = hf.placeholder(hf.float32, [])
        y = made(x)
        with pytest.raises(GradientError, match="RegisterGradient"):
            hf.gradients(y, x)
        hf.NotDifferentiable("Blunt")
        assert hf.gradients(y, x) == [None]
    finally:
        del all_ops()["Blunt"]


def test_a_rule_may_say_it_of_one_input(caplog: pytest.LogCaptureFixture) -> None:
    """It is told once where a float has none; a handle has none that could be missed."""
    silent = NoGrad("nobody knows", none=True)
    op("Half", infer=lambda inputs, attrs: [inputs[0]], grad=lambda op, g: [g, silent])
    try:
        a, b = hf.placeholder(hf.float32, [], name="a"), hf.placeholder(hf.float32, [], name="b")
        y = a.graph.create_op("Half", [a, b], name="half").outputs[0]
        with caplog.at_level(logging.INFO, "hpcflow"):
            assert hf.gradients(y, a) != [None] and not caplog.messages
            assert hf.gradients(y, b) == hf.gradients(y, b) == [None]
            q = queue()
            assert hf.gradients(q.dequeue(), q.queue_ref) == [None]
        (line,) = caplog.messages
        assert line.startswith("no gradient goes through 'half' (made at")
        assert "test_no_gradient.py" in line and line.endswith("nobody knows")
    finally:
        del all_ops()["Half"]
