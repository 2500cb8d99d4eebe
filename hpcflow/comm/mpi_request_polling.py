"""Requests in flight, of which MPI is asked in one call which are over: the Watch of MPI.

A server has some requests in flight for each of its workers. Testing each of them in Python, once
for every message that has come, would cost it the square of their number.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable
from typing import Any, Protocol

from hpcflow.comm.mpi_library import running
from hpcflow.comm.mpi_requests import Transfer
from hpcflow.errors import DeathError

AT_ONCE = 32  # messages that are looked for by their names in one call


class Owner(Protocol):
    """The communicator."""

    def probe_any(self) -> tuple[int, int, int] | None:
        """(source, tag, bytes) of a message that waits to be received, or None."""
        ...

    def probe(self, source: int, tag: int) -> tuple[int, int] | None:
        """(source, bytes) of a message that waits to be received, or None."""
        ...


class MpiWatch:
    """By `MPI_Testsome` over all requests in flight: one call tells all that are over."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._requests: list[Any] = []  # mpi4py's, and beside each its transfer
        self._transfers: list[Transfer] = []
        # (source, tag) of a message -> how it is received, token
        self._expected: dict[tuple[int, int], tuple[Callable[[int], Transfer], Any]] = {}
        self._statuses: list[Any] = []  # of those that are over; made by mpi4py
        self._done: collections.deque[Any] = collections.deque()

    def add(self, transfer: Transfer, token: Any) -> None:
        """Tell of a transfer that has begun."""
        if transfer.active:
            transfer.token = token
            self._requests.append(transfer.request)
            self._transfers.append(transfer)
        else:
            self._done.append(token)

    def expect(self, source: int, tag: int, receive: Callable[[int], Transfer], token: Any) -> None:
        """When a message waits, tell of the transfer that `receive(bytes)` begins."""
        self._expected[source, tag] = receive, token

    def finished(self) -> collections.deque[Any]:
        """Let messages move; the tokens of those that are over."""
        if self._expected:
            self._receive_expected()
        if self._requests:
            try:
                places = running().Request.Testsome(self._requests, self._statuses)
            except RuntimeError as error:  # mpi4py's Exception is one
                self._look_at_each(error)
            else:
                if places:
                    self._take(places)
        return self._done

    def _take(self, places: list[int]) -> None:
        requests, transfers, done = self._requests, self._transfers, self._done
        for place, status in zip(places, self._statuses, strict=False):
            transfer = transfers[place]
            done.append(transfer.token)
            transfer.end(status)
        for place in sorted(places, reverse=True):  # the last one takes the place of each
            last, its = requests.pop(), transfers.pop()
            if place < len(requests):
                requests[place], transfers[place] = last, its

    def _look_at_each(self, error: RuntimeError) -> None:
        """Testsome has met an error: find out who is over, and who by an error."""
        faults = {s.source: running().Exception(s.error) for s in self._statuses if s.error}
        whole = {(s.source, s.tag): s for s in self._statuses if not s.error}
        left: list[Transfer] = []
        for transfer in self._transfers:
            if transfer.look(whole, lambda peer: faults.get(peer, error)):
                self._done.append(transfer.token)
            else:
                left.append(transfer)
        self._transfers, self._requests = left, [transfer.request for transfer in left]
        self._statuses = []

    def _receive_expected(self) -> None:
        """Begin to receive the expected messages that are there.

        Behind a message that is for somebody else MPI does not show those that have come after it:
        then some are looked for by their names, others the next time. One whose sender has died is
        over: the next test of it raises the DeathError.
        """
        owner, expected = self._owner, self._expected
        while expected and (found := owner.probe_any()) is not None:
            source, tag, nbytes = found
            if (source, tag) in expected:
                self._receive((source, tag), nbytes)
                continue
            for key in list(itertools.islice(expected, AT_ONCE)):
                try:
                    there = owner.probe(*key)
                except DeathError:  # for who waits for it
                    self._done.append(expected.pop(key)[1])
                    continue
                if there is not None:
                    self._receive(key, there[1])
                else:
                    expected[key] = expected.pop(key)
            return

    def _receive(self, key: tuple[int, int], nbytes: int) -> None:
        receive, token = self._expected.pop(key)
        self.add(receive(nbytes), token)

    def tokens(self) -> list[Any]:
        """Those of all that were not taken out."""
        waiting = [transfer.token for transfer in self._transfers]
        return [*self._done, *waiting, *(token for _, token in self._expected.values())]

    def drop(self, gone: Callable[[Any], bool]) -> None:
        """Forget the tokens for which `gone` is true."""
        self._transfers = [t for t in self._transfers if not gone(t.token)]
        self._requests = [transfer.request for transfer in self._transfers]
        self._expected = {k: one for k, one in self._expected.items() if not gone(one[1])}
        kept = [token for token in self._done if not gone(token)]
        self._done.clear()
        self._done.extend(kept)

    def __len__(self) -> int:
        return len(self._transfers) + len(self._expected) + len(self._done)
