"""Lookups in tables of one or several shards against plain indexing, their gradients, bad ids."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import DTypeError, RangeError, ShapeError
from tests.runtime.ranks import run_ranks

TABLE = np.random.default_rng(0).standard_normal((11, 3))


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def shards(count: int, strategy: str) -> list[np.ndarray]:
    """The table in shards, by the definition of the strategy."""
    if strategy == "mod":
        return [TABLE[i::count] for i in range(count)]
    return np.array_split(TABLE, count)


def variables(count: int, strategy: str) -> list[hf.Variable]:
    return [hf.Variable(s, name=f"s{i}") for i, s in enumerate(shards(count, strategy))]


def whole(pieces: list[np.ndarray], strategy: str) -> np.ndarray:
    if strategy == "div":
        return np.concatenate(pieces)
    out = np.zeros_like(TABLE)
    for i, piece in enumerate(pieces):
        out[i :: len(pieces)] = piece
    return out


IDS = [np.array([0, 10, 3, 3, 7]), np.array([[4], [9]]), np.zeros(0, np.int64), np.array(6)]


@pytest.mark.parametrize("strategy", ["mod", "div"])
@pytest.mark.parametrize(
    "count", [1, 4, *(pytest.param(n, marks=pytest.mark.slow(first=False)) for n in (2, 3, 11))]
)
@pytest.mark.parametrize("as_variables", [True, False])
def test_rows_and_their_gradient(count: int, strategy: str, as_variables: bool) -> None:
    params = variables(count, strategy)
    tables = params if as_variables else [p.value() for p in params]
    ids = hf.placeholder(hf.int64, None, name="ids")
    rows = hf.nn.embedding_lookup(tables, ids, strategy)
    known = [hf.placeholder(hf.int32, i.shape) for i in IDS]
    exact = [hf.nn.embedding_lookup(tables, k, strategy) for k in known]
    fixed = hf.placeholder(hf.int64, [None])
    found = hf.nn.embedding_lookup(tables, fixed, strategy)
    grads = hf.gradients(hf.reduce_sum(found * found), params)
    assert all(isinstance(g, hf.IndexedSlices) for g in grads)
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        for i, k, e in zip(IDS, known, exact, strict=True):
            np.testing.assert_array_equal(session.run(rows, {ids: i}), TABLE[i])
            assert e.shape == (*i.shape, 3)
            np.testing.assert_array_equal(session.run(e, {k: i.astype(np.int32)}), TABLE[i])
        for i in (IDS[0], IDS[2]):
            pieces = session.run([g.dense() for g in grads], {fixed: i})
            expected = np.zeros_like(TABLE)
            np.add.at(expected, i, 2 * TABLE[i])
            np.testing.assert_allclose(whole(pieces, strategy), expected)


@pytest.mark.parametrize("strategy", ["mod", "div"])
@pytest.mark.parametrize("count", [1, 2, 3, 11])
def test_an_id_outside_the_table_is_an_error(count: int, strategy: str) -> None:
    ids = hf.placeholder(hf.int64, [None])
    rows = hf.nn.embedding_lookup(variables(count, strategy), ids, strategy)
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        for wrong in (-1, 11, 12, 1000, -12):
            with pytest.raises(RangeError, match="is outside") as caught:
                session.run(rows, {ids: [0, wrong]})
            assert "test_embedding.py" in str(caught.value.line)


def test_norms_are_bounded() -> None:
    for count in (1, 3):
        table = [hf.Variable(s) for s in shards(count, "mod")]
        ids = np.arange(11).reshape(11, 1)
        rows = hf.nn.embedding_lookup(table, ids, max_norm=1.0)
        with hf.Session() as session:
            session.run(hf.global_variables_initializer())
            norms = np.linalg.norm(TABLE, axis=1, keepdims=True)
            expected = TABLE / np.maximum(norms, 1)
            np.testing.assert_allclose(session.run(rows)[:, 0], expected)


def test_partitioned_variables() -> None:
    with hf.variable_scope("t", partitioner=hf.fixed_size_partitioner(3)):
        table = hf.get_variable("table", initializer=TABLE)
    rows = hf.nn.embedding_lookup(table, [10, 4, 0], "div")
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(rows), TABLE[[10, 4, 0]])


PLACES = np.array([[0, 0], [0, 2], [2, 1], [2, 2], [2, 3]])  # row 1 and row 3 of 4 have no ids
CHOSEN = np.array([7, 1, 1, 10, 1])
WEIGHTS = np.array([1.0, 2.0, 0.5, -1.5, 3.0])


def combined(weights: np.ndarray, combiner: str) -> np.ndarray:
    out = np.zeros((4, 3))
    for row in range(4):
        mine = PLACES[:, 0] == row
        w = weights[mine]
        below = {"sum": 1, "mean": w.sum(), "sqrtn": np.sqrt((w**2).sum())}[combiner]
        out[row] = (w[:, None] * TABLE[CHOSEN[mine]]).sum(0) / (below if mine.any() else 1)
    return out


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_sums_of_rows(combiner: str, weighted: bool, count: int) -> None:
    params = variables(count, "mod")
    ids = hf.SparseTensor(PLACES, CHOSEN, [4, 4])
    weights = hf.SparseTensor(PLACES, WEIGHTS, [4, 4]) if weighted else None
    found = hf.nn.embedding_lookup_sparse(params, ids, weights, combiner=combiner)
    w = WEIGHTS if weighted else np.ones(5)
    g = np.random.default_rng(1).standard_normal((4, 3))
    grads = hf.gradients(found, params, g)
    assert all(isinstance(x, hf.IndexedSlices) for x in grads)
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        value, *pieces = session.run([found, *(x.dense() for x in grads)])
    np.testing.assert_allclose(value, combined(w, combiner))
    slope = np.zeros_like(TABLE)
    for (row, _), chosen, each in zip(PLACES, CHOSEN, w, strict=True):
        mine = w[PLACES[:, 0] == row]
        below = {"sum": 1, "mean": mine.sum(), "sqrtn": np.sqrt((mine**2).sum())}[combiner]
        slope[chosen] += g[row] * each / below
    np.testing.assert_allclose(whole(pieces, "mod"), slope)


def test_what_a_lookup_does_not_take() -> None:
    table = hf.Variable(TABLE, name="table")
    with pytest.raises(ShapeError, match="'hash'"):
        hf.nn.embedding_lookup(table, [0], "hash")
    with pytest.raises(DTypeError, match="integers"):
        hf.nn.embedding_lookup(table, [0.5])
    with pytest.raises(ShapeError, match="at least one table"):
        hf.nn.embedding_lookup([], [0])
    with pytest.raises(ShapeError, match="rows of shapes"):
        hf.nn.embedding_lookup([table, hf.Variable(np.zeros((3, 2)))], [0])
    ids = hf.SparseTensor(PLACES, CHOSEN, [4, 4])
    with pytest.raises(ShapeError, match="'max'"):
        hf.nn.embedding_lookup_sparse(table, ids, None, combiner="max")
    with pytest.raises(DTypeError, match="SparseTensors"):
        hf.nn.embedding_lookup_sparse(table, [0, 1], None)  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", ["mod", "div"])
def test_shards_on_several_servers_move_only_rows(strategy: str) -> None:
    def body(context: object) -> tuple:
        params = []
        for i, start in enumerate(shards(3, strategy)):
            with hf.device(f"/job:ps/task:{i}"):
                params.append(hf.Variable(start, name=f"s{i}"))
        ids = hf.placeholder(hf.int64, [None])
        rows = hf.nn.embedding_lookup(params, ids, strategy)
        train = hf.train.AdagradOptimizer(0.1).minimize(hf.reduce_sum(rows * rows))
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        for at in (IDS[0], IDS[0][:2], IDS[2]):
            session.run(train, {ids: at})
        plan = session.plan(train, {ids: IDS[0]})
        return session.run(params), [e.spec.shape for e in plan.edges if not e.token]

    ((found, moved),) = run_ranks(4, body, ps=3)
    accum, table = np.full_like(TABLE, 0.1), TABLE.copy()
    for at in (IDS[0], IDS[0][:2]):
        g = np.zeros_like(TABLE)
        np.add.at(g, at, 2 * table[at])
        accum += g * g
        table -= 0.1 * g / np.sqrt(accum)
    np.testing.assert_allclose(whole(found, strategy), table, rtol=1e-7)
    assert set(moved) <= {(None,), (None, 3), ()}
