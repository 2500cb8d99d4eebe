"""Reads and updates of variables, and the order between them, as TensorFlow 1 has them.

Expected numbers are what the same program gives line by line.
"""

from __future__ import annotations

import numpy as np
import pytest

import hpcflow as hf

from .ranks import checked_passes

READS = {
    "identity": hf.identity,
    "add": lambda v: v + 0.0,
    "read_value": lambda v: v.read_value(),
    "square root": lambda v: hf.sqrt(hf.square(v)),
}


@pytest.fixture(autouse=True)
def every_pass_is_checked():
    with checked_passes():
        yield


def started() -> hf.Session:
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    return session


# -- reads obey the control dependencies that they are written under


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("used_before", [False, True])
def test_a_moving_average_is_read_behind_its_update(read, used_before):
    m, x = hf.Variable(0.0), hf.placeholder(hf.float32, [])
    other = [m * 3.0] if used_before else []
    with hf.control_dependencies([hf.assign(m, m * 0.5 + x * 0.5)]):
        y = read(m)
    with started() as session:
        found = [session.run([y, *other], {x: 1.0}) for _ in range(3)]
    np.testing.assert_allclose([step[0] for step in found], [0.5, 0.75, 0.875], rtol=1e-6)
    if used_before:  # a read that follows no update sees the value before the step
        np.testing.assert_allclose([step[1] for step in found], [0, 1.5, 2.25], rtol=1e-6)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_chain_of_reads_and_updates_is_what_it_is_line_by_line(read):
    w = hf.Variable(1.0)
    first = read(w)
    with hf.control_dependencies([first]):
        add = w.assign_add(5.0)
    with hf.control_dependencies([add]):
        second = read(w)
    with hf.control_dependencies([second]):
        again = w.assign_add(first)
    with hf.control_dependencies([again]):
        third = read(w)
    with started() as session:
        np.testing.assert_allclose(session.run([first, second, third]), [1, 6, 7], rtol=1e-6)
        np.testing.assert_allclose(session.run([first, second, third]), [7, 12, 19], rtol=1e-6)
        np.testing.assert_allclose(session.run(third), 43, rtol=1e-6)


def test_a_partitioned_variable_is_read_behind_its_update():
    v = hf.get_variable(
        "v", [4], initializer=hf.zeros_initializer(), partitioner=hf.fixed_size_partitioner(2)
    )
    before = v + 0.0
    with hf.control_dependencies([v.assign_add([1.0, 2.0, 3.0, 4.0])]):
        after = hf.identity(v)
    with started() as session:
        found = session.run([before, after])
    np.testing.assert_array_equal(found, [[0, 0, 0, 0], [1, 2, 3, 4]])


def test_a_read_in_a_loop_sees_each_iterations_update():
    w = hf.Variable(1.0)

    def body(i, total):
        total = total + w
        with hf.control_dependencies([total]):
            update = w.assign_add(1.0)
        with hf.control_dependencies([update]):
            return i + 1, total * 1.0

    loop = hf.while_loop(lambda i, _: i < 4, body, [0, 0.0])
    with started() as session:
        assert session.run(loop) == (4, 10.0)
        assert session.run(w) == 5


def test_the_value_after_an_update_is_a_tensor():
    w = hf.Variable([1.0, 2.0])
    up = w.assign_add([1.0, 1.0])
    twice = up * 2.0
    rows = hf.scatter_update(w, [0], [7.0])
    with started() as session:
        np.testing.assert_array_equal(session.run(up), [2, 3])
        np.testing.assert_array_equal(session.run(twice), [6, 8])
        np.testing.assert_array_equal(session.run(rows), [7, 4])
        np.testing.assert_array_equal(session.run(w.assign([0.0, 0.0])), [0, 0])
        session.run(hf.group(up))
        np.testing.assert_array_equal(session.run(w), [1, 1])


# -- no pass loses an update or an order


@pytest.mark.parametrize("length", [3, 4, 7])
def test_a_chain_over_two_groups_of_equal_operations_keeps_its_update(length):
    a, b = hf.placeholder(hf.float32, [4]), hf.placeholder(hf.float32, [4])
    z = hf.Variable(np.zeros(2, np.float32))
    before: list = []
    for i in range(length):
        with hf.control_dependencies(before):
            before = [hf.square((a, b)[i % 2]).op]
    with hf.control_dependencies(before):
        add = z.assign_add([1.0, 1.0])
    with started() as session:
        session.run(add, {a: np.ones(4, "f4"), b: np.ones(4, "f4")})
        np.testing.assert_array_equal(session.run(z), [1, 1])


def test_an_update_behind_loops_and_checks_runs_when_it_is_fetched():
    x, v = hf.placeholder(hf.float32, [6]), hf.Variable(np.zeros(6, np.float32))
    total = hf.foldl(lambda a, b: a + b, x)
    with hf.control_dependencies([hf.Assert(total > -99.0, [total])]):
        loop = hf.while_loop(lambda i: i < 3.0, lambda i: i + 1.0, [total])
    with hf.control_dependencies([hf.Assert(hf.reduce_sum(x) > -99.0, [loop])]):
        update = v.assign_sub(x * 1.0)
    with started() as session:
        found, squares = session.run([update, hf.reduce_sum(x * x)], {x: np.ones(6, "f4")})
        np.testing.assert_array_equal(found, -np.ones(6))
        assert squares == 6
        np.testing.assert_array_equal(session.run(v), -np.ones(6))


# -- branches and loops that are needed as operations only


def needed_by(kind, result):
    """An operation that needs `result` for nothing but that it has run."""
    if kind == "group":
        return hf.group(result)
    if kind == "op":
        return result.op
    if kind == "tuple":
        return hf.tuple([result])[0]
    with hf.control_dependencies([result]):
        return hf.no_op()


@pytest.mark.parametrize("kind", ["group", "op", "tuple", "control"])
def test_a_branch_runs_its_updates_when_only_its_end_is_needed(kind):
    w, p = hf.Variable(1.0), hf.placeholder(hf.bool, [])
    result = hf.cond(p, lambda: w.assign_add(10.0), lambda: w.assign_sub(1.0))
    one = hf.case([(p, lambda: w.assign_add(100.0))], lambda: w.read_value())
    end, end_of_case = needed_by(kind, result), needed_by(kind, one)
    with started() as session:
        session.run(end, {p: True})
        assert session.run(w) == 11
        session.run(end, {p: False})
        assert session.run(w) == 10
        session.run(end_of_case, {p: True})
        assert session.run(w) == 110


@pytest.mark.parametrize("kind", ["group", "op", "tuple", "control"])
def test_a_loop_runs_its_updates_when_only_its_end_is_needed(kind):
    w = hf.Variable(0.0)

    def body(i):
        with hf.control_dependencies([w.assign_add(1.0)]):
            return hf.identity(i + 1)

    end = needed_by(kind, hf.while_loop(lambda i: i < 5, body, [0]))
    with started() as session:
        session.run(end)
        assert session.run(w) == 5


@pytest.mark.parametrize(
    "same",
    [hf.identity, hf.stop_gradient, lambda x: hf.reshape(x, []), lambda x: x],
    ids=["identity", "stop_gradient", "reshape", "itself"],
)
def test_in_a_body_a_value_from_outside_may_be_needed_for_its_order_alone(same):
    h, w = hf.placeholder(hf.float32, []), hf.Variable(1.0)

    def branch():
        with hf.control_dependencies([same(h), hf.Assert(h > 0.0, [h])]):
            return w.assign_add(2.0)

    taken = hf.cond(h > 0.0, branch, lambda: w.read_value())
    with hf.control_dependencies([taken]):
        loop = hf.while_loop(lambda i: i < 3, lambda i: i + 1, [0])
    with started() as session:
        assert session.run([taken, loop], {h: 1.0}) == [3, 3]
        assert session.run(taken, {h: -1.0}) == 3


def test_what_follows_a_loop_variable_runs_in_each_iteration():
    w = hf.Variable(0.0)

    def body(i):
        with hf.control_dependencies([i]):
            update = w.assign_add(2.0)
        with hf.control_dependencies([update]):
            return i + 1

    with started() as session:
        assert session.run(hf.while_loop(lambda i: i < 3, body, [0])) == 3
        assert session.run(w) == 6


def test_a_branch_asks_for_no_feed_of_what_it_does_not_use():
    unused, h = hf.placeholder(hf.float32, []), hf.placeholder(hf.float32, [])

    def branch():
        unused * 2.0
        return h + 1.0

    y = hf.cond(h > 0.0, branch, lambda: h)
    assert hf.Session().run(y, {h: 1.0}) == 2


# -- what optimizers make in a body


OPTIMIZERS = {
    "sgd": lambda: hf.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: hf.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: hf.train.AdamOptimizer(0.1),
    "adagrad": lambda: hf.train.AdagradOptimizer(0.1),
    "adadelta": lambda: hf.train.AdadeltaOptimizer(0.1),
    "rmsprop": lambda: hf.train.RMSPropOptimizer(0.1),
    "ftrl": lambda: hf.train.FtrlOptimizer(0.1),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_branch_trains_as_the_same_lines_outside(make):
    def program(inside):
        with hf.Graph().as_default():
            w, step = hf.Variable([1.0, -2.0]), hf.Variable(0, trainable=False)
            h, optimizer = hf.placeholder(hf.float32, []), make()

            def train():
                loss = hf.reduce_sum(hf.square(w * h - 3.0))
                return optimizer.minimize(loss, global_step=step)

            op = hf.cond(h > 0.0, train, hf.no_op) if inside else train()
            with started() as session:
                for _ in range(3):
                    session.run(op, {h: 1.0})
                if inside:
                    session.run(op, {h: -1.0})
                return session.run([w, step])

    (w, steps), (expected, _) = program(True), program(False)
    assert steps == 3
    np.testing.assert_allclose(w, expected, rtol=1e-6)


def test_a_count_in_a_branch_or_a_loop_counts_when_that_runs():
    n, h = hf.Variable(0), hf.placeholder(hf.float32, [])
    counted = hf.cond(h > 0.0, lambda: n.count_up_to(9), lambda: hf.constant(-1))
    with started() as session:
        assert session.run(counted, {h: -1.0}) == -1 and session.run(n) == 0
        assert session.run(counted, {h: 1.0}) == 0 and session.run(n) == 1

        def body(i):
            with hf.control_dependencies([n.count_up_to(9)]):
                return hf.identity(i + 1)

        session.run(hf.while_loop(lambda i: i < 4, body, [0]))
        assert session.run(n) == 5


def test_an_update_in_front_of_a_branch_runs_though_nothing_of_the_branch_needs_its_value():
    s, x, p = hf.Variable(1.0), hf.placeholder(hf.float32, []), hf.placeholder(hf.bool, [])
    update = s.assign_add(x)
    with hf.control_dependencies([update]):
        taken, _ = hf.cond(p, lambda: [x, x * 2.0], lambda: [x, hf.identity(update)])
    with started() as session:
        assert session.run(taken, {x: 2.0, p: False}) == 2
        assert session.run(s) == 3


def test_an_update_followed_by_what_a_branch_does_not_use_does_not_run():
    w, p = hf.Variable(1.0), hf.placeholder(hf.bool, [])
    update = w.assign_add(1.0)

    def branch():
        with hf.control_dependencies([update]):
            hf.constant(5.0)
        return hf.constant(7.0)

    def uses():
        with hf.control_dependencies([update]):
            return hf.constant(8.0)

    unused = hf.cond(p, branch, lambda: hf.constant(0.0))
    used = hf.cond(p, lambda: hf.cond(p, uses, branch), lambda: hf.constant(0.0))
    with started() as session:
        assert session.run(unused, {p: True}) == 7 and session.run(w) == 1
        assert session.run(used, {p: True}) == 8 and session.run(w) == 2


def test_both_branches_read_one_variable():
    w, p = hf.Variable(0.5), hf.placeholder(hf.bool, [])
    y = hf.cond(p, lambda: hf.sin(w), lambda: 2.0 * hf.tanh(w))
    with started() as session:
        np.testing.assert_allclose(session.run(y, {p: True}), np.sin(0.5), rtol=1e-6)
        np.testing.assert_allclose(session.run(y, {p: False}), 2 * np.tanh(0.5), rtol=1e-6)


# -- a value that was read stays as it was


def test_rows_of_a_variable_that_change_it_are_those_before():
    start = np.arange(6, dtype=np.float32).reshape(3, 2)
    rules = ["add", "sub", "mul", "update", "min", "max"]
    tables = {rule: hf.Variable(start + 1.0) for rule in rules}
    changed = [getattr(hf, f"scatter_{k}")(v, [2, 0], v[1:] * 1.0) for k, v in tables.items()]
    twice = {rule: hf.Variable(start + 1.0) for rule in rules}
    views = [getattr(hf, f"scatter_{k}")(v, [2, 0], v[1:]) for k, v in twice.items()]
    with started() as session:
        for expected, found in zip(*session.run([changed, views]), strict=True):
            np.testing.assert_array_equal(found, expected)
        first = session.run(twice["add"])
    np.testing.assert_array_equal(first, [[6, 8], [3, 4], [8, 10]])


def test_a_variable_is_updated_by_its_own_elements_in_another_order():
    square, line = np.arange(9.0).reshape(3, 3), np.arange(4.0)
    v, w = hf.Variable(square), hf.Variable(line)
    found = [v.assign_add(hf.transpose(v)), w.assign_sub(hf.reverse(w, [0]))]
    with started() as session:
        for value, expected in zip(
            session.run(found), [square + square.T, line - line[::-1]], strict=True
        ):
            np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("view", [hf.identity, lambda v: hf.reshape(v, [2]), lambda v: v[0:]])
def test_a_value_read_before_a_loop_stays_while_the_loop_updates_the_variable(view):
    v = hf.Variable([1.0, 2.0])
    before = view(v)

    def body(i, total):
        with hf.control_dependencies([total]):
            update = hf.scatter_update(v, [i % 2], 9.0 + hf.cast(i, hf.float32))
        with hf.control_dependencies([update]):
            return i + 1, total + before

    with hf.control_dependencies([before]):
        loop = hf.while_loop(lambda i, _: i < 3, body, [0, hf.zeros([2])])
    with started() as session:
        np.testing.assert_array_equal(session.run(loop)[1], [3, 6])
        np.testing.assert_array_equal(session.run(v), [11, 10])


def test_gradients_taken_behind_an_update_bring_it():
    w, x = hf.Variable(0.0), hf.placeholder(hf.float32, [])
    table = hf.Variable(np.ones((3, 2), np.float32))
    with hf.control_dependencies([w.assign_add(1.0)]):
        (slope,) = hf.gradients(x * x, x)
        (rows,) = hf.gradients(hf.gather(table, [1]) * 2.0, table)
    with started() as session:
        assert session.run(slope, {x: 3.0}) == 6 and session.run(w) == 1
        assert session.run(rows.values).tolist() == [[2, 2]] and session.run(w) == 2


def test_a_branch_of_operations_goes_with_one_of_updates_but_not_with_one_of_values():
    w, p = hf.Variable(1.0), hf.placeholder(hf.bool, [])
    done = hf.cond(p, lambda: w.assign_add(1.0), hf.no_op)
    assert isinstance(done, hf.Operation)

    def value():
        with hf.control_dependencies([hf.no_op()]):
            return w.read_value()

    with pytest.raises(hf.errors.GraphError, match="different structures"):
        hf.cond(p, value, hf.no_op)
    with started() as session:
        session.run(done, {p: True})
        session.run(done, {p: False})
        assert session.run(w) == 2


# -- what no edge orders: reads come first


@pytest.mark.parametrize("inside", [False, True], ids=["step", "branch"])
def test_a_read_sees_no_update_that_it_does_not_follow_however_late_it_can_run(inside):
    w, p = hf.Variable(1.0), hf.placeholder(hf.float32, [])

    def build():
        update = w.assign_add(p)
        with hf.control_dependencies([hf.square(p * 3.0)]):
            late = w * 1.0
        with hf.control_dependencies([update]):
            behind = hf.identity(w)
        return late, behind

    found = hf.cond(p > 0.0, build, lambda: (p, p)) if inside else build()
    with started() as session:
        assert list(session.run(found, {p: 2.0})) == [1.0, 3.0]
        assert session.run([*found[::-1], w], {p: 5.0}) == [8.0, 3.0, 3.0]
        assert session.run(w) == 8.0


def test_an_update_does_not_wait_for_a_read_behind_a_queue_that_it_fills():
    v, queue = hf.Variable(1.0), hf.FIFOQueue(1, hf.float32, [[]])
    with hf.control_dependencies([queue.dequeue()]):
        read = hf.identity(v)
    with hf.control_dependencies([v.assign_add(1.0, read_value=False)]):
        fill = queue.enqueue(5.0)
    with started() as session:
        assert session.run([read, fill])[0] in (1.0, 2.0)
        assert session.run(v) == 2.0


def test_reads_that_contradict_each_other_count_in_the_order_in_which_they_were_made():
    a, b = hf.Variable(1.0), hf.Variable(10.0)
    add_a, add_b = a.assign_add(1.0, read_value=False), b.assign_add(1.0, read_value=False)
    with hf.control_dependencies([add_b]):
        read_a = hf.identity(a)
    with hf.control_dependencies([add_a]):
        read_b = hf.identity(b)
    with started() as session:
        assert session.run([read_b, read_a]) == [11.0, 1.0]


# -- of a branch or loop only what its used outputs need runs


def test_the_first_value_of_a_loop_variable_that_nobody_needs_brings_no_update():
    w, fed = hf.Variable(1.0), hf.placeholder(hf.float32, [])
    with hf.control_dependencies([w.assign_add(1.0)]):
        first = hf.constant(0.5)
    i, unused, also = hf.while_loop(
        lambda i, x, y: i < 3,
        lambda i, x, y: (i + 1, x * 2.0, y + x),
        [hf.constant(0), first, fed],
    )
    with started() as session:
        assert (session.run(i), session.run(w)) == (3, 1.0)
        assert (session.run([unused, i]), session.run(w)) == ([4.0, 3], 2.0)
        assert (session.run(also, {fed: 1.0}), session.run(w)) == (4.5, 3.0)


def test_a_result_of_a_branch_that_nobody_needs_brings_no_update():
    w, fed, flag = hf.Variable(1.0), hf.placeholder(hf.float32, []), hf.placeholder(hf.bool, [])
    with hf.control_dependencies([w.assign_add(1.0)]):
        behind = hf.constant(0.5)
    one, two = hf.cond(flag, lambda: (behind * 2.0, fed * 2.0), lambda: (behind, fed))
    inner = hf.cond(
        flag, lambda: hf.cond(flag, lambda: [one, two], lambda: [two, one]), lambda: [two, two]
    )
    with started() as session:
        assert (session.run(two, {flag: True, fed: 3.0}), session.run(w)) == (6.0, 1.0)
        assert (session.run(one, {flag: False}), session.run(w)) == (0.5, 2.0)
        assert (session.run(inner[0], {flag: True, fed: 3.0}), session.run(w)) == (1.0, 3.0)
