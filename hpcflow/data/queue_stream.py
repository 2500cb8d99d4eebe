"""The elements of a graph queue as an iterator, for the samples of a `Stream`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcflow.errors import OutOfRangeError


def dequeued(session: Any, element: Any) -> Iterator[Any]:
    """The results of `session.run(element)`, where `element` is what a queue's `dequeue` returned.

    It waits for elements, and ends when the queue is closed and empty. A `Stream` takes it as its
    `samples`, with several components as tuples: `hf.data.Stream((x, y), dequeued(session, ...))`.
    """
    while True:
        try:
            components = session.run(element)
        except OutOfRangeError:
            return
        yield tuple(components) if isinstance(components, list) else components
