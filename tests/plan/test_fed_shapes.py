"""A plan of fed shapes is the plan of a graph whose placeholders have these shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.plan.frontend.dead_loop_variable_elimination import drop_dead_loop_variables
from hpcflow.plan.frontend.graph_pruning import prune_to_fetches
from hpcflow.plan.ir.control_flow_nodes import nested_nodes
from hpcflow.plan.ir.program import Node, Program
from hpcflow.plan.ir.program_rewriting import eliminate_dead_nodes

from .model import graph, plan_of, spec

BATCH, TIME, DEPTH, UNITS = 3, 6, 5, 4
RNG = np.random.default_rng(11)
WEIGHTS = RNG.standard_normal((DEPTH + UNITS, UNITS)) / 3


def recurrent(x: Any, w: Any) -> Any:
    """A cell of `dynamic_rnn`, whose state begins as zeros of the fed batch."""
    cell = hf.nn.rnn_cell.BasicRNNCell(UNITS, dtype=hf.float64)
    with hf.variable_scope("rnn", reuse=hf.AUTO_REUSE):
        outputs, _ = hf.nn.dynamic_rnn(cell, x, dtype=hf.float64)
    return hf.reduce_sum(hf.square(outputs)) + hf.reduce_sum(w)


def with_lengths(x: Any, w: Any) -> Any:
    """Outputs behind a sequence's end are zeros: a stack of two sizes, one known."""
    lengths = hf.cast(hf.reduce_sum(hf.ones_like(x[:, :, 0]), 1), hf.int32) - 1
    cell = hf.nn.rnn_cell.BasicRNNCell(UNITS, dtype=hf.float64)
    with hf.variable_scope("rnn", reuse=hf.AUTO_REUSE):
        outputs, _ = hf.nn.dynamic_rnn(cell, x, lengths, dtype=hf.float64)
    return hf.reduce_sum(hf.square(hf.reshape(outputs, [-1, UNITS]))) + hf.reduce_sum(w)


def placeholder_as_state(x: Any, w: Any) -> Any:
    """The state of the loop is the placeholder itself."""
    begin = [hf.constant(0), x]
    y = hf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, hf.tanh(a) * a), begin)[1]
    return hf.reduce_sum(y) + hf.reduce_sum(w)


def shifted(x: Any, w: Any) -> Any:
    """A gradient that needs shapes of the body alone: those of sums and of a roll."""
    begin = [hf.constant(0), x]
    step = lambda i, a: (i + 1, a + w[0, 0] * (hf.roll(a, 1, 1) - 2.0 * a))  # noqa: E731
    return hf.reduce_sum(hf.while_loop(lambda i, _: i < 3, step, begin)[1])


def nested(x: Any, w: Any) -> Any:
    """A loop in a loop: the outer one keeps the lists of the inner one in a list."""

    def inner(a: Any) -> Any:
        begin = [hf.constant(0), a]
        return hf.while_loop(lambda j, _: j < 2, lambda j, b: (j + 1, hf.sin(b) * b), begin)[1]

    begin = [hf.constant(0), x]
    y = hf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, inner(a) + a), begin)[1]
    return hf.reduce_sum(y) + hf.reduce_sum(w)


def branched(x: Any, w: Any) -> Any:
    """The branch that is taken keeps values for its gradient."""
    y = hf.cond(x[0, 0, 0] > 0, lambda: hf.tanh(x) * x, lambda: hf.exp(x))
    return hf.reduce_sum(y * y) + hf.reduce_sum(w)


def array_of_rows(x: Any, w: Any) -> Any:
    """A TensorArray that a loop writes; its rows are stacked, then gathered."""

    def step(i: Any, rows: Any) -> Any:
        return i + 1, rows.write(i, hf.matmul(hf.concat([x[:, i], x[:, i, :UNITS]], 1), w))

    rows = hf.TensorArray(hf.float64, TIME)
    rows = hf.while_loop(lambda i, _: i < TIME, step, [hf.constant(0), rows])[1]
    return hf.reduce_sum(hf.square(rows.stack())) + hf.reduce_sum(rows.gather([0, 2]))


NETS = (
    *(recurrent, with_lengths, placeholder_as_state, shifted, nested, branched),
    array_of_rows,
)


def nodes_of(net: Callable[..., Any], batch: int | None) -> Counter[Any]:
    """Type, inputs and shapes of the nodes of a training step's plan.

    Neither constants are counted, nor what computes shapes that only a step knows.
    """
    with graph() as g:
        w, x = hf.Variable(WEIGHTS), hf.placeholder(hf.float64, [batch, TIME, DEPTH])
        loss = net(x, w)
        train = hf.train.GradientDescentOptimizer(0.1).minimize(loss)
    (part,) = plan_of(g, [loss, train], {x: (BATCH, TIME, DEPTH)}).parts.values()
    nodes = [*part.nodes.values(), *nested_nodes(part.nodes)]
    return Counter(
        (
            n.type,
            len(n.inputs) if all(s.known for s in n.specs) else "",
            *(s.shape for s in n.specs),
        )
        for n in nodes
        if n.row.source not in ("constant", "fill") and n.type != "Shape"
    )


@pytest.mark.parametrize("net", NETS)
def test_the_plan_of_a_fed_batch_is_that_of_a_fixed_batch(net: Callable[..., Any]) -> None:
    fixed, fed = nodes_of(net, BATCH), nodes_of(net, None)
    assert fed == fixed


@pytest.mark.parametrize("net", NETS)
def test_losses_of_fed_batches_are_those_of_fixed_batches(net: Callable[..., Any]) -> None:
    """Also of a second batch of another size, for which a second plan is made."""
    batches = [RNG.standard_normal((n, TIME, DEPTH)) for n in (BATCH, 1, BATCH)]

    def losses(fixed: bool) -> list[float]:
        values = []
        with hf.Graph().as_default():
            hf.set_random_seed(3)
            w, x = hf.Variable(WEIGHTS), hf.placeholder(hf.float64, [None, TIME, DEPTH])
            loss = net(x, w)
            train = hf.train.GradientDescentOptimizer(0.01).minimize(loss)
            known = {}
            for batch in batches if fixed else ():
                y = net(hf.constant(batch), w)
                step = hf.train.GradientDescentOptimizer(0.01).minimize(y)
                known[len(known)] = [y, step]
            with hf.Session() as session:
                session.run(hf.global_variables_initializer())
                for i, batch in enumerate(batches):
                    fetches = known[i] if fixed else [loss, train]
                    values.append(session.run(fetches, {} if fixed else {x: batch})[0])
        return values

    np.testing.assert_allclose(losses(fixed=False), losses(fixed=True), rtol=1e-12)


def loop_of(program: Program) -> Node:
    (loop,) = (n for n in program.nodes.values() if n.row.control_flow)
    return loop


def test_a_loop_variable_whose_last_value_nothing_uses_is_dropped() -> None:
    with graph() as g:
        x = hf.placeholder(hf.float32, [2])
        begin = [hf.constant(0), x, x]
        step = lambda i, a, b: (i + 1, a + 1.0, b * a)  # noqa: E731
        _, a, b = hf.while_loop(lambda i, *_: i < 3, step, begin)
        both = hf.stack([a, b])[0] + 0 * hf.cast(hf.shape(b)[0], hf.float32)
    program = prune_to_fetches(g, [both], {x: spec(2)})
    program = program.but(fetches=(program.fetches[0]._replace(node=loop_of(program).name),))
    program = program.but(fetches=(program.fetches[0]._replace(index=1),))
    loop = loop_of(drop_dead_loop_variables(eliminate_dead_nodes(program)))
    assert [s.shape for s in loop.specs] == [(), (2,)]  # `b` needs `a`, but `a` does not need `b`
    assert len(loop.inputs) == 2


def test_a_loop_variable_that_another_one_needs_stays() -> None:
    with graph() as g:
        x = hf.placeholder(hf.float32, [2])
        step = lambda i, a, b: (i + 1, a + 1.0, b * a)  # noqa: E731
        b = hf.while_loop(lambda i, *_: i < 3, step, [hf.constant(0), x, x])[2]
    program = prune_to_fetches(g, [b], {x: spec(2)})
    assert len(loop_of(drop_dead_loop_variables(program)).specs) == 3


@pytest.mark.parametrize("used", [True, False])
def test_an_effect_that_an_unused_output_depends_on_still_runs(used: bool) -> None:
    """In a loop and in a branch; what follows the loop waits for the effect, too."""
    with hf.Graph().as_default():
        count = hf.Variable(0.0)

        def counted() -> Any:
            with hf.control_dependencies([hf.assign_add(count, 1.0)]):
                return hf.constant(5.0)

        def step(i: Any, a: Any) -> Any:
            return i + 1, counted()

        i, last = hf.while_loop(lambda i, _: i < 3, step, [hf.constant(0), hf.constant(0.0)])
        one = hf.cond(i > 0, lambda: [counted(), hf.constant(2.0)], lambda: [hf.constant(0.0)] * 2)
        with hf.control_dependencies([last, one[0]]):
            after = count.read_value() + (one[1] if used else 2.0)
        with hf.Session() as session:
            session.run(hf.global_variables_initializer())
            assert session.run(after) == 6.0


@pytest.mark.parametrize("infer_shape", [True, False])
def test_elements_of_an_array_may_have_shapes_that_only_feeds_tell(infer_shape: bool) -> None:
    """Two widths: a shape that not all elements have is not taken for that of all."""
    with hf.Graph().as_default():
        x, y = (hf.placeholder(hf.float64, [None, 2]) for _ in range(2))
        array = hf.TensorArray(hf.float64, 2, infer_shape=infer_shape).write(0, x)
        array = array.write(1, y)
        first, second, joined = array.read(0), array.read(1), array.concat()
        slopes = hf.gradients(hf.reduce_sum(hf.square(joined)), [x, y])
        with hf.Session() as session:
            for rows in ((3, 3), (1, 4)):
                a, b = (RNG.standard_normal((n, 2)) for n in rows)
                values = session.run([first, second, joined, *slopes], {x: a, y: b})
                for value, expected in zip(
                    values, [a, b, np.concatenate([a, b]), 2 * a, 2 * b], strict=True
                ):
                    np.testing.assert_array_equal(value, expected)


def test_no_elements_have_the_sizes_that_elements_would_have() -> None:
    """A loop without iterations, whose body would write rows of the fed size."""
    with hf.Graph().as_default():
        x, n = hf.placeholder(hf.float32, [None, 4]), hf.placeholder(hf.int32, [])
        step = lambda i, rows: (i + 1, rows.write(i, x))  # noqa: E731
        rows = hf.while_loop(
            lambda i, _: i < n, step, [hf.constant(0), hf.TensorArray(hf.float32, n)]
        )[1].stack()
        with hf.Session() as session:
            feed = np.ones((3, 4), "f4")
            assert session.run(hf.transpose(rows, [1, 0, 2]), {x: feed, n: 0}).shape == (3, 0, 4)


SIZES: dict[str, Callable[[Any, Any], Any]] = {
    "stack": lambda x, n: hf.fill([n, hf.shape(x)[0], 2], 7.0),
    "concat": lambda x, n: hf.fill(hf.concat([[n], hf.shape(x)[:2]], 0), 7.0),
    "reshape": lambda x, n: hf.reshape(hf.tile(x, [n, 1, 1]), [n, hf.shape(x)[0], -1]),
    "gather": lambda x, n: hf.fill(hf.gather(hf.stack([hf.shape(x)[0], n, 2]), [1, 0, 2]), 7.0),
    "cast": lambda x, n: hf.fill(hf.cast(hf.stack([n, hf.shape(x)[0]]), hf.int64), 7.0),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_of_a_shape_that_are_known_in_part(name: str) -> None:
    """The second size follows from a feed, the first is computed by the step."""
    with graph() as g:
        x, n = hf.placeholder(hf.float32, [None, 2, 3]), hf.placeholder(hf.int32, [1])
        y = SIZES[name](x, hf.reduce_max(n))
    program = prune_to_fetches(g, [y], {x: spec(5, 2, 3), n: spec(1, dtype="int32")})
    assert (program.spec(program.fetches[0]).shape or ())[:2] == (None, 5)
    with hf.Session(graph=g) as session:
        value = session.run(y, {x: np.ones((5, 2, 3), "f4"), n: [4]})
    assert value.shape[:2] == (4, 5)


# -- effects behind values of which only the shape is used


def counted(x: Any, count: Any) -> Any:
    with hf.control_dependencies([hf.assign_add(count, 1.0)]):
        return hf.identity(x) * 2.0


SHAPE_ONLY_USES: dict[str, Callable[[Any, Any], Any]] = {
    "captured by a loop": lambda x, z: hf.while_loop(
        lambda i, a: i < 3, lambda i, a: (i + 1, a + hf.zeros_like(z)), [hf.constant(0), x]
    )[1],
    "state of a loop": lambda x, z: hf.while_loop(
        lambda i, a, b: i < 3,
        lambda i, a, b: (i + 1, a + hf.fill(hf.shape(b), 1.0), b),
        [hf.constant(0), x, z],
    )[1],
    "captured by a branch": lambda x, z: hf.cond(
        hf.reduce_sum(x) > 0, lambda: x + hf.zeros_like(z), lambda: x
    ),
    "zeros": lambda x, z: x + hf.zeros_like(z),
    "sizes": lambda x, z: hf.fill(hf.shape(z), 1.0),
}


@pytest.mark.parametrize("use", SHAPE_ONLY_USES)
def test_an_update_happens_before_a_value_of_which_only_the_shape_is_used(use: str) -> None:
    """Once; and a read that follows the use sees it."""
    with hf.Graph().as_default():
        count, x = hf.Variable(0.0), hf.placeholder(hf.float32, [None, 2])
        y = SHAPE_ONLY_USES[use](x, counted(x, count))
        with hf.control_dependencies([y]):
            after = count.read_value()
        with hf.Session() as session:
            session.run(hf.global_variables_initializer())
            assert session.run([y, after], {x: np.ones((3, 2))})[1] == 1.0
            assert session.run(count) == 1.0


@pytest.mark.parametrize("use", SHAPE_ONLY_USES)
def test_a_script_is_called_and_a_check_made_for_a_value_of_which_only_the_shape_is_used(
    use: str,
) -> None:
    calls: list[int] = []
    with hf.Graph().as_default():
        x = hf.placeholder(hf.float32, [None, 2])
        with hf.control_dependencies([hf.py_func(lambda a: calls.append(1) or a, [x], hf.float32)]):
            called = SHAPE_ONLY_USES[use](x, hf.identity(x))
        with hf.control_dependencies([hf.assert_less(hf.reduce_sum(x), 0.0)]):
            checked = SHAPE_ONLY_USES[use](x, hf.identity(x))
        with hf.Session() as session:
            session.run(called, {x: np.ones((3, 2))})
            assert calls == [1]
            with pytest.raises(hf.errors.AssertError):
                session.run(checked, {x: np.ones((3, 2))})


def test_an_element_of_another_shape_written_through_another_handle_is_an_error() -> None:
    """As in TensorFlow, whose arrays with infer_shape have elements of one shape."""
    with hf.Graph().as_default():
        x, y = (hf.placeholder(hf.float32, [None, 2]) for _ in range(2))
        first = hf.TensorArray(hf.float32, 2).write(0, x)
        with hf.control_dependencies([first.write(1, y).flow]):
            read = first.read(1)
        with hf.Session() as session:
            same = {x: np.ones((3, 2)), y: np.full((3, 2), 2.0)}
            assert session.run(hf.reduce_sum(read), same) == 12.0
            with pytest.raises(hf.errors.ShapeError, match="infer_shape=False"):
                session.run(hf.reduce_sum(read), {x: np.ones((3, 2)), y: np.ones((4, 2))})


def test_sizes_that_a_cast_cannot_hold_wrap_around() -> None:
    with hf.Graph().as_default():
        n = hf.placeholder(hf.int32, [1])
        y = hf.fill(hf.cast(hf.cast(hf.stack([n[0], 258]), hf.uint8), hf.int32), 1.0)
        with hf.Session() as session:
            assert y.shape == (None, 2) and session.run(y, {n: [3]}).shape == (3, 2)
