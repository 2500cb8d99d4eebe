"""Ranks that come together at one of them, so that the death of another ends nobody's wait.

A collective of MPI that a rank does not come to ends with an error on some of the others and well
on the rest, so that they cannot go on together. Here messages go up a tree to one rank, the chair,
and back (`fault_tolerant_tree.py`). After a death the chair exchanges messages with each other rank
directly, and no two ranks receive different answers. The job cannot go on without the chair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hpcflow.comm.communicator import Communicator, Request
from hpcflow.comm.fault_tolerant_tree import Chair, Join, Mail, Member, Put, Settle, Tree
from hpcflow.comm.polling_backoff import finish
from hpcflow.errors import CommError, DeathError

COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum}
LENGTH = 16  # bytes in front of a text: who tells it, its length


class Chaired:
    """Small collectives over the ranks `members` of `comm`, of which the first is the chair.

    `tag` and the next two are its own. Every member that lives calls them, in one order; those that
    have died before they came are left out. The names are those of `Communicator`. A round that is
    waited for later keeps its place before those that are begun after it: members pass on what
    others tell, so each round that has begun is to be tested until it is over; `beside` is a list
    of what the caller tests whenever it waits.
    """

    def __init__(
        self,
        comm: Communicator,
        members: Sequence[int],
        tag: int,
        beside: list[Request] | None = None,
    ) -> None:
        self.comm, self._mail, self._beside = comm, Mail(comm, tag), beside
        self._begun = 0  # rounds
        self._last: _InTurn | None = None  # the round that was begun last
        self.gone: set[int] = set()  # members that have died, as all members know
        self._made: tuple[tuple[int, ...], frozenset[int], Tree] | None = None
        self.go_on(members)

    def go_on(self, members: Sequence[int]) -> None:
        """From now on without the others, who have died; rounds that were begun end as they are."""
        self.members = tuple(members)
        self.size, self.rank = len(members), self.members.index(self.comm.rank)

    def _tree(self, members: tuple[int, ...]) -> Tree:
        """The tree of those who live, as far as all members know."""
        if self._made is None or self._made[0] is not members or self._made[1] != self.gone:
            ranks = tuple(rank for rank in members if rank not in self.gone)
            tree = Tree(ranks, ranks.index(self.comm.rank))
            self._made = members, frozenset(self.gone), tree
        return self._made[2]

    def all_reduce(self, array: np.ndarray, op: str = "sum") -> Request:
        """Combine `array` in place over the members ("sum", "max", "min")."""
        combine = COMBINE[op]

        def join(told: Sequence[bytes]) -> bytes:
            total = np.frombuffer(told[0], array.dtype).copy()
            for data in told[1:]:
                combine(total, np.frombuffer(data, array.dtype), out=total)
            return total.tobytes()

        def put(data: bytes) -> None:
            array[...] = np.frombuffer(data, array.dtype).reshape(array.shape)

        return self._round(array.tobytes(), join, lambda total: total, put)

    def gather_text(self, text: str, root: int = 0) -> list[str] | None:
        """The members' strings on the chair, None elsewhere; blocks."""
        if root:
            raise CommError("only the chair gathers", rank=self.comm.rank)
        texts: dict[int, str] = {}

        def settle(told: bytes) -> bytes:
            texts.update(_texts(told))
            return b""

        what, mine = f"a text of {self.size} ranks", text.encode()
        mine = np.array([self.comm.rank, len(mine)], np.int64).tobytes() + mine
        finish(self._round(mine, b"".join, settle, lambda data: None), what=what)
        return None if self.rank else [texts[r] for r in self.members if r in texts]

    def broadcast_text(self, text: str | None, root: int = 0) -> str:
        """The chair's string everywhere; blocks."""
        if root:
            raise CommError("only the chair broadcasts", rank=self.comm.rank)
        box: list[str] = []
        said = (text or "").encode()
        told = self._round(b"", b"".join, lambda told: said, lambda data: box.append(data.decode()))
        finish(told, what="what one rank decides", peer=self.members[0])
        return box[0]

    def all_gather_text(self, text: str) -> list[str]:
        """The members' strings, free of NUL, on every member; blocks."""
        rows = self.gather_text(text)
        return self.broadcast_text(None if rows is None else "\0".join(rows)).split("\0")

    def _round(self, mine: bytes, join: Join, settle: Settle, put: Put) -> Request:
        number, members = self._begun, self.members
        self._begun += 1

        def begin() -> Chair | Member:
            tree = self._tree(members)
            if tree.place:
                return Member(self._mail, number, tree, mine, join, put)
            return Chair(self._mail, number, tree, mine, join, settle, put)

        self._last = _InTurn(self, begin, self._last)
        self._last.begin()
        if self._beside is not None:
            self._beside.append(self._last)
        return self._last


def _texts(told: bytes) -> dict[int, str]:
    """Texts by the ranks that have told them."""
    found, at = {}, 0
    while at < len(told):
        rank, length = np.frombuffer(told[at : at + LENGTH], np.int64).tolist()
        found[rank] = told[at + LENGTH : at + LENGTH + length].decode()
        at += LENGTH + length
    return found


class _InTurn:
    """A round that begins when the round before is over."""

    def __init__(
        self, group: Chaired, make: Callable[[], Chair | Member], before: _InTurn | None
    ) -> None:
        self._group, self._make, self._before = group, make, before
        self._round: Chair | Member | None = None
        self._is_over = False

    def begin(self) -> None:
        """Send what can be sent now; that the chair has died is met by who waits."""
        try:
            self.test()
        except DeathError:
            pass

    def test(self) -> bool:
        """Whether it is over, on this rank and on those for which it passes messages on."""
        if self._is_over:
            return True
        if self._before is not None:
            if not self._before.test():
                return False
            self._before = None
        if self._round is None:
            self._round = self._make()
        if self._round.test():
            self._is_over = True
            self._group.gone |= self._round.gone
            self._round = None
        return self._is_over
