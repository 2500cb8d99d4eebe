"""Shared state of the thread communicator: mailboxes, collectives, injected delays."""

from __future__ import annotations

import collections
import heapq
import itertools
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np

from hpcflow.comm.communicator import Communicator, CompletionQueue
from hpcflow.errors import CommError

ANY = Communicator.ANY
Key = tuple[int, int]  # the rank at the other end, and the tag
ItemT = TypeVar("ItemT")


class PollingCommunicator(Protocol):
    """The communicator of a transfer."""

    rank: int

    def poll(self) -> None:
        """Advance the delays of messages; raise if the job was aborted."""
        ...


class MessageDelays:
    """The number of polls before each arrival, drawn by name, independent of thread timing."""

    def __init__(self, seed: int | None, max_polls: int) -> None:
        self._seed, self._max_polls = seed, max_polls

    def draw(self, *name: object) -> int:
        """Polls before the arrival of this name."""
        if self._seed is None:
            return 0
        return random.Random(repr((self._seed, *name))).randint(0, self._max_polls)


class ThreadTransfer:
    """One send or receive; the `ThreadGroup` completes it."""

    __slots__ = (
        *("data", "completed", "error", "nbytes", "number", "owner", "peer", "short"),
        *("source", "tag", "watch"),
    )

    def __init__(
        self, owner: PollingCommunicator, data: np.ndarray, peer: int, tag: int, short: bool = False
    ) -> None:
        self.owner, self.data, self.peer, self.tag, self.short = owner, data, peer, tag, short
        self.completed, self.error, self.source, self.nbytes = False, "", -1, 0
        self.number = 0  # its number among the receives of its rank
        self.watch: ThreadCompletionQueue | None = None  # notified on completion

    def finish(self) -> None:
        """Mark it as completed; the caller holds the group's lock."""
        self.completed = True
        if self.watch is not None:
            self.watch.over(self)

    def watched_by(self, watch: CompletionQueue, token: Any) -> None:
        """Add it to `watch`."""
        watch.add(self, token)

    def test(self) -> bool:
        """Whether the array has been sent or filled."""
        self.owner.poll()
        if self.error:
            error, self.error = self.error, ""
            raise CommError(error, rank=self.owner.rank)
        return self.completed


class ThreadCompletionQueue:
    """The thread communicator's `CompletionQueue`: completed transfers and sent messages are
    recorded here.

    All changes are made under the group's lock.
    """

    def __init__(self, lock: threading.Condition, box: Mailbox, poll: Callable[[], None]) -> None:
        self._lock, self._box, self._poll = lock, box, poll
        self._waiting: dict[ThreadTransfer, Any] = {}  # -> token
        self._expected: dict[Key, tuple[Callable[[int], ThreadTransfer], Any]] = {}
        self._completed: collections.deque[Any] = collections.deque()
        self._arrived: collections.deque[Key] = collections.deque()  # arrived, expected
        box.arrives = self._arrives

    def add(self, transfer: ThreadTransfer, token: Any) -> None:
        """Watch a transfer."""
        with self._lock:
            if transfer.completed:
                self._completed.append(token)
            else:
                self._waiting[transfer], transfer.watch = token, self

    def expect(
        self, source: int, tag: int, receive: Callable[[int], ThreadTransfer], token: Any
    ) -> None:
        """When a matching message is available, start its receive by `receive(bytes)`; watch it."""
        with self._lock:
            self._expected[source, tag] = receive, token
            if self._box.probe(source, tag) is not None:
                self._arrived.append((source, tag))

    def _arrives(self, key: Key) -> None:
        if key in self._expected:
            self._arrived.append(key)

    def over(self, transfer: ThreadTransfer) -> None:
        """Record that a transfer has completed."""
        if transfer in self._waiting:
            self._completed.append(self._waiting.pop(transfer))

    def finished(self) -> collections.deque[Any]:
        """Make progress; returns the queue of tokens of completed transfers."""
        self._poll()
        while self._arrived:
            key = self._arrived.popleft()
            message = self._box.probe(*key)
            if message is not None and key in self._expected:
                receive, token = self._expected.pop(key)
                self.add(receive(message.data.nbytes), token)
        return self._completed

    def tokens(self) -> list[Any]:
        """Tokens of all transfers that were not popped."""
        with self._lock:
            expected = [token for _, token in self._expected.values()]
            return [*self._completed, *self._waiting.values(), *expected]

    def drop_tokens(self, predicate: Callable[[Any], bool]) -> None:
        """Remove the tokens for which `predicate` is true."""
        with self._lock:
            self._waiting = {t: token for t, token in self._waiting.items() if not predicate(token)}
            self._expected = {
                k: entry for k, entry in self._expected.items() if not predicate(entry[1])
            }
            remaining = [token for token in self._completed if not predicate(token)]
            self._completed.clear()
            self._completed.extend(remaining)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._expected) + len(self._completed)


class ThreadMessage:
    """A message in flight: a copy of its bytes, or the send whose array still holds them."""

    __slots__ = ("data", "number", "sender", "source", "tag")

    def __init__(
        self, source: int, tag: int, data: np.ndarray, sender: ThreadTransfer | None
    ) -> None:
        self.source, self.tag, self.data, self.sender = source, tag, data, sender
        self.number = 0  # its number among the messages of its rank


class Mailbox:
    """Messages and posted receives of one rank; used under the group's lock.

    A message and a receive are matched in a time that does not depend on their number.
    """

    def __init__(self) -> None:
        self.polls = 0
        # includes receives from any rank
        self.posted: dict[Key, collections.deque[ThreadTransfer]] = {}
        self.arrived: dict[Key, collections.deque[ThreadMessage]] = {}
        # a heap: (due poll, number, message)
        self.delayed: list[tuple[int, int, ThreadMessage]] = []
        self.count: collections.Counter[Key] = collections.Counter()
        # called for a message without receive
        self.arrives: Callable[[Key], None] = _ignore_arrival
        # arrived, by tag
        self._from_any: dict[int, collections.OrderedDict[int, ThreadMessage]] = {}
        self._due: dict[Key, int] = {}  # poll at which the last delayed message is due
        self._numbers = itertools.count()

    def put(self, message: ThreadMessage, delay: int) -> None:
        """Deliver a message after `delay` polls, in order for each (sender, tag)."""
        key = message.source, message.tag
        due = max(self.polls + delay, self._due.get(key, 0))
        if due > self.polls:
            self._due[key] = due
            heapq.heappush(self.delayed, (due, next(self._numbers), message))
        else:
            self._arrive(message)

    def post(self, receive: ThreadTransfer) -> None:
        """Match a new receive with the first message that fits, or queue it."""
        message = self.probe(receive.peer, receive.tag)
        if message is None:
            receive.number = next(self._numbers)
            _queue_for(self.posted, (receive.peer, receive.tag)).append(receive)
            return
        self.arrived[message.source, message.tag].popleft()
        del self._from_any[message.tag][message.number]
        _deliver(message, receive)

    def withdraw(self, receive: ThreadTransfer) -> None:
        """Withdraw a receive that no message has matched."""
        line = self.posted.get((receive.peer, receive.tag))
        if line and receive in line:
            line.remove(receive)

    def probe(self, source: int, tag: int) -> ThreadMessage | None:
        """The first message that a receive would match."""
        if source == ANY:
            return next(iter(self._from_any.get(tag, {}).values()), None)
        line = self.arrived.get((source, tag))
        return line[0] if line else None

    def poll(self) -> None:
        """Count one poll of the receiver; delayed messages that are due arrive."""
        self.polls += 1
        while self.delayed and self.delayed[0][0] <= self.polls:
            self._arrive(heapq.heappop(self.delayed)[2])

    def _arrive(self, message: ThreadMessage) -> None:
        key = message.source, message.tag
        lines = (self.posted.get(key), self.posted.get((ANY, message.tag)))
        first = min((line for line in lines if line), key=_requested, default=None)
        if first is not None:
            _deliver(message, first.popleft())
            return
        message.number = next(self._numbers)
        _queue_for(self.arrived, key).append(message)
        self._from_any.setdefault(message.tag, collections.OrderedDict())[message.number] = message
        self.arrives(key)


def _ignore_arrival(key: Key) -> None:
    """Default of `Mailbox.arrives`: does nothing."""


def _queue_for(lines: dict[Key, collections.deque[ItemT]], key: Key) -> collections.deque[ItemT]:
    line = lines.get(key)
    if line is None:
        line = lines[key] = collections.deque()
    return line


def _requested(line: collections.deque[ThreadTransfer]) -> int:
    return line[0].number


def _deliver(message: ThreadMessage, receive: ThreadTransfer) -> None:
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


class CollectiveCall:
    """One collective call: the inputs by rank, and the result once all ranks have called it."""

    def __init__(self) -> None:
        self.inputs: dict[int, tuple[str, Any]] = {}
        self.result: Any = None
        self.error = ""
        self.completed = False


class ThreadGroup:
    """Shared state of the ranks of one communicator; `lock` guards all of it.

    `parent` is the group that it was split off from.
    """

    def __init__(
        self,
        size: int,
        delays: MessageDelays,
        eager_bytes: int,
        parent: ThreadGroup | None = None,
    ) -> None:
        self.size, self.delays, self.eager_bytes = size, delays, eager_bytes
        self.lock = threading.Condition()
        self.boxes = [Mailbox() for _ in range(size)]
        self.rounds: collections.defaultdict[object, CollectiveCall] = collections.defaultdict(
            CollectiveCall
        )
        self.parts: weakref.WeakSet[ThreadGroup] = weakref.WeakSet()
        self.aborted: int | None = None
        if parent is not None:
            parent.parts.add(self)
            self.aborted = parent.aborted

    def abort(self, code: int) -> None:
        """Make every further call of its ranks fail, also through groups split off from it."""
        with self.lock:
            self.aborted = code
            self.lock.notify_all()
            parts = list(self.parts)
        for part in parts:
            part.abort(code)

    def bring(
        self, key: object, rank: int, label: str, local_input: Any, combine: Callable[[list], Any]
    ) -> CollectiveCall:
        """Add one rank's input to a collective; the last call combines all inputs in rank order."""
        with self.lock:
            round_ = self.rounds[key]
            round_.inputs[rank] = (label, local_input)
            if len(round_.inputs) == self.size:
                del self.rounds[key]
                rows = [round_.inputs[r] for r in range(self.size)]
                first: dict[str, int] = {}
                for caller, (call, _) in enumerate(rows):
                    first.setdefault(call, caller)
                if len(first) > 1:
                    calls = ", ".join(f"rank {caller} {call}" for call, caller in first.items())
                    round_.error = f"the ranks call different collectives: {calls}"
                else:
                    round_.result = combine([local_input for _, local_input in rows])
                round_.completed = True
                self.lock.notify_all()
            return round_
