"""Polling with back-off: spin first, then sleep, a little longer each time."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from hpcflow.comm.communicator import Communicator, Request
from hpcflow.errors import StallError
from hpcflow.monitoring.wait_ledger import ANY, CALL, REQUEST, WaitLedger

SPIN_S = 0.025  # spin time on a dedicated core
CROWDED_SPIN_S = 0.0005
FIRST_SLEEP_S, LONGEST_SLEEP_S, GROWTH = 20e-6, 1e-3, 1.25
PATIENCE_POLLS = 64  # empty polls before a wait is entered in the ledger
MOST_CORES = 8192  # of a Linux kernel
CORES_TAG = 0  # used before the job has assigned tags
LAZY, LAZIEST_SLEEP_S = 0.01, 4e-3  # longest sleep: this share of the time waited

ledger: WaitLedger | None = None  # of this process, if it is a rank: records long waits


class Backoff:
    """The idle-wait policy: `wait` after a poll without progress, `reset` after progress.

    With a core per rank it spins for 25 ms, then sleeps from 20 µs up to 1 ms, and after 0.1 s up
    to a hundredth of the time waited, at most 4 ms. `crowded` means that ranks outnumber cores: it
    then yields after each poll and sleeps after half a millisecond. Another thread sets `wake`
    (Event) or notifies it (Condition) to end a sleep at once; the waiter clears the event.
    """

    def __init__(
        self,
        crowded: bool = False,
        wake: threading.Event | threading.Condition | None = None,
    ) -> None:
        self._crowded = crowded
        self._spin_s = CROWDED_SPIN_S if crowded else SPIN_S
        self._sleep = _sleep_function(wake)
        self._let_go = select.poll().poll
        self._polls = 0
        self._since = 0.0
        self._next = FIRST_SLEEP_S

    def reset(self) -> None:
        """Progress was made: the next wait spins again."""
        self._polls = 0

    def wait(self) -> None:
        """No progress: yield or sleep, longer as the wait lasts longer."""
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
            # releases the GIL to other threads: 0.25 µs, where time.sleep(0) takes 70
            self._let_go(0)
        else:  # the awaited rank may need this core
            os.sched_yield()


def _sleep_function(
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


def wait_for_requests(
    *requests: Request, timeout: float | None = None, label: str = "a request", peer: int = ANY
) -> None:
    """Wait with back-off until all `requests` are done; StallError after `timeout` seconds.

    `label` and `peer` describe the wait in the ledger: what is awaited, from which rank.
    """
    backoff, end = Backoff(crowded=True), time.monotonic() + (timeout or 0.0)
    pending, polls = list(requests), 0
    try:
        while pending := [request for request in pending if not request.test()]:
            if timeout is not None and time.monotonic() > end:
                raise StallError(f"{label} has waited {timeout:.0f} s; {len(pending)} not done")
            polls += 1
            if polls == PATIENCE_POLLS and ledger is not None:
                ledger.enter(0, label, peer, REQUEST)
            backoff.wait()
    finally:
        if polls >= PATIENCE_POLLS and ledger is not None:
            ledger.leave()


@contextlib.contextmanager
def ledger_entry(label: str) -> Iterator[None]:
    """Context manager around a blocking library call, entered in the ledger as `label`.

    All ranks that make the call together use the same name.

    Errors: those of the call.
    """
    if ledger is not None:
        ledger.enter(0, label, ANY, CALL)
    try:
        yield
    finally:
        if ledger is not None:
            ledger.leave()


def crowded_hosts(comm: Communicator) -> frozenset[str]:
    """The hosts on which ranks outnumber the cores that they may use together; collective.

    Hosts that are containers of one machine share its cores. The first rank of a machine receives
    the CPU masks of the others; an allreduce shares one flag per machine.
    """
    machines = comm.machines or comm.hosts
    names, mine = list(dict.fromkeys(machines)), machines[comm.rank]
    first, *others = (rank for rank, machine in enumerate(machines) if machine == mine)
    cpu_mask = np.zeros(MOST_CORES, np.uint8)
    cpu_mask[list(os.sched_getaffinity(0))] = 1
    flags = np.zeros(len(names), np.int32)
    if comm.rank == first:
        peer_masks = np.zeros((len(others), MOST_CORES // 8), np.uint8)
        came = [comm.recv(row, r, CORES_TAG) for row, r in zip(peer_masks, others, strict=True)]
        wait_for_requests(*came, label="the cores of this host's ranks")
        cores = np.bitwise_or.reduce(peer_masks, initial=0) | np.packbits(cpu_mask)
        flags[names.index(mine)] = np.unpackbits(cores).sum() < 1 + len(others)
    else:
        wait_for_requests(
            comm.send(np.packbits(cpu_mask), first, CORES_TAG), label="the first rank of this host"
        )
    wait_for_requests(
        comm.all_reduce(flags, "max"), label="which hosts have fewer cores than ranks"
    )
    crowded = set(itertools.compress(names, flags))
    pairs = zip(comm.hosts, machines, strict=True)
    return frozenset(host for host, machine in pairs if machine in crowded)


def machine_id() -> str:
    """A text that processes on one machine have in common, and those on no other."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename
