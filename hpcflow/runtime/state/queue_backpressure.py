"""Queues between steps: who waits to put elements in, who waits to take them, in what order.

A queue serves its enqueues one after the other and its dequeues one after the other, each as far as
room and elements reach. An *attempt* is a request in one of these lines; it is over when it is
`done`, with an `error` where it failed. Nothing here blocks: whoever made an attempt looks at it.
An element is a tuple of arrays, one a component.
"""

from __future__ import annotations

import collections
import heapq
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from hpcflow.errors import CancelledError, HpcflowError, OutOfRangeError

Element = tuple[Any, ...]


class Kept(Protocol):
    """The elements of a queue, in its order."""

    sorts: bool  # one that comes later may go out before one that has been taken

    def __len__(self) -> int: ...

    def put(self, element: Element) -> None:
        """Add one."""

    def take(self) -> Element:
        """Take out the one whose turn it is."""

    def restore(self, elements: list[Element]) -> None:
        """Put back what was taken last, in the order in which it was taken."""


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
        """The oldest."""
        return self._elements.popleft()

    def restore(self, elements: list[Element]) -> None:
        """Before all others."""
        self._elements.extendleft(reversed(elements))


class RandomOrder:
    """Any of them with equal chance, drawn by a generator of its own."""

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
        """One drawn at random; the last takes its place."""
        at, elements = int(self._draws.integers(len(self._elements))), self._elements
        elements[at], elements[-1] = elements[-1], elements[at]
        return elements.pop()

    def restore(self, elements: list[Element]) -> None:
        """Among the others."""
        self._elements += elements


class PriorityOrder:
    """The smallest first component first; of equal ones the oldest."""

    sorts = True

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Element]] = []
        self._first = self._last = 0  # the places of the oldest and the newest

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, element: Element) -> None:
        """Add one behind those of its priority."""
        self._last += 1
        heapq.heappush(self._heap, (int(element[0]), self._last, element))

    def take(self) -> Element:
        """The smallest."""
        return heapq.heappop(self._heap)[2]

    def restore(self, elements: list[Element]) -> None:
        """Before those of their priorities."""
        self._first -= len(elements)
        for i, element in enumerate(elements, self._first):
            heapq.heappush(self._heap, (int(element[0]), i, element))


class Owner(Protocol):
    """What has the line."""

    def withdraw(self, attempt: Attempt) -> None:
        """Let an attempt leave its line."""


class Attempt:
    """A request in a line: `left` elements to put or to take; `elements` are those put or taken."""

    def __init__(self, queue: Owner, elements: Iterable[Element], left: int, some: bool) -> None:
        self.queue, self.left, self.some = queue, left, some
        self.elements = collections.deque(elements)
        self.closes = False  # in the line of enqueues: from its turn on the queue is closed
        self.done = False
        self.error: HpcflowError | None = None
        self.tell: Callable[[], object] = _nobody  # called when it is over

    def end(self, error: HpcflowError | None = None) -> None:
        """It is over."""
        self.done, self.error = True, error
        self.tell()

    def cancel(self) -> None:
        """Leave the line; what was taken goes back, what was put stays."""
        if not self.done:
            self.queue.withdraw(self)


class Queue:
    """The state of one queue; `capacity` below 0 is none, `at_least` stay in until it closes."""

    def __init__(
        self, kind: str, name: str, kept: Kept, capacity: int = -1, at_least: int = 0
    ) -> None:
        self.kind, self.name, self.kept = kind, name, kept
        self.capacity, self.at_least = capacity, at_least
        self.closed = False
        self._enqueues: collections.deque[Attempt] = collections.deque()
        self._dequeues: collections.deque[Attempt] = collections.deque()

    def __len__(self) -> int:
        return len(self.kept)

    def enqueue(self, elements: list[Element]) -> Attempt:
        """Put `elements`, one after the other as there is room.

        Fails with CancelledError if its turn comes when the queue is closed.
        """
        attempt = Attempt(self, elements, len(elements), False)
        self._enqueues.append(attempt)
        self._serve()
        return attempt

    def dequeue(self, count: int = 1, some: bool = False) -> Attempt:
        """Take `count` elements; of a closed queue with `some` also fewer, but not none.

        Fails with OutOfRangeError if the queue is closed and has too few: they stay in it.
        """
        attempt = Attempt(self, (), count, some)
        self._dequeues.append(attempt)
        self._serve()
        return attempt

    def close(self, cancel: bool = False) -> Attempt:
        """No more elements come, once those are in that wait already; with `cancel` at once.

        Enqueues behind it, with `cancel` all that wait, fail with CancelledError.
        """
        attempt = Attempt(self, (), 0, False)
        attempt.closes = True
        if cancel:
            self.closed = True
            self._refuse()
            attempt.end()
        else:
            self._enqueues.append(attempt)
        self._serve()
        return attempt

    def withdraw(self, attempt: Attempt) -> None:
        """Let an attempt leave its line."""
        if attempt in self._dequeues:
            self._dequeues.remove(attempt)
            self.kept.restore(list(attempt.elements))
        else:
            self._enqueues.remove(attempt)
        attempt.end(CancelledError(f"the wait for {self} was cancelled"))
        self._serve()

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"

    # -- serving

    def _serve(self) -> None:
        """Go on with both lines until neither can."""
        while self._put_some() or self._take_some():
            pass

    def _put_some(self) -> bool:
        """Serve enqueues; True if one ended or an element came in."""
        moved = False
        while self._enqueues:
            first = self._enqueues[0]
            if self.closed:
                self._refuse()
                return True
            while first.elements and (self.capacity < 0 or len(self.kept) < self.capacity):
                self.kept.put(first.elements.popleft())
                moved = True
            if first.elements:
                break
            self.closed = first.closes
            self._enqueues.popleft().end()
            moved = True
        return moved

    def _refuse(self) -> None:
        """All enqueues fail; another wish to close is met."""
        while self._enqueues:
            attempt = self._enqueues.popleft()
            attempt.end(None if attempt.closes else CancelledError(f"{self} is closed"))

    def _take_some(self) -> bool:
        """Serve dequeues; True if one ended or an element went out."""
        moved = False
        while self._dequeues:
            first = self._dequeues[0]
            moved |= self._give(first)
            if first.left and not self.closed:
                break
            self._dequeues.popleft()
            if first.left and not (first.some and first.elements):
                self._too_few(first)
            else:
                first.end()
            moved = True
        return moved

    def _give(self, attempt: Attempt) -> bool:
        """Take elements for a dequeue as far as they reach; True if there was one more."""
        before = attempt.left
        if self.kept.sorts:  # those taken earlier compete with those that came since
            self.kept.restore(list(attempt.elements))
            attempt.left += len(attempt.elements)
            attempt.elements.clear()
        while attempt.left and len(self.kept) > (0 if self.closed else self.at_least):
            attempt.elements.append(self.kept.take())
            attempt.left -= 1
        return attempt.left < before

    def _too_few(self, attempt: Attempt) -> None:
        have = len(attempt.elements)
        self.kept.restore(list(attempt.elements))
        attempt.elements.clear()
        wanted = have + attempt.left
        attempt.end(
            OutOfRangeError(f"{self} is closed and has {have} element(s); {wanted} were asked for")
        )


def _nobody() -> None:
    """Who is told where nobody waits."""


ORDERS: dict[str, Callable[[dict[str, Any]], Kept]] = {
    "FIFOQueue": lambda attrs: FifoOrder(),
    "PaddingFIFOQueue": lambda attrs: FifoOrder(),
    "RandomShuffleQueue": lambda attrs: RandomOrder(attrs["key"]),
    "PriorityQueue": lambda attrs: PriorityOrder(),
}
