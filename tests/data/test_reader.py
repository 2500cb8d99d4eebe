"""Reading ahead: in order, within bounds; errors and ends reach whoever waits; nothing hangs."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.data import Dataset
from hpcflow.data.prefetch_threads import PrefetchThreads, results_ahead
from hpcflow.data.row_buffer_pool import RowBufferPool
from hpcflow.errors import DataError
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from tests.comm.threads import until
from tests.runtime.ranks import run_ranks


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as graph:
        yield graph


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    if readers():  # of another module, that were not closed
        gc.collect()
        until(lambda: not readers())
    yield
    gc.collect()
    until(lambda: not readers())


@pytest.fixture
def alone() -> RankContext:
    return RankContext(Settings())


def readers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("hpcflow-reader")]


def everything(ahead: PrefetchThreads[Any, Any]) -> list[Any]:
    return list(iter(ahead.take, None))


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_results_come_in_order_and_within_bounds(threads: int, ahead: int) -> None:
    begun, taken, most = 0, 0, 0
    lock = threading.Lock()

    def run(task: int) -> int:
        nonlocal begun, most
        with lock:
            begun += 1
            most = max(most, begun - taken)
        time.sleep(0.001 * (task % 3))
        return task * task

    reader = PrefetchThreads(iter(range(40)), run, ahead, threads)
    found = []
    while (result := reader.take()) is not None:
        found.append(result)
        with lock:
            taken += 1
    assert found == [n * n for n in range(40)]
    assert most <= ahead + 1  # one is taken before we count it
    assert reader.take() is None and everything(PrefetchThreads(iter(()), run, 2)) == []


def test_what_waits_for_its_consumers_is_counted() -> None:
    first, second = (PrefetchThreads(iter(range(9)), int, ahead) for ahead in (3, 2))
    until(lambda: results_ahead() == 5)
    second.close()
    until(lambda: results_ahead() == 3)
    first.close()
    assert results_ahead() == 0


@pytest.mark.slow
def test_errors_come_after_what_was_before_them() -> None:
    def run(task: int) -> int:
        if task == 3:
            raise OSError("disk")
        return task

    reader = PrefetchThreads(iter(range(9)), run, 2)
    assert [reader.take() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="disk"):
        reader.take()
    assert reader.take() is None

    def tasks() -> Iterator[int]:
        yield 0
        raise ValueError("tasks")

    reader = PrefetchThreads(tasks(), run, 2)
    assert reader.take() == 0
    with pytest.raises(ValueError, match="tasks"):
        reader.take()


class Slow:
    """Items whose reading hangs from one on, until it is let go."""

    def __init__(self, hangs_at: int) -> None:
        self.hangs_at, self.go, self.asked = hangs_at, threading.Event(), 0

    def __len__(self) -> int:
        return 100

    def __getitem__(self, number: int) -> np.float32:
        self.asked += 1
        if number >= self.hangs_at:
            self.go.wait(200)
        return np.float32(number)


@pytest.mark.slow
def test_a_reader_that_hangs_does_not_keep_us(alone: RankContext) -> None:
    items = Slow(45)  # in the second batch that is read ahead
    x = hf.placeholder(hf.float32, [None])
    data = Dataset({x: items}, batch=10, shuffle=False, memory=400, context=alone)
    for batch in data.epoch(0):
        if batch.step == 2:
            until(lambda: items.asked >= 48)  # two tell the shape
            break
    data.close()
    assert len(readers()) == 1
    items.go.set()


@pytest.mark.slow
def test_a_slow_reader_is_waited_for_and_told(alone: RankContext) -> None:
    class Late(Slow):
        def __getitem__(self, number: int) -> np.float32:
            time.sleep(0.01)
            return super().__getitem__(number)

    x = hf.placeholder(hf.float32, [None])
    data = Dataset({x: Late(1000)}, batch=10, shuffle=False, context=alone)
    begun = time.monotonic()
    assert [batch.size for batch in data.epoch(0)] == [10] * 10
    # reading takes a second; a busy machine may keep us from waiting for all of it
    assert 0.1 < data.input_wait_seconds < time.monotonic() - begun


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
def test_batches_are_read_while_a_step_runs(alone: RankContext, ahead: int) -> None:
    """So many, and no more, before the next one is asked for."""
    items = Slow(1000)
    x = hf.placeholder(hf.float32, [None])
    options: dict[str, Any] = {"read_ahead": ahead, "memory": 40 * (ahead + 3)}
    data = Dataset({x: items}, batch=10, context=alone, **options)
    items.asked = -1  # the first is looked at when it begins
    batches = data.epoch(0)
    for number in (1, 2, 3):
        next(batches)
        expected = 10 * (number + ahead)
        until(lambda n=expected: items.asked >= n)
        assert items.asked == expected
    data.close()


@pytest.mark.slow
def test_several_readers_wait_at_once(alone: RankContext) -> None:
    """Two threads that can only go on together: each asks for another batch at the same time."""
    together = threading.Barrier(2, timeout=200)

    class Late(Slow):
        def __getitem__(self, number: int) -> np.float32:
            if number % 10 == 5:
                together.wait()
            return super().__getitem__(number)

    x = hf.placeholder(hf.float32, [None])
    options: dict[str, Any] = {"memory": 40 * 6, "readers": 2, "shuffle": False}
    with Dataset({x: Late(1000)}, batch=10, context=alone, **options) as data:
        assert [b[x].tolist() for b in data.epoch(0)] == [
            list(range(n, n + 10)) for n in range(0, 100, 10)
        ]


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0, 1])
def test_threads_end_with_the_session(mode: int, tmp_path: Path) -> None:
    def body(context: RankContext) -> tuple[int, float]:
        x = hf.placeholder(hf.float32, [None])
        w = hf.Variable(1.0)
        loss = hf.reduce_mean(w * x)
        train = hf.train.GradientDescentOptimizer(0.1).minimize(loss)
        data = Dataset({x: Slow(1000)}, batch=8, memory=400, context=context)
        with hf.train.TrainingSession(context=context) as sess:
            batches = data.epochs(50)
            for batch in batches:
                sess.step(train, batch)
                if (batch.epoch, batch.step) >= (1, 3):
                    break
            sess.wait()
            running = len(readers())
            assert running > 0
            result = sess.result()
        del batches
        return running, 0.0 if result is None else result["input_wait_seconds"][0]

    found = run_ranks(2 + mode, body, ps=mode, run_dir=str(tmp_path))
    assert found[0][1] > 0


@pytest.mark.slow
def test_what_an_item_does_wrong_is_told(alone: RankContext) -> None:
    x = hf.placeholder(hf.float32, [None])

    class Ragged(Slow):
        def __getitem__(self, number: int) -> Any:
            return np.zeros(number % 2 + 1, np.float32)

    with pytest.raises(DataError, match="differ in shape"):
        r = hf.placeholder(hf.float32, [None, None])
        next(Dataset({r: Ragged(0)}, batch=8, context=alone).epoch(0))

    class Failing(Slow):
        def __getitem__(self, number: int) -> Any:
            if number == 7:
                raise KeyError("lost")
            return np.float32(number)

    data = Dataset({x: Failing(0)}, batch=4, shuffle=False, context=alone)
    with pytest.raises(DataError, match=r"item 7 of a Failing .*KeyError: 'lost'") as caught:
        list(data.epoch(0))
    assert caught.value.rank == 0


@pytest.mark.slow
def test_tuples_of_items_feed_tuples_of_placeholders(alone: RankContext) -> None:
    class Pairs:
        def __len__(self) -> int:
            return 30

        def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
            if not 0 <= number < 30:
                raise IndexError(number)
            return np.full(3, number, np.float32), number

    x, y = hf.placeholder(hf.float32, [None, 3]), hf.placeholder(hf.int64, [None])
    data = Dataset({(x, y): Pairs()}, batch=7, context=alone)
    seen: list[int] = []
    for batch in data.epoch(0):
        np.testing.assert_array_equal(batch[y], batch.indices)
        np.testing.assert_array_equal(batch[x][:, 1], batch.indices)
        seen += batch.indices.tolist()
    assert sorted(seen) == list(range(30))
    z = hf.placeholder(hf.float32, [None])
    with pytest.raises(DataError, match="not a tuple of 3 fields"):
        Dataset({(x, y, z): Pairs()}, batch=7, context=alone)


@pytest.mark.slow
def test_buffers_are_used_again_when_nobody_looks() -> None:
    buffers = RowBufferPool()
    kind = np.dtype(np.float32)
    first = buffers.empty((50_000,), kind)
    address = first.ctypes.data
    part = first[10:20]
    del first
    second = buffers.empty((40_000,), kind)
    assert second.ctypes.data != address  # a part of it is in use
    del part
    assert buffers.empty((40_000,), kind).ctypes.data == address
    large = buffers.empty((10, 10_000), kind)
    assert large.shape == (10, 10_000) and large.flags.c_contiguous
    buffers.clear()
    second[:] = 1  # its memory is still its own
    assert second.sum() == 40_000


class SlowRows:
    """Rows that are given out only as a semaphore allows."""

    def __init__(self, allowed: int) -> None:
        self.semaphore = threading.Semaphore(allowed)

    def __len__(self) -> int:
        return 512

    def __getitem__(self, number: int) -> np.ndarray:
        assert self.semaphore.acquire(timeout=200)
        return np.full(8, number, "f4")


@pytest.mark.parametrize("maps", [False, True])
def test_the_first_batch_waits_for_the_rows_of_few_batches(maps: bool) -> None:
    """Rows of many batches were read together, also from objects, before the first was there."""
    with hf.Graph().as_default():
        x = hf.placeholder(hf.float32, [None, 8])
        rows = SlowRows(3 + 16)  # three tell the shape
        data = hf.data.Dataset({x: rows}, batch=16, shuffle=False, map=dict if maps else None)
        batches = data.epochs(2)
        first = next(iter(batches))
        assert first[x][:, 0].tolist() == list(range(16))
        for _ in range(2 * 512):
            rows.semaphore.release()
        data.close()
