"""Each optimizer against its paper's formula: whole variables, some rows, on servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import DTypeError, GradientError
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from tests.runtime.ranks import run_ranks

from .formulas import FORMULAS

SHAPE = (9, 2)
WHOLE = ("lars", "lamb", "adam")  # that need or move all rows
BY_ROWS = [name for name in FORMULAS if name not in WHOLE]


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with use_context(RankContext(Settings())), hf.Graph().as_default() as graph:
        yield graph


def start(dtype: str = "float64") -> np.ndarray:
    return np.random.default_rng(1).standard_normal(SHAPE).astype(dtype)


def dense(steps: int) -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    return [rng.standard_normal(SHAPE) * (t > 0) for t in range(steps)]  # the first is zero


def rows(steps: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Indices, with equal ones and none at all, and values."""
    rng = np.random.default_rng(3)
    counts = [4, 1, 12, 0, 5, 4, 4][:steps]
    return [(rng.integers(0, SHAPE[0], n), rng.standard_normal((n, SHAPE[1]))) for n in counts]


def built(name: str, dtype: str, sparse: bool) -> tuple[Any, ...]:
    """(variable, its update, what is fed)"""
    v = hf.Variable(start(dtype), name="v")
    values = hf.placeholder(dtype, [None, SHAPE[1]] if sparse else SHAPE, name="values")
    at = hf.placeholder(hf.int64, [None], name="at")
    grad: Any = hf.IndexedSlices(values, at, SHAPE) if sparse else values
    step = hf.train.get_or_create_global_step() if name == "adagrad da" else None
    train = FORMULAS[name][0]().apply_gradients([(grad, v)], step)
    return v, train, values, at


def trained(name: str, dtype: str = "float64", sparse: bool = False, steps: int = 6) -> np.ndarray:
    v, train, values, at = built(name, dtype, sparse)
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        if sparse:
            for indices, g in rows(steps):
                session.run(train, {at: indices, values: g.astype(dtype)})
        else:
            for g in dense(steps):
                session.run(train, {values: g.astype(dtype)})
        return session.run(v)


def by_rows(name: str, steps: int = 6) -> np.ndarray:
    """Each row by the formula, where the gradient has it; `t` counts all updates."""
    w = start()
    each = [FORMULAS[name][1]() for _ in w]
    for t, (indices, values) in enumerate(rows(steps), 1):
        for row in sorted(set(indices.tolist())):
            w[row] = each[row](t, w[row], values[indices == row].sum(0))
    return w


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_whole_variables(name: str, dtype: str) -> None:
    w, step = start(), FORMULAS[name][1]()
    for t, g in enumerate(dense(6), 1):
        w = step(t, w, g)
    tolerance = 1e-5 if dtype == "float32" else 3e-7  # decays are given in float32's digits
    found = trained(name, dtype)
    np.testing.assert_allclose(found, w, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", BY_ROWS)
def test_rows_and_only_rows(name: str) -> None:
    expected = by_rows(name)
    found = trained(name, sparse=True)
    np.testing.assert_allclose(found, expected, rtol=3e-7, atol=3e-7)
    never = set(range(SHAPE[0])) - {int(i) for at, _ in rows(6) for i in at}
    assert all((found[i] == start()[i]).all() for i in never)


@pytest.mark.parametrize("name", WHOLE)
def test_rows_of_what_needs_all_of_a_variable_are_made_dense(name: str) -> None:
    w, step = start(), FORMULAS[name][1]()
    for t, (indices, values) in enumerate(rows(6), 1):
        g = np.zeros(SHAPE)
        np.add.at(g, indices, values)
        w = step(t, w, g)
    np.testing.assert_allclose(trained(name, sparse=True), w, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["descent", "momentum", "nesterov", "adam"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_one_operation_does_what_the_formula_says(
    name: str, dtype: str, graph: hf.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused = trained(name, dtype)
    assert any(op.type.startswith("Apply") for op in graph.get_operations())
    monkeypatch.setattr(type(FORMULAS[name][0]()), "_fused", lambda self, grad, var: None)
    with hf.Graph().as_default() as other:
        plain = trained(name, dtype)
        assert not any(op.type.startswith("Apply") for op in other.get_operations())
    np.testing.assert_allclose(fused, plain, rtol=2e-6 if dtype == "float32" else 1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BY_ROWS, "adam"])
@pytest.mark.parametrize("settings", [{}, {"shard_bytes": 64}], ids=["whole", "cut"])
def test_variables_on_servers(name: str, settings: dict) -> None:
    for sparse in (False, True):
        (found,) = run_ranks(3, lambda context, s=sparse: trained(name, sparse=s), ps=2, **settings)
        with hf.Graph().as_default():
            alone = trained(name, sparse=sparse)
        if sparse and name == "descent":  # equal rows are added up before they are sent
            np.testing.assert_allclose(found, alone, rtol=3e-7, atol=3e-7)
        else:
            np.testing.assert_array_equal(found, alone)


def test_a_table_trained_by_rows_moves_only_rows() -> None:
    def body(context: RankContext) -> list:
        _, train, values, at = built("lazy adam", "float64", True)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        (indices, g), *_ = rows(1)
        plan = session.plan(train, {at: indices, values: g})
        return [edge.spec.shape for edge in plan.edges if not edge.token]

    ((whole),) = run_ranks(2, body, ps=1)
    assert sorted(whole, key=len) == [(None,), (None, 2)]  # as many as differ


@pytest.mark.parametrize("settings", [{}, {"shard_bytes": 64}], ids=["whole", "cut"])
def test_adam_sends_rows_to_a_table_of_which_all_rows_move(settings: dict) -> None:
    def body(context: RankContext) -> list:
        _, train, values, at = built("adam", "float64", True)
        (indices, g), *_ = rows(1)
        plan = hf.Session().plan(train, {at: indices, values: g})
        return [edge.spec.shape for edge in plan.edges if not edge.token]

    (sent,) = run_ranks(3, body, ps=2, **settings)
    assert SHAPE not in sent and all(shape is None or None in shape for shape in sent if shape)


def adam_of_rows(kind: Any) -> np.ndarray:
    """A table after three steps in which different rows have gradients."""
    v = hf.Variable(np.arange(8, dtype="f4").reshape(4, 2) / 8)
    ids = hf.placeholder(hf.int32, [None])
    train = kind(0.1).minimize(hf.reduce_sum(hf.square(hf.gather(v, ids)) * [1.0, 2.0]))
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        for named in ([0, 2, 2], [1], [1, 3]):
            session.run(train, {ids: named})
        return session.run(v)


def test_adam_moves_all_rows_by_their_averages() -> None:
    """The numbers are those of TensorFlow's AdamOptimizer."""
    expected = [[0, -0.0938008], [0.0917950, 0.2157470], [0.2811991, 0.4061990]]
    expected.append([0.6861191, 0.8111191])
    np.testing.assert_allclose(adam_of_rows(hf.train.AdamOptimizer), expected, atol=2e-6)


def test_lazy_adam_leaves_rows_without_a_gradient() -> None:
    """The first and third row have one gradient, and move once, by the rate."""
    found = adam_of_rows(hf.train.LazyAdamOptimizer)
    np.testing.assert_allclose(found[[0, 2]], [[0, 0.025], [0.4, 0.525]], atol=2e-6)


def test_adam_tells_once_of_a_large_table(caplog: pytest.LogCaptureFixture) -> None:
    def told(table: hf.Variable, kind: Any) -> list[str]:
        loss = hf.reduce_sum(hf.gather(table, [1]))
        caplog.clear()
        with caplog.at_level("INFO", "hpcflow"):
            kind().minimize(loss, var_list=[table])
        return [record.getMessage() for record in caplog.records if "Adam" in record.getMessage()]

    large, other, small = (
        hf.Variable(lambda n=n: hf.zeros([n, 64]), name=f"told_{n}") for n in (1 << 15, 1 << 16, 99)
    )
    (line,) = told(large, hf.train.AdamOptimizer)
    assert "LazyAdamOptimizer" in line and "told_32768" in line
    assert told(large, hf.train.AdamOptimizer) == []
    assert told(other, hf.train.LazyAdamOptimizer) == told(small, hf.train.AdamOptimizer) == []


def test_what_an_optimizer_does_not_take() -> None:
    with pytest.raises(DTypeError, match="initial_accumulator_value"):
        hf.train.AdagradOptimizer(0.1, 0.0)
    with pytest.raises(DTypeError, match="learning_rate_power"):
        hf.train.FtrlOptimizer(0.1, 0.5)
    v = hf.Variable(start(), name="v")
    with pytest.raises(GradientError, match="depends on none"):
        hf.train.AdagradOptimizer(0.1).apply_gradients([(None, v)])


def test_slots_have_names_and_start_values() -> None:
    v = hf.Variable(start(), name="v")
    optimizer = hf.train.RMSPropOptimizer(0.1, centered=True)
    optimizer.apply_gradients([(hf.ones(SHAPE, hf.float64), v)])
    assert optimizer.get_slot_names() == ["mg", "momentum", "rms"]
    rms = optimizer.get_slot(v, "rms")
    assert rms is not None and rms.name == "v/RMSProp"
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(rms), np.ones(SHAPE))


def test_a_users_own_formula() -> None:
    class Signs(hf.train.FormulaOptimizer):
        """`var -= rate * sign(gradient)`"""

        def _formula(self, c: Any, g: Any) -> None:
            c.subtract(c.number("rate") * hf.sign(g))

    table = hf.Variable(np.zeros((4, 1)), name="table")
    loss = hf.reduce_sum(hf.gather(table, [1, 3, 3]))
    train = Signs("Signs", rate=0.5).minimize(loss)
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        session.run(train)
        np.testing.assert_array_equal(session.run(table)[:, 0], [0, -0.5, 0, -0.5])


def test_gradients_are_clipped_by_their_joint_norm_and_stay_rows() -> None:
    table = hf.Variable(np.ones((4, 2)), name="table")
    w = hf.Variable(np.ones(3), name="w")
    loss = 3.0 * hf.reduce_sum(hf.gather(table, [1, 1, 2])) + hf.reduce_sum(w * w)
    optimizer = hf.train.GradientDescentOptimizer(1.0)
    grads, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    clipped, norm = hf.clip_by_global_norm(grads, 1.0)
    assert isinstance(clipped[0], hf.IndexedSlices)
    one = hf.clip_by_norm(grads[0], 2.0)
    train = optimizer.apply_gradients(zip(clipped, variables, strict=True))
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        whole = np.sqrt(2 * 36 + 2 * 9 + 3 * 4)
        np.testing.assert_allclose(session.run(norm), whole)
        rows = session.run(one)
        np.testing.assert_allclose(np.linalg.norm(rows.values), 2.0)
        session.run(train)
        after, weights = session.run([table, w])
        np.testing.assert_allclose(after[:, 0], 1 - np.array([0, 6, 3, 0]) / whole)
        np.testing.assert_allclose(weights, 1 - 2 / whole)
