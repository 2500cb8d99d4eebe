"""The completion queue (`CompletionQueue`) of MPI: tests all requests in flight by one
MPI_Testsome.

A server has some requests in flight for each of its workers. To test each of them in Python for
every message would cost time quadratic in their number.
"""

from __future__ import annotations

import collections
import itertools
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from hpcflow.comm.mpi_library import initialized_mpi
from hpcflow.comm.mpi_requests import MpiTransfer
from hpcflow.errors import DeathError

AT_ONCE = 32  # expected messages probed one by one in one call
PACED_BYTES = 256 << 10  # of paced messages that are received at a time, at least
SLOWEST_PACED_S = 1.0  # a message that takes longer does not count: its sender may hang
PACED_S = 2e-3  # ... and so many as have come in this time: fast networks need more on their way


class ProbingCommunicator(Protocol):
    """The communicator."""

    def probe_any(self) -> tuple[int, int, int] | None:
        """(source, tag, bytes) of a message that can be received, or None."""
        ...

    def probe(self, source: int, tag: int) -> tuple[int, int] | None:
        """(source, bytes) of a message that can be received, or None."""
        ...


class _Expected(NamedTuple):
    """A message whose receive starts when it is available."""

    receive: Callable[[int], MpiTransfer]
    token: Any
    paced: bool


class _Paced(NamedTuple):
    """A paced receive: its bytes, those in flight with it when it started, and when that was."""

    nbytes: int
    in_flight: int
    start: float


class MpiCompletionQueue:
    """Finds completed requests by `MPI_Testsome` over all requests in flight."""

    def __init__(self, owner: ProbingCommunicator) -> None:
        self._owner = owner
        self._requests: list[Any] = []  # mpi4py requests, parallel to _transfers
        self._transfers: list[MpiTransfer] = []
        # (source, tag) of a message -> function that starts its receive, token, whether it is paced
        self._expected: dict[tuple[int, int], _Expected] = {}
        self._paced: dict[MpiTransfer, _Paced] = {}  # paced receives in flight
        self._pace = 0.0  # bytes per second of the last of them
        self._statuses: list[Any] = []  # of completed requests; filled by mpi4py
        self._completed: collections.deque[Any] = collections.deque()

    def add(self, transfer: MpiTransfer, token: Any) -> None:
        """Watch a transfer that has been started."""
        if transfer.active:
            transfer.token = token
            self._requests.append(transfer.request)
            self._transfers.append(transfer)
        else:
            self._completed.append(token)

    def expect(
        self,
        source: int,
        tag: int,
        receive: Callable[[int], MpiTransfer],
        token: Any,
        paced: bool = False,
    ) -> None:
        """When a matching message is available, start its receive by `receive(bytes)`; watch it.

        With `paced` only when few bytes of other paced messages are being received. Several
        senders would else fill the queue of this host's port at once, and TCP waits 0.2 s before it
        repeats what a full queue has dropped. A sender sends a large message only once its receive
        has been started. Messages that are not available do not count, so none waits for one that
        comes later.
        """
        self._expected[source, tag] = _Expected(receive, token, paced)

    def finished(self) -> collections.deque[Any]:
        """Make progress; returns the queue of tokens of completed requests."""
        if self._expected:
            self._receive_expected()
        if self._requests:
            try:
                places = initialized_mpi().Request.Testsome(self._requests, self._statuses)
            except RuntimeError as error:  # mpi4py's Exception is one
                self._look_at_each(error)
            else:
                if places:
                    self._take(places)
        return self._completed

    def _take(self, places: list[int]) -> None:
        requests, transfers, completed = self._requests, self._transfers, self._completed
        for place, status in zip(places, self._statuses, strict=False):
            transfer = transfers[place]
            completed.append(transfer.token)
            transfer.end(status)
            if self._paced:
                self._end_paced(transfer)
        for place in sorted(places, reverse=True):  # swap with the last, then pop
            last_request, last_transfer = requests.pop(), transfers.pop()
            if place < len(requests):
                requests[place], transfers[place] = last_request, last_transfer

    def _look_at_each(self, error: RuntimeError) -> None:
        """After a failed Testsome: find the completed requests and those that failed."""
        faults = {s.source: initialized_mpi().Exception(s.error) for s in self._statuses if s.error}
        succeeded = {(s.source, s.tag): s for s in self._statuses if not s.error}
        pending: list[MpiTransfer] = []
        for transfer in self._transfers:
            if transfer.check_after_failure(succeeded, lambda peer: faults.get(peer, error)):
                self._completed.append(transfer.token)
                self._end_paced(transfer)
            else:
                pending.append(transfer)
        self._transfers, self._requests = pending, [transfer.request for transfer in pending]
        self._statuses = []

    def _receive_expected(self) -> None:
        """Start to receive expected messages that are available.

        If the first available message is not an expected one, MPI_Iprobe does not show the messages
        behind it. Then up to AT_ONCE expected messages are probed by (source, tag), the others in
        later calls. An expected message whose sender has died counts as completed; the next test of
        it raises the DeathError.
        """
        owner, expected = self._owner, self._expected
        while expected and (envelope := owner.probe_any()) is not None:
            source, tag, nbytes = envelope
            if (source, tag) in expected and self._receive((source, tag), nbytes):
                continue
            for key in list(itertools.islice(expected, AT_ONCE)):
                try:
                    there = owner.probe(*key)
                except DeathError:  # raised by the next test of the expected message
                    self._completed.append(expected.pop(key).token)
                    continue
                if there is None or not self._receive(key, there[1]):
                    expected[key] = expected.pop(key)
            return

    def _receive(self, key: tuple[int, int], nbytes: int) -> bool:
        """Start to receive an available message, unless it is paced and has to wait."""
        receive, token, paced = self._expected[key]
        in_flight = self._paced_bytes() if paced else 0
        if in_flight >= max(PACED_BYTES, self._pace * PACED_S):
            return False
        del self._expected[key]
        transfer = receive(nbytes)
        self.add(transfer, token)
        if paced and transfer.active:
            self._paced[transfer] = _Paced(nbytes, in_flight + nbytes, time.perf_counter())
        return True

    def _paced_bytes(self) -> int:
        late = time.perf_counter() - SLOWEST_PACED_S
        return sum(message.nbytes for message in self._paced.values() if message.start > late)

    def _end_paced(self, transfer: MpiTransfer) -> None:
        paced = self._paced.pop(transfer, None)
        if paced is not None:
            self._pace = paced.in_flight / (time.perf_counter() - paced.start)

    def tokens(self) -> list[Any]:
        """Tokens of all requests that were not popped."""
        waiting = [transfer.token for transfer in self._transfers]
        expected = [message.token for message in self._expected.values()]
        return [*self._completed, *waiting, *expected]

    def drop_tokens(self, predicate: Callable[[Any], bool]) -> None:
        """Remove the tokens for which `predicate` is true."""
        self._transfers = [t for t in self._transfers if not predicate(t.token)]
        self._requests = [transfer.request for transfer in self._transfers]
        self._paced = {t: paced for t, paced in self._paced.items() if not predicate(t.token)}
        self._expected = {
            k: message for k, message in self._expected.items() if not predicate(message.token)
        }
        remaining = [token for token in self._completed if not predicate(token)]
        self._completed.clear()
        self._completed.extend(remaining)

    def __len__(self) -> int:
        return len(self._transfers) + len(self._expected) + len(self._completed)
