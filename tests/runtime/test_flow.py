"""Conditions and loops: values, gradients, what runs and what does not; a loop over three ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import (
    AssertError,
    DTypeError,
    FetchError,
    GradientError,
    GraphError,
    OutOfRangeError,
    RangeError,
    ShapeError,
)
from hpcflow.plan.serialization.partition_codec import decode_partition, encode_partition
from hpcflow.runtime.job.rank_context import RankContext
from tests.runtime.ranks import run_ranks
from tests.runtime.spanning import TASKS, run_spanning, same, spanning

RNG = np.random.default_rng(5)
HISTORIES = ["keep", "host", "recompute"]


@pytest.fixture(autouse=True)
def graph() -> Any:
    with hf.Graph().as_default() as made:
        yield made


def slope(f: Callable[[np.ndarray], Any], x: np.ndarray) -> np.ndarray:
    """Central finite differences of a scalar function."""
    found = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = 1e-6
        found[place] = (f(x + step) - f(x - step)) / 2e-6
    return found


def check_gradients(y: Any, feeds: dict[Any, np.ndarray]) -> None:
    """The gradients of the sum of `y` by all that is fed are those of finite differences."""
    xs = list(feeds)
    total = hf.reduce_sum(y)
    found = hf.gradients(total, xs)
    with hf.Session() as session:
        values = session.run(found, feeds)
        for x, g in zip(xs, values, strict=True):
            expected = slope(lambda v, x=x: session.run(total, {**feeds, x: v}), feeds[x])
            np.testing.assert_allclose(g, expected, rtol=1e-5, atol=1e-7)


# -- cond


def test_only_the_branch_taken_runs() -> None:
    ran: list[str] = []

    def told(name: str) -> Any:
        return hf.py_func(lambda: ran.append(name) or np.float32(1), [], hf.float32)

    p = hf.placeholder(hf.bool, [])
    y = hf.cond(p, lambda: told("then"), lambda: told("else"))
    with hf.Session() as session:
        session.run(y, {p: True})
        assert ran == ["then"]
        session.run(y, {p: False})
        assert ran == ["then", "else"]


def test_branches_change_state_and_may_give_only_operations() -> None:
    v = hf.Variable(np.float32(1))
    p = hf.placeholder(hf.bool, [])
    change = hf.cond(p, lambda: v.assign_add(10.0), lambda: hf.no_op())
    assert isinstance(change, hf.Operation)
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        session.run(change, {p: False})
        assert session.run(v) == 1
        session.run(change, {p: True})
        assert session.run(v) == 11


def test_a_value_read_before_a_branch_updates_is_the_old_one() -> None:
    v = hf.Variable(np.zeros(3))
    p = hf.placeholder(hf.bool, [])
    old = v.value() + 0.0
    change = hf.cond(p, lambda: v.assign_add(np.ones(3)), lambda: hf.no_op())
    with hf.control_dependencies([change]):
        new = v.read_value() * 1.0
    view = hf.reshape(v.value(), [3, 1])
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        before, seen, after = session.run([old, view, new], {p: True})
        assert before.tolist() == [0, 0, 0] and seen.ravel().tolist() == [0, 0, 0]
        assert after.tolist() == [1, 1, 1]


def test_structures_and_singletons() -> None:
    p = hf.placeholder(hf.bool, [])
    x = hf.constant([1.0, 2.0])
    both = hf.cond(p, lambda: {"a": x, "b": (x, 1)}, lambda: {"a": x * 2, "b": (x, 2)})
    single = hf.cond(p, lambda: [x], lambda: [x * 3])
    strict = hf.cond(p, lambda: [x], lambda: [x * 3], strict=True)
    with hf.Session() as session:
        got = session.run(both, {p: False})
        assert got["a"].tolist() == [2, 4] and got["b"][1] == 2
        assert session.run(single, {p: False}).tolist() == [3, 6]
        assert session.run(strict, {p: True})[0].tolist() == [1, 2]


def test_a_branch_that_hands_on_its_input_gives_a_copy() -> None:
    p, x = hf.placeholder(hf.bool, []), hf.placeholder(hf.float32, [2])
    y = hf.cond(p, lambda: x, lambda: x + 1)
    given = np.array([1, 2], np.float32)
    with hf.Session() as session:
        got = session.run(y, {p: True, x: given})
        got[:] = 7
        assert given.tolist() == [1, 2]


@pytest.mark.parametrize("taken", [True, False])
def test_gradients_of_cond(taken: bool) -> None:
    x, w = hf.placeholder(hf.float64, [None, 2]), hf.placeholder(hf.float64, [2, 2])
    y = hf.cond(
        hf.constant(taken),
        lambda: hf.tanh(hf.matmul(x, w)) * hf.exp(x),
        lambda: hf.cond(hf.constant(True), lambda: hf.sin(x) * x, lambda: x),
    )
    check_gradients(y, {x: RNG.standard_normal((3, 2)), w: RNG.standard_normal((2, 2))})


def test_gradients_of_one_condition_by_two_callers() -> None:
    """The second extends what the first keeps; each is right alone and both together."""
    x, p = hf.placeholder(hf.float64, [2]), hf.placeholder(hf.bool, [])
    y = hf.cond(p, lambda: hf.exp(x) * x, lambda: hf.sin(x))
    a, b = hf.gradients(y, x)[0], hf.gradients(y * y, x)[0]
    v = np.array([0.3, -0.7])
    with hf.Session() as session:
        first, second, value = session.run([a, b, y], {x: v, p: True})
        np.testing.assert_allclose(first, np.exp(v) * (v + 1))
        np.testing.assert_allclose(second, 2 * value * first)
        np.testing.assert_allclose(session.run(b, {x: v, p: False}), np.sin(2 * v))


def test_branches_that_differ_are_errors() -> None:
    p, x = hf.placeholder(hf.bool, []), hf.constant(1.0)
    with pytest.raises(DTypeError, match=r"float32 .* and int32"):
        hf.cond(p, lambda: x, lambda: hf.constant(1))
    with pytest.raises(GraphError, match="structures"):
        hf.cond(p, lambda: [x, x], lambda: [x])
    with pytest.raises(ShapeError, match="scalar bool"):
        hf.cond(hf.constant([True]), lambda: x, lambda: x)


def test_a_tensor_inside_cannot_be_fetched() -> None:
    inside: list[Any] = []
    x = hf.constant(2.0)
    hf.cond(hf.constant(True), lambda: inside.append(x * 2) or inside[0], lambda: x)
    with hf.Session() as session, pytest.raises(FetchError, match="inside a loop or a branch"):
        session.run(inside[0])


def test_case() -> None:
    x = hf.placeholder(hf.float32, [])
    y = hf.case([(x < 0, lambda: x * 0 - 1), (x > 9, lambda: x * 0 + 9)], default=lambda: x)
    z = hf.case({x < 0: lambda: x * 0, x < 5: lambda: x + 1}, exclusive=True)
    with hf.Session() as session:
        assert [session.run(y, {x: v}) for v in (-3, 4, 40)] == [-1, 4, 9]
        assert session.run(z, {x: 3}) == 4
        for bad, why in ((-1, "several"), (7, "no predicate")):
            with pytest.raises(AssertError, match=why):
                session.run(z, {x: bad})


# -- while


def test_collatz_by_a_loop_with_a_branch() -> None:
    n = hf.placeholder(hf.int64, [])

    def step(n: Any, count: Any) -> Any:
        return hf.cond(hf.equal(n % 2, 0), lambda: n // 2, lambda: 3 * n + 1), count + 1

    _, count = hf.while_loop(lambda n, _: n > 1, step, [n, 0])
    with hf.Session() as session:
        assert [int(session.run(count, {n: k})) for k in (1, 2, 6, 27)] == [0, 1, 8, 111]


def test_loop_variables_may_be_swapped_and_structures() -> None:
    a, b = hf.constant([1.0]), hf.constant([2.0])
    end = hf.while_loop(
        lambda i, pair: i < 3, lambda i, pair: (i + 1, (pair[1], pair[0])), [0, (a, b)]
    )
    with hf.Session() as session:
        i, (x, y) = session.run(end)
        assert (i, x.tolist(), y.tolist()) == (3, [2], [1])


def test_a_single_variable_and_maximum_iterations() -> None:
    i = hf.while_loop(lambda i: i < 10, lambda i: i + 1, [0])
    j, k = hf.while_loop(
        lambda j, k: j < 10, lambda j, k: (j + 1, k * 2.0), [0, 1.0], maximum_iterations=4
    )
    with hf.Session() as session:
        assert session.run(i) == 10
        assert session.run([j, k]) == [4, 16]


def test_growing_shapes_need_an_invariant() -> None:
    def grow(i: Any, x: Any) -> Any:
        return i + 1, hf.concat([x, x], 0)

    start = [hf.constant(0), hf.ones([1, 2])]
    with pytest.raises(ShapeError, match=r"has shape \[1, 2\] and becomes \[2, 2\]") as told:
        hf.while_loop(lambda i, x: i < 3, grow, start)
    assert "test_flow.py" in str(told.value) and "shape_invariants" in str(told.value)
    _, x = hf.while_loop(lambda i, x: i < 3, grow, start, shape_invariants=[(), [None, 2]])
    assert x.shape == (None, 2)
    with hf.Session() as session:
        assert session.run(x).shape == (8, 2)


def test_wrong_bodies_are_errors() -> None:
    with pytest.raises(DTypeError, match="becomes float32"):
        hf.while_loop(lambda i: i < 3, lambda i: hf.cast(i, hf.float32), [0])
    with pytest.raises(ShapeError, match="scalar bool"):
        hf.while_loop(lambda i: i, lambda i: i + 1, [0])
    with pytest.raises(GraphError, match="different structures"):
        hf.while_loop(lambda i, j: i < 3, lambda i, j: [i + 1], [0, 1])
    with pytest.raises(GraphError, match="history"):
        hf.while_loop(lambda i: i < 3, lambda i: i + 1, [0], history="none")


def test_an_error_inside_names_the_operation_inside() -> None:
    table = hf.constant([1.0, 2.0])
    _, x = hf.while_loop(
        lambda i, x: i < 5, lambda i, x: (i + 1, x + hf.gather(table, i, name="pick")), [0, 0.0]
    )
    with hf.Session() as session, pytest.raises(RangeError) as told:
        session.run(x)
    assert "pick" in str(told.value) and "test_flow.py" in str(told.value)


def test_state_in_a_loop() -> None:
    """Reads inside see the updates of iterations before; a value read outside stays."""
    v = hf.Variable(np.float64(1))

    def step(i: Any, seen: Any) -> Any:
        with hf.control_dependencies([v.assign_add(i)]):
            return i + 1.0, seen + v.read_value()

    first = v.value() * 1.0
    _, seen = hf.while_loop(lambda i, _: i < 4, step, [hf.constant(1.0, hf.float64), v.value()])
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        assert session.run([first, seen]) == [1, 1 + 2 + 4 + 7]
        assert session.run(v) == 7


def test_draws_inside_differ_from_iteration_to_iteration() -> None:
    _, x = hf.while_loop(
        lambda i, x: i < 3,
        lambda i, x: (i + 1, hf.concat([x, hf.random_normal([2])], 0)),
        [0, hf.zeros([0])],
        shape_invariants=[(), [None]],
    )
    with hf.Session() as session:
        assert len(set(session.run(x).tolist())) == 6


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("length", [0, 1, 4])
def test_gradients_of_nested_loops_and_branches(history: str, length: int) -> None:
    x = hf.placeholder(hf.float64, [None, 2, 3])
    w = hf.placeholder(hf.float64, [3, 3])

    def outer(t: Any, h: Any) -> Any:
        def inner(k: Any, a: Any) -> Any:
            return k + 1, hf.tanh(hf.matmul(a, w))

        _, a = hf.while_loop(lambda k, a: k < 2, inner, [0, h], history=history)
        row = hf.gather(x, t)
        return t + 1, hf.cond(hf.equal(t % 2, 0), lambda: a * 2.0 + row, lambda: hf.sin(a) * h)

    count = hf.shape(x)[0]
    start = hf.ones([2, 3], hf.float64)
    _, h = hf.while_loop(lambda t, h: t < count, outer, [0, start], history=history)
    weights = RNG.standard_normal((3, 3)) / 2
    check_gradients(h * h, {x: RNG.standard_normal((length, 2, 3)), w: weights})


def test_gradient_of_a_variable_read_inside() -> None:
    v = hf.Variable(np.array([0.3, 0.4]))
    _, y = hf.while_loop(
        lambda i, y: i < 3,
        lambda i, y: (i + 1, y * v.read_value()),
        [0, hf.constant([1.0, 2.0], hf.float64)],
    )
    (g,) = hf.gradients(y, [v])
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        np.testing.assert_allclose(session.run(g), [3 * 0.3**2, 2 * 3 * 0.4**2])


def test_forward_runs_once_beside_its_gradient() -> None:
    calls: list[int] = []
    x = hf.placeholder(hf.float64, [])

    def step(i: Any, y: Any) -> Any:
        told = hf.py_func(lambda k: calls.append(int(k)) or k, [i], hf.int32)
        told.set_shape(())
        return told + 1, y * x

    _, y = hf.while_loop(lambda i, y: i < 3, step, [0, x])
    (g,) = hf.gradients(y, [x])
    with hf.Session() as session:
        assert session.run([y, g], {x: 2.0}) == [16, 32]
        assert calls == [0, 1, 2]
        assert session.run(y, {x: 2.0}) == 16


def test_without_back_prop_there_is_no_gradient() -> None:
    x = hf.placeholder(hf.float64, [])
    _, y = hf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * x), [0, x], back_prop=False)
    assert hf.gradients(y, [x]) == [None]


def test_loops_of_many_lengths_use_one_plan_each_shape() -> None:
    """The number of iterations is a value: no new plan, and what a loop kept is let go of."""
    n, x = hf.placeholder(hf.int32, []), hf.placeholder(hf.float32, [4])
    _, y = hf.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, hf.sin(y) * x), [0, x])
    (g,) = hf.gradients(y, [x])
    with hf.Session() as session:
        for k in range(1, 60):
            session.run(g, {n: k, x: np.ones(4, np.float32)})
        (family,) = session._families.values()
        assert len(family._steps) == 1


def test_sums_over_replicas_in_a_branch_are_refused() -> None:
    def body(context: RankContext) -> None:
        y = hf.cond(hf.constant(True), lambda: hf.replica_sum(hf.ones([2])), lambda: hf.ones([2]))
        with hf.Session() as session, pytest.raises(GraphError, match="all replicas"):
            session.run(y)

    run_ranks(2, body)


# -- over ranks


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_one_loop_over_three_ranks(seed: int | None) -> None:
    """Bit-equal to one rank, values and gradients, whatever order messages come in."""
    (alone,) = run_ranks(1, lambda c: run_spanning(["", "", ""]), exact=True)
    (three,) = run_ranks(
        3, lambda c: run_spanning(TASKS), seed=seed, tasks_per_replica=3, exact=True
    )
    same(three, alone)


def test_the_parts_of_a_spanning_loop_travel_as_plain_data() -> None:
    def body(context: RankContext) -> None:
        x, n, wanted = spanning(TASKS)
        with hf.Session() as session:
            plan = session.plan(wanted, {x: np.ones((2, 3)), n: 3})
            kinds = {node.type for part in plan.parts.values() for node in part.nodes.values()}
            assert "LoopAcross" in kinds and any(edge.frame for edge in plan.edges)
            for part in plan.parts.values():
                assert encode_partition(
                    decode_partition(encode_partition(part))
                ) == encode_partition(part)

    run_ranks(3, body, tasks_per_replica=3)


def test_a_branch_over_ranks() -> None:
    def body(context: RankContext) -> Any:
        p, x = hf.placeholder(hf.bool, []), hf.placeholder(hf.float64, [2])

        def far() -> Any:
            with hf.device(TASKS[1]):
                return hf.exp(x) * 2.0

        y = hf.cond(p, far, lambda: x - 1.0)
        (g,) = hf.gradients(y, [x])
        with hf.Session() as session:
            return [session.run([y, g], {p: k, x: np.array([1.0, 2.0])}) for k in (True, False)]

    ((taken, other),) = run_ranks(2, body, tasks_per_replica=2)
    np.testing.assert_allclose(taken, [2 * np.exp([1, 2])] * 2)
    np.testing.assert_allclose(other, [[0, 1], [1, 1]])


def test_variables_on_servers_in_a_loop() -> None:
    def body(context: RankContext) -> Any:
        v = hf.Variable(np.zeros(4), name="v")

        def step(i: Any) -> Any:
            with hf.control_dependencies([v.assign_add(hf.ones([4], hf.float64))]):
                return i + 1

        loop = hf.while_loop(lambda i: i < 5, step, [0])
        with hf.Session() as session:
            session.run(hf.global_variables_initializer())
            session.run(loop)
            return session.run(v)

    (value,) = run_ranks(2, body, ps=1)
    assert value.tolist() == [5] * 4


# -- arrays of tensors, and loops over elements


def test_map_fold_and_scan_against_numpy() -> None:
    x = hf.placeholder(hf.float64, [None, 3])
    rows = RNG.standard_normal((4, 3))
    scanned = [rows[0]]
    for row in rows[1:]:
        scanned.append(scanned[-1] * row + row)
    right = rows[3]
    for row in rows[2::-1]:
        right = right * row + row
    with hf.Session() as session:
        got = session.run(
            [
                hf.map_fn(lambda r: hf.exp(r) * hf.reduce_sum(r), x),
                hf.foldl(lambda a, r: a * r + r, x),
                hf.foldr(lambda a, r: a * r + r, x),
                hf.scan(lambda a, r: a * r + r, x),
                hf.scan(lambda a, r: a + r, x, hf.zeros([3], hf.float64), reverse=True),
                hf.map_fn(lambda e: e[0] + e[1], (x, x * 2), dtype=hf.float64),
                hf.map_fn(lambda r: (r, hf.argmax(r, 0)), x, dtype=(hf.float64, hf.int64)),
            ],
            {x: rows},
        )
    np.testing.assert_allclose(got[0], np.exp(rows) * rows.sum(1, keepdims=True))
    np.testing.assert_allclose(got[1], scanned[-1])
    np.testing.assert_allclose(got[2], right)
    np.testing.assert_allclose(got[3], scanned)
    np.testing.assert_allclose(got[4], np.cumsum(rows[::-1], 0)[::-1])
    np.testing.assert_allclose(got[5], rows * 3)
    assert got[6][1].tolist() == rows.argmax(1).tolist()


@pytest.mark.parametrize("history", ["keep", "host"])
def test_gradients_of_map_fold_and_scan(history: str) -> None:
    x = hf.placeholder(hf.float64, [None, 3])
    swap = history == "host"
    y = hf.map_fn(lambda r: hf.exp(r) * hf.reduce_sum(r), x, swap_memory=swap)
    z = hf.scan(lambda a, r: a * r + hf.sin(r), x, swap_memory=swap)
    w = hf.foldr(lambda a, r: a * r + r, x)
    check_gradients(hf.concat([y, z, hf.expand_dims(w, 0)], 0), {x: RNG.standard_normal((4, 3))})


def test_gradients_of_every_way_through_an_array() -> None:
    x = hf.placeholder(hf.float64, [3, 2])
    array = hf.TensorArray(hf.float64, 4).write(3, x[0] * x[1]).scatter([0, 2], x[:2] * 2.0)
    array = array.write(1, hf.exp(x[2]))
    parts = hf.TensorArray(hf.float64, 2).split(x * x, [1, 2])
    y = [
        array.stack(),
        array.gather([0, 0, 3]),
        hf.expand_dims(array.read(2), 0),
        hf.TensorArray(hf.float64, 3).unstack(x).stack(),
        parts.concat() * 3.0,
    ]
    check_gradients(hf.concat(y, 0), {x: RNG.standard_normal((3, 2))})


@pytest.mark.parametrize("sizes", [[3], [None]])
def test_gradients_through_an_array_that_has_more_elements_than_the_value(sizes: list[Any]) -> None:
    """It grew after `unstack` or `split`, or was larger from the start."""
    x = hf.placeholder(hf.float64, sizes)
    grown = hf.TensorArray(hf.float64, 3, dynamic_size=True).unstack(x)
    grown = grown.write(3, hf.reduce_sum(x) * 2.0)
    joined = hf.TensorArray(hf.float64, 2, dynamic_size=True, infer_shape=False)
    joined = joined.split(x, [2, 1]).write(2, x[:1] * 2.0)
    loop = hf.TensorArray(hf.float64, 0, dynamic_size=True).unstack(x)
    _, loop = hf.while_loop(
        lambda i, t: i < 6,
        lambda i, t: (i + 1, t.write(i, t.read(i - 1) * t.read(i - 3))),
        [3, loop],
    )
    larger = hf.TensorArray(hf.float64, 5).unstack(x)
    pieces = hf.TensorArray(hf.float64, 5, dynamic_size=True, infer_shape=False)
    pieces = pieces.split(x, [1, 2])
    gap = hf.TensorArray(hf.float64, 3, dynamic_size=True).unstack(x).write(5, x[0])
    ways = [
        grown.stack(),
        joined.concat(),
        loop.stack(),
        larger.gather([1, 2]),
        pieces.read(1),
        hf.reshape(gap.read(5) * gap.read(0), [1]),
    ]
    for y in ways:
        check_gradients(y * y, {x: np.array([1.0, 2.0, 3.0])})


def test_gradient_of_no_pieces_at_all() -> None:
    x = hf.placeholder(hf.float64, [None, 2])
    array = hf.TensorArray(hf.float64, 0, dynamic_size=True, infer_shape=False)
    array = array.split(x, np.zeros(0, "i4")).write(0, hf.fill([1, 2], hf.reduce_sum(x)))
    (g,) = hf.gradients(array.concat(), x)
    with hf.Session() as session:
        assert session.run(g, {x: np.zeros((0, 2))}).shape == (0, 2)


def test_wrong_uses_of_an_array() -> None:
    array = hf.TensorArray(hf.float32, 2)
    twice = array.write(0, [1.0]).write(0, [2.0]).stack()
    outside = hf.TensorArray(hf.float32, 2).write(2, [1.0]).size()
    unwritten = hf.TensorArray(hf.float32, 2, infer_shape=False).write(0, [1.0]).read(1)
    ragged = hf.TensorArray(hf.float32, 2, infer_shape=False)
    ragged = ragged.write(0, [1.0]).write(1, [1.0, 2.0])
    with hf.Session() as session:
        for wrong, why in (
            (twice, "written twice"),
            (outside, "outside"),
            (unwritten, "before it is written"),
        ):
            with pytest.raises(RangeError, match=why):
                session.run(wrong)
        with pytest.raises(ShapeError, match="stacked"):
            session.run(ragged.stack())
        assert session.run(ragged.concat()).tolist() == [1, 1, 2]
        grown = hf.TensorArray(hf.float32, dynamic_size=True).write(5, 1.0)
        assert session.run(grown.size()) == 6
    with pytest.raises(ShapeError, match="element of shape"):
        hf.TensorArray(hf.float32, 2).write(0, [1.0]).write(1, [1.0, 2.0])


# -- loops that wait for state


def test_a_loop_that_takes_from_a_queue() -> None:
    """It waits in its own iterations, while another thread's steps fill the queue."""
    queue = hf.FIFOQueue(2, [hf.float32], [()])
    x = hf.placeholder(hf.float32, [])
    put = queue.enqueue(x)
    _, total = hf.while_loop(
        lambda i, t: i < 5, lambda i, t: (i + 1, t + queue.dequeue()), [0, hf.constant(0.0)]
    )
    with hf.Session() as session:
        filler = threading.Thread(
            target=lambda: [session.run(put, {x: k}) for k in range(5)], daemon=True
        )
        filler.start()
        assert session.run(total) == 10
        filler.join(60)


def test_a_closed_queue_ends_a_loop_that_waits_and_the_next_step_can_follow() -> None:
    queue = hf.FIFOQueue(9, [hf.float32], [()])
    x, n = hf.placeholder(hf.float32, []), hf.placeholder(hf.int32, [])
    put, close = queue.enqueue(x), queue.close()
    _, total = hf.while_loop(
        lambda i, t: i < n, lambda i, t: (i + 1, t + queue.dequeue()), [0, hf.constant(0.0)]
    )
    with hf.Session() as session:
        for k in range(3):
            session.run(put, {x: k})
        session.run(close)
        with pytest.raises(OutOfRangeError, match="closed"):
            session.run(total, {n: 4})
        assert session.run(total, {n: 0}) == 0


# -- what goes through them


def test_values_made_of_several_tensors_go_through() -> None:
    p = hf.placeholder(hf.bool, [])
    here = hf.SparseTensor([[0, 0], [1, 2]], [1.0, 2.0], [2, 3])
    y = hf.cond(p, lambda: here, lambda: hf.SparseTensor([[0, 1]], [5.0], [2, 3]))
    dense = hf.sparse_tensor_to_dense(y)
    with hf.Session() as session:
        assert session.run(dense, {p: False}).tolist() == [[0, 5, 0], [0, 0, 0]]
        assert session.run(y, {p: True}).values.tolist() == [1, 2]


def test_rows_of_a_table_looked_up_in_a_loop() -> None:
    table = hf.Variable(np.ones((4, 2)), name="table")
    ids = hf.placeholder(hf.int32, [None])
    _, y = hf.while_loop(
        lambda i, y: i < hf.shape(ids)[0],
        lambda i, y: (i + 1, y * 2.0 + hf.nn.embedding_lookup(table, hf.gather(ids, i))),
        [0, hf.zeros([2], hf.float64)],
    )
    (g,) = hf.gradients(y, [table])
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        assert session.run(g, {ids: [1, 1, 3]})[:, 0].tolist() == [0, 4 + 2, 0, 1]


def test_an_optimizer_in_a_branch() -> None:
    """Every other call trains: slots are made outside, updates happen inside."""
    v = hf.Variable(np.array([1.0, 2.0]))
    p = hf.placeholder(hf.bool, [])
    optimizer = hf.train.MomentumOptimizer(0.1, 0.9)
    (g,) = hf.gradients(hf.reduce_sum(v * v), [v])
    train = hf.cond(p, lambda: optimizer.apply_gradients([(g, v)]), lambda: hf.no_op())
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        value, accum = np.array([1.0, 2.0]), np.zeros(2)
        for taken in (True, False, True):
            session.run(train, {p: taken})
            if taken:
                accum = 0.9 * accum + 2 * value
                value = value - 0.1 * accum
        np.testing.assert_allclose(session.run(v), value)


def test_gradients_of_gradients_are_refused_not_wrong() -> None:
    x, p = hf.placeholder(hf.float64, []), hf.placeholder(hf.bool, [])
    y = hf.cond(p, lambda: x * x * x, lambda: x)
    _, z = hf.while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, z * x), [0, x])
    for value in (y, z):
        (g,) = hf.gradients(value, [x])
        with pytest.raises(GradientError, match="not differentiated again"):
            hf.gradients(g, [x])
    v = hf.Variable(np.float64(2))
    inside = hf.cond(p, lambda: hf.gradients(x * x * x * v, [x, v]), lambda: [x, x])
    (g,) = hf.gradients(inside[0], [x])
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        assert session.run([g, inside[1]], {p: True, x: 3.0}) == [36, 27]


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 2, 3)])
def test_gather_of_an_unknown_rank_in_a_loop(shape: tuple[int, ...]) -> None:
    x = hf.placeholder(hf.float64, None)
    step = lambda i, t: (i + 1, t + hf.reduce_sum(hf.square(hf.gather(x, i))))  # noqa: E731
    y = hf.while_loop(lambda i, t: i < 3, step, [0, hf.constant(0.0, hf.float64)])[1]
    value = RNG.standard_normal(shape)
    with hf.Session() as session:
        total, gradient = session.run([y, hf.gradients(y, x)[0]], {x: value})
    expected = 2 * value
    expected[3:] = 0
    np.testing.assert_allclose(total, np.square(value[:3]).sum())
    np.testing.assert_allclose(gradient, expected)
