"""Fault-tolerant reduce and broadcast over a tree: one collective operation, called a round.

The first rank is the root (class `RootRound`). Without a death each rank sends at most FANOUT + 2
messages, and the root receives from FANOUT children:

    UP       to the parent: the combined input of a rank and its subtree
    ANSWER   to the children: the result that the root has computed
    ACK      to the parent: a rank and its subtree have the result

A rank that detects the death of its parent or of a child reports it to the root (BROKEN). The root
alone decides how the round continues, and sends a message to each rank:

    ASK, TELL  if it had not received all inputs: each live rank sends its input to the root
    TOLD       the result, which is not forwarded; also sent if an ACK is missing

All live ranks get the same result: the root computes it only after all of them have sent their
input, and its round completes only after all of them have the result. TOLD also names the ranks
that sent no input; the trees of later rounds leave them out. Messages carry the number of their
round. Messages of completed rounds, such as a report of a death after the result, are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from hpcflow.comm.communicator import Communicator, Request, has_ended
from hpcflow.errors import DeathError

FANOUT = 4
TAGS = 3  # of a group: up the tree; down it and from the root; directly to the root
UP, ANSWER, ACK, BROKEN, ASK, TELL, TOLD = range(7)
HEAD = np.dtype(np.int64).itemsize * 2  # kind, number of the round

Join = Callable[[Sequence[bytes]], bytes]  # combines inputs; associative
Settle = Callable[[bytes], bytes]  # on the root: combined input -> result
Put = Callable[[bytes], None]  # takes the result


class TreeMessage(NamedTuple):
    """A message of a round."""

    source: int
    kind: int
    number: int
    data: bytes


class _MessageReceiver:
    """Receives a message of unknown size from one rank, or from any."""

    def __init__(self, comm: Communicator, source: int, tag: int) -> None:
        self.comm, self.source, self.tag = comm, source, tag
        self._request: Request | None = None
        self._data = np.empty(0, np.uint8)

    def take(self) -> TreeMessage | None:
        """The message, once it has been received; None before."""
        if self._request is None:
            envelope = self.comm.probe(self.source, self.tag)
            if envelope is None:
                return None
            self.source = envelope[0]
            self._data = np.empty(envelope[1], np.uint8)
            self._request = self.comm.recv(self._data, self.source, self.tag)
        if not self._request.test():
            return None
        kind, number = self._data[:HEAD].view(np.int64)
        return TreeMessage(self.source, int(kind), int(number), self._data[HEAD:].tobytes())


class TreeMailbox:
    """The messages of a group of ranks, delivered by round."""

    def __init__(self, comm: Communicator, tag: int) -> None:
        self.comm, self._tag = comm, tag
        self._receivers: dict[tuple[int, int], _MessageReceiver] = {}
        self._early_messages: dict[tuple[int, int], TreeMessage] = {}  # messages of a later round
        self._direct: list[TreeMessage] = []
        self._leaving: list[Request] = []

    def send(self, rank: int, tag_offset: int, kind: int, number: int, data: bytes = b"") -> None:
        """Start sending a message with tag offset `tag_offset`; `drop_completed` completes it."""
        head = np.array([kind, number], np.int64).tobytes()
        message = np.frombuffer(head + data, np.uint8)
        self._leaving.append(self.comm.send(message, rank, self._tag + tag_offset))

    def drop_completed(self) -> None:
        """Drop sends that have completed or whose receiver has died."""
        self._leaving = [request for request in self._leaving if not has_ended(request)]

    def take(self, source: int, tag_offset: int, number: int) -> TreeMessage | None:
        """A message of `source` in round `number`, or None; messages of later rounds are held back.

        Errors: DeathError if `source` has died and no message is left.
        """
        key = source, tag_offset
        while True:
            message = self._early_messages.pop(key, None) or self._receive(source, tag_offset)
            if message is None:
                if source in self.comm.lost:
                    raise DeathError(f"rank {source} has died", rank=self.comm.rank)
                return None
            if message.number == number:
                return message
            if message.number > number:
                self._early_messages[key] = message
                return None

    def direct_messages(self, number: int) -> list[TreeMessage]:
        """On the root: messages sent directly to it in round `number`, each returned once."""
        while (message := self._receive(self.comm.ANY, TO_CHAIR)) is not None:
            self._direct.append(message)
        messages = [message for message in self._direct if message.number == number]
        self._direct = [message for message in self._direct if message.number > number]
        return messages

    def _receive(self, source: int, tag_offset: int) -> TreeMessage | None:
        key = source, tag_offset
        if key not in self._receivers:
            self._receivers[key] = _MessageReceiver(self.comm, source, self._tag + tag_offset)
        try:
            message = self._receivers[key].take()
        except DeathError:
            del self._receivers[key]
            if source == self.comm.ANY:
                return None
            raise
        if message is not None:
            del self._receivers[key]
        return message


UPWARD, DOWN, TO_CHAIR = range(TAGS)


class TreePosition(NamedTuple):
    """The position of this rank in the tree of `ranks`; the first rank is the root."""

    ranks: tuple[int, ...]
    position: int

    @property
    def parent(self) -> int:
        """The parent of a rank that is not the root."""
        return self.ranks[(self.position - 1) // FANOUT]

    @property
    def children(self) -> tuple[int, ...]:
        """The children of this rank."""
        first = FANOUT * self.position + 1
        return self.ranks[first : first + FANOUT]


class TreeRound:
    """Common part of `RootRound` and `MemberRound`."""

    def __init__(
        self, mail: TreeMailbox, number: int, tree: TreePosition, local_input: bytes, join: Join
    ) -> None:
        self._mail, self._number, self._input, self._join = mail, number, local_input, join
        self._ranks, self._children = tree.ranks, tree.children
        self._pending = set(self._children)  # children whose message is missing
        self._parts = [local_input]
        self.dead_ranks: set[int] = set()  # ranks without an input, once all ranks know them

    def _all_came(self, kind: int) -> bool:
        """Whether all children have sent a message of this kind. Errors: DeathError."""
        for child in sorted(self._pending):
            message = self._mail.take(child, UPWARD, self._number)
            if message is None:
                continue
            if message.kind == kind:
                self._pending.discard(child)
                if kind == UP:
                    self._parts.append(message.data)
        return not self._pending

    def _pass_on(self, answer: bytes) -> None:
        for child in self._children:
            self._mail.send(child, DOWN, ANSWER, self._number, answer)
        self._pending = set(self._children)

    def _send(self, ranks: Iterable[int], tag_offset: int, kind: int, data: bytes = b"") -> None:
        for rank in ranks:
            self._mail.send(rank, tag_offset, kind, self._number, data)


class MemberRound(TreeRound):
    """A round on a rank other than the root."""

    def __init__(
        self,
        mail: TreeMailbox,
        number: int,
        tree: TreePosition,
        local_input: bytes,
        join: Join,
        put: Put,
    ) -> None:
        super().__init__(mail, number, tree, local_input, join)
        self._put, self._root, self._parent = put, tree.ranks[0], tree.parent
        self._step: Callable[[], bool] = self._gather_from_children

    def test(self) -> bool:
        """Make progress; whether this rank and its subtree have the result.

        Errors: DeathError if the root has died.
        """
        self._mail.drop_completed()
        if self._step != self._finish:
            self._receive_from_root()
        try:
            return self._step()
        except DeathError:
            self._send([self._root], TO_CHAIR, BROKEN)
            self._step = self._finish if self._step == self._await_acks else self._await_root
        return self._step()

    def _receive_from_root(self) -> None:
        message = self._mail.take(self._root, DOWN, self._number)
        if message is None:
            return
        if message.kind == ANSWER:
            self._deliver(message.data)
        elif message.kind == ASK:
            self._send([self._root], TO_CHAIR, TELL, self._input)
            self._step = self._await_root
        else:
            end = 8 + 8 * int(np.frombuffer(message.data[:8], np.int64)[0])
            self.dead_ranks = set(np.frombuffer(message.data[8:end], np.int64).tolist())
            self._put(message.data[end:])
            self._step = self._finish

    def _gather_from_children(self) -> bool:
        """State: waits for the inputs of the children."""
        if not self._all_came(UP):
            return False
        self._send([self._parent], UPWARD, UP, self._join(self._parts))
        self._step = self._await_result
        return self._step()

    def _await_result(self) -> bool:
        """State: waits for the result."""
        if self._parent != self._root:
            message = self._mail.take(self._parent, DOWN, self._number)
            if message is not None:
                self._deliver(message.data)
                return self._step()
        return False

    def _deliver(self, answer: bytes) -> None:
        self._put(answer)
        self._pass_on(answer)
        self._step = self._await_acks

    def _await_acks(self) -> bool:
        """State: waits for the ACKs of the children."""
        if not self._all_came(ACK):
            return False
        self._send([self._parent], UPWARD, ACK)
        self._step = self._finish
        return True

    def _await_root(self) -> bool:
        """State: the tree is broken; waits for a direct message of the root."""
        return False

    def _finish(self) -> bool:
        return True


class RootRound(TreeRound):
    """A round on the root."""

    def __init__(
        self,
        mail: TreeMailbox,
        number: int,
        tree: TreePosition,
        local_input: bytes,
        join: Join,
        settle: Settle,
        put: Put,
    ) -> None:
        super().__init__(mail, number, tree, local_input, join)
        self._settle, self._put, self._answer = settle, put, b""
        self._received: dict[int, bytes] = {}
        self._step: Callable[[], bool] = self._gather_from_children

    def test(self) -> bool:
        """Make progress; whether all live ranks have the result."""
        self._mail.drop_completed()
        return self._step()

    def _gather_from_children(self) -> bool:
        """State: waits for the inputs of the children."""
        try:
            if not self._is_whole(UP):
                return False
        except DeathError:
            self._pending = self._living()
            self._send(self._pending, DOWN, ASK)
            self._step = self._await_live_ranks
            return self._step()
        self._settle_result(self._parts)
        self._pass_on(self._answer)
        self._step = self._await_acks
        return self._step()

    def _await_acks(self) -> bool:
        """State: waits for the ACKs of the children."""
        try:
            if not self._is_whole(ACK):
                return False
        except DeathError:
            self._send_result(self._living())
        self._step = self._finish
        return True

    def _is_whole(self, kind: int) -> bool:
        """Whether all children have sent a message of this kind.

        Errors: DeathError if a child, or a rank below it, has died.
        """
        if any(message.kind == BROKEN for message in self._mail.direct_messages(self._number)):
            raise DeathError("a rank has died", rank=self._mail.comm.rank)
        return self._all_came(kind)

    def _await_live_ranks(self) -> bool:
        """State: waits for a direct message of each live rank."""
        for message in self._mail.direct_messages(self._number):
            if message.kind == TELL:
                self._received[message.source] = message.data
        self._pending &= self._living()
        if not self._pending <= self._received.keys():
            return False
        senders = [rank for rank in self._ranks if rank in self._received]
        self._settle_result([self._input, *(self._received[rank] for rank in senders)])
        self.dead_ranks = set(self._ranks[1:]) - self._received.keys()
        self._send_result(senders)
        self._step = self._finish
        return True

    def _settle_result(self, parts: Sequence[bytes]) -> None:
        self._answer = self._settle(self._join(parts))
        self._put(self._answer)

    def _living(self) -> set[int]:
        return set(self._ranks[1:]).difference(self._mail.comm.lost)

    def _send_result(self, ranks: Iterable[int]) -> None:
        gone = np.array([len(self.dead_ranks), *sorted(self.dead_ranks)], np.int64)
        self._send(ranks, DOWN, TOLD, gone.tobytes() + self._answer)

    def _finish(self) -> bool:
        return True
