"""A loop or branch on two tasks keeps its order with other effects, whichever frame they follow.

Only one of its frames makes the value that an effect on the other task follows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from tests.runtime.ranks import run_ranks

HERE, THERE = "/job:worker/task:0", "/job:worker/task:1"
STEPS = 6


def updating(v: Any, busy: Any, here: str, there: str) -> Any:
    """The body of a loop: a sum on one task, slow products and then an update on the other."""

    def body(i: Any, s: Any, t: Any) -> Any:
        with hf.device(there):
            for _ in range(4):
                t = hf.matmul(t, busy)
            with hf.control_dependencies([t]):
                update = v.assign_add(1.0)
            with hf.control_dependencies([update]):
                t = t * 1.0
        with hf.device(here):
            s = s + 1.0
        return i + 1, s, t

    return body


def behind(kind: str, v: Any, y: Any, there: str) -> Any:
    """What uses `v` behind the value `y`."""
    if kind == "update with it":
        with hf.device(there):
            return v.assign_add(y)
    with hf.control_dependencies([y]):
        if kind == "read":
            return v.read_value()
        if kind == "assignment":
            return v.assign(100.0)
        if kind == "branch":
            return hf.cond(y > 0.0, lambda: v.assign(v * 2.0), lambda: v.read_value())
        return hf.while_loop(lambda i: i < 2.0, lambda i: i + v, [0.0])


def after_a_loop(kind: str, here: str, there: str) -> list[Any]:
    """Two steps of something behind the sum of the loop: its values, and the variable."""
    with hf.device(there):
        v, busy = hf.Variable(0.0), hf.Variable(np.eye(200, dtype="f4"))
        start = hf.ones([200, 200])
    body = updating(v, busy, here, there)
    _, s, t = hf.while_loop(lambda i, s, t: i < STEPS, body, [0, 0.0, start])
    with hf.device(here):
        y = s * 2.0
    end, last = behind(kind, v, y, there), hf.reduce_sum(t)
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        found: list[Any] = []
        for _ in range(2):
            found += [session.run([end, last])[0], session.run(v)]
        return found


KINDS = ["read", "assignment", "update with it", "branch", "loop"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_a_result_follows_the_updates_of_all_frames(kind):
    (expected,) = run_ranks(1, lambda context: after_a_loop(kind, "", ""))
    if kind == "read":
        assert expected == [6.0, 6.0, 12.0, 12.0]
    options: dict[str, Any] = {"tasks_per_replica": 2, "plan_cache": "none", "verify_passes": True}
    (found,) = run_ranks(2, lambda context: after_a_loop(kind, HERE, THERE), seed=1, **options)
    np.testing.assert_array_equal(found, expected)


def calls(here: str, there: str) -> list[str]:
    """The order of a function in a loop and one behind a value of the loop on another task."""
    made: list[str] = []

    def call(name: str, x: np.ndarray) -> np.ndarray:
        made.append(name)
        return x

    def body(i: Any, s: Any, t: Any) -> Any:
        with hf.device(there):
            s = s + 1.0
        with hf.device(here):
            return i + 1, s, hf.py_func(lambda x: call("inner", x), [t], hf.float32, name="inner")

    shapes = [hf.TensorShape([])] * 2 + [hf.TensorShape(None)]
    start = [hf.constant(0), hf.constant(0.0), hf.constant(0.0)]
    _, s, t = hf.while_loop(lambda i, s, t: i < 4, body, start, shape_invariants=shapes)
    with hf.device(there):
        y = s * 2.0
    with hf.device(here):
        outer = hf.py_func(lambda x: call("outer", x), [y], hf.float32, name="outer")
    with hf.Session() as session:
        session.run([outer, t])
    return made


def test_functions_of_the_script_keep_their_order():
    expected = ["inner"] * 4 + ["outer"]
    options: dict[str, Any] = {"tasks_per_replica": 2, "plan_cache": "none", "verify_passes": True}
    (found,) = run_ranks(2, lambda context: calls(HERE, THERE), seed=1, **options)
    assert found == expected == run_ranks(1, lambda context: calls("", ""))[0]


def through_a_loop(here: str, there: str) -> list[Any]:
    """An assignment behind an input of a loop, and a read behind a result that does not use it."""
    trips = hf.placeholder(hf.int32, [])
    with hf.device(there):
        v, other = hf.Variable(0.0), hf.Variable(0.0)
        busy = hf.constant(np.eye(300, dtype="f4"))
        for _ in range(8):
            busy = hf.matmul(busy, busy)
        with hf.control_dependencies([busy]):
            assign = v.assign_add(1.0)
        one = assign * 0.0 + 1.0

    def body(i: Any, s: Any) -> Any:
        with hf.device(there):
            update = other.assign_add(one)
        with hf.control_dependencies([update]), hf.device(here):
            return i + 1, hf.identity(s)

    with hf.device(here):
        _, s = hf.while_loop(lambda i, s: i < trips, body, [0, hf.constant(2.0)])
        with hf.control_dependencies([s * 3.0]):
            read = v.read_value()
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        return [session.run(read, {trips: n}) for n in (0, 1, 0, 2)] + [session.run(other)]


def test_what_follows_a_result_follows_what_is_before_an_input_of_another_frame():
    (expected,) = run_ranks(1, lambda context: through_a_loop("", ""))
    assert expected == [1.0, 2.0, 3.0, 4.0, 3.0]
    options: dict[str, Any] = {"tasks_per_replica": 2, "plan_cache": "none"}
    for verify in (False, True):
        options["verify_passes"] = verify
        (found,) = run_ranks(2, lambda context: through_a_loop(HERE, THERE), seed=1, **options)
        assert found == expected
