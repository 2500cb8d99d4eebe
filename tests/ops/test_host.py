"""Python functions in the graph, Print, Assert, checks of numbers, tuple."""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import (
    AssertError,
    DTypeError,
    GraphError,
    KernelError,
    NumericError,
    PlacementError,
)
from hpcflow.plan.ir.program import Cluster
from hpcflow.plan.pass_list import make_plan
from hpcflow.runtime.executor import py_func_execution
from hpcflow.settings import Settings
from tests.ops.evaluate import evaluate
from tests.ops.sessions import graph, run  # noqa: F401 - graph is a fixture

# -- py_func


def test_py_func_computes_on_the_host() -> None:
    x = hf.placeholder(hf.float32, [None])
    y = hf.py_func(lambda a: np.sort(a), [x], hf.float32)
    y.set_shape(x.shape)
    assert run(y + 1, {x: [3.0, 1.0, 2.0]}).tolist() == [2, 3, 4]


def test_py_func_of_many_results() -> None:
    low, high, n = hf.py_func(
        lambda a: (a.min(), a.max(), a.size),
        [hf.constant([3.0, 1.0])],
        [hf.float32, hf.float32, hf.int64],
    )
    assert [v.item() for v in run([low, high, n])] == [1, 3, 2]
    assert n.dtype == hf.int64


def test_py_func_without_results_is_an_operation() -> None:
    seen: list[float] = []
    done = hf.py_func(lambda a: seen.append(float(a)), [hf.constant(2.0)], [])
    assert isinstance(done, hf.Operation)
    with hf.Session() as session:
        session.run(done)
        session.run(done)
    assert seen == [2, 2]


def meeting(count: int) -> Callable[..., float]:
    """A function that returns once it has been called `count` times, so each needs the others."""
    barrier = threading.Barrier(count, timeout=300.0)

    def meet(*given: Any) -> float:
        return float(barrier.wait() >= 0)

    return meet


def test_py_funcs_that_need_each_other_run_beside_each_other() -> None:
    meet = meeting(3)
    a, b = (hf.py_func(meet, [], hf.float32) for _ in range(2))
    p = hf.placeholder(hf.bool, [])
    c = hf.cond(p, lambda: hf.py_func(meet, [], hf.float32), lambda: 0.0)
    with hf.Session() as session:
        for _ in range(2):
            assert session.run([a + 1.0, b, c], {p: True}) == [2.0, 1.0, 1.0]


def test_py_funcs_of_a_body_that_need_each_other() -> None:
    meet = meeting(2)

    def body(i: Any, x: Any) -> Any:
        a, b = (hf.py_func(meet, [x], hf.float32) for _ in range(2))
        return i + 1, x + a + b

    _, y = hf.while_loop(
        lambda i, _: i < 3, body, [0, 0.0], [hf.TensorShape([]), hf.TensorShape(None)]
    )
    assert run(y) == 6.0


def test_quick_py_funcs_run_in_the_order_of_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(py_func_execution, "ALONE_S", 300.0)  # none is long
    seen: list[int] = []
    calls = [hf.py_func(functools.partial(seen.append, i), [], []) for i in range(5)]
    with hf.Session() as session:
        for _ in range(3):
            session.run(calls)
    assert seen == [*range(5)] * 3


def test_a_py_func_does_not_begin_before_the_one_whose_thread_starts_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread of the first waits, long enough for a function that runs, before it calls it."""
    monkeypatch.setattr(py_func_execution, "ALONE_S", 0.01)
    seen: list[int] = []
    run_call = py_func_execution.PyFuncCall._run

    def late(self: Any, function: Any) -> None:
        if self.node.name == "first":
            time.sleep(0.3)
        run_call(self, function)

    monkeypatch.setattr(py_func_execution.PyFuncCall, "_run", late)
    first = hf.py_func(functools.partial(seen.append, 1), [], [], name="first")
    second = hf.py_func(functools.partial(seen.append, 2), [], [], name="second")
    run([first, second])
    assert seen == [1, 2]


def test_a_py_func_may_run_a_step_where_another_one_is_beside_it() -> None:
    v = hf.Variable(3.0)
    with hf.Session() as session:
        session.run(v.initializer)
        a = hf.py_func(lambda: session.run(v) * np.float32(2), [], hf.float32)
        b = hf.py_func(lambda: np.float32(1), [], hf.float32)
        assert session.run([a, b]) == [6.0, 1.0]


def test_a_py_func_that_fails_ends_the_step_and_the_session_goes_on() -> None:
    fail = [True]

    def maybe(x: Any) -> Any:
        return 1 / 0 if fail[0] else x

    v = hf.Variable(0.0)
    a = hf.py_func(maybe, [hf.constant([1.0, 2.0])], hf.float32, name="divides")
    b = hf.py_func(lambda: np.float32(1), [], hf.float32)
    with hf.Session() as session:
        session.run(v.initializer)
        with hf.control_dependencies([a]):
            up = hf.assign_add(v, 1.0)
        with pytest.raises(KernelError, match=r"float32\[2\].*ZeroDivisionError") as caught:
            session.run([up, b])
        assert caught.value.op == "divides" and "test_host.py" in caught.value.line
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert session.run(v) == 0.0
        fail[0] = False
        assert session.run([up, b]) == [1.0, 1.0]


def test_py_funcs_that_follow_each_other_need_no_thread() -> None:
    with hf.Graph().as_default() as g:
        a = hf.py_func(lambda: 1.0, [], hf.float32)
        b = hf.py_func(lambda x: x, [hf.sqrt(a)], hf.float32)
        with hf.control_dependencies([b]):
            c = hf.py_func(lambda: 1.0, [], hf.float32)
    plan = make_plan(g, [a, b, c], {}, Cluster(), Settings())
    (part,) = plan.parts.values()
    assert [n.type for n in part.nodes.values()].count("PyFunc") == 3


def test_py_func_may_keep_what_it_gets() -> None:
    kept: list[np.ndarray] = []
    x = hf.placeholder(hf.float32, [3])

    def keep(a: np.ndarray) -> np.ndarray:
        kept.append(a)
        return a

    y = hf.py_func(keep, [x * 2], hf.float32)
    with hf.Session() as session:
        for i in range(3):
            session.run(y + 1, {x: np.full(3, i, np.float32)})
    assert [k.tolist() for k in kept] == [[0] * 3, [2] * 3, [4] * 3]


def test_equal_stateful_calls_are_all_made_and_stateless_ones_once() -> None:
    calls: list[str] = []

    def count(which: str) -> Any:
        def function(a: np.ndarray) -> np.ndarray:
            calls.append(which)
            return a

        return function

    x = hf.placeholder(hf.float32, [])
    each, once = count("each"), count("once")
    ys = [hf.py_func(each, [x], hf.float32) for _ in range(2)]
    ys += [hf.py_func(once, [x], hf.float32, stateful=False) for _ in range(2)]
    run(ys, {x: 1})
    assert sorted(calls) == ["each", "each", "once"]


def test_a_stateful_function_of_constants_is_not_folded_away() -> None:
    calls: list[int] = []
    y = hf.py_func(lambda a: calls.append(1) or a, [hf.constant(1.0)], hf.float32)
    with hf.Session() as session:
        session.run(y)
        session.run(y)
    assert len(calls) == 2


def test_what_a_function_returns_must_be_what_was_said() -> None:
    wrong = hf.py_func(lambda: np.zeros(2), [], hf.float32)
    with pytest.raises(DTypeError, match=r"float64.*float32") as caught:
        run(wrong)
    assert "test_host.py" in str(caught.value)
    with pytest.raises(DTypeError, match="returned 1 values"):
        run(hf.py_func(lambda: [1.0], [], [hf.float32, hf.float32]))


def test_an_error_of_the_function_is_named() -> None:
    def fails(a: np.ndarray) -> np.ndarray:
        raise ValueError("no such label")

    y = hf.py_func(fails, [hf.constant(1.0)], hf.float32, name="labels")
    with pytest.raises(KernelError, match=r"no such label[\s\S]*labels") as caught:
        run(y)
    assert isinstance(caught.value.__cause__, ValueError)


def test_no_gradient_goes_through_py_func() -> None:
    x = hf.constant(3.0)
    y = hf.py_func(lambda a: a, [x], hf.float32)
    assert hf.gradients(y, x) == [None]
    assert run(hf.gradients(y * x, x)[0]) == 3


def planned(cluster: Cluster, *fetches: Any) -> Any:
    return make_plan(hf.get_default_graph(), fetches, {}, cluster, Settings())


def test_a_function_on_a_rank_without_the_script_is_an_error_of_the_plan() -> None:
    with hf.device("/job:ps/task:0"):
        y = hf.py_func(lambda: 1.0, [], hf.float32)
    with pytest.raises(PlacementError, match=r"ps/task:0[\s\S]*hf.device") as caught:
        planned(Cluster(workers=1, servers=1), y)
    assert caught.value.op == y.op.name
    assert "test_host.py" in (caught.value.line or "")


def test_a_function_runs_on_a_cpu_beside_gpus() -> None:
    y = hf.py_func(lambda a: a, [hf.ones([2])], hf.float32) + 1
    cluster = Cluster(devices=("gpu:0", "cpu:0"))
    (part,) = planned(cluster, y).parts.values()
    assert next(n for n in part.nodes.values() if n.type == "PyFunc").device.endswith("cpu:0")
    with hf.device("/gpu:0"):
        z = hf.py_func(lambda a: a, [hf.ones([2])], hf.float32)
    with pytest.raises(PlacementError, match="cpu only"):
        planned(cluster, z)


# -- Print and Assert


def test_print(capfd: Any) -> None:
    x = hf.placeholder(hf.float32, [None])
    y = hf.Print(x, ["sum", hf.reduce_sum(x), x], "seen: ", first_n=2)
    with hf.Session() as session:
        for _ in range(3):
            assert session.run(y, {x: [1, 2, 3, 4.5]}).tolist() == [1, 2, 3, 4.5]
    assert capfd.readouterr().err == "seen: [sum][10.5][1 2 3...]\n" * 2


def test_print_summarizes_and_passes_gradients(capfd: Any) -> None:
    x = hf.constant([1, 2, 3, 4])
    run(hf.Print(x, [x], summarize=-1))
    run(hf.Print(x, [x], summarize=1))
    assert capfd.readouterr().err == "[1 2 3 4]\n[1...]\n"
    z = hf.constant(2.0)
    assert evaluate(hf.gradients(hf.Print(z, [z]) * 3, z)[0]) == 3
    with pytest.raises(GraphError, match="list of tensors"):
        hf.Print(z, "text")


def test_print_of_a_value_nobody_changes_still_prints(capfd: Any) -> None:
    run(hf.Print(hf.constant(1.0), [], "here"))
    assert capfd.readouterr().err == "here\n"


def test_assert() -> None:
    x = hf.placeholder(hf.float32, [None], name="x")
    check = hf.Assert(hf.reduce_all(x > 0), ["x must be positive", x], name="positive")
    with hf.control_dependencies([check]):
        y = hf.identity(x) * 2
    with hf.Session() as session:
        assert session.run(y, {x: [1, 2]}).tolist() == [2, 4]
        with pytest.raises(AssertError, match=r"\[x must be positive\] \[1 -2\]") as caught:
            session.run(y, {x: [1, -2]})
    assert caught.value.op == "positive"
    assert "test_host.py" in (caught.value.line or "")
    assert caught.value.rank == 0
    assert isinstance(caught.value, AssertionError)


def test_assert_by_itself_and_of_the_wrong_type() -> None:
    run(hf.Assert(hf.constant(True), []))
    with pytest.raises(AssertError):
        run(hf.Assert(hf.constant([True, False]), []))
    with pytest.raises(DTypeError):
        hf.Assert(hf.constant(1.0), [])


# -- checks of numbers


def test_a_check_names_what_it_checked() -> None:
    x = hf.placeholder(hf.float32, [2])
    y = hf.check_numerics(hf.log(x, name="logarithm"), "in the loss")
    z = hf.verify_tensor_all_finite(x, "the input", name="check")
    with pytest.raises(NumericError, match=r"in the loss: 1 of 2 .*'logarithm:0'.*1 infinite"):
        run(y, {x: [0, 1]})
    with pytest.raises(NumericError, match="the input"):
        run(z, {x: [np.nan, 1]})
    assert run(z, {x: [2, 1]}).tolist() == [2, 1]


def test_all_tensors_are_checked_in_order() -> None:
    x = hf.placeholder(hf.float32, [2], name="x")
    with hf.name_scope("net"):
        a = hf.sqrt(x, name="root")
        hf.add(a, 1, name="more")
    checks = hf.add_check_numerics_ops()
    with hf.Session() as session:
        session.run(checks, {x: [1, 4]})
        with pytest.raises(NumericError, match="net/root:0"):
            session.run(checks, {x: [-1, 4]})


def test_the_setting_names_op_step_and_rank() -> None:
    from tests.runtime.ranks import run_ranks

    def body(context: Any) -> None:
        x = hf.placeholder(hf.float32, [2])
        y = hf.exp(hf.log(x, name="logarithm")) + 1
        session = hf.Session(context=context)
        session.run(y, {x: [1, 2]})
        session.run(y, {x: [-1, 2]})

    with pytest.raises(NumericError, match=r"1 of 2 .* step 2 .*first") as caught:
        run_ranks(1, body, check_numerics=True)
    assert (caught.value.op, caught.value.rank) == ("logarithm", 0)
    assert "test_host.py" in (caught.value.line or "")


# -- tuple


def test_tuple_waits_for_all() -> None:
    a, b = hf.constant(1.0), hf.constant(2.0)
    check = hf.Assert(hf.constant(False), ["never"])
    x, none, y = hf.tuple([a, None, b])
    assert none is None
    assert [v.item() for v in run([x, y])] == [1, 2]
    (z,) = hf.tuple([a], control_inputs=[check])
    with pytest.raises(AssertError):
        run(z)
    with pytest.raises(GraphError):
        hf.tuple([None])
    assert re.match(r"tuple", x.name)


def test_tuple_of_rows_and_sparse_tensors() -> None:
    table = hf.Variable(np.zeros((4, 2), np.float32))
    (rows,) = hf.gradients(hf.gather(table, [1, 3]) * 2, table)
    sparse = hf.SparseTensor([[0, 1]], [5.0], [2, 2])
    a, b = hf.tuple([rows, sparse])
    assert isinstance(a, hf.IndexedSlices)
    assert isinstance(b, hf.SparseTensor)
    with hf.Session() as session:
        session.run(table.initializer)
        found, values = session.run([a, b])
    assert (found.indices.tolist(), values.values.tolist()) == ([1, 3], [5])
