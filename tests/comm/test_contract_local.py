"""The contract, and what only the double has, between threads; no MPI needed."""

from __future__ import annotations

import gc
import sys
import threading

import numpy as np
import pytest

from hpcflow.comm.thread_communicator import thread_world
from hpcflow.errors import CommError

from .comm_contract import CHECKS, done
from .threads import on_all


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check, n, seed):
    """The double keeps the contract, also when every arrival is late."""
    on_all(thread_world(n, seed, eager_bytes=0 if seed == 2 else 4096), check)


def test_an_eager_message_may_be_overwritten_a_large_one_not():
    """Above the eager limit the receiver sees the sender's array as it is when they meet."""
    comm = thread_world(1)[0]
    small, large = np.zeros(4), np.zeros(4096)
    early, late = comm.send(small, 0, 1), comm.send(large, 0, 2)
    assert early.test() and not late.test()
    small[:], large[:] = 5, 5
    into_small, into_large = np.ones(4), np.ones(4096)
    done(comm.recv(into_small, 0, 1), comm.recv(into_large, 0, 2), late)
    assert (into_small == 0).all() and (into_large == 5).all()


def test_a_message_and_a_receive_meet_as_soon_however_many_others_wait():
    """The double runs as many lines for one among 3,000 tags and messages as for one among 10."""

    def lines(others):
        comm, count = thread_world(1)[0], 0
        receives = [comm.recv(np.zeros(1), 0, tag) for tag in range(others)]
        sends = [comm.send(np.zeros(1), 0, others + tag) for tag in range(others)]
        assert not receives[0].test() and sends[0].test()

        def line(frame, event, argument):
            nonlocal count
            count += event == "line"
            return line

        into = np.zeros(1)
        before = sys.gettrace()
        gc.disable()  # what it collects may run lines of its own
        sys.settrace(lambda frame, *_: line)
        try:
            comm.send(np.ones(1), 0, others - 1)  # is waited for
            comm.recv(into, comm.ANY, 2 * others - 1)  # is there
            comm.probe(0, 2 * others - 2)
        finally:
            sys.settrace(before)
            gc.enable()
        assert receives[-1].test()
        return count

    assert 0 < lines(3_000) == lines(10)


def test_delays_repeat_with_the_seed():
    """The same seed delays the same messages by the same number of polls."""

    def polls(seed):
        comm = thread_world(1, seed)[0]
        counts = []
        for tag in range(20):
            comm.send(np.zeros(1), 0, tag)
            receive, count = comm.recv(np.zeros(1), 0, tag), 0
            while not receive.test():
                count += 1
            counts.append(count)
        return counts

    assert polls(3) == polls(3) != polls(4)
    assert len(set(polls(3))) > 3 and set(polls(None)) == {0}


def test_different_collectives_are_named():
    """Ranks that call different collectives are told who called what."""

    def play(comm):
        request = comm.barrier() if comm.rank else comm.all_reduce(np.zeros(3))
        with pytest.raises(CommError, match="rank 0 reduces 3 float64 by sum, rank 1 waits"):
            done(request)

    on_all(thread_world(3), play)


def test_abort_reaches_everyone():
    """After abort every call fails and says the code."""

    def play(comm):
        if comm.rank == 0:
            with pytest.raises(CommError, match="code 7"):
                comm.abort(7)
        else:
            with pytest.raises(CommError, match="code 7"):
                done(comm.recv(np.zeros(1), 0, 1))

    on_all(thread_world(2), play)


@pytest.mark.parametrize("call", ["a gather of text", "a barrier", "a receive"])
def test_abort_reaches_who_waits_in_a_part(call):
    """Rank 0 aborts the whole when rank 1 waits for it in a communicator split off."""
    waits = threading.Event()

    def play(comm):
        part = comm.split([0, 1])
        if comm.rank == 0:
            assert waits.wait(60)
            with pytest.raises(CommError, match="code 7"):
                comm.abort(7)
            return
        waits.set()
        with pytest.raises(CommError, match="code 7"):
            if call == "a gather of text":
                part.gather_text("here")
            done(part.barrier() if call == "a barrier" else part.recv(np.zeros(1), 0, 1))

    on_all(thread_world(2), play)
