"""What MpiCommunicator hands out: transfers in flight, persistent channels, several as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from hpcflow.comm.communicator import Communicator, Request, Traffic, Watch
from hpcflow.comm.mpi_library import running
from hpcflow.comm.polling_backoff import finish
from hpcflow.errors import CommError, DeathError, StallError

PATIENCE_S = 1.0  # how long a close() lets sends finish
PIECE_BYTES = 4 << 20  # of a large message within a node
ANY = Communicator.ANY


class Owner(Protocol):
    """The communicator; it holds what is in flight, so that memory outlives the call."""

    rank: int
    traffic: Traffic
    live: set[Transfer]
    channels: set[PersistentChannel]

    def count_bytes(self, status: Any) -> int:
        """Bytes of the message of an MPI status, however many."""
        ...

    def met_death(self, error: RuntimeError) -> bool | None:
        """Whether a request that raised `error` met a rank that has died; None if it goes on."""
        ...

    def probe(self, source: int, tag: int) -> tuple[int, int] | None:
        """(source, bytes) of a message that waits to be received, or None."""
        ...

    def recv(self, array: np.ndarray, source: int, tag: int) -> Request:
        """Start receiving into `array`."""
        ...


class Transfer:
    """One nonblocking call; `label` is its kind, peer and tag, `status` marks a receive."""

    __slots__ = (
        *("_error", "_label", "_nbytes", "_owner", "_short", "_status"),
        *("active", "array", "nbytes", "request", "source", "token"),
    )

    def __init__(
        self,
        owner: Owner,
        request: Any,
        array: Any,
        label: tuple[str, int, int],
        status: Any = None,
    ) -> None:
        self._owner, self._label, self._status = owner, label, status
        self.request, self.array, self.active, self.source = request, array, True, -1
        self.nbytes, self._short = 0, False
        self._nbytes = array.nbytes if status is not None else -1
        self._error: CommError | None = None  # what it has failed by, to be raised once
        self.token: Any = None  # whom its watch tells of it
        self._hold()

    def _hold(self) -> None:
        self._owner.live.add(self)

    def _let_go(self) -> None:
        self._owner.live.discard(self)

    def test(self) -> bool:
        """Whether it is done; a CommError says why it failed."""
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
        """MPI says that it is over; what is wrong with the message `test` will raise."""
        self.active = False
        self._let_go()
        if self._status is not None:
            self.source, self.nbytes = status.source, self._nbytes
            if status.count != self._nbytes:  # short, or too large for an MPI-3 count
                self.nbytes = got = self._owner.count_bytes(status)
                if got != self._nbytes and not self._short:
                    why = f"the message has {got} bytes, the array {self._nbytes}"
                    self._error = self.failed(why)

    def _fails(self, error: RuntimeError) -> bool:
        """Whether it is over by `error`, which `test` will raise."""
        died = self._owner.met_death(error)
        if died is None:  # a receive from any rank waits for the others
            return False
        self.active = False
        self._let_go()
        self._error = self.failed(str(error), died)
        self._error.__cause__ = error
        return True

    def look(self, whole: dict[tuple[int, int], Any], fault: Callable[[int], RuntimeError]) -> bool:
        """Whether it is over, after a call for many requests that has failed for some of them.

        MPI has no status left for those that were over then: `whole` has those of the messages that
        have come, by (source, tag). Any other receive has met the fault of its peer.
        """
        status = running().Status()
        try:
            if not self.request.Test(status):
                return False
        except RuntimeError as error:
            return self._fails(error)
        _, peer, tag = self._label
        if self._status is None or status.source >= 0:
            self.end(status)
        elif (peer, tag) in whole:
            self.end(whole[peer, tag])
        else:
            return self._fails(fault(peer))
        return True

    def watched_by(self, watch: Watch, token: Any) -> None:
        """Have `watch` tell when it is over."""
        watch.add(self, token)

    def cancel(self) -> None:
        """Give up a receive that no message has met; what cannot be cancelled has yet to finish."""
        if self.active and self._status is not None:
            self.request.Cancel()
            self._status = None

    def failed(self, why: str, died: bool = False) -> CommError:
        """An error that names this transfer."""
        kind = DeathError if died else CommError
        return kind(f"{self}: {why}", rank=self._owner.rank)

    def __str__(self) -> str:
        kind, peer, tag = self._label
        if tag < 0:
            return kind
        preposition = "to" if kind == "send" else "from"
        return f"{kind} {preposition} rank {'any' if peer < 0 else peer}, tag {tag}"


class PersistentChannel(Transfer):
    """A persistent send or receive; a send counts its messages and bytes in `tally`."""

    __slots__ = ("_tally",)

    def __init__(
        self,
        owner: Owner,
        request: Any,
        array: Any,
        label: tuple[str, int, int],
        status: Any = None,
        tally: list[int] | None = None,
        short: bool = False,
    ) -> None:
        super().__init__(owner, request, array, label, status)
        self.active, self._tally, self._nbytes, self._short = False, tally, array.nbytes, short

    def _hold(self) -> None:
        self._owner.channels.add(self)

    def _let_go(self) -> None:  # held until it is closed
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
        """Bytes of its array."""
        return self._nbytes

    def close(self) -> None:
        """Cancel a receive, wait a moment for a send, and free the request."""
        if self.request is None:
            return
        self.cancel()
        try:
            finish(self, timeout=PATIENCE_S)
        except StallError:
            raise self.failed("closed while in flight") from None
        self.request.Free()
        self.request = self.array = None
        self._owner.channels.discard(self)


class PiecedChannel:
    """A large message within a node as several: a receive has one of them on its way at a time.

    Open MPI copies a message between processes of a node in one call of MPI_Test, however large it
    is; a rank that receives it in pieces looks after its other messages in between. An empty first
    piece is an empty message.
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
        """Whether all pieces are done."""
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

    def watched_by(self, watch: Watch, token: Any) -> None:
        """Have `watch` tell of the piece that is on its way; there may be more behind it."""
        watch.add(self._pieces[min(self._at, len(self._pieces) - 1)], token)

    def close(self) -> None:
        """Let go of all pieces."""
        for piece in self._pieces:
            piece.close()


def pieces_of(array: np.ndarray) -> list[np.ndarray]:
    """The bytes of an array, cut."""
    return [array[at : at + PIECE_BYTES] for at in range(0, array.nbytes, PIECE_BYTES)]


class ProbedChannel:
    """Receives from any rank: what a probe has found is received from its sender.

    For an MPI whose receives from MPI_ANY_SOURCE miss messages that a probe sees.
    """

    def __init__(self, owner: Owner, array: np.ndarray, tag: int) -> None:
        self._owner, self._array, self._tag = owner, array, tag
        self._receive: Request | None = None
        self._active, self.source, self.nbytes = False, ANY, array.nbytes

    def start(self) -> None:
        """Begin to look for a message."""
        if self._active:
            raise CommError(
                f"receive from rank any, tag {self._tag}: started again before it was done",
                rank=self._owner.rank,
            )
        self._active = True

    def test(self) -> bool:
        """Whether a message has come; a CommError says why it could not be received."""
        if not self._active:
            return True
        if self._receive is None:
            found = self._owner.probe(ANY, self._tag)
            if found is None:
                return False
            self.source = found[0]
            self._receive = self._owner.recv(self._array, self.source, self._tag)
        try:
            if not self._receive.test():
                return False
        except DeathError:  # its sender has died since
            self._receive = None
            return False
        self._receive, self._active = None, False
        return True

    def close(self) -> None:
        """Stop looking; a message that has been found is received first."""
        if self._receive is not None:
            finish(self._receive, timeout=PATIENCE_S)
        self._receive, self._active = None, False


class Failed:
    """A transfer that could not even begin."""

    active = False

    def __init__(self, error: CommError) -> None:
        self._error = error

    def test(self) -> bool:
        """Say so."""
        raise self._error

    def watched_by(self, watch: Watch, token: Any) -> None:
        """Have `watch` tell of it, at once."""
        watch.add(self, token)


class Several:
    """Requests that count as one."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._left = list(requests)

    def test(self) -> bool:
        """Whether all are done."""
        while self._left and self._left[-1].test():
            self._left.pop()
        return not self._left
