"""Ranks that come together at one of them, so that the death of another ends nobody's wait.

A collective of MPI that a rank does not come to ends with an error on some of the others and well
on the rest, so that they cannot go on together. Here all tell one rank, the chair, which knows
from MPI who has died, and tell no two ranks different things. Without the chair nothing goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hpcflow.comm.base import Communicator, Request
from hpcflow.comm.waiting import finish
from hpcflow.errors import CommError, DeathError

COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum}
Joined = Callable[[Sequence[bytes]], bytes]  # on the chair: what comes of what the others told
Put = Callable[[bytes], None]  # takes it


class Chaired:
    """Small collectives over the ranks `members` of `comm`, of which the first is the chair.

    `tag` and the next one are its own. Every member that lives calls them, in one order; those that
    have died before they came are left out. The names are those of `Communicator`. A round that is
    waited for later keeps its place before those that are begun after it.
    """

    def __init__(self, comm: Communicator, members: Sequence[int], tag: int) -> None:
        self.comm, self.tag = comm, tag
        self._last: Request | None = None  # the round that was begun last
        self.go_on(members)

    def go_on(self, members: Sequence[int]) -> None:
        """From now on without the others, who have died; rounds that were begun end as they are."""
        self.members = tuple(members)
        self.size, self.rank = len(members), self.members.index(self.comm.rank)

    @property
    def others(self) -> list[int]:
        """The ranks that live, without the chair."""
        return [rank for rank in self.members[1:] if rank not in self.comm.lost]

    def all_reduce(self, array: np.ndarray, op: str = "sum") -> Request:
        """Combine `array` in place over the members ("sum", "max", "min")."""
        combine, total = COMBINE[op], array.copy()

        def put(data: bytes) -> None:
            array[...] = np.frombuffer(data, array.dtype).reshape(array.shape)

        def joined(told: Sequence[bytes]) -> bytes:
            for data in told:
                combine(total, np.frombuffer(data, array.dtype).reshape(array.shape), out=total)
            return total.tobytes()

        return self._round(array.tobytes(), joined, put)

    def gather_text(self, text: str, root: int = 0) -> list[str] | None:
        """The members' strings on the chair, None elsewhere; blocks."""
        if root:
            raise CommError("only the chair gathers", rank=self.comm.rank)
        told: list[bytes] = []

        def joined(others: Sequence[bytes]) -> bytes:
            told.extend(others)
            return b""

        what = f"a text of {self.size} ranks"
        finish(self._round(text.encode(), joined, lambda data: None), what=what)
        return None if self.rank else [text, *(data.decode() for data in told)]

    def broadcast_text(self, text: str | None, root: int = 0) -> str:
        """The chair's string everywhere; blocks."""
        if root:
            raise CommError("only the chair broadcasts", rank=self.comm.rank)
        box = [text or ""]
        said = (text or "").encode()
        told = self._round(b"", lambda told: said, lambda data: box.append(data.decode()))
        finish(told, what="what one rank decides", peer=self.members[0])
        return box[-1]

    def all_gather_text(self, text: str) -> list[str]:
        """The members' strings, free of NUL, on every member; blocks."""
        rows = self.gather_text(text)
        return self.broadcast_text(None if rows is None else "\0".join(rows)).split("\0")

    def _round(self, mine: bytes, joined: Joined, put: Put) -> Request:
        one = _Member(self, mine, put) if self.rank else _Chair(self, joined, put)
        self._last = _InTurn(one, self._last)
        return self._last


class _InTurn:
    """A round whose messages are looked for when those of the round before it have come."""

    def __init__(self, round: Request, before: Request | None) -> None:
        self._round, self._before = round, before

    def test(self) -> bool:
        if self._before is not None:
            if not self._before.test():
                return False
            self._before = None
        return self._round.test()


class _Message:
    """Bytes that come from a rank, as many as they are."""

    def __init__(self, comm: Communicator, source: int, tag: int) -> None:
        self.comm, self.source, self.tag = comm, source, tag
        self.request: Request | None = None
        self.data = np.empty(0, np.uint8)

    def test(self) -> bool:
        if self.request is None:
            found = self.comm.probe(self.source, self.tag)
            if found is None:
                return False
            self.data = np.empty(found[1], np.uint8)
            self.request = self.comm.recv(self.data, self.source, self.tag)
        return self.request.test()


class _Member:
    """One round of a member: it tells the chair, and hears what came of it."""

    def __init__(self, group: Chaired, mine: bytes, put: Put) -> None:
        comm, chair, tag = group.comm, group.members[0], group.tag
        self._put = put
        self._told: Request | None = comm.send(np.frombuffer(mine, np.uint8), chair, tag)
        self._answer = _Message(comm, chair, tag + 1)
        self._over = False

    def test(self) -> bool:
        if self._told is not None and self._told.test():
            self._told = None
        if not self._over and self._told is None and self._answer.test():
            self._over = True
            self._put(self._answer.data.tobytes())
        return self._over


class _Chair:
    """One round of the chair: it waits for those who live, and tells them what came of it."""

    def __init__(self, group: Chaired, joined: Joined, put: Put) -> None:
        self._group, self._joined, self._put = group, joined, put
        comm, tag, self._members = group.comm, group.tag, group.members
        self._waits = {rank: _Message(comm, rank, tag) for rank in group.others}
        self._told: dict[int, bytes] = {}
        self._sends: dict[int, Request] | None = None

    def test(self) -> bool:
        if self._sends is None and not self._all_came():
            return False
        assert self._sends is not None
        for rank in list(self._sends):
            if _is_over(self._sends[rank]):
                del self._sends[rank]
        return not self._sends

    def _all_came(self) -> bool:
        for rank, message in list(self._waits.items()):
            try:
                if message.test():
                    self._told[rank] = message.data.tobytes()
                    del self._waits[rank]
            except DeathError:
                del self._waits[rank]
        if self._waits:
            return False
        group = self._group
        answer = self._joined([self._told[rank] for rank in self._members if rank in self._told])
        self._put(answer)
        data = np.frombuffer(answer, np.uint8)
        self._sends = {rank: group.comm.send(data, rank, group.tag + 1) for rank in self._told}
        return True


def _is_over(request: Request) -> bool:
    """Whether a send is over, also because nobody will receive it."""
    try:
        return request.test()
    except DeathError:
        return True
