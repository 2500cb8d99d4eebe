"""The order in which an epoch draws its samples; of large data, made piece by piece."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from hpcflow.errors import HpcflowError

Ranges = Sequence[Sequence[int]]  # [start, stop] in the order of an epoch, ascending


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Shuffle large data by blocks: `rows` in sequence are a block, `window` blocks are mixed.

    The order of the blocks and that of the rows within a window are drawn from (seed, epoch). Each
    joined batch has equally many rows of all blocks of a window, block by block: a worker then
    reads its own blocks whole, if `window` is a multiple of the workers and divides the batch.
    """

    rows: int = 1024
    window: int = 8

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not isinstance(value, (int, np.integer)) or value < 1:
                raise HpcflowError(f"Blocks({name}={value!r}): give 1 or more")

    @property
    def together(self) -> int:
        """Rows of a window."""
        return self.rows * self.window


Shuffle = bool | Blocks


class Order(Protocol):
    """The samples of an epoch in order: `order[a:b]` are those at these places."""

    def __len__(self) -> int: ...
    def __getitem__(self, places: slice, /) -> np.ndarray: ...


class Stored:
    """The order in which the samples are stored."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, places: slice) -> np.ndarray:
        start, stop, _ = places.indices(self._samples)
        return np.arange(start, stop)


class Mixed:
    """The order of `Blocks`: window after window; each joined batch has its rows block by block.

    It depends on the size of the joined batch; an epoch begun with one keeps it to its end.
    """

    def __init__(self, samples: int, seed: int, epoch: int, blocks: Blocks, batch: int) -> None:
        self._samples, self._blocks, self._batch = samples, blocks, batch
        self._key = np.array([seed % 2**64, epoch], np.uint64)
        count = -(-samples // blocks.rows)
        self._sequence = self._random(0).permutation(count)
        ends = np.minimum((self._sequence + 1) * blocks.rows, samples)
        self._starts = np.concatenate([[0], np.cumsum(ends - self._sequence * blocks.rows)])
        # A new cache for each order, so that those of past epochs are let go.
        self._window = functools.lru_cache(maxsize=3)(self._drawn)

    def _random(self, stream: int) -> np.random.Generator:
        """Counter-based: no window must be drawn to reach a later one."""
        counter = np.array([0, 0, 0, stream], np.uint64)
        return np.random.Generator(np.random.Philox(key=self._key, counter=counter))

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, places: slice) -> np.ndarray:
        start, stop, _ = places.indices(self._samples)
        number, found = self._window_at(start), []
        while (begin := self._begin(number)) < stop:
            found.append(self._window(number)[max(start - begin, 0) : stop - begin])
            number += 1
        return found[0] if len(found) == 1 else np.concatenate([np.arange(0), *found])

    def _begin(self, number: int) -> int:
        """The first place of a window."""
        return int(self._starts[min(number * self._blocks.window, len(self._starts) - 1)])

    def _window_at(self, place: int) -> int:
        """The window of a place; only the stored last block may be smaller than the others."""
        number = place // self._blocks.together
        return number + 1 if self._begin(number + 1) <= place else number

    def _drawn(self, number: int) -> np.ndarray:
        """The samples of a window in order."""
        random, rows = self._random(number + 1), self._blocks.rows
        blocks = self._sequence[number * self._blocks.window :][: self._blocks.window]
        sizes = np.minimum(rows, self._samples - blocks * rows)
        mixed = random.permuted(np.tile(np.arange(rows), (len(blocks), 1)), axis=1)
        if (sizes == rows).all():  # row j of each block, then row j + 1 of each
            samples = (mixed + blocks[:, None] * rows).T.ravel()
            which = np.tile(np.arange(len(blocks)), rows)
        else:  # the same in proportion
            kept = [mixed[i][mixed[i] < size] for i, size in enumerate(sizes)]
            when = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes])
            places = np.argsort(when, kind="stable")
            samples = np.concatenate([k + b * rows for k, b in zip(kept, blocks, strict=True)])
            samples, which = samples[places], np.repeat(np.arange(len(blocks)), sizes)[places]
        # Within a joined batch (its part in this window) by block: ranks then need few blocks.
        begin = self._begin(number)
        batch = np.arange(begin, begin + len(samples)) // self._batch - begin // self._batch
        key = batch * len(blocks) + which
        narrow = np.uint16 if key.max() < 1 << 16 else np.int64  # radix sort
        return samples[np.argsort(key.astype(narrow), kind="stable")]


class Left:
    """The places of `order` that are left of an interrupted epoch, as an order."""

    def __init__(self, order: Order, ranges: Ranges) -> None:
        self._order, self._ranges = order, ranges
        self._length = sum(b - a for a, b in ranges)

    def __len__(self) -> int:
        return self._length

    def place(self, number: int) -> int:
        """The place in the whole order of what is here at `number`."""
        for a, b in self._ranges:
            if number < b - a:
                return a + number
            number -= b - a
        return len(self._order)

    def __getitem__(self, places: slice) -> np.ndarray:
        start, stop, _ = places.indices(self._length)
        found, before = [np.arange(0)], 0
        for a, b in self._ranges:
            low, high = max(start - before, 0) + a, min(stop - before, b - a) + a
            if low < high:
                found.append(self._order[low:high])
            before += b - a
        return np.concatenate(found)


def order(samples: int, seed: int, epoch: int, shuffle: bool = True) -> np.ndarray:
    """The samples in the order of one epoch."""
    if not shuffle:
        return np.arange(samples)
    # Philox is counter-based: epochs are independent, and none must be drawn to reach a later one.
    key = np.array([seed % 2**64, epoch], np.uint64)  # a list of large numbers loses digits
    return np.random.Generator(np.random.Philox(key=key)).permutation(samples)


def ordered(
    samples: int,
    seed: int,
    epoch: int,
    shuffle: Shuffle,
    batch: int,
    left: Ranges | None = None,
) -> Order:
    """The order of an epoch, or of what is `left` of it."""
    found: Order
    if isinstance(shuffle, Blocks):
        found = Mixed(samples, seed, epoch, shuffle, batch)
    else:
        found = order(samples, seed, epoch) if shuffle else Stored(samples)
    return found if left is None else Left(found, left)


def as_plain(shuffle: Shuffle) -> Any:
    """`shuffle` as it stands in a checkpoint."""
    return dataclasses.asdict(shuffle) if isinstance(shuffle, Blocks) else bool(shuffle)
