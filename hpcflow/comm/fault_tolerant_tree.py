"""One round of ranks that come together: up a tree to the first of them, the chair, and back down.

While nobody dies each rank sends at most FANOUT + 2 messages, and the chair hears of FANOUT others:

    UP       a rank has what all below it in the tree have told, joined
    ANSWER   the chair has made something of it; down the tree
    ACK      a rank and all below it have the answer

Who meets a death, of its parent or of a child, tells the chair (BROKEN), which alone decides what
follows, with a message to each:

    ASK, TELL  before it had heard of all: everyone who lives tells it alone what he has to tell
    TOLD       the answer, which nobody passes on; then, too, when it lacks an ACK

So all that live get the same answer: none is given before all of them have told, and the chair's
round is not over before all of them have it. With TOLD the chair says who did not tell; the trees
of later rounds are without them. Messages have the number of their round; those of rounds that are
over, as of who told of a death after the answer, are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from hpcflow.comm.communicator import Communicator, Request
from hpcflow.errors import DeathError

FANOUT = 4
TAGS = 3  # of a group: up the tree, down it and from the chair, to the chair alone
UP, ANSWER, ACK, BROKEN, ASK, TELL, TOLD = range(7)
HEAD = np.dtype(np.int64).itemsize * 2  # kind, number of the round

Join = Callable[[Sequence[bytes]], bytes]  # what several have told, as one; in any grouping
Settle = Callable[[bytes], bytes]  # on the chair: what comes of it
Put = Callable[[bytes], None]  # takes that


class Told(NamedTuple):
    """A message of a round."""

    source: int
    kind: int
    number: int
    data: bytes


class _Message:
    """Bytes that come from a rank, or from any, as many as they are."""

    def __init__(self, comm: Communicator, source: int, tag: int) -> None:
        self.comm, self.source, self.tag = comm, source, tag
        self._request: Request | None = None
        self._data = np.empty(0, np.uint8)

    def take(self) -> Told | None:
        """The message, once it is there."""
        if self._request is None:
            found = self.comm.probe(self.source, self.tag)
            if found is None:
                return None
            self.source = found[0]
            self._data = np.empty(found[1], np.uint8)
            self._request = self.comm.recv(self._data, self.source, self.tag)
        if not self._request.test():
            return None
        kind, number = self._data[:HEAD].view(np.int64)
        return Told(self.source, int(kind), int(number), self._data[HEAD:].tobytes())


class Mail:
    """The messages of a group of ranks, in the order of rounds."""

    def __init__(self, comm: Communicator, tag: int) -> None:
        self.comm, self._tag = comm, tag
        self._coming: dict[tuple[int, int], _Message] = {}
        self._kept: dict[tuple[int, int], Told] = {}  # of a later round
        self._direct: list[Told] = []
        self._leaving: list[Request] = []

    def send(self, rank: int, way: int, kind: int, number: int, data: bytes = b"") -> None:
        """Send a message by one of the tags; nobody waits for it."""
        head = np.array([kind, number], np.int64).tobytes()
        message = np.frombuffer(head + data, np.uint8)
        self._leaving.append(self.comm.send(message, rank, self._tag + way))

    def reap(self) -> None:
        """Let go of what has left, or was for one who has died."""
        self._leaving = [request for request in self._leaving if not _is_over(request)]

    def take(self, source: int, way: int, number: int) -> Told | None:
        """A message of `source` in round `number`, once; one of a later round waits for that.

        Errors: DeathError if `source` has died and there is none.
        """
        key = source, way
        while True:
            told = self._kept.pop(key, None) or self._receive(source, way)
            if told is None:
                if source in self.comm.lost:
                    raise DeathError(f"rank {source} has died", rank=self.comm.rank)
                return None
            if told.number == number:
                return told
            if told.number > number:
                self._kept[key] = told
                return None

    def direct(self, number: int) -> list[Told]:
        """On the chair: what ranks have told it alone in round `number`, each once."""
        while (told := self._receive(self.comm.ANY, TO_CHAIR)) is not None:
            self._direct.append(told)
        found = [told for told in self._direct if told.number == number]
        self._direct = [told for told in self._direct if told.number > number]
        return found

    def _receive(self, source: int, way: int) -> Told | None:
        key = source, way
        if key not in self._coming:
            self._coming[key] = _Message(self.comm, source, self._tag + way)
        try:
            told = self._coming[key].take()
        except DeathError:
            del self._coming[key]
            if source == self.comm.ANY:
                return None
            raise
        if told is not None:
            del self._coming[key]
        return told


UPWARD, DOWN, TO_CHAIR = range(TAGS)


def _is_over(request: Request) -> bool:
    try:
        return request.test()
    except DeathError:
        return True


class Tree(NamedTuple):
    """The place of this rank among `ranks`, of which the first is the chair."""

    ranks: tuple[int, ...]
    place: int

    @property
    def parent(self) -> int:
        """Of a member, to whom it tells."""
        return self.ranks[(self.place - 1) // FANOUT]

    @property
    def children(self) -> tuple[int, ...]:
        """Who tell this rank."""
        first = FANOUT * self.place + 1
        return self.ranks[first : first + FANOUT]


class Round:
    """What chair and members have in common."""

    def __init__(self, mail: Mail, number: int, tree: Tree, mine: bytes, join: Join) -> None:
        self._mail, self._number, self._mine, self._join = mail, number, mine, join
        self._ranks, self._children = tree.ranks, tree.children
        self._left = set(self._children)  # those from whom something is to come
        self._parts = [mine]
        self.gone: set[int] = set()  # who did not tell, if that is known to all

    def _all_came(self, kind: int) -> bool:
        """Whether all children have sent theirs of this kind. Errors: DeathError."""
        for child in sorted(self._left):
            told = self._mail.take(child, UPWARD, self._number)
            if told is None:
                continue
            if told.kind == kind:
                self._left.discard(child)
                if kind == UP:
                    self._parts.append(told.data)
        return not self._left

    def _pass_on(self, answer: bytes) -> None:
        for child in self._children:
            self._mail.send(child, DOWN, ANSWER, self._number, answer)
        self._left = set(self._children)

    def _send(self, ranks: Iterable[int], way: int, kind: int, data: bytes = b"") -> None:
        for rank in ranks:
            self._mail.send(rank, way, kind, self._number, data)


class Member(Round):
    """A round of a member other than the chair."""

    def __init__(
        self, mail: Mail, number: int, tree: Tree, mine: bytes, join: Join, put: Put
    ) -> None:
        super().__init__(mail, number, tree, mine, join)
        self._put, self._chair, self._parent = put, tree.ranks[0], tree.parent
        self._step: Callable[[], bool] = self._up

    def test(self) -> bool:
        """Go on as far as messages are there; whether this rank and all below have the answer.

        Errors: DeathError if the chair has died.
        """
        self._mail.reap()
        if self._step != self._over:
            self._hear_chair()
        try:
            return self._step()
        except DeathError:
            self._send([self._chair], TO_CHAIR, BROKEN)
            self._step = self._over if self._step == self._down_again else self._alone
        return self._step()

    def _hear_chair(self) -> None:
        told = self._mail.take(self._chair, DOWN, self._number)
        if told is None:
            return
        if told.kind == ANSWER:
            self._answered(told.data)
        elif told.kind == ASK:
            self._send([self._chair], TO_CHAIR, TELL, self._mine)
            self._step = self._alone
        else:
            end = 8 + 8 * int(np.frombuffer(told.data[:8], np.int64)[0])
            self.gone = set(np.frombuffer(told.data[8:end], np.int64).tolist())
            self._put(told.data[end:])
            self._step = self._over

    def _up(self) -> bool:
        """Those below have to tell."""
        if not self._all_came(UP):
            return False
        self._send([self._parent], UPWARD, UP, self._join(self._parts))
        self._step = self._down
        return self._step()

    def _down(self) -> bool:
        """The answer has to come."""
        if self._parent != self._chair:
            told = self._mail.take(self._parent, DOWN, self._number)
            if told is not None:
                self._answered(told.data)
                return self._step()
        return False

    def _answered(self, answer: bytes) -> None:
        self._put(answer)
        self._pass_on(answer)
        self._step = self._down_again

    def _down_again(self) -> bool:
        """Those below have to have the answer."""
        if not self._all_came(ACK):
            return False
        self._send([self._parent], UPWARD, ACK)
        self._step = self._over
        return True

    def _alone(self) -> bool:
        """The tree is broken: the chair has to speak."""
        return False

    def _over(self) -> bool:
        return True


class Chair(Round):
    """A round of the chair."""

    def __init__(
        self,
        mail: Mail,
        number: int,
        tree: Tree,
        mine: bytes,
        join: Join,
        settle: Settle,
        put: Put,
    ) -> None:
        super().__init__(mail, number, tree, mine, join)
        self._settle, self._put, self._answer = settle, put, b""
        self._heard: dict[int, bytes] = {}
        self._step: Callable[[], bool] = self._up

    def test(self) -> bool:
        """Go on as far as messages are there; whether all that live have the answer."""
        self._mail.reap()
        return self._step()

    def _up(self) -> bool:
        """All have to tell."""
        try:
            if not self._is_whole(UP):
                return False
        except DeathError:
            self._left = self._living()
            self._send(self._left, DOWN, ASK)
            self._step = self._asked
            return self._step()
        self._conclude(self._parts)
        self._pass_on(self._answer)
        self._step = self._down_again
        return self._step()

    def _down_again(self) -> bool:
        """All have to have the answer."""
        try:
            if not self._is_whole(ACK):
                return False
        except DeathError:
            self._tell(self._living())
        self._step = self._over
        return True

    def _is_whole(self, kind: int) -> bool:
        """Whether all children have sent theirs of this kind.

        Errors: DeathError if one of them, or someone below, has died.
        """
        if any(told.kind == BROKEN for told in self._mail.direct(self._number)):
            raise DeathError("a rank has died", rank=self._mail.comm.rank)
        return self._all_came(kind)

    def _asked(self) -> bool:
        """All that live have to tell the chair alone."""
        for told in self._mail.direct(self._number):
            if told.kind == TELL:
                self._heard[told.source] = told.data
        self._left &= self._living()
        if not self._left <= self._heard.keys():
            return False
        told_so = [rank for rank in self._ranks if rank in self._heard]
        self._conclude([self._mine, *(self._heard[rank] for rank in told_so)])
        self.gone = set(self._ranks[1:]) - self._heard.keys()
        self._tell(told_so)
        self._step = self._over
        return True

    def _conclude(self, told: Sequence[bytes]) -> None:
        self._answer = self._settle(self._join(told))
        self._put(self._answer)

    def _living(self) -> set[int]:
        return set(self._ranks[1:]).difference(self._mail.comm.lost)

    def _tell(self, ranks: Iterable[int]) -> None:
        gone = np.array([len(self.gone), *sorted(self.gone)], np.int64)
        self._send(ranks, DOWN, TOLD, gone.tobytes() + self._answer)

    def _over(self) -> bool:
        return True
