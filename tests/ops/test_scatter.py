"""Rows of variables: updates against one-by-one loops, reads, their errors and their shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import DTypeError, NumericError, RangeError, ShapeError
from hpcflow.kernels.kernel_registry import KernelNode, find_plain_kernel
from hpcflow.ops.variables.sparse_row_update_kernels import levels
from tests.ops.evaluate import evaluate

from .test_table import OtherModule

RULES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "Update": lambda old, new: new,
    "Add": lambda old, new: old + new,
    "Sub": lambda old, new: old - new,
    "Mul": lambda old, new: old * new,
    "Div": lambda old, new: old / new,
    "Min": np.minimum,
    "Max": np.maximum,
}


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def one_by_one(rule: str, var: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
    """Each index in turn."""
    var = var.copy()
    for place in np.ndindex(indices.shape):
        i = indices[place]
        var[i] = RULES[rule](var[i], updates[place] if updates.shape else updates)
    return var


PAIRS = [
    (r, d) for d in ("float32", "float64", "int32") for r in RULES if (r, d[:3]) != ("Div", "int")
]


@pytest.mark.parametrize("rule, dtype", PAIRS)
@pytest.mark.parametrize("xp", [np, OtherModule()], ids=["numpy", "other"])
def test_each_index_in_turn(rule: str, dtype: str, xp: object) -> None:
    rng = np.random.default_rng(2)
    for shape, at in [((7, 3), (11,)), ((7,), (2, 3)), ((5, 2, 2), (0,)), ((9, 4), (300,))]:
        attrs = {"dtype": np.dtype(dtype), "shape": shape}
        run = find_plain_kernel(f"Scatter{rule}", "cpu").make(xp, KernelNode(rule, attrs, [], []))
        indices = rng.integers(0, shape[0], at)
        updates = (rng.random((*at, *shape[1:])) + 0.5).astype(dtype)
        for given in (updates, np.asarray(1.25).astype(dtype)):
            var = (rng.random(shape) * 3).astype(dtype)
            expected = one_by_one(rule, var, indices, given)
            run(var, indices, given)
            if xp is np and rule in ("Add", "Sub", "Update", "Min", "Max"):
                np.testing.assert_array_equal(var, expected)  # in the same order, to the bit
            else:
                np.testing.assert_allclose(var, expected, rtol=1e-5)


def test_levels_hold_each_index_once_and_all_in_their_order() -> None:
    indices = np.array([3, 1, 3, 3, 0, 1])
    found = [sorted(some.tolist()) for some in levels(np, indices)]
    assert found == [[0, 1, 4], [2, 5], [3]]


@pytest.mark.parametrize("rule", ["Update", "Add", "Sub"])
def test_scatter_nd(rule: str) -> None:
    rng = np.random.default_rng(3)
    for depth in (1, 2, 3):
        shape = (4, 3, 2)
        indices = np.stack([rng.integers(0, shape[a], (2, 5)) for a in range(depth)], -1)
        updates = rng.standard_normal((2, 5, *shape[depth:]))
        v = hf.Variable(rng.standard_normal(shape), name=f"v{depth}")
        change = getattr(hf, f"scatter_nd_{rule.lower()}")(v, indices, updates)
        state: dict[str, np.ndarray] = {}
        evaluate(v.initializer, state=state)
        expected = state[v.name].copy()
        for place in np.ndindex(2, 5):
            at = tuple(indices[place])
            expected[at] = RULES[rule](expected[at], updates[place])
        evaluate(change, state=state)
        np.testing.assert_allclose(state[v.name], expected, rtol=1e-12)


def test_functions_and_methods_in_a_session() -> None:
    v = hf.Variable(np.ones((4, 2), np.float32), name="v")
    rows = hf.IndexedSlices(np.full((2, 2), 3, np.float32), [1, 1])
    with hf.Session() as session:
        session.run(v.initializer)
        for change, at1 in [
            *[(hf.scatter_add(v, [1, 1], np.float32(2)), 5), (v.scatter_sub(rows), -1)],
            *[(v.scatter_mul(rows), -9), (v.scatter_div(rows), -1), (v.scatter_max(rows), 3)],
            *[(hf.scatter_min(v, [1], [[2.0, 2.0]]), 2), (v.scatter_update(rows), 3)],
            *[(hf.scatter_update(v, 1, [7.0, 7.0]), 7), (v.scatter_add(rows), 13)],
            (v.scatter_nd_update([[1, 0], [1, 1]], [4.0, 4.0]), 4),
        ]:
            session.run(change)
            np.testing.assert_array_equal(session.run(v), [[1, 1], [at1, at1], [1, 1], [1, 1]])


def test_a_step_whose_number_of_rows_changes() -> None:
    v = hf.Variable(np.zeros((6, 2)), name="v")
    ids = hf.placeholder(hf.int64, [None], name="ids")
    read = v.sparse_read(ids)
    assert read.shape == (None, 2)
    with hf.control_dependencies([read]):
        add = hf.scatter_add(v, ids, hf.ones([1], hf.float64)[0])
    with hf.Session() as session:
        session.run(v.initializer)
        expected = np.zeros((6, 2))
        for n in (0, 1, 5, 2, 12, 3, 7, 8, 9, 10, 11):
            at = np.arange(n) % 6
            got, _ = session.run([read, add], {ids: at})
            np.testing.assert_array_equal(got, expected[at])
            np.add.at(expected, at, 1)
        np.testing.assert_array_equal(session.run(v), expected)


def test_an_index_out_of_range_names_it_the_op_and_the_line() -> None:
    v = hf.Variable(np.zeros((4, 2)), name="v")
    ids = hf.placeholder(hf.int32, [None], name="ids")
    makers = [
        lambda: v.sparse_read(ids),
        lambda: hf.gather(v, ids),
        lambda: hf.scatter_add(v, ids, np.float64(1)),
        lambda: hf.scatter_nd_update(v, hf.expand_dims(ids, 1), np.float64(1)),
        lambda: hf.IndexedSlices(hf.zeros([2, 2]), ids, [4, 2]).dense(),
    ]
    with hf.Session() as session:
        session.run(v.initializer)
        for make in makers:
            op = make()
            for wrong in (-1, 4):
                with pytest.raises(RangeError, match=f"{wrong} is outside") as caught:
                    session.run(op, {ids: np.array([1, wrong], np.int32)})
                assert caught.value.op and "test_scatter.py" in str(caught.value.line)
        np.testing.assert_array_equal(session.run(v), np.zeros((4, 2)))


def test_what_does_not_fit_is_told_when_the_graph_is_built() -> None:
    v, scalar = hf.Variable(np.zeros((4, 2)), name="v"), hf.Variable(0.0, name="scalar")
    with pytest.raises(ShapeError, match="need"):
        hf.scatter_add(v, [0, 1], np.zeros((3, 2)))
    with pytest.raises(ShapeError, match="no rows"):
        hf.scatter_add(scalar, [0], 1.0)
    with pytest.raises(ShapeError, match="no rows"):
        scalar.sparse_read([0])
    with pytest.raises(DTypeError, match="integers"):
        hf.scatter_add(v, [0.5], np.zeros((1, 2)))
    with pytest.raises(DTypeError, match="float64"):
        hf.scatter_add(v, [0], hf.zeros([1, 2]))
    with pytest.raises(ShapeError, match="index vectors of length 3"):
        hf.scatter_nd_add(v, [[0, 0, 0]], np.zeros(1))
    with pytest.raises(ShapeError, match="IndexedSlices"):
        v.scatter_add(hf.zeros([1, 2]))  # type: ignore[arg-type]
    ids = hf.placeholder(hf.int32, [None])
    add = hf.scatter_add(v, ids, hf.zeros([3, 2], hf.float64))
    with hf.Session() as session:
        session.run(v.initializer)
        with pytest.raises(ShapeError, match="the indices need"):
            session.run(add, {ids: np.zeros(2, np.int32)})


KEYS = [np.s_[1:2], np.s_[-1], np.s_[1, 2], np.s_[..., ::-2], np.s_[None, :2], np.s_[:, :0]]
KEYS += [np.s_[::-1, 1:3], np.s_[...], np.s_[1, ..., None]]


@pytest.mark.parametrize("key", KEYS)
def test_a_part_of_a_variable_is_assigned(key: object) -> None:
    start = np.arange(24.0).reshape(3, 4, 2)
    new = -1.0 - np.arange(start[key].size).reshape(start[key].shape)  # type: ignore[index]
    for value in (new, 5.0, hf.placeholder_with_default(new, None)):
        x, expected = hf.Variable(start), start.copy()
        expected[key] = new if isinstance(value, hf.Tensor) else value  # type: ignore[index]
        with hf.Session() as session:
            session.run(x.initializer)
            np.testing.assert_array_equal(session.run(x[key].assign(value)), expected)
            np.testing.assert_array_equal(session.run(x), expected)


def test_a_part_that_only_the_step_names_is_assigned() -> None:
    i, x = hf.placeholder("int32", []), hf.Variable(np.arange(6.0))
    with hf.Session() as session:
        session.run(x.initializer)
        got = session.run(x[i : i + 2].assign([7, 8]), {i: 3})
        np.testing.assert_array_equal(got, [0, 1, 2, 7, 8, 5])
        with pytest.raises(ShapeError, match="broadcast"):
            session.run(x[:2].assign([1, 2, 3]))
    assert not hasattr(x.read_value()[1:], "assign")  # a tensor has no state


def test_rows_given_as_a_list_take_the_dtype_of_the_variable() -> None:
    x = hf.Variable(np.arange(4.0))  # float64, while a list of floats alone is float32
    done = x.scatter_add(hf.IndexedSlices([0.1, 0.2], [1, 3]))
    with hf.Session() as session:
        session.run(x.initializer)
        np.testing.assert_array_equal(session.run(done), [0, 1.1, 2, 3.2])


def test_integers_are_divided_in_place_and_cut_towards_zero() -> None:
    x = hf.Variable([7, -7, 8])
    divisor = hf.placeholder("int32", [4])
    done = hf.scatter_div(x, [0, 1, 2, 0], divisor)
    with hf.Session() as session:
        session.run(x.initializer)
        assert session.run(done, {divisor: [2, 2, -3, 2]}).tolist() == [1, -3, -2]
        with pytest.raises(NumericError, match="divided by zero"):
            session.run(done, {divisor: [1, 0, 1, 1]})
