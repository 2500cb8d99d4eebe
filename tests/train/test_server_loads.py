"""The load of a server: idle time with and without steps; the chief asks and waits for nobody."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from hpcflow.runtime.job.message_headers import RequestLoad, ServerLoad
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from hpcflow.train.server_loads import LoadRow, ServerLoads


def test_a_rank_without_steps_in_flight_is_idle() -> None:
    executor = RankContext(Settings()).executor
    polls: list[float] = []
    seen: list[tuple[float, float]] = []  # (time, idle seconds)

    def control() -> bool:  # a message is handled while the rank is idle
        now = time.perf_counter()
        polls.append(now)
        if now - polls[0] > 0.1 and not seen:
            seen.append((now, executor.idle_seconds(now)))
        return False

    executor.control = control
    begun = time.perf_counter()
    executor.run_locked(lambda: None, lambda: bool(polls) and polls[-1] - polls[0] > 0.2)
    took = time.perf_counter() - begun
    idle = executor.idle_seconds(time.perf_counter())
    (when, before), since = seen[0], polls[1]  # the rank is idle after the first poll
    assert when - since <= before < idle and polls[-1] - since <= idle <= took
    assert executor.waited == 0.0  # no step waited
    time.sleep(0.05)  # outside of the executor it works
    assert executor.idle_seconds(time.perf_counter()) == idle


def test_work_between_messages_is_not_idle() -> None:
    executor = RankContext(Settings()).executor
    works = [time.sleep] * 10

    def control() -> bool:
        if works:
            works.pop()(0.01)
        return bool(works)

    executor.control = control
    begun = time.perf_counter()
    executor.run_locked(lambda: None, lambda: not works)
    now = time.perf_counter()
    assert now - begun - executor.idle_seconds(now) >= 0.1


def test_what_a_device_computes_is_not_idle() -> None:
    executor = RankContext(Settings()).executor
    executor.device_is_busy = lambda: True
    begun = time.perf_counter()
    executor.run_locked(lambda: None, lambda: time.perf_counter() - begun > 0.05)
    assert executor.idle_seconds(time.perf_counter()) == 0.0


class Job:
    """A chief and two servers of ranks 1 and 3, whose answers the test writes."""

    def __init__(self) -> None:
        self.loads: dict[int, ServerLoad] = {}
        self.asked: list[int] = []
        control = SimpleNamespace(server_loads=self.loads, send=self.send)
        executor = SimpleNamespace(run_locked=lambda begin, finished: begin())
        roles = SimpleNamespace(servers=(1, 3))
        self.context: Any = SimpleNamespace(control=control, executor=executor, roles=roles)

    def send(self, rank: int, header: Any) -> None:
        assert header == RequestLoad()
        self.asked.append(rank)

    def answer(self, rank: int, clock: float, idle: float) -> None:
        self.loads[rank] = ServerLoad(int(clock * 1e9), int(idle * 1e9))


def test_loads_count_from_the_first_answer_of_the_session() -> None:
    job = Job()
    job.answer(1, 3.0, 3.0)  # to an earlier session
    loads = ServerLoads(job.context)
    assert loads.step(10.0) == [] and job.asked == [1, 3]
    assert loads.rows() == []
    job.answer(1, 5.0, 4.0)
    job.answer(3, 100.0, 90.0)
    assert loads.step(10.1) == [] and job.asked == [1, 3]  # not due
    assert loads.step(11.0) == [] and job.asked == [1, 3, 1, 3]
    job.answer(1, 7.0, 4.5)
    (row,) = loads.step(12.0)
    assert row == pytest.approx((0, 1.5, 0.5))
    assert job.asked == [1, 3, 1, 3, 1]  # the other has not answered yet
    job.answer(3, 101.0, 91.0)
    assert [LoadRow(*map(round, row)) for row in loads.rows()] == [(0, 2, 0), (1, 0, 1)]
    assert loads.report() == {
        "server_work_seconds": [1.5, 0.0],
        "server_wait_seconds": [0.5, 1.0],
    }
    loads.finish()
    assert job.asked[-2:] == [1, 3]
    job.answer(1, 15.0, 4.5)
    assert loads.report()["server_work_seconds"] == [9.5, 0.0]
    fresh = ServerLoads(job.context)
    assert fresh.report()["server_work_seconds"] == [0.0, 0.0]  # not known
