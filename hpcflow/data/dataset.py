"""Dataset of samples that are read by number, sharded over the workers as feeds."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpcflow.data.array_rows import ArraySource, ItemField, Source, sources_of
from hpcflow.data.batch_iterator import (
    Batch,
    BatchPosition,
    HeldShards,
    Map,
    ShardedBatches,
    WorkerPosition,
    last_positions,
)
from hpcflow.data.epoch_shuffle import Blocks, EpochOrder, Shuffle, epoch_order, shuffle_to_plain
from hpcflow.data.global_batch_sharding import (
    BatchShare,
    Ranges,
    SplitPoints,
    remaining_ranges,
    shard_epoch,
    split_points,
    steps_per_epoch,
)
from hpcflow.data.placeholder_checks import (
    check_enough,
    check_fixed_sizes,
    check_key,
    common_length,
    fit_source,
    global_batch_size,
)
from hpcflow.errors import HpcflowError
from hpcflow.graph.graph import Tensor
from hpcflow.platform.lazy_imports import LazyMethod, LazyStaticMethod
from hpcflow.platform.rank_logging import say_once
from hpcflow.runtime.job.job_membership import current_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.step.feed_and_fetch import cast

MEMORY = 256 << 20
STRETCH = 4 << 20  # bytes per read, unless blocks determine it
MAX_BATCHES_PER_READ = 8  # largest number of batches per read if shares may change
EpochShare = tuple[int, BatchShare]  # an epoch and a share of it


class Dataset(ShardedBatches):
    """Samples sharded over the workers as feeds of placeholders.

    `data` maps placeholders to arrays, `hf.data.hdf5(...)`, or any object with `__len__` and
    `__getitem__`. It maps a tuple of placeholders to an object whose items are such tuples. `batch`
    is the size of the global batch over all workers; `batch_per_rank` instead is the size of each
    worker's share. `seed` determines the order, which differs between epochs and is the same on any
    number of ranks. `shuffle` is True for all samples, `Blocks` for large files, or False.

    `readers` threads prefetch `read_ahead` portions of batches and apply `map`, a function of a
    Batch that returns {placeholder: rows}. The default of `read_ahead` is 2 or `readers`, whichever
    is larger, and 0 for data in memory without `map`. One reader keeps the order of reads, which
    suits disks; more suit items and maps that wait or release the interpreter lock. `memory` limits
    the bytes held. `balance` shards a global batch over synchronous workers by their speed, which
    `TrainingSession.step` measures, instead of equally.

    Shapes: the data is [samples, ...], its rows as the placeholders' (after `map`, if given).
    Ranks:  one of the workers takes each sample, once per epoch; in collective mode all workers
            take the same number of steps, some without rows if samples are few.
    Errors: ShapeError or DTypeError that names what does not fit; DataError for data that cannot be
            read, or that has fewer samples than there are workers, unless all is in memory.

    Its static methods make TensorFlow 1's datasets, which are not sharded: see `hf.data.Pipeline`.

    A training session with checkpoints saves its `position` and calls `restore`. `epoch` and
    `epochs` then continue after the last batch whose step is in the checkpoint.
    """

    from_tensors = LazyStaticMethod("hpcflow.data.dataset_sources", "from_tensors")
    from_tensor_slices = LazyStaticMethod("hpcflow.data.dataset_sources", "from_tensor_slices")
    from_generator = LazyStaticMethod("hpcflow.data.dataset_sources", "from_generator")
    list_files = LazyStaticMethod("hpcflow.data.dataset_sources", "list_files")
    range = LazyStaticMethod("hpcflow.data.dataset_sources", "range_")
    zip = LazyStaticMethod("hpcflow.data.dataset_sources", "zip_")
    _repr_html_ = LazyMethod("hpcflow.report.html_representation", "dataset_html")

    def __init__(
        self,
        data: Mapping[Any, Any],
        batch: int | None = None,
        *,
        batch_per_rank: int | None = None,
        seed: int = 0,
        shuffle: Shuffle = True,
        map: Map | None = None,
        read_ahead: int | None = None,
        readers: int = 1,
        memory: int = MEMORY,
        balance: bool = False,
        context: RankContext | None = None,
    ) -> None:
        context = context or current_context()
        joined = global_batch_size(batch, batch_per_rank, context.roles.replicas)
        pairs = _placeholder_sources(data)
        super().__init__([key for key, _ in pairs], joined, map, context)
        self.seed, self.shuffle, self.memory = int(seed), shuffle, memory
        self._sources: dict[Tensor, Source] = dict(pairs)
        self._open()
        weakref.finalize(self, _close_sources, list(self._sources.values()))
        self.samples = common_length({k.name: len(s) for k, s in self._sources.items()})
        self._is_in_memory = all(isinstance(s, ArraySource) for s in self._sources.values())
        # arrays, and items that are read one by one: no file, whose rows are better read together
        self._is_read_alone = all(
            isinstance(s, (ArraySource, ItemField)) for s in self._sources.values()
        )
        self.readers = int(readers)
        needs = 0 if self._is_in_memory and map is None else max(2, self.readers)
        self.read_ahead = needs if read_ahead is None else int(read_ahead)
        self._row_bytes = sum(_bytes_of(k, s) for k, s in self._sources.items())
        self._first = 0  # the epoch to continue with
        self._remaining: dict[int, Ranges] = {}  # the remaining ranges of interrupted epochs
        self._begun_with: dict[int, int] = {}  # the size of their global batch when they began
        self._most_together = sys.maxsize  # limit of batches per read
        self._check()
        if balance:
            self._most_together = self._few_together()
            self._begin_balance((self.read_ahead + 1) * self._most_together + 1)
        self._keys[0].graph.add_to_collection("datasets", self)

    def _open(self) -> None:
        try:
            for key, source in self._sources.items():
                source.open()
                if self._map is None:
                    fit_source(key, source)
        except HpcflowError as error:
            error.rank = self.context.rank if error.rank is None else error.rank
            raise

    def _check(self) -> None:
        if not self._is_in_memory:  # few rows in memory are taken as intended
            check_enough(self.samples, self.replicas, self.context.rank)
        self._check_sizes()
        self._note_empty()
        if self._is_in_memory or not self.context.is_chief:
            return
        if self.shuffle is True and not self._is_read_alone:
            say_once(
                "shuffle=True reads each row of a file by itself; "
                "shuffle=hf.data.Blocks(rows=1024, window=8) reads whole blocks"
            )
        if isinstance(self.shuffle, Blocks):
            needed = self.shuffle.together * self._row_bytes // self.replicas
            if needed > self._portion_bytes():
                say_once(
                    f"a worker's part of {self.shuffle} has {needed >> 20:,} MiB: with memory="
                    f"{self.memory >> 20} MiB blocks are read more than once; use memory="
                    f"{needed * self._portions_held >> 20:,} MiB, or smaller blocks"
                )

    def _check_sizes(self) -> None:
        last = self.samples - (self.steps_per_epoch - 1) * self.batch
        sizes = {*self.shares, *np.diff(split_points(last, self.replicas)).tolist()}
        check_fixed_sizes(self._keys, sizes)

    @property
    def steps_per_epoch(self) -> int:
        """Global batches in an epoch; the last one may be smaller."""
        return steps_per_epoch(self.samples, self.batch)

    @property
    def first_epoch(self) -> int:
        """The epoch with the first batch: 0, or where a restored job goes on."""
        return self._first

    @property
    def resumes_within_epoch(self) -> bool:
        """Whether a restored job goes on in the midst of `first_epoch`."""
        return self._remaining.get(self._first, [[0, self.samples]]) != [[0, self.samples]]

    @property
    def first_step(self) -> int:
        """The step of the first batch in `first_epoch`: 0, or where a restored job goes on."""
        ranges = self._remaining.get(self._first, [[0, self.samples]])
        left = steps_per_epoch(sum(b - a for a, b in ranges), self.batch)
        return max(self.steps_per_epoch - left, 0)

    def _full(self) -> int:
        return min(self.batch, self.samples)

    def describe(self) -> str:
        """How the samples are sharded, in one line."""
        return self._log_shares(
            f"{self.samples:,} samples in {self.steps_per_epoch:,} steps an epoch"
        )

    def epoch(self, number: int) -> Iterator[Batch]:
        """This worker's batches of one epoch.

        A synchronous worker gets a batch for every global batch; an asynchronous one skips those
        without samples for it. The arrays are views of a larger read: copy what you keep.
        """
        return self._batches_of_epochs([number])

    def epochs(self, count: int, first: int = 0) -> Iterator[Batch]:
        """This worker's batches of `count` epochs from number `first`.

        After `restore`, those that remain.
        """
        return self._batches_of_epochs(range(max(first, self._first), first + count))

    # -- reading

    def _batches_of_epochs(self, epochs: Sequence[int]) -> Iterator[Batch]:
        self._open()  # reopens a closed dataset
        name = next(iter(self._sources.values())).name

        def begin(last: BatchPosition, numbers: Iterator[int]) -> Iterator[Batch]:
            dealt = (
                (epoch, share)
                for number in epochs
                for epoch, share in self._shares_of_epoch(number, numbers)
                if (epoch, share.step) > last
            )
            return self._batches(self._portions(dealt), self._load, self.read_ahead, f"read {name}")

        def begin_lines(shards: HeldShards) -> Iterator[Batch]:
            dealt = (share for number in epochs for share in self._shares_of_lines(number, shards))
            return self._batches(self._portions(dealt), self._load, self.read_ahead, f"read {name}")

        if self._can_reassign and epochs:
            return self._reassigned_batches(begin_lines, epochs[0])
        if self.context.survival is not None:
            return self._reshard_after_deaths(begin)
        return begin((-1, -1), self._numbers())

    def replicas_changed(self) -> None:
        """Workers have died: the others read their new shares from now on.

        Errors: ShapeError if a placeholder's fixed size does not fit the new shares.
        """
        super().replicas_changed()
        self._check_sizes()

    def deal_again(self, batch: Batch) -> Batch:
        """This worker's current share of the global batch that contains `batch`."""
        balance, cut = self.balance, None
        if balance is not None:
            begun = self._numbered[batch.epoch]

            def cut(step: int, size: int) -> np.ndarray:
                return balance.cuts(begun + step, size)

        dealt = self._shard_epoch(batch.epoch, self.replica, cut)
        own_share = next(share for share in dealt if share.step == batch.step)
        return self._with_offset(self._load([(batch.epoch, own_share)])[0])

    def _shares_of_epoch(self, number: int, numbers: Iterator[int]) -> Iterator[EpochShare]:
        balance, numbered = self.balance, self._numbered

        def cut(step: int, size: int) -> np.ndarray:
            assert balance is not None
            batch = next(numbers)
            numbered[number] = batch - step
            return balance.deal(batch, size)

        for share in self._shard_epoch(number, self.replica, None if balance is None else cut):
            if len(share.indices) or self._is_synchronous:
                yield number, share

    def _shard_epoch(
        self,
        number: int,
        replica: int,
        cut: SplitPoints | None = None,
        drawn: EpochOrder | None = None,
    ) -> Iterator[BatchShare]:
        """The shares of a worker in an epoch, or in the remaining ranges of an epoch."""
        return shard_epoch(
            self.samples,
            self.batch,
            self.seed,
            number,
            self.replicas,
            replica,
            self.shuffle,
            self._remaining.get(number),
            self._begun_with.get(number),
            cut,
            drawn,
        )

    def _shares_of_lines(self, number: int, shards: HeldShards) -> Iterator[EpochShare]:
        """The shares of this worker's lines in an epoch after their places, step by step."""
        if all(place[0] > number for _, place in shards.values()):
            return
        begun, ranges = self._begun_with.get(number, self.batch), self._remaining.get(number)
        drawn = epoch_order(self.samples, self.seed, number, self.shuffle, begun, ranges)
        whose = sorted({line.worker for line, _ in shards.values()})
        for shares in zip(
            *(self._shard_epoch(number, worker, drawn=drawn) for worker in whose), strict=True
        ):
            of = dict(zip(whose, shares, strict=True))
            for name, (line, last) in shards.items():
                share, place = of[line.worker], (number, shares[0].step)
                counts = len(share.indices) or (name == 0 and self._is_synchronous)
                if counts and line.has(*place) and place > last:
                    yield number, share._replace(line=name)

    def _few_together(self) -> int:
        """The limit of batches per read with `balance`, for a short prefetch queue."""
        if self._is_in_memory and self._map is None:
            return 1
        share = max(1, self._row_bytes) * max(1, self._full() // self.replicas)
        return min(max(STRETCH // share, 1), MAX_BATCHES_PER_READ)

    @property
    def _portions_held(self) -> int:
        """Portions held at once: the prefetched, the one in use, the next, and one per reader."""
        return self.read_ahead + self.readers + 2

    def _portion_bytes(self) -> int:
        return self.memory // self._portions_held

    def _portions(self, dealt: Iterator[EpochShare]) -> Iterator[list[EpochShare]]:
        """Groups of batches to read at once: of one window of blocks, or of a suitable size.

        Without windows the first has one batch and each has twice as many as the one before, so
        that the first step does not wait for many batches.
        """
        window = self.shuffle.together if isinstance(self.shuffle, Blocks) else 0
        together = self._most_together if window else 1
        portion: list[EpochShare] = []
        rows, most, last = 0, 0, None
        for epoch_share in dealt:
            epoch, share = epoch_share
            size = len(share.indices)
            place = (epoch, share.epoch_position // window) if window else None
            is_full = rows + size > most or len(portion) >= together
            if portion and (is_full or place != last):
                yield portion
                portion, rows = [], 0
                together = min(2 * together, self._most_together)
            if not portion:  # the size of mapped rows may have changed
                most, last = self._most_rows(bool(window)), place
            portion.append(epoch_share)
            rows += size
        if portion:
            yield portion

    def _most_rows(self, in_windows: bool) -> int:
        """The rows per portion; 0, so one batch, if more gain nothing or their size is unknown."""
        if self._map is not None and not self._mapped_bytes:
            return 0
        if self._map is None and self._is_read_alone:
            return 0
        row_bytes = max(1, self._row_bytes, self._mapped_bytes)
        most = self._portion_bytes() // row_bytes
        return most if in_windows else min(most, STRETCH // max(1, self._row_bytes))

    def _load(self, portion: list[EpochShare]) -> list[Batch]:
        """Read the rows of several batches at once; each batch gets a view of them."""
        numbers = np.concatenate([share.indices for _, share in portion])
        try:
            columns = {key: self._rows(key, numbers) for key in self._sources}
            batches, start = [], 0
            for epoch, share in portion:
                stop = start + len(share.indices)
                views = {key: rows[start:stop] for key, rows in columns.items()}
                batches.append(self._batch(views, epoch, share))
                start = stop
        except HpcflowError as error:
            error.rank = self.context.rank if error.rank is None else error.rank
            raise
        return batches

    def _rows(self, key: Tensor, numbers: np.ndarray) -> np.ndarray:
        rows = self._sources[key].rows(numbers)
        return rows if self._map is not None else np.ascontiguousarray(cast(key, rows))

    def close(self) -> None:
        """Stop the prefetch threads and close the files; a later epoch reopens them."""
        super().close()
        _close_sources(list(self._sources.values()))

    # -- the position

    def position(self, last: Sequence[WorkerPosition]) -> dict[str, Any]:
        """The common position of the workers, as plain data.

        `last` has the (epoch, step) of each worker's last batch, None before its first. For a dead
        worker it has a list of those of the parts of its share
        (`runtime/failure/shard_reassignment.py`).
        """
        places = last_positions(last, (self._first, -1))
        first = min(map(min, places))[0]
        end = max(max(map(max, places))[0], *self._remaining, 0) + 1
        remaining = {number: self._left_of(number, places) for number in range(first, end)}
        while first in remaining and not remaining[first]:
            del remaining[first]
            first += 1
        position = {
            "epoch": first,
            "left": {str(number): ranges for number, ranges in remaining.items()},
            "samples": self.samples,
            "seed": self.seed,
            "shuffle": shuffle_to_plain(self.shuffle),
        }
        if isinstance(self.shuffle, Blocks):
            begun = {str(n): self._begun_with.get(n, self.batch) for n in remaining}
            position["begun_with"] = begun
        return position

    def _left_of(self, number: int, places: Sequence[Sequence[BatchPosition]]) -> list[list[int]]:
        """The remaining ranges of an epoch when `places` are the workers' last places."""
        ranges = self._remaining.get(number, [[0, self.samples]])
        steps = steps_per_epoch(sum(b - a for a, b in ranges), self.batch)
        first = max(self.steps_per_epoch - steps, 0)  # the number of the first remaining step
        counts = [
            [
                steps if epoch > number else max(step + 1 - first, 0) if epoch == number else 0
                for epoch, step in parts
            ]
            for parts in places
        ]
        balance, begun = self.balance, self._numbered.get(number)
        if balance is None or begun is None:
            return remaining_ranges(ranges, self.batch, counts, shift=number + first)
        begun += first
        return remaining_ranges(
            ranges, self.batch, counts, lambda step, size: balance.cuts(begun + step, size)
        )

    def restore(self, position: Mapping[str, Any]) -> None:
        """Continue at `position`, on any number of workers.

        Errors: HpcflowError if it is a position in other data.
        """
        spec = {
            "samples": self.samples,
            "seed": self.seed,
            "shuffle": shuffle_to_plain(self.shuffle),
        }
        wrong = [f"{k} {position.get(k)}, now {v}" for k, v in spec.items() if position.get(k) != v]
        if wrong:
            raise HpcflowError(
                f"the checkpoint is from other data: {'; '.join(wrong)}",
                hint="give the same data and seed, or restore the variables alone (hf.train.Saver)",
            )
        self._first = int(position["epoch"])
        self._remaining = {int(number): some for number, some in position["left"].items()}
        begun = position.get("begun_with", {})
        self._begun_with = {int(number): int(size) for number, size in begun.items()}


def _placeholder_sources(data: Mapping[Any, Any]) -> list[tuple[Tensor, Source]]:
    """Each placeholder with its source; a tuple of placeholders maps to the fields of items."""
    pairs: list[tuple[Tensor, Source]] = []
    for key, value in data.items():
        keys = key if isinstance(key, tuple) else (key,)
        for tensor in keys:
            check_key(tensor)
        sources = sources_of(value, len(keys) if isinstance(key, tuple) else None)
        pairs += zip(keys, sources, strict=True)
    common_length({key.name: 1 for key, _ in pairs})  # at least one
    return pairs


def _bytes_of(key: Tensor, source: Source) -> int:
    """The bytes of a row in the larger of the source's and the placeholder's dtype."""
    width = max(source.dtype.itemsize, np.dtype(key.dtype).itemsize)
    return int(np.prod(source.row_shape)) * width


def _close_sources(sources: Sequence[Source]) -> None:
    for source in sources:
        source.close()
