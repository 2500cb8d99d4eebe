"""How to wait without burning a core: spin first, then sleep a little longer each time."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

from hpcflow.comm.communicator import Communicator, Request
from hpcflow.errors import StallError
from hpcflow.monitoring.wait_ledger import ANY, CALL, REQUEST, Ledger

SPIN_S = 0.025  # a dedicated core answers at once for this long
CROWDED_SPIN_S = 0.0005
FIRST_SLEEP_S, LONGEST_SLEEP_S, GROWTH = 20e-6, 1e-3, 1.25
PATIENCE_POLLS = 64  # empty polls before a wait is entered in the ledger
MOST_CORES = 8192  # of a Linux kernel
CORES_TAG = 0  # of messages before the job has others
LAZY, LAZIEST_SLEEP_S = 0.01, 4e-3  # a long wait may become longer by this share, for a cheap poll

ledger: Ledger | None = None  # of this process, if it is a rank: there stand waits that last


class Backoff:
    """The idle-wait policy: `wait` when nothing moved, `reset` when something did.

    On a core of its own it spins for 25 ms, then sleeps from 20 µs up to 1 ms, and after 0.1 s up
    to a hundredth of the time waited, at most 4 ms. `crowded` says that ranks outnumber cores:
    then it yields after each poll and sleeps after half a millisecond.
    `wake` is set (Event) or notified (Condition) by another thread to end a sleep at once; the
    waiter clears the event.
    """

    def __init__(
        self,
        crowded: bool = False,
        wake: threading.Event | threading.Condition | None = None,
    ) -> None:
        self._crowded = crowded
        self._spin_s = CROWDED_SPIN_S if crowded else SPIN_S
        self._sleep = _sleeper(wake)
        self._let_go = select.poll().poll
        self._polls = 0
        self._since = 0.0
        self._next = FIRST_SLEEP_S

    def reset(self) -> None:
        """Something moved: the next wait spins again."""
        self._polls = 0

    def wait(self) -> None:
        """Nothing moved: give up a little time, more of it the longer this lasts."""
        polls = self._polls
        self._polls = polls + 1
        if not polls:
            self._since = time.perf_counter()
            self._next = FIRST_SLEEP_S
        elif (waited := time.perf_counter() - self._since) > self._spin_s:
            self._sleep(self._next)
            longest = max(LONGEST_SLEEP_S, min(LAZY * waited, LAZIEST_SLEEP_S))
            self._next = min(self._next * GROWTH, longest)
        elif not self._crowded:
            # lets other threads have the GIL: 0.25 µs, where time.sleep(0) takes 70
            self._let_go(0)
        else:  # who is waited for may need this very core
            os.sched_yield()


def _sleeper(
    wake: threading.Event | threading.Condition | None,
) -> Callable[[float], object]:
    if wake is None:
        return time.sleep
    if isinstance(wake, threading.Event):
        return wake.wait

    def sleep(seconds: float) -> None:
        with wake:
            wake.wait(seconds)

    return sleep


def finish(
    *requests: Request, timeout: float | None = None, what: str = "a request", peer: int = ANY
) -> None:
    """Wait politely until all `requests` are done; StallError after `timeout` seconds.

    `what` is waited for, from rank `peer`: for the ledger.
    """
    backoff, end = Backoff(crowded=True), time.monotonic() + (timeout or 0.0)
    left, polls = list(requests), 0
    try:
        while left := [request for request in left if not request.test()]:
            if timeout is not None and time.monotonic() > end:
                raise StallError(f"{what} has waited {timeout:.0f} s; {len(left)} not done")
            polls += 1
            if polls == PATIENCE_POLLS and ledger is not None:
                ledger.enter(0, what, peer, REQUEST)
            backoff.wait()
    finally:
        if polls >= PATIENCE_POLLS and ledger is not None:
            ledger.leave()


@contextlib.contextmanager
def calling(what: str) -> Iterator[None]:
    """Inside, this rank makes a call, named `what` on all ranks that make it together.

    Errors: those of the call.
    """
    if ledger is not None:
        ledger.enter(0, what, ANY, CALL)
    try:
        yield
    finally:
        if ledger is not None:
            ledger.leave()


def crowded_hosts(comm: Communicator) -> frozenset[str]:
    """The hosts whose ranks have fewer cores together than they are; collective.

    The first rank of a host is told the others' cores; all learn one flag of each host.
    """
    hosts, host = list(dict.fromkeys(comm.hosts)), comm.hosts[comm.rank]
    first, *others = (rank for rank, other in enumerate(comm.hosts) if other == host)
    mine = np.zeros(MOST_CORES, np.uint8)
    mine[list(os.sched_getaffinity(0))] = 1
    flags = np.zeros(len(hosts), np.int32)
    if comm.rank == first:
        told = np.zeros((len(others), MOST_CORES // 8), np.uint8)
        came = [comm.recv(row, r, CORES_TAG) for row, r in zip(told, others, strict=True)]
        finish(*came, what="the cores of this host's ranks")
        cores = np.bitwise_or.reduce(told, initial=0) | np.packbits(mine)
        flags[hosts.index(host)] = np.unpackbits(cores).sum() < 1 + len(others)
    else:
        finish(comm.send(np.packbits(mine), first, CORES_TAG), what="the first rank of this host")
    finish(comm.all_reduce(flags, "max"), what="which hosts have fewer cores than ranks")
    return frozenset(itertools.compress(hosts, flags))
