"""A server of many workers: what a message costs it does not grow with their number."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import numpy as np
import pytest

import hpcflow

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
HPCFLOW = str(Path(hpcflow.__file__).parent)
sys.path.append(str(BENCHMARKS))

import many_workers  # noqa: E402
import simulated  # noqa: E402
from many_workers import FIRST_TAG  # noqa: E402

from hpcflow.comm import mpi_library, mpi_request_polling  # noqa: E402
from hpcflow.runtime.job.message_headers import HEADER_TAG, SendNumber, StartStep  # noqa: E402

VALUE, UPDATE, END = FIRST_TAG, FIRST_TAG + 1, FIRST_TAG + 2


def lines_run(play) -> int:
    """How many lines of hpcflow run in `play()`; a loop runs some each time around."""
    count = 0

    def line(frame, event, argument):
        nonlocal count
        count += event == "line"
        return line

    before = sys.gettrace()
    sys.settrace(
        lambda frame, *_: line if frame.f_code.co_filename.startswith((HPCFLOW, "<hpc")) else None
    )
    try:
        play()
    finally:
        sys.settrace(before)
    return count


@pytest.fixture(autouse=True)
def mpi4py_comes_back(monkeypatch):
    """A simulated server takes its place."""
    monkeypatch.setattr(mpi_library, "mpi_module", mpi_library.mpi_module)
    yield
    mpi_library.initialized_mpi.cache_clear()
    mpi_library.misses_any_source.cache_clear()


class Job:
    """A server and workers that act when they are told to."""

    def __init__(self, workers: int) -> None:
        self.world = simulated.World(workers)
        self.heard: list[tuple[int, int]] = []  # (worker, tag) of the server's messages
        self.world.workers = [functools.partial(self._hear, rank) for rank in range(workers)]
        self.step = [0] * workers
        part = many_workers.server_part(1)
        self.executor, self.value = many_workers.serving(self.world, part)
        for rank in range(workers):
            for message in many_workers.registration(rank, workers, part):
                self.world.send(rank, *message)
        self.turn()

    def _hear(self, rank: int, tag: int, data: np.ndarray) -> None:
        self.heard.append((rank, tag))

    def begin(self, rank: int) -> None:
        """A worker begins a step."""
        self.step[rank] += 1
        words = StartStep(many_workers.PLAN, 0, self.step[rank]).encode()
        self.world.send(rank, HEADER_TAG, words.view(np.uint8))

    def update(self, rank: int, number: float = 1.0) -> None:
        """A worker sends its update."""
        self.world.send(rank, UPDATE, np.array([number], np.float32).view(np.uint8))

    def turn(self) -> None:
        """Once around the server's loop."""
        self.executor.poll()
        self.executor._empty_inbox()
        while self.executor.ready:
            self.executor.run_segment(*self.executor.ready.popleft())


def test_a_message_costs_the_same_however_many_others_are_waited_for():
    cost = {}
    for workers in (16, 1_000):
        job = Job(workers)
        for rank in range(workers):
            job.begin(rank)
        job.turn()
        assert len(job.executor.waits) == workers
        for rank in (3, 7, 3):  # the first time round is not counted: instances are made
            job.update(rank)
            job.turn()
            job.begin(rank)
            job.turn()
        job.heard.clear()

        def play(job=job):
            job.update(7)
            job.turn()
            job.begin(7)
            job.turn()

        cost[workers] = lines_run(play)
        assert job.heard == [(7, END), (7, VALUE)]
    assert 50 < cost[1_000] <= 1.1 * cost[16]


def test_all_headers_that_have_come_are_answered_in_one_go_and_cost_the_same_each():
    cost = {}
    for workers in (16, 1_000):
        job = Job(workers)
        for number in range(2):
            for rank in range(workers):
                job.begin(rank)
            job.heard.clear()
            cost[workers] = lines_run(job.turn) / workers
            assert job.heard == [(rank, VALUE) for rank in range(workers)]
            for rank in reversed(range(workers)):
                job.update(rank)
            job.turn()
            assert sorted(job.heard[workers:]) == [(rank, END) for rank in range(workers)]
            assert job.value.array[0] == workers * (number + 1)
    assert 50 < cost[1_000] <= 1.1 * cost[16]


def test_steps_of_a_worker_keep_their_order_and_one_that_never_stops_starves_nobody(monkeypatch):
    job = Job(3)
    deliver, sent = job.world.progress, 0

    def and_one_more() -> None:
        nonlocal sent
        sent += 1
        job.world.send(0, HEADER_TAG, SendNumber(sent).encode().view(np.uint8))
        deliver()

    notes = job.executor.control.__self__.notes
    job.begin(1)
    monkeypatch.setattr(job.world, "progress", and_one_more)
    job.turn()
    assert job.heard == [(1, VALUE)]
    job.update(1)
    job.turn()
    assert job.heard == [(1, VALUE), (1, END)]
    assert notes == sorted(notes) and 2 < len(notes) < 1000
    monkeypatch.setattr(job.world, "progress", deliver)
    job.turn()
    job.heard.clear()
    for _ in range(3):  # more than one step of a slot
        job.begin(2)
    for number in range(3):
        job.turn()
        assert job.heard == [(2, VALUE), (2, END)] * number + [(2, VALUE)]
        job.update(2)
        job.turn()


def test_messages_of_unknown_size_are_found_by_one_probe():
    """Behind a message that nobody asks for some are looked for each time, and all are found."""
    job = Job(1_000)
    comm, watch, world = job.executor.comm, job.executor.comm.watch, job.world
    found = {}

    def receive(rank: int, nbytes: int):
        found[rank] = np.zeros(nbytes, np.uint8)
        return comm.recv(found[rank], rank, 9)

    for rank in range(1_000):
        watch.expect(rank, 9, functools.partial(receive, rank), rank)
    watch.finished()
    for rank in (5, 999):
        world.probes = 0
        world.send(rank, 9, np.full(rank, 7, np.uint8))
        assert list(watch.finished()) == [rank] and world.probes <= 3
        watch.finished().clear()
        assert (found[rank] == 7).all() and found[rank].size == rank
    world.send(1, 8, np.zeros(1, np.uint8))  # nobody asks for it
    world.progress()
    for rank in (0, 500, 998):
        world.send(rank, 9, np.full(3, rank % 100, np.uint8))
    seen = []
    for _ in range(1_000 // mpi_request_polling.AT_ONCE + 2):
        world.probes = 0
        finished = watch.finished()
        assert world.probes <= mpi_request_polling.AT_ONCE + 1
        while finished:
            seen.append(finished.popleft())
    assert sorted(seen) == [0, 500, 998]
    assert len(watch) == 995
