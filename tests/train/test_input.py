"""Input pipelines of queues, as TensorFlow 1's programs build them."""

import contextlib

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import GraphError, OutOfRangeError, ShapeError
from tests.runtime.ranks import run_ranks


@pytest.fixture(autouse=True)
def graph():
    with hf.Graph().as_default() as g:
        yield g


@contextlib.contextmanager
def running():
    """A session with its queue runners running."""
    session, coord = hf.Session(), hf.train.Coordinator()
    if hf.local_variables():
        session.run(hf.local_variables_initializer())
    threads = hf.train.start_queue_runners(session, coord)
    yield session
    coord.request_stop()
    coord.join(threads, stop_grace_period_secs=60)


def until_the_end(session, fetch):
    found = []
    with pytest.raises(OutOfRangeError):
        while True:
            found.append(session.run(fetch))
    return found


def test_a_range_in_order_and_mixed():
    plain = hf.train.range_input_producer(5, num_epochs=2, shuffle=False).dequeue()
    mixed = hf.train.range_input_producer(5, num_epochs=40, seed=3).dequeue()
    with running() as session:
        assert [int(n) for n in until_the_end(session, plain)] == [0, 1, 2, 3, 4] * 2
        found = [int(n) for n in until_the_end(session, mixed)]
    epochs = [tuple(found[i : i + 5]) for i in range(0, 200, 5)]
    assert all(sorted(epoch) == [0, 1, 2, 3, 4] for epoch in epochs)
    assert len(set(epochs)) > 20


def test_slices_of_several_tensors_stay_together():
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    row, label = hf.train.slice_input_producer([rows, np.arange(6)], num_epochs=3, seed=1)
    assert row.shape == (2,) and label.shape == ()
    with running() as session:
        found = until_the_end(session, [row, label])
    assert sorted(int(n) for _, n in found) == sorted(list(range(6)) * 3)
    for one, n in found:
        np.testing.assert_array_equal(one, rows[n])
    with pytest.raises(ShapeError, match="do not agree"):
        hf.train.slice_input_producer([rows, np.arange(5)])


def test_without_a_limit_it_goes_on():
    number = hf.train.input_producer(np.arange(3), shuffle=False).dequeue()
    with running() as session:
        assert [int(session.run(number)) for _ in range(100)] == [0, 1, 2] * 33 + [0]
    with pytest.raises(GraphError, match="num_epochs must be at least 1, not 0"):
        hf.train.input_producer(np.arange(3), num_epochs=0)
    with pytest.raises(ShapeError, match="of rows"):
        hf.train.input_producer(3.0)
    with pytest.raises(ShapeError, match="must be known"):
        hf.train.input_producer(hf.placeholder(hf.float32, [5, None]))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("smaller", [False, True])
def test_batches(threads, smaller):
    number = hf.train.range_input_producer(10, num_epochs=1, shuffle=False).dequeue()
    batch = hf.train.batch(
        {"n": number, "square": number * number},
        4,
        num_threads=threads,
        allow_smaller_final_batch=smaller,
    )
    assert batch["n"].shape == (None if smaller else 4,)
    with running() as session:
        found = until_the_end(session, batch)
    sizes = [len(one["n"]) for one in found]
    assert sizes == [4, 4, 2] if smaller else [4, 4]
    numbers = np.concatenate([one["n"] for one in found])
    squares = np.concatenate([one["square"] for one in found])
    np.testing.assert_array_equal(squares, numbers**2)
    assert len(set(numbers.tolist())) == len(numbers)
    if threads == 1:
        assert numbers.tolist() == list(range(len(numbers)))


def test_batches_of_rows_and_of_one_tensor():
    row = hf.train.input_producer(np.arange(8.0), shuffle=False, num_epochs=1).dequeue_many(2)
    batch = hf.train.batch(row, 3, enqueue_many=True)
    with running() as session:
        found = until_the_end(session, batch)
    assert [list(one) for one in found] == [[0, 1, 2], [3, 4, 5]]


def test_a_list_of_one_tensor_gives_a_tensor():
    """As in TensorFlow; a dict gives a dict."""
    a = hf.constant(1)
    more = {"capacity": 9, "min_after_dequeue": 1}
    for made in (
        hf.train.batch([a], 2),
        hf.train.shuffle_batch([a], 2, **more),
        hf.train.maybe_batch([a], True, 2),
        hf.train.batch_join([[a], [a]], 2),
        hf.train.shuffle_batch_join([[a], [a]], 2, **more),
    ):
        assert isinstance(made, hf.Tensor) and made.shape == (2,)
    assert isinstance(hf.train.batch([a, a], 2), list)
    assert list(hf.train.batch({"a": a}, 2)) == ["a"]


def test_padded_batches():
    number = hf.train.range_input_producer(7, num_epochs=1, shuffle=False).dequeue()
    ramp = hf.range(number)
    with pytest.raises(ShapeError, match="must be known"):
        hf.train.batch([ramp], 2)
    ramps, numbers = hf.train.batch([ramp, number], 3, dynamic_pad=True)
    with running() as session:
        (first, n), (second, _) = until_the_end(session, [ramps, numbers])
    assert n.tolist() == [0, 1, 2]
    assert first.tolist() == [[0, 0], [0, 0], [0, 1]]
    assert second.tolist() == [[0, 1, 2, 0, 0], [0, 1, 2, 3, 0], [0, 1, 2, 3, 4]]


def test_shuffled_batches_of_several_sources():
    sources = []
    for k in range(3):
        number = hf.train.range_input_producer(20, num_epochs=1, shuffle=False).dequeue()
        sources.append([number + 100 * k, hf.constant(k)])
    numbers, which = hf.train.shuffle_batch_join(sources, 6, 50, 20, seed=5)
    with running() as session:
        found = until_the_end(session, [numbers, which])
    everything = np.concatenate([n for n, _ in found])
    assert sorted(everything.tolist()) == sorted(100 * k + i for k in range(3) for i in range(20))
    np.testing.assert_array_equal(everything // 100, np.concatenate([k for _, k in found]))
    assert everything.tolist() != sorted(everything.tolist())


def train_from_a_queue(context=None):
    """A linear fit whose batches come out of a queue, by a training session."""
    rng = np.random.default_rng(1)
    features = rng.standard_normal((64, 3)).astype(np.float32)
    targets = features @ np.array([1, -2, 3], np.float32)
    row, target = hf.train.slice_input_producer([features, targets], num_epochs=30, seed=2)
    x, y = hf.train.shuffle_batch([row, target], 16, 100, 32, num_threads=2)
    w = hf.Variable(np.zeros((3, 1), np.float32), name="w")
    loss = hf.reduce_mean(hf.square(hf.squeeze(hf.matmul(x, w), [1]) - y))
    train = hf.train.GradientDescentOptimizer(0.1).minimize(loss)
    start, coord = hf.local_variables_initializer(), hf.train.Coordinator()
    losses = []
    with hf.train.TrainingSession() as session:
        session.run(start)
        threads = hf.train.start_queue_runners(session, coord)
        with pytest.raises(OutOfRangeError):
            while True:
                losses.append(session.step([loss, train], {})[0])
        coord.request_stop()
        coord.join(threads, stop_grace_period_secs=60)
        assert session.steps == len(losses)
        found = session.run(w)
    return losses, found


def test_a_training_session_fed_from_a_queue():
    losses, w = train_from_a_queue()
    assert len(losses) == 64 * 30 // 16
    assert losses[-1] < 1e-4
    np.testing.assert_allclose(w[:, 0], [1, -2, 3], atol=1e-2)


@pytest.mark.parametrize("ps", [0, 1])
def test_workers_train_from_queues_of_their_own(ps):
    found = run_ranks(2 + ps, train_from_a_queue, seed=3, ps=ps)
    assert len(found) == 2
    for _, w in found:
        np.testing.assert_allclose(w[:, 0], [1, -2, 3], atol=1e-2)


def test_what_is_not_kept_never_enters_the_batch():
    number = hf.train.range_input_producer(20, num_epochs=1, shuffle=False).dequeue()
    odd = hf.equal(number % 2, 1)
    batch = hf.train.maybe_batch([number, number * 2], odd, 5, num_threads=2)
    rows = hf.train.range_input_producer(20, num_epochs=1, shuffle=False).dequeue_many(5)
    few = hf.train.maybe_shuffle_batch(
        {"n": rows}, 3, 50, 10, hf.equal(rows % 3, 0), seed=1, enqueue_many=True
    )
    all_or_none = hf.train.maybe_batch(
        hf.train.range_input_producer(6, num_epochs=1, shuffle=False).dequeue_many(3),
        hf.constant(True),
        2,
        enqueue_many=True,
    )
    with running() as session:
        found = until_the_end(session, batch)
        assert sorted(n for one, _ in found for n in one) == list(range(1, 20, 2))
        assert all((two == 2 * one).all() for one, two in found)
        mixed = [n for one in until_the_end(session, few) for n in one["n"]]
        assert len(mixed) == 6 and set(mixed) < set(range(0, 20, 3))
        assert [list(one) for one in until_the_end(session, all_or_none)] == [
            [0, 1],
            [2, 3],
            [4, 5],
        ]
    with pytest.raises(ShapeError, match="keep_input must be a scalar"):
        hf.train.maybe_batch(number, [True, False], 2)


def test_strings_through_queues():
    name = hf.train.string_input_producer(["a", "bc", "def"], num_epochs=2, shuffle=False).dequeue()
    names, lengths = hf.train.batch([name, hf.string_length(name)], 3)
    with running() as session:
        found = until_the_end(session, [names, lengths])
    assert [list(one) for one, _ in found] == [[b"a", b"bc", b"def"]] * 2
    assert [one.tolist() for _, one in found] == [[1, 2, 3]] * 2
    with pytest.raises(ShapeError, match="at least one string"):
        hf.train.string_input_producer([])
