"""What threads of one process that play ranks share: mailboxes, rounds of collectives, delays."""

from __future__ import annotations

import collections
import random
import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from hpcflow.comm.base import Communicator
from hpcflow.errors import CommError


class Owner(Protocol):
    """The communicator that a transfer belongs to."""

    rank: int

    def poll(self) -> None:
        """Let delayed messages come nearer; raise if the job was aborted."""
        ...


class Delays:
    """How many polls each arrival takes: drawn by name, so that thread timing has no say."""

    def __init__(self, seed: int | None, most: int) -> None:
        self._seed, self._most = seed, most

    def draw(self, *name: object) -> int:
        """Polls until the arrival of this name."""
        if self._seed is None:
            return 0
        return random.Random(repr((self._seed, *name))).randint(0, self._most)


class Transfer:
    """One send or receive; the group completes it."""

    def __init__(
        self, owner: Owner, data: np.ndarray, peer: int, tag: int, short: bool = False
    ) -> None:
        self.owner, self.data, self.peer, self.tag, self.short = owner, data, peer, tag, short
        self.done, self.error, self.source, self.nbytes = False, "", -1, 0

    def test(self) -> bool:
        """Whether the array has been sent or filled."""
        self.owner.poll()
        if self.error:
            error, self.error = self.error, ""
            raise CommError(error, rank=self.owner.rank)
        return self.done


class Message:
    """A message on its way: a copy of its bytes, or the sender whose array still holds them."""

    def __init__(self, source: int, tag: int, data: np.ndarray, sender: Transfer | None) -> None:
        self.source, self.tag, self.data, self.sender = source, tag, data, sender
        self.due = 0


class Mailbox:
    """What has been sent to one rank and what it has asked for; used under the group's lock."""

    def __init__(self) -> None:
        self.polls = 0
        self.posted: list[Transfer] = []
        self.arrived: list[Message] = []
        self.delayed: list[Message] = []
        self.count: collections.Counter[tuple[int, int]] = collections.Counter()

    def put(self, message: Message, delay: int) -> None:
        """Take a message in; it overtakes none of the same sender and tag."""
        message.due = self.polls + delay
        earlier = [
            m.due for m in self.delayed if (m.source, m.tag) == (message.source, message.tag)
        ]
        if message.due > self.polls or earlier:
            message.due = max([message.due, *earlier])
            self.delayed.append(message)
        else:
            self._arrive(message)

    def post(self, receive: Transfer) -> None:
        """Match a new receive with the first message that fits, or keep it."""
        for message in self.arrived:
            if _fits(receive, message):
                self.arrived.remove(message)
                _deliver(message, receive)
                return
        self.posted.append(receive)

    def poll(self) -> None:
        """One more poll of the receiver: delayed messages may arrive."""
        self.polls += 1
        if self.delayed:
            due = [message for message in self.delayed if message.due <= self.polls]
            self.delayed = [message for message in self.delayed if message.due > self.polls]
            for message in due:
                self._arrive(message)

    def _arrive(self, message: Message) -> None:
        for receive in self.posted:
            if _fits(receive, message):
                self.posted.remove(receive)
                _deliver(message, receive)
                return
        self.arrived.append(message)


def _fits(receive: Transfer, message: Message) -> bool:
    return receive.tag == message.tag and receive.peer in (message.source, Communicator.ANY)


def _deliver(message: Message, receive: Transfer) -> None:
    got, room = message.data.nbytes, receive.data.nbytes
    if got == room or (receive.short and got < room):
        receive.data[:got] = message.data
    else:
        receive.error = (
            f"receive from rank {message.source}, tag {message.tag}: the message has "
            f"{got} bytes, the array {room}"
        )
    receive.source, receive.nbytes, receive.done = message.source, got, True
    if message.sender is not None:
        message.sender.done = True


class Round:
    """One collective call: what each rank brought, and the result once all have come."""

    def __init__(self) -> None:
        self.brought: dict[int, tuple[str, Any]] = {}
        self.result: Any = None
        self.error = ""
        self.done = False


class Group:
    """What the ranks of one communicator share; `lock` guards all of it."""

    def __init__(self, size: int, delays: Delays, eager_bytes: int) -> None:
        self.size, self.delays, self.eager_bytes = size, delays, eager_bytes
        self.lock = threading.Condition()
        self.boxes = [Mailbox() for _ in range(size)]
        self.rounds: collections.defaultdict[object, Round] = collections.defaultdict(Round)
        self.aborted: int | None = None

    def bring(
        self, key: object, rank: int, label: str, what: Any, combine: Callable[[list], Any]
    ) -> Round:
        """Add one rank's part to a collective; the last to come combines all, in rank order."""
        with self.lock:
            round_ = self.rounds[key]
            round_.brought[rank] = (label, what)
            if len(round_.brought) == self.size:
                del self.rounds[key]
                rows = [round_.brought[r] for r in range(self.size)]
                first: dict[str, int] = {}
                for caller, (said, _) in enumerate(rows):
                    first.setdefault(said, caller)
                if len(first) > 1:
                    told = ", ".join(f"rank {caller} {said}" for said, caller in first.items())
                    round_.error = f"the ranks call different collectives: {told}"
                else:
                    round_.result = combine([what for _, what in rows])
                round_.done = True
                self.lock.notify_all()
            return round_
