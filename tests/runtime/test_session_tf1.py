"""Sessions as TensorFlow 1 scripts use them: default ones, callables, steps in several parts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import FeedError, FetchError, GraphError, UninitializedError
from tests.runtime.ranks import run_ranks


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


# -- default sessions


def test_eval_and_run_in_the_default_session() -> None:
    x = hf.placeholder("float32", [2])
    v = hf.Variable([1.0, 2.0])
    y = x + v
    with hf.Session() as session:
        assert hf.get_default_session() is session
        assert hf.global_variables_initializer().run() is None
        assert y.eval({x: [1.0, 1.0]}).tolist() == [2, 3]
        v.assign_add([1.0, 1.0]).op.run()
        assert v.eval().tolist() == [2, 3]
    assert hf.get_default_session() is None
    with pytest.raises(FetchError, match="'Add:0' needs a session"):
        y.eval({x: [1.0, 1.0]})


def test_a_session_given() -> None:
    v = hf.Variable(1.0)
    a, b = hf.Session(), hf.Session()
    for session, value in ((a, 1), (b, 2)):
        v.initializer.run(session=session)
        v.assign(value).op.run(session=session)
    assert (v.eval(a), v.value().eval(session=b)) == (1, 2)
    with a.as_default(), b.as_default():
        assert v.eval() == 2
    with a.as_default():
        assert v.eval() == 1
    assert a.run(v) == 1  # as_default() does not close it
    with hf.Graph().as_default():
        other = hf.constant(1.0)
    with a.as_default(), pytest.raises(FetchError, match="graph of the default session"):
        other.eval()


def test_the_graph_of_a_session_is_the_default_one(graph: hf.Graph) -> None:
    other = hf.Graph()
    with hf.Session(other) as session:
        assert hf.get_default_graph() is other is session.graph
        assert hf.constant(2.0).eval() == 2
    assert hf.get_default_graph() is graph
    with pytest.raises(FetchError, match="closed"):
        session.run(other.get_operations()[0])


def test_default_sessions_are_a_threads_own() -> None:
    seen = []
    with hf.Session():
        thread = threading.Thread(target=lambda: seen.append(hf.get_default_session()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_an_interactive_session(graph: hf.Graph) -> None:
    session = hf.InteractiveSession()
    assert hf.get_default_session() is session
    assert (hf.constant(2.0) * 3.0).eval() == 6
    with hf.Session() as inner:
        assert hf.get_default_session() is inner
        session.close()  # not the innermost
        assert hf.get_default_session() is inner
    assert hf.get_default_session() is None
    assert hf.get_default_graph() is graph
    session.close()


def test_load_and_count() -> None:
    v = hf.Variable(np.zeros((2, 2), "f4"), name="v")
    n = hf.Variable(0, name="n", trainable=False)
    with hf.Session():
        v.load([[1, 0], [0, 1]])  # also before it is initialized
        assert v.eval().tolist() == [[1, 0], [0, 1]]
        version = v.graph.version
        v.load(np.ones((2, 2), "f4"))
        assert v.eval().sum() == 4 and v.graph.version == version
        n.initializer.run()
        assert [n.count_up_to(2).eval() for _ in range(2)] == [0, 1]
        with pytest.raises(FeedError, match="shape"):
            v.load([1.0])


def test_variables_made_after_the_first_run() -> None:
    v = hf.Variable(1.0)
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        w = hf.Variable(2.0)
        with pytest.raises(UninitializedError):
            session.run(w)
        session.run(w.initializer)
        assert session.run(v + w) == 3
        with hf.variable_scope("later"):
            u = hf.get_variable("u", initializer=hf.constant(4.0))
        session.run(hf.variables_initializer([u]))
        assert session.run([v, u * w]) == [1, 8]


def test_whether_a_variable_has_a_value() -> None:
    v = hf.Variable(hf.random_uniform([2]), name="v")
    w = hf.Variable(v.initialized_value() * 2.0)
    there = hf.is_variable_initialized(v)
    with hf.Session() as session:
        assert not session.run(there)
        session.run([v.initializer, w.initializer])  # in one step: the same draw
        assert session.run(there)
        a, b = session.run([v, w])
        assert (a * 2).tolist() == b.tolist()
        v.load([3.0, 4.0])
        session.run(w.initializer)
        assert w.eval().tolist() == [6, 8]


def test_operators_of_variables() -> None:
    b, n = hf.Variable([True, False]), hf.Variable([5, -7])
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        got = session.run(
            [b & [True, True], [False, False] | b, b ^ True, ~b, n // 2, 3 - n, n % 3]
        )
        assert [x.tolist() for x in got] == [
            *[[True, False], [True, False], [False, True], [False, True]],
            *[[2, -4], [-2, 10], [2, 2]],
        ]
        assert session.run(abs(n) > 6).tolist() == [False, True]


def test_list_devices() -> None:
    with hf.Session() as session:
        devices = session.list_devices()
    assert ("/job:worker/task:0/cpu:0", "CPU") in devices
    assert devices[0].name.startswith("/job:worker/task:0/")


# -- callables


def test_make_callable() -> None:
    x, y = hf.placeholder("float32", [None]), hf.placeholder("float32", [])
    with hf.Session() as session:
        f = session.make_callable({"sum": x + y, "both": [x, (y,)]}, [x, y])
        for size in (2, 3, 2):
            got = f(np.ones(size, "f4"), 2.0)
            assert got["sum"].tolist() == [3] * size and got["both"][1] == (2,)
        assert session.make_callable(hf.constant(3.0))() == 3
        with pytest.raises(FeedError, match="takes 2 values, not 1"):
            f(1.0)
        with pytest.raises(FetchError):
            session.make_callable(object())
        with pytest.raises(FeedError):
            session.make_callable(x, [3])


# -- steps in several parts


def test_a_partial_run() -> None:
    """The example of TensorFlow 1's documentation."""
    a, b, c = (hf.placeholder(hf.float32, []) for _ in range(3))
    r1 = hf.add(a, b)
    r2 = hf.multiply(r1, c)
    with hf.Session() as session:
        h = session.partial_run_setup([r1, r2], [a, b, c])
        res = session.partial_run(h, r1, {a: 1, b: 2})
        assert res == 3
        assert session.partial_run(h, r2, {c: res * 4}) == 36


def test_each_operation_of_a_partial_run_runs_once() -> None:
    v = hf.Variable(1.0)
    drawn = hf.random_uniform([3])
    x = hf.placeholder("float32", [3])
    add = v.assign_add(10.0)
    with hf.control_dependencies([add]):
        after = drawn * 2.0
    late = after + x + v
    with hf.Session() as session:
        session.run(v.initializer)
        h = session.partial_run_setup([add, after, late, drawn], [x])
        assert session.partial_run(h, add) == 11
        first = session.partial_run(h, after)
        session.run(v.assign(5.0))
        last, numbers = session.partial_run(h, [late, drawn], {x: [0, 1, 2]})
        np.testing.assert_array_equal(first, numbers * 2)
        np.testing.assert_allclose(last, first + [0, 1, 2] + 5, rtol=1e-6)
        assert v.eval() == 5
        again = session.partial_run_setup([add, after, late, drawn], [x])
        assert session.partial_run(again, add) == 15
        assert (session.partial_run(again, after) != first).any()
        assert v.eval() == 15  # what `after` waited for


def test_feeds_within_a_partial_run() -> None:
    """A tensor that is fed is not computed, although it could be."""
    x = hf.placeholder("float32", [])
    middle = x * 2.0
    end = middle + 1.0
    with hf.Session() as session:
        h = session.partial_run_setup([end, middle], [x, middle])
        with pytest.raises(FeedError, match="must be fed before"):
            session.partial_run(h, end, {x: 1.0})
        assert session.partial_run(h, [end, middle], {middle: 5.0}) == [6, 5]


def test_what_a_partial_run_refuses() -> None:
    x, y = hf.placeholder("float32", []), hf.placeholder("float32", [])
    a, b = x + 1.0, y + 1.0
    with hf.Session() as session:
        h = session.partial_run_setup([a, b], [x, y])
        with pytest.raises(FeedError, match="must be fed before"):
            session.partial_run(h, a)
        assert session.partial_run(h, a, {x: 1.0}) == 2
        with pytest.raises(FeedError, match="was fed before"):
            session.partial_run(h, b, {x: 1.0})
        with pytest.raises(FetchError, match="was fetched before"):
            session.partial_run(h, a)
        with pytest.raises(FetchError, match="was not set up"):
            session.partial_run(h, x)
        with pytest.raises(FeedError, match="was not set up as a feed"):
            session.partial_run(h, b, {a: 1.0})
        assert session.partial_run(h, b, {y: 1.0}) == 2


def test_a_partial_run_through_a_loop() -> None:
    x = hf.placeholder("float32", [])
    n = hf.placeholder("int32", [])
    total = hf.while_loop(lambda i, s: i < n, lambda i, s: (i + 1, s * x), [0, 1.0])[1]
    y = hf.placeholder("float32", [])
    end = total + y
    with hf.Session() as session:
        h = session.partial_run_setup([total, end], [x, n, y])
        assert session.partial_run(h, total, {x: 2.0, n: 5}) == 32
        assert session.partial_run(h, end, {y: 1.0}) == 33
        slope = hf.gradients(total, x)[0]
        with pytest.raises(FetchError, match="cannot take the gradient through"):
            session.partial_run_setup([total, slope], [x, n])
    with pytest.raises(GraphError):
        bool(total)


def test_which_variables_have_no_value() -> None:
    assert hf.report_uninitialized_variables().shape == (0,)
    a, b = hf.Variable(1.0, name="a"), hf.Variable([2], name="b")
    local = hf.get_local_variable("local", [2])
    report, some = hf.report_uninitialized_variables(), hf.report_uninitialized_variables([b])
    check = hf.assert_variables_initialized()
    with hf.Session() as session:
        assert session.run(report).tolist() == [b"a", b"b", b"local"]
        a.initializer.run()
        assert session.run([report, some])[0].tolist() == [b"b", b"local"]
        with pytest.raises(UninitializedError, match="'b' has no value"):
            session.run(check)
        session.run([b.initializer, local.initializer])
        session.run(check)
        assert session.run([report, some])[1].tolist() == []


def test_a_finalized_graph_gives_and_takes_what_variables_hold() -> None:
    """Neither was read or loaded before; the graph stays closed for the program."""
    with hf.Graph().as_default() as graph:
        v, w = hf.Variable([1.0, 2.0], name="v"), hf.Variable(3.0, name="w")
        branch = hf.cond(hf.constant(True), lambda: w * 2.0, lambda: w)
        start = hf.global_variables_initializer()
        graph.finalize()
        with hf.Session() as session:
            v.load([5.0, 6.0])
            assert session.run(v).tolist() == [5.0, 6.0]
            session.run(start)
            assert session.run({"v": v, "pair": (w, branch)}) == {
                "v": pytest.approx([1.0, 2.0]),
                "pair": (3.0, 6.0),
            }
            assert session.run(v, {v: [8.0, 9.0]}).tolist() == [8.0, 9.0]
        assert graph.finalized
        with pytest.raises(GraphError, match="finalized"):
            v + 1.0


@pytest.mark.parametrize("places", [dict(n=1), dict(n=2), dict(n=3, ps=1)], ids=str)
def test_a_training_session_loads_a_variable(places: dict[str, int]) -> None:
    def body(context: Any) -> list[Any]:
        v = hf.Variable(hf.zeros([2]), name="v")
        step = v.assign_add(hf.ones([2]))
        with hf.train.TrainingSession(context=context) as session:
            session.step(step, {})
            context.barrier()
            v.load([5.0, 6.0], session)
            context.barrier()
            return session.run(v).tolist()

    assert run_ranks(body=body, **places) == [[5.0, 6.0]] * (2 if places["n"] > 1 else 1)
