"""Interleaving of several iterators, in the order of TensorFlow 1's `interleave`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

Input = TypeVar("Input")
Output = TypeVar("Output")

_END: Any = object()


def interleave_iterators(
    inputs: Iterator[Input], begin: Callable[[Input], Iterator[Output]], cycle: int, block: int
) -> Iterator[Output]:
    """The elements of `begin(x)` of the inputs: `block` elements of each of `cycle` in turn.

    An iterator that has ended is replaced when it is next in turn.
    """
    places: list[Iterator[Output] | None] = [None] * cycle
    at, count, has_more = 0, 0, True
    while has_more or any(place is not None for place in places):
        place = places[at]
        if place is None and has_more:
            source = next(inputs, _END)
            has_more = source is not _END
            if has_more:
                places[at] = begin(source)
            continue
        element = _END if place is None else next(place, _END)
        count += 1
        if element is _END or count == block:
            places[at] = None if element is _END else place
            at, count = (at + 1) % cycle, 0
        if element is not _END:
            yield element
