"""What bodies of branches and loops use from outside: gradients, constants, feeds, variables."""

from __future__ import annotations

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import FeedError, GradientError, GraphError

from .ranks import checked_passes


@pytest.fixture(autouse=True)
def every_pass_is_checked():
    with checked_passes():
        yield


def by_cond(p):
    return hf.cond(hf.constant(True), lambda: p * 3.0, lambda: p * 4.0)


def by_case(p):
    return hf.case([(hf.constant(True), lambda: p * 3.0)], lambda: p * 4.0)


def by_loop(p):
    return hf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, a * p), [0, 1.0])[1]


def by_map(p):
    return hf.reduce_sum(hf.map_fn(lambda x: x * p, hf.constant([1.0, 2.0])))


def by_fold(p):
    return hf.foldl(lambda a, x: a * p + x, hf.constant([1.0, 2.0, 3.0]))


def by_scan(p):
    return hf.reduce_sum(hf.scan(lambda a, x: a * p + x, hf.constant([1.0, 2.0, 3.0])))


CAPTURES = {  # d/dp at p = 2
    by_cond: 3.0,
    by_case: 3.0,
    by_loop: 12.0,
    by_map: 3.0,
    by_fold: 6.0,
    by_scan: 7.0,
}


@pytest.mark.parametrize("use", CAPTURES)
@pytest.mark.parametrize("kind", ["constant", "variable", "placeholder"])
def test_gradients_of_what_a_body_captures(use, kind):
    make = {
        "constant": lambda: hf.constant(2.0),
        "variable": lambda: hf.Variable(2.0),
        "placeholder": lambda: hf.placeholder_with_default(np.float32(2), []),
    }
    p = make[kind]()
    (slope,) = hf.gradients(use(p), p)
    with hf.Session() as session:
        session.run([v.initializer for v in hf.global_variables()])
        assert session.run(slope) == CAPTURES[use]


@pytest.mark.slow
def test_gradients_inside_a_body_go_through_what_it_captures():
    h = hf.placeholder(hf.float32, [])
    k = h * 2.0

    def inside(make):
        return hf.cond(h > 0.0, lambda: hf.identity(make()), lambda: -h)

    found = [
        inside(lambda: hf.gradients(k * h, h)[0]),
        inside(lambda: hf.gradients(k * k, h)[0]),
        inside(lambda: hf.gradients(k, h)[0]),
        inside(lambda: inside(lambda: hf.gradients(k * k, h)[0])),
        hf.while_loop(
            lambda i, _: i < 2, lambda i, a: (i + 1, a + hf.gradients(k * k, h)[0]), [0, 0.0]
        )[1],
    ]
    assert hf.Session().run(found, {h: 3.0}) == [12, 24, 2, 24, 48]


def test_gradients_by_a_variable_in_a_body_inside_a_body():
    v, h = hf.Variable(3.0), hf.placeholder(hf.float32, [])
    a = v.read_value() * h

    def slope():
        return hf.identity(hf.gradients(a * a + hf.square(v.read_value() - 1.0), v)[0])

    once = hf.cond(h > 0.0, slope, lambda: h)
    twice = hf.cond(h > 0.0, lambda: hf.cond(h > 1.0, slope, lambda: h), lambda: h)
    with hf.Session() as session:
        session.run(v.initializer)
        assert session.run([once, twice], {h: 2.0}) == [28, 28]  # 2 h^2 v + 2 (v - 1)


def test_gradients_of_gradients_through_loops_and_branches_are_refused():
    x = hf.placeholder(hf.float32, [])
    loop = hf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, a * a), [0, x])[1]
    branch = hf.cond(x > 0.0, lambda: hf.exp(x * x), lambda: x)
    for y in (loop, branch):
        (slope,) = hf.gradients(y, x)
        with pytest.raises(GradientError, match="not differentiated again"):
            hf.gradients(slope, x)


# -- what is fed counts, or is refused


@pytest.mark.parametrize("use", CAPTURES)
def test_a_fed_constant_is_what_bodies_use(use):
    c = hf.constant(2.0)
    y = use(c)
    with hf.Session() as session:
        values = [session.run(y, {c: value}) for value in (1.0, 5.0)]
        assert session.run(y) == session.run(y, {c: 2.0})
    p = hf.placeholder(hf.float32, [])
    y = use(p)
    assert values == [hf.Session().run(y, {p: value}) for value in (1.0, 5.0)]


SIZES = {
    "axis": lambda c, a: hf.reduce_sum(a, c),
    "concat": lambda c, a: hf.concat([a, a], c),
    "one_hot": lambda c, a: hf.one_hot([0, 1], c + 2),
    "top_k": lambda c, a: hf.nn.top_k(a, c + 1)[0],
    "expand_dims": lambda c, a: hf.expand_dims(a, c),
    "argmax": lambda c, a: hf.argmax(a, c),
    "fill": lambda c, a: hf.fill([c + 1, 2], 1.0),
    "tile": lambda c, a: hf.tile(a, [c + 1, 1]),
    "slice": lambda c, a: hf.slice(a, [c, 0], [1, 2]),
    "range": lambda c, a: hf.range(c + 1),
}


@pytest.mark.parametrize("use", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("inside", [False, True])
def test_a_constant_that_says_a_size_or_an_axis_counts_when_fed_or_is_refused(use, inside):
    a = np.arange(8.0, dtype=np.float32).reshape(4, 2)

    def program(zero):
        if inside:
            return hf.cond(
                hf.constant(True),
                lambda: use(zero, hf.constant(a)),
                lambda: use(zero, hf.constant(a)),
            )
        return use(zero, hf.constant(a))

    c = hf.constant(0)
    y = program(c)
    with hf.Graph().as_default():
        expected = hf.Session().run(program(hf.constant(1)))
    try:
        found = hf.Session().run(y, {c: 1})
    except (FeedError, hf.errors.ShapeError) as error:
        assert c.op.name in str(error) or "agree" in str(error) or "fed" in str(error)
    else:
        np.testing.assert_array_equal(found, expected)


def test_a_constant_behind_an_update_brings_the_update_into_a_body():
    w, h = hf.Variable(1.0), hf.placeholder(hf.float32, [])
    with hf.control_dependencies([w.assign(7.0)]):
        c = hf.constant(9.0)
    y = hf.cond(h > 0.0, lambda: c * 1.0, lambda: h)
    with hf.Session() as session:
        session.run(w.initializer)
        assert session.run(y, {h: 1.0}) == 9
        assert session.run(w) == 7


def test_a_fed_variable_is_what_all_its_reads_give():
    v = hf.Variable(1.0)
    y = v * 2.0 + hf.identity(v)
    inside = hf.cond(hf.constant(True), lambda: v * 2.0, lambda: v * 3.0)
    with hf.Session() as session:
        session.run(v.initializer)
        assert session.run(y, {v: 5.0}) == 15
        with pytest.raises(FeedError, match="uses it in a body"):
            session.run(inside, {v: 5.0})


def test_an_operation_of_another_body_cannot_be_followed():
    kept: list = []

    def branch():
        kept.append(hf.no_op())
        return hf.constant(1.0)

    hf.cond(hf.constant(True), branch, lambda: hf.constant(2.0))
    with pytest.raises(GraphError, match="inside a loop or a branch"):
        with hf.control_dependencies(kept):
            hf.no_op()


def test_gradients_in_a_body_through_loops_and_branches_outside():
    x = hf.placeholder(hf.float32, [])
    loop = hf.foldr(lambda a, e: a * e * x, hf.constant([1.0, 2.0, 3.0]), hf.constant(1.0))
    branch = hf.cond(x > 0.0, lambda: hf.exp(x * x), lambda: x)

    def repeated(make):  # what a loop has kept serves each iteration
        return hf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, a + make()), [0, 0.0])[1]

    found = [
        repeated(lambda: hf.gradients(loop * loop, x)[0]),
        repeated(lambda: hf.gradients(branch, x)[0]),
        hf.cond(x > 0.0, lambda: hf.identity(hf.gradients(loop, x)[0]), lambda: x),
    ]
    # loop is 6 x^3
    expected = [3 * 36 * 6 * 2.0**5, 3 * 4 * np.exp(4.0), 18 * 2.0**2]
    np.testing.assert_allclose(hf.Session().run(found, {x: 2.0}), expected, rtol=1e-6)
