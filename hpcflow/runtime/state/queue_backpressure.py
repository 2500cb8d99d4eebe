"""Queues with back-pressure: FIFO lines of pending enqueues and dequeues, served in order.

A queue serves its enqueues one after the other and its dequeues one after the other, each as far as
capacity and elements allow. An *attempt* is a request in one of these lines. It is over when it is
`done`; it has an `error` if it failed. Nothing here blocks: the caller polls its attempt. An
element is a tuple of arrays, one for each component.
"""

from __future__ import annotations

import collections
import heapq
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from hpcflow.errors import CancelledError, HpcflowError, OutOfRangeError
from hpcflow.runtime.dynamic_types import Attributes, Value

Element = tuple[Value, ...]


class ElementOrder(Protocol):
    """The elements of a queue, in its order."""

    sorts: bool  # whether a later element may overtake one that a pending dequeue has taken

    def __len__(self) -> int: ...

    def put(self, element: Element) -> None:
        """Add one."""

    def take(self) -> Element:
        """Remove and return the next one."""

    def restore(self, elements: list[Element]) -> None:
        """Put back the elements that were taken last, in the order in which they were taken."""


class FifoOrder:
    """First in, first out."""

    sorts = False

    def __init__(self) -> None:
        self._elements: collections.deque[Element] = collections.deque()

    def __len__(self) -> int:
        return len(self._elements)

    def put(self, element: Element) -> None:
        """Add one at the end."""
        self._elements.append(element)

    def take(self) -> Element:
        """Remove and return the oldest."""
        return self._elements.popleft()

    def restore(self, elements: list[Element]) -> None:
        """Put them back before all others."""
        self._elements.extendleft(reversed(elements))


class RandomOrder:
    """Uniformly random order, drawn by a generator of its own."""

    sorts = False

    def __init__(self, key: int) -> None:
        self._elements: list[Element] = []
        self._draws = np.random.Generator(np.random.Philox(key=key))

    def __len__(self) -> int:
        return len(self._elements)

    def put(self, element: Element) -> None:
        """Add one."""
        self._elements.append(element)

    def take(self) -> Element:
        """Remove and return a random one; the last one takes its place."""
        at, elements = int(self._draws.integers(len(self._elements))), self._elements
        elements[at], elements[-1] = elements[-1], elements[at]
        return elements.pop()

    def restore(self, elements: list[Element]) -> None:
        """Put them back."""
        self._elements += elements


class PriorityOrder:
    """The smallest first component first; among equals the oldest."""

    sorts = True

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Element]] = []
        self._first = self._last = 0  # sequence numbers of the oldest and the newest

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, element: Element) -> None:
        """Add one behind those of equal priority."""
        self._last += 1
        heapq.heappush(self._heap, (int(element[0]), self._last, element))

    def take(self) -> Element:
        """Remove and return the one of the smallest priority."""
        return heapq.heappop(self._heap)[2]

    def restore(self, elements: list[Element]) -> None:
        """Put them back before those of equal priority."""
        self._first -= len(elements)
        for i, element in enumerate(elements, self._first):
            heapq.heappush(self._heap, (int(element[0]), i, element))


class AttemptOwner(Protocol):
    """The queue or accumulator that an attempt belongs to."""

    def withdraw(self, attempt: QueueAttempt) -> None:
        """Remove an attempt from its line."""


class QueueAttempt:
    """A pending request: `remaining` elements to put or take; `elements` to put, or taken."""

    def __init__(
        self, queue: AttemptOwner, elements: Iterable[Element], remaining: int, allows_partial: bool
    ) -> None:
        self.queue, self.remaining, self.allows_partial = queue, remaining, allows_partial
        self.elements = collections.deque(elements)
        self.closes = False  # among enqueues: at its turn the queue is closed
        self.completed = False
        self.error: HpcflowError | None = None
        self._callback: Callable[[], object] = _no_callback  # called when it is over

    def end(self, error: HpcflowError | None = None) -> None:
        """Mark it as done, and tell who waits for that."""
        self.completed, self.error = True, error
        self._callback()

    def when_over(self, callback: Callable[[], object]) -> None:
        """Call `callback` when it gets over; not if it is over already."""
        self._callback = callback

    def cancel(self) -> None:
        """Leave the line; taken elements are put back, enqueued ones stay."""
        if not self.completed:
            self.queue.withdraw(self)


class Queue:
    """The state of one queue.

    A `capacity` below 0 is unbounded. `at_least` elements stay in the queue until it is closed.
    """

    def __init__(
        self, kind: str, name: str, stored: ElementOrder, capacity: int = -1, at_least: int = 0
    ) -> None:
        self.kind, self.name, self.stored = kind, name, stored
        self.capacity, self.at_least = capacity, at_least
        self.closed = False
        self._enqueues: collections.deque[QueueAttempt] = collections.deque()
        self._dequeues: collections.deque[QueueAttempt] = collections.deque()

    def __len__(self) -> int:
        return len(self.stored)

    def enqueue(self, elements: list[Element]) -> QueueAttempt:
        """Put `elements` one after the other, as capacity allows.

        The attempt fails with CancelledError if the queue is closed at its turn.
        """
        attempt = QueueAttempt(self, elements, len(elements), False)
        self._enqueues.append(attempt)
        self._serve()
        return attempt

    def dequeue(self, count: int = 1, allows_partial: bool = False) -> QueueAttempt:
        """Take `count` elements; with `allows_partial` fewer, at least one, of a closed queue.

        The attempt fails with OutOfRangeError if the queue is closed and has too few: they stay in
        it.
        """
        attempt = QueueAttempt(self, (), count, allows_partial)
        self._dequeues.append(attempt)
        self._serve()
        return attempt

    def close(self, cancel: bool = False) -> QueueAttempt:
        """Close the queue after the pending enqueues; with `cancel` at once.

        Later enqueues, and with `cancel` all pending ones, fail with CancelledError.
        """
        attempt = QueueAttempt(self, (), 0, False)
        attempt.closes = True
        if cancel:
            self.closed = True
            self._refuse()
            attempt.end()
        else:
            self._enqueues.append(attempt)
        self._serve()
        return attempt

    def withdraw(self, attempt: QueueAttempt) -> None:
        """Remove an attempt from its line; it fails with CancelledError."""
        if attempt in self._dequeues:
            self._dequeues.remove(attempt)
            self.stored.restore(list(attempt.elements))
        else:
            self._enqueues.remove(attempt)
        attempt.end(CancelledError(f"the wait for {self} was cancelled"))
        self._serve()

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"

    # -- serving

    def _serve(self) -> None:
        """Serve both lines until neither can progress."""
        while self._put_some() or self._take_some():
            pass

    def _put_some(self) -> bool:
        """Serve enqueues; True if one ended or an element was added."""
        moved = False
        while self._enqueues:
            first = self._enqueues[0]
            if self.closed:
                self._refuse()
                return True
            while first.elements and (self.capacity < 0 or len(self.stored) < self.capacity):
                self.stored.put(first.elements.popleft())
                moved = True
            if first.elements:
                break
            self.closed = first.closes
            self._enqueues.popleft().end()
            moved = True
        return moved

    def _refuse(self) -> None:
        """Fail all pending enqueues; a pending close succeeds."""
        while self._enqueues:
            attempt = self._enqueues.popleft()
            attempt.end(None if attempt.closes else CancelledError(f"{self} is closed"))

    def _take_some(self) -> bool:
        """Serve dequeues; True if one ended or an element was removed."""
        moved = False
        while self._dequeues:
            first = self._dequeues[0]
            moved |= self._give(first)
            if first.remaining and not self.closed:
                break
            self._dequeues.popleft()
            if first.remaining and not (first.allows_partial and first.elements):
                self._too_few(first)
            else:
                first.end()
            moved = True
        return moved

    def _give(self, attempt: QueueAttempt) -> bool:
        """Take available elements for a dequeue; True if it has more than before."""
        before = attempt.remaining
        if self.stored.sorts:  # elements taken earlier compete with newer ones
            self.stored.restore(list(attempt.elements))
            attempt.remaining += len(attempt.elements)
            attempt.elements.clear()
        while attempt.remaining and len(self.stored) > (0 if self.closed else self.at_least):
            attempt.elements.append(self.stored.take())
            attempt.remaining -= 1
        return attempt.remaining < before

    def _too_few(self, attempt: QueueAttempt) -> None:
        have = len(attempt.elements)
        self.stored.restore(list(attempt.elements))
        attempt.elements.clear()
        needed = have + attempt.remaining
        attempt.end(
            OutOfRangeError(f"{self} is closed and has {have} element(s); {needed} were asked for")
        )


def _no_callback() -> None:
    """What `QueueAttempt` calls by default: does nothing."""


ORDERS: dict[str, Callable[[Attributes], ElementOrder]] = {
    "FIFOQueue": lambda attrs: FifoOrder(),
    "PaddingFIFOQueue": lambda attrs: FifoOrder(),
    "RandomShuffleQueue": lambda attrs: RandomOrder(attrs["key"]),
    "PriorityQueue": lambda attrs: PriorityOrder(),
}
