"""Streams between racks and waits of a pair, on threads instead of nodes."""

from __future__ import annotations

import threading
import time

import pytest

from hpcflow.comm.thread_communicator import thread_world
from hpcflow.doctor import wait_benchmark
from hpcflow.doctor.rack_flows import Flow
from hpcflow.doctor.uplink_benchmark import run_flows
from hpcflow.doctor.wait_benchmark import time_waits
from hpcflow.platform.measured_waits import OWN_CORE, SHARED_CORES
from tests.comm.threads import on_all


def test_flows_end_with_no_message_left_and_all_ranks_know_the_rates():
    """A receiver with two flows, and a rank without one; twice, since a message that is left over
    would be taken for one of the next phase."""
    flows, found = [Flow(0, 2, 5), Flow(1, 2, 6)], dict[int, list[dict[int, float]]]()

    def body(comm):
        found[comm.rank] = [run_flows(comm, flows, 8192, 0.2) for _ in range(2)]

    on_all(thread_world(4), body)
    assert all(rates == found[0] for rates in found.values())
    for rates in found[0]:
        assert rates.keys() == {5, 6} and min(rates.values()) > 0


@pytest.mark.parametrize(("cpus", "policies"), [({0, 1}, 2), ({3}, 1)])
def test_waits_are_measured_for_each_policy_that_the_cpus_allow(monkeypatch, cpus, policies):
    monkeypatch.setattr(wait_benchmark, "WAITS_US", {200: 3, 2000: 2})
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: cpus)
    found = {}

    def body(comm):
        found[comm.rank] = time_waits(comm)

    begun = time.monotonic()
    on_all(thread_world(2), body)
    took = time.monotonic() - begun
    assert found[1] == {}
    expected = (OWN_CORE, SHARED_CORES)[-policies:]
    counts = {tuple(key): len(late) for key, late in found[0].items()}
    assert counts == {(one, us): n for one in expected for us, n in ((200, 3), (2000, 2))}
    assert all(0 < late < took for samples in found[0].values() for late in samples)


class PairClock:
    """A clock in place of `time`: it stands unless the receiver waits for a sender that sleeps."""

    def __init__(self):
        self.now, self.wakes, self.changed = 0.0, 0.0, threading.Condition()
        self.sender = None

    def monotonic(self):
        return self.wakes if threading.current_thread() is self.sender else self.now

    def sleep(self, seconds):  # of the sender
        with self.changed:
            self.sender, self.wakes = threading.current_thread(), self.now + seconds
            self.changed.wait_for(lambda: self.now >= self.wakes)

    def receiver_sleeps(self, seconds):
        with self.changed:
            if self.now < self.wakes:
                self.now += seconds
                self.changed.notify_all()
                return
        time.sleep(0.001)  # the message comes now


def test_the_lateness_is_the_sleep_of_the_policy(monkeypatch):
    """A rank that sleeps 50 ms at a time has a message of 70 ms after 100 ms."""
    clock = PairClock()
    monkeypatch.setattr(wait_benchmark, "time", clock)
    monkeypatch.setattr(wait_benchmark, "WAITS_US", {70_000: 3})
    monkeypatch.setattr(wait_benchmark.Backoff, "wait", lambda self: clock.receiver_sleeps(0.05))
    found = {}

    def body(comm):
        found[comm.rank] = time_waits(comm)

    on_all(thread_world(2), body)
    samples = [late for row in found[0].values() for late in row]
    assert samples == pytest.approx([0.03] * len(samples)) and len(samples) >= 3
