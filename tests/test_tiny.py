"""A tour of hpcflow in a few seconds: each test shows one thing a user does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hpcflow as hf
from tests.runtime.ranks import run_ranks

RNG = np.random.default_rng(0)
POINTS = RNG.uniform(-1, 1, (120, 2)).astype(np.float32)
INSIDE = (np.linalg.norm(POINTS, axis=1) < 0.7).astype(np.int32)  # of a circle


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as graph:
        yield graph


def test_a_graph_is_built_first_and_computes_nothing() -> None:
    x = hf.placeholder(hf.float32, [None, 3], name="x")
    y = hf.reduce_sum(x * 2 + 1, axis=1)
    assert y.shape == (None,) and y.dtype == hf.float32
    assert "Mul" in [op.type for op in y.graph.get_operations()]


def test_mistakes_are_told_where_they_are_made() -> None:
    x = hf.placeholder(hf.float32, [None, 3])
    with pytest.raises(hf.errors.ShapeError, match="inner sizes 3 and 4 differ") as caught:
        hf.matmul(x, hf.zeros([4, 2]))
    assert "test_tiny.py" in str(caught.value)
    with pytest.raises(hf.errors.DTypeError):
        x + hf.constant(1, hf.int32)
    with pytest.raises(hf.errors.FeedError, match="takes"), hf.Session() as session:
        session.run(x, {x: np.zeros((5, 4), np.float32)})


def test_a_session_runs_any_part_of_it() -> None:
    a, b = hf.constant(3.0), hf.constant(4.0)
    c = hf.sqrt(a * a + b * b)
    with hf.Session() as session:
        assert session.run(c) == 5
        assert session.run({"c": c, "sides": [a, b]}) == {"c": 5, "sides": [3, 4]}
        assert session.run(c, {a: 0.0}) == 4  # any tensor can be fed


def test_variables_keep_state_between_steps() -> None:
    count = hf.Variable(0, trainable=False, name="count")
    with hf.control_dependencies([count.assign_add(1)]):
        after = count.read_value()
    with hf.Session() as session:
        with pytest.raises(hf.errors.UninitializedError, match="count"):
            session.run(count)
        session.run(hf.global_variables_initializer())
        assert [int(session.run(after)) for _ in range(3)] == [1, 2, 3]
        assert session.run([count, count.assign(7)]) == [3, 7] and session.run(count) == 7


def test_gradients_are_more_graph() -> None:
    x = hf.placeholder(hf.float64, [])
    (dy,) = hf.gradients(x**3 + hf.sin(x), x)
    (ddy,) = hf.gradients(dy, x)
    with hf.Session() as session:
        first, second = session.run([dy, ddy], {x: 2.0})
    np.testing.assert_allclose([first, second], [12 + np.cos(2), 12 - np.sin(2)])


def test_scopes_name_and_place_operations() -> None:
    with hf.name_scope("layer"), hf.device("/cpu:0"):
        w = hf.zeros([2], name="w")
    assert (w.name, w.device) == ("layer/w:0", "/cpu:0")
    assert hf.get_default_graph().get_tensor_by_name("layer/w:0") is w


def circle() -> tuple[hf.Tensor, hf.Tensor, hf.Tensor, hf.Tensor]:
    """A network that learns which points are inside: points, labels, loss, accuracy."""
    points = hf.placeholder(hf.float32, [None, 2], name="points")
    labels = hf.placeholder(hf.int32, [None], name="labels")
    w1 = hf.Variable(hf.glorot_uniform([2, 16], seed=1), name="w1")
    w2 = hf.Variable(hf.glorot_uniform([16, 2], seed=2), name="w2")
    hidden = hf.nn.relu(hf.matmul(points, w1) + hf.Variable(hf.zeros([16]), name="b1"))
    logits = hf.matmul(hidden, w2) + hf.Variable(hf.zeros([2]), name="b2")
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    accuracy = hf.reduce_mean(hf.cast(hf.nn.in_top_k(logits, labels, 1), hf.float32))
    return points, labels, hf.reduce_mean(losses), accuracy


def train(epochs: int = 60) -> float | None:
    """The script that every rank runs; it mentions neither mode nor ranks."""
    points, labels, loss, accuracy = circle()
    step = hf.train.AdamOptimizer(0.03).minimize(loss)
    data = hf.data.Dataset({points: POINTS, labels: INSIDE}, batch=30, seed=1)
    with hf.train.TrainingSession() as session, hf.train.Progress(data, epochs) as progress:
        for batch in data.epochs(epochs):
            _, cost = session.step([step, loss], batch)
            progress.update(batch, loss=cost)
        session.wait()
        everything = {points: POINTS, labels: INSIDE}
        score = float(session.run(accuracy, everything)) if session.is_chief else None
        session.result(accuracy=score)
    return score


def test_training_on_one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    score = train()
    assert score is not None and score > 0.9
    assert (tmp_path / "result.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("servers", [0, 1])
def test_the_same_script_on_four_ranks(servers: int, tmp_path: Path) -> None:
    (score,) = run_ranks(4, lambda context: train(), ps=servers, run_dir=str(tmp_path))
    assert score > 0.9


def test_one_graph_over_three_ranks() -> None:
    def script(context: object) -> float:
        total = hf.constant(0.0)
        for task in range(3):
            with hf.device(f"/job:worker/task:{task}"):
                total += hf.Variable(np.float32(10**task), name=f"v{task}")
        with hf.Session() as session:
            session.run(hf.global_variables_initializer())
            return float(session.run(total))

    assert run_ranks(3, script, tasks_per_replica=3) == [111]
