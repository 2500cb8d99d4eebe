"""The idle-wait policy: quick when busy, cheap when idle, woken at once."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from hpcflow.comm import polling_backoff
from hpcflow.comm.communicator import Communicator
from hpcflow.comm.communicator_wrapper import CommunicatorWrapper
from hpcflow.comm.polling_backoff import Backoff, crowded_hosts, wait_for_requests
from hpcflow.comm.thread_communicator import thread_world
from hpcflow.errors import StallError
from hpcflow.monitoring.wait_ledger import ANY, WaitLedger
from tests.comm.threads import on_all
from tests.runtime.ranks import run_ranks


class FakeTime:
    """A clock in place of `time` and of system calls that yield: each poll takes a microsecond."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.asleep = 0.0, 0.0
        monkeypatch.setattr(polling_backoff, "time", self)
        monkeypatch.setattr(polling_backoff.os, "sched_yield", lambda: None)

    def perf_counter(self) -> float:
        self.now += 1e-6
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.asleep += seconds


@pytest.mark.parametrize("make", [None, threading.Event, threading.Condition])
@pytest.mark.parametrize("is_crowded", [False, True])
def test_a_long_wait_sleeps(is_crowded, make, monkeypatch):
    """At least 95 % of 1.5 s."""
    clock, wake = FakeTime(monkeypatch), make and make()
    if wake is not None:
        wake.wait = clock.sleep
    backoff = Backoff(is_crowded, wake)
    while clock.now < 1.5:
        backoff.wait()
    assert clock.asleep > 0.95 * clock.now


def test_a_short_wait_does_not_sleep(monkeypatch):
    """With a core of its own a rank spins for 25 ms, again after each progress."""
    clock = FakeTime(monkeypatch)
    backoff = Backoff()
    for _ in range(3):
        backoff.reset()
        begun = clock.now
        while clock.now - begun < 0.024:
            backoff.wait()
    assert clock.asleep == 0.0


def test_sleeps_grow_to_a_millisecond_and_reset():
    slept = []
    wake = threading.Event()
    wake.wait = slept.append
    backoff = Backoff(crowded=True, wake=wake)
    while len(slept) < 40:
        backoff.wait()
    assert slept[0] == 20e-6 and slept[-1] == 1e-3 and slept == sorted(slept)
    backoff.reset()
    count = len(slept)
    backoff.wait()
    backoff.wait()
    assert len(slept) == count


def test_a_sleep_is_a_small_share_of_a_long_wait(monkeypatch):
    slept, now = [], [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    wake = threading.Event()
    wake.wait = lambda seconds: (slept.append((now[0], seconds)), now.append(now.pop() + seconds))
    backoff = Backoff(crowded=True, wake=wake)
    backoff.wait()
    now[0] = 0.01
    while now[0] < 2:
        backoff.wait()
    assert all(sleep <= max(1e-3, 0.01 * waited) for waited, sleep in slept)
    assert slept[-1][1] == 4e-3


@pytest.mark.parametrize("make", [threading.Event, threading.Condition])
def test_another_thread_ends_a_sleep(make, monkeypatch):
    """One that is not woken outlasts the limit of a test."""
    monkeypatch.setattr("hpcflow.comm.polling_backoff.FIRST_SLEEP_S", 1000.0)
    wake, woken = make(), threading.Event()
    backoff = Backoff(crowded=True, wake=wake)
    backoff.wait()
    time.sleep(0.01)

    def poke():
        while not woken.wait(0.01):
            if isinstance(wake, threading.Event):
                wake.set()
            else:
                with wake:
                    wake.notify_all()

    thread = threading.Thread(target=poke)
    thread.start()
    backoff.wait()
    woken.set()
    thread.join()


def test_finish_gives_up():
    comm = thread_world(1)[0]
    with pytest.raises(StallError, match="a pull has waited"):
        wait_for_requests(comm.recv(np.zeros(1), 0, 0), timeout=0.05, label="a pull")


def test_cores_are_counted_by_host(monkeypatch):
    comm = thread_world(1)[0]
    assert crowded_hosts(comm) == frozenset()
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set())
    assert crowded_hosts(comm) == {comm.hosts[0]}


HOSTS = {"a": [{0, 1}, {0, 1}, {2}], "b": [{0}, {0}]}  # three ranks on three cores, two on one


def crowded(hosts, cores, monkeypatch, machines=None):
    """What each rank finds, and the bytes and messages that it takes."""
    mine, found, taken = threading.local(), {}, {}
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: mine.cores)

    class Counted(CommunicatorWrapper):
        def recv(self, array, source, tag):
            taken[self.rank].append(array.nbytes)
            return self.inner.recv(array, source, tag)

        def all_reduce(self, array, op="sum"):
            taken[self.rank].append(array.nbytes)
            return self.inner.all_reduce(array, op)

        def close(self):
            self.inner.close()

        def bucket(self, count, dtype):
            raise NotImplementedError

    def body(comm):
        comm = Counted(comm)
        comm.hosts, comm.machines, taken[comm.rank] = hosts, machines or (), []
        mine.cores = cores[comm.rank]
        found[comm.rank] = crowded_hosts(comm)

    on_all(thread_world(len(hosts)), body)
    return found, taken


def test_cores_are_counted_by_host_over_ranks(monkeypatch):
    hosts, left = ("a", "b", "a", "b", "a"), {host: list(cores) for host, cores in HOSTS.items()}
    found, _ = crowded(hosts, [left[host].pop() for host in hosts], monkeypatch)
    assert found == {rank: {"b"} for rank in range(5)}


def test_containers_share_the_cores_of_their_machine(monkeypatch):
    """Four hosts by their names, two of them on one machine, whose one core they share."""
    hosts, machines = ("a", "b", "c", "d"), ("m", "n", "m", "o")
    found, _ = crowded(hosts, [{0}, {0}, {0}, {0, 1}], monkeypatch, machines)
    assert found == {rank: {"a", "c"} for rank in range(4)}


@pytest.mark.parametrize("nodes", [2, 8, 32])
def test_a_rank_takes_a_flag_of_each_host_and_the_first_of_a_host_its_ranks_cores(
    monkeypatch, nodes
):
    """Not the cores of all ranks: those are no other rank's matter."""
    hosts = tuple(f"node{rank // 4}" for rank in range(4 * nodes))
    cores = [{rank % 4, 200} for rank in range(4 * nodes)]
    found, taken = crowded(hosts, cores, monkeypatch)
    assert set(found.values()) == {frozenset()}
    for rank, sizes in taken.items():
        assert sizes == [1024] * (3 if rank % 4 == 0 else 0) + [4 * nodes]


def test_a_wait_that_lasts_stands_in_the_ledger_until_it_is_over(tmp_path, monkeypatch):
    ledger = WaitLedger(tmp_path, 0, "nid1")
    monkeypatch.setattr(polling_backoff, "ledger", ledger)
    seen = []

    class Slow:
        def test(self):
            seen.append(ledger.read())
            return len(seen) > polling_backoff.PATIENCE_POLLS + 3

    wait_for_requests(Slow(), label="what one rank decides", peer=4)
    assert not seen[polling_backoff.PATIENCE_POLLS - 1].waits, "not of its first polls"
    assert seen[-1].waits and (seen[-1].op, seen[-1].peer) == ("what one rank decides", 4)
    assert not ledger.read().waits
    ledger.close()


def test_a_call_of_several_ranks_stands_in_the_ledger_also_if_it_fails(tmp_path, monkeypatch):
    ledger = WaitLedger(tmp_path, 0, "nid1")
    monkeypatch.setattr(polling_backoff, "ledger", ledger)
    with pytest.raises(OSError, match="by test"), polling_backoff.ledger_entry("opening a file"):
        seen = ledger.read()
        raise OSError("by test")
    assert seen.may_stall and seen.description == "call 'opening a file'" and seen.peer == ANY
    assert not ledger.read().waits
    ledger.close()
    monkeypatch.setattr(polling_backoff, "ledger", None)
    with polling_backoff.ledger_entry("opening a file"):
        pass  # a rank alone has no ledger


@pytest.mark.parametrize("places", [{}, {"ps": 1}, {"tasks_per_replica": 2}])
def test_no_text_of_each_rank_goes_to_all_ranks_when_a_job_starts(monkeypatch, places):
    def fails(self, text):
        raise AssertionError(f"{text!r} goes to all")

    monkeypatch.setattr(Communicator, "all_gather_text", fails)
    assert set(run_ranks(4, lambda context: context.size, **places)) == {4}
