"""MPI requests and channels: nonblocking transfers, persistent channels, groups of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from hpcflow.comm.communicator import Communicator, CompletionQueue, Request, TrafficCounter
from hpcflow.comm.mpi_library import initialized_mpi
from hpcflow.comm.polling_backoff import wait_for_requests
from hpcflow.errors import CommError, DeathError, StallError

PATIENCE_S = 1.0  # longest wait of close() for sends
PIECE_BYTES = 4 << 20  # chunk size of a large message within a node
ANY = Communicator.ANY


class TransferCommunicator(Protocol):
    """The communicator; references transfers in flight, so that their memory stays valid."""

    rank: int
    traffic: TrafficCounter
    live: set[MpiTransfer]
    channels: set[PersistentChannel]

    def count_bytes(self, status: Any) -> int:
        """Bytes of the message of an MPI status, also above 2**31."""
        ...

    def met_death(self, error: RuntimeError) -> bool | None:
        """Whether `error` means that the peer has died; None if the request goes on."""
        ...

    def probe(self, source: int, tag: int) -> tuple[int, int] | None:
        """(source, bytes) of a message that can be received, or None."""
        ...

    def recv(self, array: np.ndarray, source: int, tag: int) -> Request:
        """Start receiving into `array`."""
        ...


class PacedQueue(CompletionQueue, Protocol):
    """A completion queue that can start receives one after the other."""

    def expect(
        self,
        source: int,
        tag: int,
        receive: Callable[[int], Any],
        token: Any,
        paced: bool = False,
    ) -> None:
        """When a message is available, start its receive; with `paced` few at a time."""
        ...


class MpiTransfer:
    """One nonblocking call; `label` is (kind, peer, tag); a receive has a `status`."""

    __slots__ = (
        *("_error", "_label", "_nbytes", "_owner", "_short", "_status"),
        *("active", "array", "nbytes", "request", "source", "token"),
    )

    def __init__(
        self,
        owner: TransferCommunicator,
        request: Any,
        array: Any,
        label: tuple[str, int, int],
        status: Any = None,
    ) -> None:
        self._owner, self._label, self._status = owner, label, status
        self.request, self.array, self.active, self.source = request, array, True, -1
        self.nbytes, self._short = 0, False
        self._nbytes = array.nbytes if status is not None else -1
        self._error: CommError | None = None  # its failure, raised once by test
        self.token: Any = None  # reported by its watch on completion
        self._keep_alive()

    def _keep_alive(self) -> None:
        self._owner.live.add(self)

    def _drop_reference(self) -> None:
        self._owner.live.discard(self)

    def test(self) -> bool:
        """Whether it has completed; raises the CommError by which it failed."""
        if self.active:
            try:
                if not self.request.Test(self._status):
                    return False
            except RuntimeError as error:  # mpi4py's Exception is one
                if not self._fails(error):
                    return False
            else:
                self.end(self._status)
        if self._error is not None:
            error_, self._error = self._error, None
            raise error_
        return True

    def end(self, status: Any) -> None:
        """MPI has completed the request; `test` raises an error if the message has a wrong size."""
        self.active = False
        self._drop_reference()
        if self._status is not None:
            self.source, self.nbytes = status.source, self._nbytes
            if status.count != self._nbytes:  # short, or too large for an MPI-3 count
                self.nbytes = got = self._owner.count_bytes(status)
                if got != self._nbytes and not self._short:
                    why = f"the message has {got} bytes, the array {self._nbytes}"
                    self._error = self.failed(why)

    def _fails(self, error: RuntimeError) -> bool:
        """Whether `error` ends the request; `test` then raises it."""
        died = self._owner.met_death(error)
        if died is None:  # a receive from any rank continues with the other ranks
            return False
        self.active = False
        self._drop_reference()
        self._error = self.failed(str(error), died)
        self._error.__cause__ = error
        return True

    def check_after_failure(
        self, statuses: dict[tuple[int, int], Any], fault: Callable[[int], RuntimeError]
    ) -> bool:
        """Whether it has completed, after a call over many requests failed for some of them.

        MPI keeps no status of requests that completed in that call. `statuses` has those of the
        messages received in it, by (source, tag). Any other completed receive failed by the fault
        of its peer.
        """
        status = initialized_mpi().Status()
        try:
            if not self.request.Test(status):
                return False
        except RuntimeError as error:
            return self._fails(error)
        _, peer, tag = self._label
        if self._status is None or status.source >= 0:
            self.end(status)
        elif (peer, tag) in statuses:
            self.end(statuses[peer, tag])
        else:
            return self._fails(fault(peer))
        return True

    def watched_by(self, watch: CompletionQueue, token: Any) -> None:
        """Add it to `watch`."""
        watch.add(self, token)

    def cancel(self) -> None:
        """Cancel a receive that no message has matched; other transfers have to complete."""
        if self.active and self._status is not None:
            self.request.Cancel()
            self._status = None

    def failed(self, reason: str, died: bool = False) -> CommError:
        """An error that names this transfer."""
        kind = DeathError if died else CommError
        return kind(f"{self}: {reason}", rank=self._owner.rank)

    def __str__(self) -> str:
        kind, peer, tag = self._label
        if tag < 0:
            return kind
        preposition = "to" if kind == "send" else "from"
        return f"{kind} {preposition} rank {'any' if peer < 0 else peer}, tag {tag}"


class PersistentChannel(MpiTransfer):
    """A persistent send or receive; a send counts its messages and bytes in `tally`."""

    __slots__ = ("_tally",)

    def __init__(
        self,
        owner: TransferCommunicator,
        request: Any,
        array: Any,
        label: tuple[str, int, int],
        status: Any = None,
        tally: list[int] | None = None,
        short: bool = False,
    ) -> None:
        super().__init__(owner, request, array, label, status)
        self.active, self._tally, self._nbytes, self._short = False, tally, array.nbytes, short

    def _keep_alive(self) -> None:
        self._owner.channels.add(self)

    def _drop_reference(self) -> None:  # the owner holds it until it is closed
        pass

    def start(self) -> None:
        """Begin the transfer."""
        if self.active:
            raise self.failed("started again before it was done")
        tally = self._tally
        if tally is not None:
            tally[0] += 1
            tally[1] += self._nbytes
        try:
            self.request.Start()
        except RuntimeError as error:
            raise self.failed(str(error), bool(self._owner.met_death(error))) from error
        self.active = True

    @property
    def size(self) -> int:
        """Bytes of the array."""
        return self._nbytes

    def close(self) -> None:
        """Cancel a receive, wait up to PATIENCE_S for a send, and free the request."""
        if self.request is None:
            return
        self.cancel()
        try:
            wait_for_requests(self, timeout=PATIENCE_S)
        except StallError:
            raise self.failed("closed while in flight") from None
        self.request.Free()
        self.request = self.array = None
        self._owner.channels.discard(self)


class ChunkedChannel:
    """A large message within a node, sent in chunks; a receive has one chunk in flight at a time.

    Open MPI copies a whole message between processes of a node in one call of MPI_Test, whatever
    its size. With chunks, the receiver makes progress on its other messages in between. An empty
    first chunk stands for an empty message.
    """

    def __init__(
        self, pieces: Sequence[PersistentChannel], source: int = ANY, tally: list[int] | None = None
    ) -> None:
        self._pieces, self._tally, self.source = pieces, tally, source
        self._at, self.nbytes = len(pieces), 0

    def start(self) -> None:
        """Begin the transfer."""
        if self._at < len(self._pieces):
            raise self._pieces[self._at].failed("started again before it was done")
        self._at = self.nbytes = 0
        if self._tally is None:
            self._pieces[0].start()
            return
        self._tally[0] += 1
        for piece in self._pieces:
            self._tally[1] += piece.size
            piece.start()

    def test(self) -> bool:
        """Whether all chunks are done."""
        pieces = self._pieces
        while self._at < len(pieces):
            piece = pieces[self._at]
            if not piece.test():
                return False
            self._at += 1
            self.nbytes += piece.nbytes
            if self._tally is not None:
                continue
            if not piece.nbytes:
                self._at = len(pieces)
            elif self._at < len(pieces):
                pieces[self._at].start()
                return False
        return True

    def watched_by(self, watch: CompletionQueue, token: Any) -> None:
        """Add the chunk in flight to `watch`; more chunks may follow it."""
        watch.add(self._pieces[min(self._at, len(self._pieces) - 1)], token)

    def close(self) -> None:
        """Close the channels of all chunks."""
        for piece in self._pieces:
            piece.close()


class PacedChannel:
    """A large receive from another host, which starts when its message is available.

    The completion queue starts few of them at a time: see `MpiCompletionQueue.expect`.
    """

    def __init__(
        self, owner: TransferCommunicator, receive: PersistentChannel, source: int, tag: int
    ) -> None:
        self._owner, self._receive, self._tag = owner, receive, tag
        self.source, self.nbytes, self._awaited = source, 0, False
        self._failure: CommError | None = None  # of the start, raised once by test

    def start(self) -> None:
        """Await the message."""
        if self._awaited or self._receive.active:
            raise self._receive.failed("started again before it was done")
        self._awaited = True

    def test(self) -> bool:
        """Whether it has been received; raises the CommError by which it failed."""
        if self._awaited:
            envelope = self._owner.probe(self.source, self._tag)
            if envelope is None:
                return False
            self._begin(envelope[1])
        if self._failure is not None:
            error, self._failure = self._failure, None
            raise error
        if not self._receive.test():
            return False
        self.nbytes = self._receive.nbytes
        return True

    def watched_by(self, watch: PacedQueue, token: Any) -> None:
        """Add it to `watch`, which starts the receive."""
        if self._awaited:
            watch.expect(self.source, self._tag, self._begin, token, paced=True)
        else:
            watch.add(self._receive, token)

    def _begin(self, nbytes: int) -> PersistentChannel | FailedTransfer:
        self._awaited = False
        try:
            self._receive.start()
        except CommError as error:
            self._failure = error
            return FailedTransfer(error)
        return self._receive

    def abandon(self) -> None:
        """Receive what may still come: its sender waits for that, though nobody tests this."""
        if self._awaited:
            self._begin(0)

    def close(self) -> None:
        """Cancel the receive and free the request."""
        self._awaited = False
        self._receive.close()


def chunks_of(array: np.ndarray) -> list[np.ndarray]:
    """The byte array cut into chunks of PIECE_BYTES."""
    return [array[at : at + PIECE_BYTES] for at in range(0, array.nbytes, PIECE_BYTES)]


class ProbedChannel:
    """A receive from any rank by probe: a probed message is received from its sender.

    For an MPI whose receives from MPI_ANY_SOURCE miss messages that a probe finds.
    """

    def __init__(self, owner: TransferCommunicator, array: np.ndarray, tag: int) -> None:
        self._owner, self._array, self._tag = owner, array, tag
        self._receive: Request | None = None
        self._active, self.source, self.nbytes = False, ANY, array.nbytes

    def start(self) -> None:
        """Start to probe for a message."""
        if self._active:
            raise CommError(
                f"receive from rank any, tag {self._tag}: started again before it was done",
                rank=self._owner.rank,
            )
        self._active = True

    def test(self) -> bool:
        """Whether a message has been received; raises a CommError if the receive failed."""
        if not self._active:
            return True
        if self._receive is None:
            envelope = self._owner.probe(ANY, self._tag)
            if envelope is None:
                return False
            self.source = envelope[0]
            self._receive = self._owner.recv(self._array, self.source, self._tag)
        try:
            if not self._receive.test():
                return False
        except DeathError:  # its sender has died after the probe
            self._receive = None
            return False
        self._receive, self._active = None, False
        return True

    def close(self) -> None:
        """Stop probing; a receive that has been started completes first."""
        if self._receive is not None:
            wait_for_requests(self._receive, timeout=PATIENCE_S)
        self._receive, self._active = None, False


class FailedTransfer:
    """A transfer that failed when it was started."""

    active = False

    def __init__(self, error: CommError) -> None:
        self._error = error

    def test(self) -> bool:
        """Raise its error."""
        raise self._error

    def watched_by(self, watch: CompletionQueue, token: Any) -> None:
        """Add it to `watch` as completed."""
        watch.add(self, token)


class RequestGroup:
    """Several requests as one."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._pending = list(requests)

    def test(self) -> bool:
        """Whether all of them have completed."""
        while self._pending and self._pending[-1].test():
            self._pending.pop()
        return not self._pending
