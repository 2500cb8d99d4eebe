"""Shuffle of an epoch: the order of the samples; for large data computed window by window."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from hpcflow.errors import HpcflowError

Ranges = Sequence[Sequence[int]]  # [start, stop] of positions in an epoch's order, ascending


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Shuffle large data by blocks of `rows` consecutive rows; `window` blocks are mixed at a time.

    The order of the blocks and that of the rows within a window are drawn from (seed, epoch). Each
    global batch has equally many rows of all blocks of a window, sorted by block. So a worker reads
    whole blocks of its own, if `window` is a multiple of the workers and divides the batch.
    """

    rows: int = 1024
    window: int = 8

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not isinstance(value, (int, np.integer)) or value < 1:
                raise HpcflowError(f"Blocks({name}={value!r}): {name} must be an int of at least 1")

    @property
    def together(self) -> int:
        """The rows of a window."""
        return self.rows * self.window


Shuffle = bool | Blocks


class EpochOrder(Protocol):
    """The order of an epoch: `order[a:b]` are the samples at positions a to b."""

    def __len__(self) -> int: ...
    def __getitem__(self, places: slice, /) -> np.ndarray: ...


class StoredOrder:
    """The order in which the samples are stored."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, places: slice) -> np.ndarray:
        start, stop, _ = places.indices(self._samples)
        return np.arange(start, stop)


class BlockShuffle:
    """The order of `Blocks`: window after window; rows within a global batch are sorted by block.

    It depends on the global batch size; an epoch keeps the size that it began with.
    """

    def __init__(self, samples: int, seed: int, epoch: int, blocks: Blocks, batch: int) -> None:
        self._samples, self._blocks, self._batch = samples, blocks, batch
        self._key = np.array([seed % 2**64, epoch], np.uint64)
        count = -(-samples // blocks.rows)
        self._sequence = self._random(0).permutation(count)
        ends = np.minimum((self._sequence + 1) * blocks.rows, samples)
        self._starts = np.concatenate([[0], np.cumsum(ends - self._sequence * blocks.rows)])
        # Each order has a cache of its own, so that those of past epochs are freed.
        self._window = functools.lru_cache(maxsize=3)(self._shuffled_window)

    def _random(self, stream: int) -> np.random.Generator:
        """A counter-based generator: a later window is drawn without the earlier ones."""
        counter = np.array([0, 0, 0, stream], np.uint64)
        return np.random.Generator(np.random.Philox(key=self._key, counter=counter))

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, places: slice) -> np.ndarray:
        start, stop, _ = places.indices(self._samples)
        number, chunks = self._window_at(start), []
        while (begin := self._begin(number)) < stop:
            chunks.append(self._window(number)[max(start - begin, 0) : stop - begin])
            number += 1
        return chunks[0] if len(chunks) == 1 else np.concatenate([np.arange(0), *chunks])

    def _begin(self, number: int) -> int:
        """The first position of a window."""
        return int(self._starts[min(number * self._blocks.window, len(self._starts) - 1)])

    def _window_at(self, position: int) -> int:
        """The window of a position; only the stored last block may be smaller than the others."""
        number = position // self._blocks.together
        return number + 1 if self._begin(number + 1) <= position else number

    def _shuffled_window(self, number: int) -> np.ndarray:
        """The samples of a window, in order."""
        random, rows = self._random(number + 1), self._blocks.rows
        blocks = self._sequence[number * self._blocks.window :][: self._blocks.window]
        sizes = np.minimum(rows, self._samples - blocks * rows)
        mixed = random.permuted(np.tile(np.arange(rows), (len(blocks), 1)), axis=1)
        if (sizes == rows).all():  # row j of each block, then row j + 1 of each
            samples = (mixed + blocks[:, None] * rows).T.ravel()
            which = np.tile(np.arange(len(blocks)), rows)
        else:  # interleave the blocks in proportion to their sizes
            valid = [mixed[i][mixed[i] < size] for i, size in enumerate(sizes)]
            when = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes])
            places = np.argsort(when, kind="stable")
            samples = np.concatenate([k + b * rows for k, b in zip(valid, blocks, strict=True)])
            samples, which = samples[places], np.repeat(np.arange(len(blocks)), sizes)[places]
        # Sort by block within a global batch (its part in this window), so a rank reads few blocks.
        begin = self._begin(number)
        batch = np.arange(begin, begin + len(samples)) // self._batch - begin // self._batch
        key = batch * len(blocks) + which
        narrow = np.uint16 if key.max() < 1 << 16 else np.int64  # radix sort
        return samples[np.argsort(key.astype(narrow), kind="stable")]


class RemainingOrder:
    """The order of the remaining positions of `order` in an interrupted epoch."""

    def __init__(self, order: EpochOrder, ranges: Ranges) -> None:
        self._order, self._ranges = order, ranges
        self._length = sum(b - a for a, b in ranges)

    def __len__(self) -> int:
        return self._length

    def epoch_position(self, number: int) -> int:
        """The position in the whole order of the sample with this number."""
        for a, b in self._ranges:
            if number < b - a:
                return a + number
            number -= b - a
        return len(self._order)

    def __getitem__(self, places: slice) -> np.ndarray:
        start, stop, _ = places.indices(self._length)
        chunks, before = [np.arange(0)], 0
        for a, b in self._ranges:
            low, high = max(start - before, 0) + a, min(stop - before, b - a) + a
            if low < high:
                chunks.append(self._order[low:high])
            before += b - a
        return np.concatenate(chunks)


def sample_order(samples: int, seed: int, epoch: int, shuffle: bool = True) -> np.ndarray:
    """The samples in the order of one epoch."""
    if not shuffle:
        return np.arange(samples)
    # Philox is counter-based: an epoch is drawn without the earlier ones.
    key = np.array([seed % 2**64, epoch], np.uint64)  # a list would round large numbers
    return np.random.Generator(np.random.Philox(key=key)).permutation(samples)


def epoch_order(
    samples: int,
    seed: int,
    epoch: int,
    shuffle: Shuffle,
    batch: int,
    remaining: Ranges | None = None,
) -> EpochOrder:
    """The order of an epoch, or of its remaining ranges `remaining`."""
    order: EpochOrder
    if isinstance(shuffle, Blocks):
        order = BlockShuffle(samples, seed, epoch, shuffle, batch)
    else:
        order = sample_order(samples, seed, epoch) if shuffle else StoredOrder(samples)
    return order if remaining is None else RemainingOrder(order, remaining)


def shuffle_to_plain(shuffle: Shuffle) -> Any:
    """`shuffle` in the form of a checkpoint."""
    return dataclasses.asdict(shuffle) if isinstance(shuffle, Blocks) else bool(shuffle)
