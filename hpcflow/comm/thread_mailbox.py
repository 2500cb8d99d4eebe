"""What threads of one process that play ranks share: mailboxes, rounds of collectives, delays."""

from __future__ import annotations

import collections
import heapq
import itertools
import random
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np

from hpcflow.comm.communicator import Communicator, Watch
from hpcflow.errors import CommError

ANY = Communicator.ANY
Key = tuple[int, int]  # the rank at the other end, and the tag
One = TypeVar("One")


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

    __slots__ = (
        *("data", "done", "error", "nbytes", "number", "owner", "peer", "short"),
        *("source", "tag", "watch"),
    )

    def __init__(
        self, owner: Owner, data: np.ndarray, peer: int, tag: int, short: bool = False
    ) -> None:
        self.owner, self.data, self.peer, self.tag, self.short = owner, data, peer, tag, short
        self.done, self.error, self.source, self.nbytes = False, "", -1, 0
        self.number = 0  # its place among the receives of its rank
        self.watch: Watched | None = None  # is told when it is over

    def finish(self) -> None:
        """It is over; the group's lock is held."""
        self.done = True
        if self.watch is not None:
            self.watch.over(self)

    def watched_by(self, watch: Watch, token: Any) -> None:
        """Have `watch` tell when it is over."""
        watch.add(self, token)

    def test(self) -> bool:
        """Whether the array has been sent or filled."""
        self.owner.poll()
        if self.error:
            error, self.error = self.error, ""
            raise CommError(error, rank=self.owner.rank)
        return self.done


class Watched:
    """The double's `Watch`: who ends a transfer or sends a message notes it here.

    All changes are made under the group's lock.
    """

    def __init__(self, lock: threading.Condition, box: Mailbox, poll: Callable[[], None]) -> None:
        self._lock, self._box, self._poll = lock, box, poll
        self._waiting: dict[Transfer, Any] = {}  # -> token
        self._expected: dict[Key, tuple[Callable[[int], Transfer], Any]] = {}
        self._done: collections.deque[Any] = collections.deque()
        self._there: collections.deque[Key] = collections.deque()  # messages that are expected
        box.arrives = self._arrives

    def add(self, transfer: Transfer, token: Any) -> None:
        """Tell of a transfer."""
        with self._lock:
            if transfer.done:
                self._done.append(token)
            else:
                self._waiting[transfer], transfer.watch = token, self

    def expect(self, source: int, tag: int, receive: Callable[[int], Transfer], token: Any) -> None:
        """When a message waits, tell of the transfer that `receive(bytes)` begins."""
        with self._lock:
            self._expected[source, tag] = receive, token
            if self._box.probe(source, tag) is not None:
                self._there.append((source, tag))

    def _arrives(self, key: Key) -> None:
        if key in self._expected:
            self._there.append(key)

    def over(self, transfer: Transfer) -> None:
        """A transfer is over."""
        if transfer in self._waiting:
            self._done.append(self._waiting.pop(transfer))

    def finished(self) -> collections.deque[Any]:
        """Let messages move; the tokens of those that are over."""
        self._poll()
        while self._there:
            key = self._there.popleft()
            found = self._box.probe(*key)
            if found is not None and key in self._expected:
                receive, token = self._expected.pop(key)
                self.add(receive(found.data.nbytes), token)
        return self._done

    def tokens(self) -> list[Any]:
        """Those of all that were not taken out."""
        with self._lock:
            expected = [token for _, token in self._expected.values()]
            return [*self._done, *self._waiting.values(), *expected]

    def drop(self, gone: Callable[[Any], bool]) -> None:
        """Forget the tokens for which `gone` is true."""
        with self._lock:
            self._waiting = {t: token for t, token in self._waiting.items() if not gone(token)}
            self._expected = {k: one for k, one in self._expected.items() if not gone(one[1])}
            kept = [token for token in self._done if not gone(token)]
            self._done.clear()
            self._done.extend(kept)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._expected) + len(self._done)


class Message:
    """A message on its way: a copy of its bytes, or the sender whose array still holds them."""

    __slots__ = ("data", "number", "sender", "source", "tag")

    def __init__(self, source: int, tag: int, data: np.ndarray, sender: Transfer | None) -> None:
        self.source, self.tag, self.data, self.sender = source, tag, data, sender
        self.number = 0  # its place among what has come to its rank


class Mailbox:
    """What has been sent to one rank and what it has asked for; used under the group's lock.

    A message and a receive find each other in a time that does not depend on how many there are.
    """

    def __init__(self) -> None:
        self.polls = 0
        self.posted: dict[Key, collections.deque[Transfer]] = {}  # those from any rank too
        self.arrived: dict[Key, collections.deque[Message]] = {}
        self.delayed: list[tuple[int, int, Message]] = []  # a heap: (poll it is due at, number, it)
        self.count: collections.Counter[Key] = collections.Counter()
        self.arrives: Callable[[Key], None] = _unheard  # told of a message that nobody asked for
        self._from_any: dict[int, collections.OrderedDict[int, Message]] = {}  # arrived, by tag
        self._due: dict[Key, int] = {}  # when the last delayed message of its kind is
        self._numbers = itertools.count()

    def put(self, message: Message, delay: int) -> None:
        """Take a message in; it overtakes none of the same sender and tag."""
        key = message.source, message.tag
        due = max(self.polls + delay, self._due.get(key, 0))
        if due > self.polls:
            self._due[key] = due
            heapq.heappush(self.delayed, (due, next(self._numbers), message))
        else:
            self._arrive(message)

    def post(self, receive: Transfer) -> None:
        """Match a new receive with the first message that fits, or keep it."""
        message = self.probe(receive.peer, receive.tag)
        if message is None:
            receive.number = next(self._numbers)
            _line(self.posted, (receive.peer, receive.tag)).append(receive)
            return
        self.arrived[message.source, message.tag].popleft()
        del self._from_any[message.tag][message.number]
        _deliver(message, receive)

    def withdraw(self, receive: Transfer) -> None:
        """A receive is given up, if no message has met it."""
        line = self.posted.get((receive.peer, receive.tag))
        if line and receive in line:
            line.remove(receive)

    def probe(self, source: int, tag: int) -> Message | None:
        """The first message that a receive would get."""
        if source == ANY:
            return next(iter(self._from_any.get(tag, {}).values()), None)
        line = self.arrived.get((source, tag))
        return line[0] if line else None

    def poll(self) -> None:
        """One more poll of the receiver: delayed messages may arrive."""
        self.polls += 1
        while self.delayed and self.delayed[0][0] <= self.polls:
            self._arrive(heapq.heappop(self.delayed)[2])

    def _arrive(self, message: Message) -> None:
        key = message.source, message.tag
        lines = (self.posted.get(key), self.posted.get((ANY, message.tag)))
        first = min((line for line in lines if line), key=_asked, default=None)
        if first is not None:
            _deliver(message, first.popleft())
            return
        message.number = next(self._numbers)
        _line(self.arrived, key).append(message)
        self._from_any.setdefault(message.tag, collections.OrderedDict())[message.number] = message
        self.arrives(key)


def _unheard(key: Key) -> None:
    """Nobody waits for it yet."""


def _line(lines: dict[Key, collections.deque[One]], key: Key) -> collections.deque[One]:
    line = lines.get(key)
    if line is None:
        line = lines[key] = collections.deque()
    return line


def _asked(line: collections.deque[Transfer]) -> int:
    return line[0].number


def _deliver(message: Message, receive: Transfer) -> None:
    got, room = message.data.nbytes, receive.data.nbytes
    if got == room or (receive.short and got < room):
        receive.data[:got] = message.data
    else:
        receive.error = (
            f"receive from rank {message.source}, tag {message.tag}: the message has "
            f"{got} bytes, the array {room}"
        )
    receive.source, receive.nbytes = message.source, got
    receive.finish()
    if message.sender is not None:
        message.sender.finish()


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
