"""The elements of a queue in the graph, one by one: samples for a `Stream`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcflow.errors import OutOfRangeError


def dequeued(session: Any, element: Any) -> Iterator[Any]:
    """What `session.run(element)` gives, `element` being what a queue's `dequeue` returned.

    It waits for elements, and ends when the queue is closed and empty. A `Stream` takes it as its
    `samples`, of several components as tuples: `hf.data.Stream((x, y), dequeued(session, ...))`.
    """
    while True:
        try:
            found = session.run(element)
        except OutOfRangeError:
            return
        yield tuple(found) if isinstance(found, list) else found
