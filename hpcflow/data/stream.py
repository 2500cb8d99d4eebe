"""Stream of samples from iterators or functions that make them, sharded over the workers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from hpcflow.data.batch_iterator import (
    Batch,
    BatchPosition,
    HeldShards,
    Map,
    ShardedBatches,
    WorkerPosition,
    last_positions,
)
from hpcflow.data.global_batch_sharding import BatchShare, split_points
from hpcflow.data.placeholder_checks import check_enough, check_fits, global_batch_size
from hpcflow.errors import DataError, HpcflowError
from hpcflow.graph.graph import Tensor
from hpcflow.platform.rank_logging import say_once
from hpcflow.runtime.job.job_membership import current_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.step.feed_and_fetch import cast, read_feed

StreamShare = tuple[int, BatchShare, list[Any]]  # epoch, share, this worker's samples


class Stream(ShardedBatches):
    """Samples of an iterator, sharded over the workers as feeds of placeholders.

    `samples` is a function from an epoch's number to its iterator, or an iterator, which is one
    epoch. A sample has a value for each of `keys`, as a tuple, or is the value of a single key.
    `batch`, `batch_per_rank`, `read_ahead` (batches), `map` and `balance` are as for `Dataset`.

    Ranks:  all workers must iterate over the same samples; each uses only its own share.
    Resume: a function's iterator is made again and advanced to the position, which takes time. An
            iterator cannot: then `restore` raises an error, and its checkpoints record this.
    Errors: DTypeError or ShapeError for a sample that does not fit, DataError if it fails.
    """

    def __init__(
        self,
        keys: Tensor | Sequence[Tensor],
        samples: Callable[[int], Iterable[Any]] | Iterable[Any],
        batch: int | None = None,
        *,
        batch_per_rank: int | None = None,
        per_epoch: int | None = None,
        map: Map | None = None,
        read_ahead: int = 2,
        balance: bool = False,
        context: RankContext | None = None,
    ) -> None:
        context = context or current_context()
        joined = global_batch_size(batch, batch_per_rank, context.roles.replicas)
        self._is_single = isinstance(keys, Tensor)
        super().__init__([keys] if isinstance(keys, Tensor) else keys, joined, map, context)
        self._samples, self.read_ahead, self.samples = samples, int(read_ahead), per_epoch
        self._one_shot_iterator: Iterator[Any] | None = None
        if not callable(samples):
            self._one_shot_iterator = iter(samples)
        # cached global batches of an iterator, by step, to shard again; an empty one is the end
        self._cache: dict[int, list[Any]] = {}
        self._first = self._skip = 0  # the epoch to continue with, and its samples already taken
        self._skipped_batch = 1  # the batch size when the position was saved
        if per_epoch is not None:
            check_enough(per_epoch, self.replicas, self.context.rank)
        self._note_empty()
        if balance:
            self._begin_balance(self.read_ahead + 2)
        self._keys[0].graph.add_to_collection("datasets", self)

    @property
    def steps_per_epoch(self) -> int:
        """Global batches in an epoch of `per_epoch` samples."""
        if self.samples is None:
            raise HpcflowError(
                "the length of an epoch of this stream is not known",
                hint="give Stream(per_epoch=...) to show progress",
            )
        return -(-self.samples // self.batch)

    def describe(self) -> str:
        """How the samples are sharded, in one line."""
        is_sized = self.samples is not None
        return self._log_shares(
            f"{self.samples:,} samples an epoch" if is_sized else "a stream of samples"
        )

    def epoch(self, number: int) -> Iterator[Batch]:
        """This worker's batches of one epoch; an iterator has only epoch 0."""
        return self.epochs(1, number)

    def epochs(self, count: int, first: int = 0) -> Iterator[Batch]:
        """This worker's batches of `count` epochs; after `restore`, those that remain."""
        epochs = range(max(first, self._first), first + count)

        def begin(last: BatchPosition, numbers: Iterator[int]) -> Iterator[Batch]:
            parts = (part for epoch in epochs for part in self._parts(epoch, numbers))
            remaining = (part for part in parts if (part[0], part[1].step) > last)
            return self._batches(remaining, self._load, self.read_ahead, "read a stream")

        def begin_lines(shards: HeldShards) -> Iterator[Batch]:
            first = min(place[0] for _, place in shards.values())
            parts = (
                part for epoch in epochs if epoch >= first for part in self._lines(epoch, shards)
            )
            return self._batches(parts, self._load, self.read_ahead, "read a stream")

        if self._can_reassign and self._one_shot_iterator is None and epochs:
            return self._reassigned_batches(begin_lines, epochs[0])
        if self.context.survival is not None:
            batches = self._reshard_after_deaths(begin)
        else:
            batches = begin((-1, -1), self._numbers())
        return self._check_equal_counts(batches) if self._is_synchronous else batches

    def deal_again(self, batch: Batch) -> Batch:
        """This worker's current share of the global batch that contains `batch`.

        The epoch's iterator is made again and advanced to the batch. If `samples` is an iterator,
        the samples of its last batches are cached instead.

        Errors: DataError for a batch that is no longer cached.
        """
        skipped = self._skip // self.batch if batch.epoch == self._first else 0
        number = self._numbered.get(batch.epoch, 0) + skipped
        parts = self._parts(batch.epoch, itertools.count(number))
        own_part = next(part for part in parts if part[1].step >= batch.step)
        if own_part[1].step > batch.step:
            raise DataError(
                f"step {batch.step} of the stream cannot be sharded again without the workers that "
                f"died: {own_part[1].step} is the oldest batch of its iterator that is kept",
                rank=self.context.rank,
                hint="feed each batch before the next is taken, or give a function of the epoch "
                "that makes the iterator",
            )
        return self._with_offset(self._load(own_part)[0])

    def _batch_in_use(self, step: int) -> None:
        for old in [key for key in list(self._cache) if key < step - 1]:  # a thread may add entries
            del self._cache[old]

    def _check_equal_counts(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches; at the end synchronous workers compare their numbers of samples."""
        total = 0
        for batch in batches:
            total += batch.joined_size
            yield batch
        self.context.meet(f"the end of a stream after {total:,} samples")

    def _parts(self, epoch: int, numbers: Iterator[int]) -> Iterator[StreamShare]:
        """This worker's shares of an epoch's global batches, with their samples."""
        balance, is_once = self.balance, self._one_shot_iterator is not None
        begun = next(numbers) if is_once else 0
        for step, start, joined in self._global_batches(epoch):
            if balance is not None:
                number = begun + step if is_once else next(numbers)
                self._numbered[epoch] = number - step
                at = balance.deal(number, len(joined))
            else:
                at = split_points(len(joined), self.replicas)
            low, high = int(at[self.replica]), int(at[self.replica + 1])
            if low < high or self._is_synchronous:
                yield _make_part(epoch, step, start, joined, low, high)

    def _lines(self, epoch: int, shards: HeldShards) -> Iterator[StreamShare]:
        """The shares of this worker's lines after their places, with their samples."""
        for step, start, joined in self._global_batches(epoch):
            at = split_points(len(joined), self.replicas)
            for name, (line, last) in shards.items():
                low, high = int(at[line.worker]), int(at[line.worker + 1])
                counts = low < high or (name == 0 and self._is_synchronous)
                if counts and line.has(epoch, step) and (epoch, step) > last:
                    yield _make_part(epoch, step, start, joined, low, high, name)

    def _global_batches(self, epoch: int) -> Iterator[tuple[int, int, list[Any]]]:
        """The global batches of an epoch: step, number of the first sample, samples."""
        samples = self._iterator(epoch)
        if self._one_shot_iterator is not None and self.context.survival is not None:
            yield from self._global_batches_once(samples)
            return
        skipped = self._skip if epoch == self._first else 0
        if skipped:
            say_once(f"the stream is advanced to its position: {skipped:,} samples are skipped")
            # The last global batch of an epoch may have been smaller.
            if sum(1 for _ in islice(samples, skipped)) <= skipped - self._skipped_batch:
                raise DataError(
                    f"epoch {epoch} of the stream ends before sample {skipped:,}, its position in "
                    "the checkpoint",
                    rank=self.context.rank,
                    hint="produce the same samples for the same epoch",
                )
        step = skipped // self.batch
        start = skipped
        while joined := self._next(samples, epoch, start):
            yield step, start, joined
            start, step = start + len(joined), step + 1

    def _global_batches_once(self, samples: Iterator[Any]) -> Iterator[tuple[int, int, list[Any]]]:
        """The global batches of an iterator, beginning with the oldest cached one."""
        step = min(list(self._cache), default=0)
        while True:
            if step not in self._cache:
                self._cache[step] = self._next(samples, 0, step * self.batch)
            joined = self._cache[step]
            if not joined:
                return
            yield step, step * self.batch, joined
            step += 1

    def _iterator(self, epoch: int) -> Iterator[Any]:
        if self._one_shot_iterator is None:
            return iter(self._samples(epoch))  # type: ignore[operator]
        if epoch > 0:
            raise DataError(
                "an iterator is one epoch and cannot be read again",
                rank=self.context.rank,
                hint="give a function of the epoch that makes an iterator: lambda epoch: ...",
            )
        return self._one_shot_iterator

    def _next(self, samples: Iterator[Any], epoch: int, start: int) -> list[Any]:
        try:
            return list(islice(samples, self.batch))
        except HpcflowError:
            raise
        except Exception as error:
            raise DataError(
                f"the stream failed after sample {start:,} of epoch {epoch}: "
                f"{type(error).__name__}: {error}",
                rank=self.context.rank,
                hint="the cause is printed above",
            ) from error

    def _load(self, part: StreamShare) -> list[Batch]:
        epoch, share, samples = part
        columns = {}
        for number, key in enumerate(self._keys):
            try:
                values = [s if self._is_single else s[number] for s in samples]
                column = self._column(key, values)
            except (ValueError, TypeError, IndexError, KeyError) as error:
                if isinstance(error, HpcflowError):
                    raise
                raise DataError(
                    f"samples {share.indices[0]:,} to {share.indices[-1]:,} of the stream have no "
                    f"rows for {key.name!r}: {error}",
                    rank=self.context.rank,
                    hint=f"give {len(self._keys)} values for each sample, each of the same shape",
                ) from error
            columns[key] = column
        return [self._batch(columns, epoch, share)]

    def _column(self, key: Tensor, values: list[Any]) -> np.ndarray:
        """The values of one placeholder, as rows."""
        if not values:  # a global batch with fewer samples than workers
            return np.empty((0, *(d or 0 for d in (key.shape or (0,))[1:])), key.dtype)
        if self._map is not None:
            return np.stack([np.asarray(value) for value in values])
        column = np.stack([read_feed(key, value) for value in values])
        check_fits(key, "the stream's value", column.dtype, column.shape)
        return np.ascontiguousarray(cast(key, column))

    # -- the position

    def position(self, last: Sequence[WorkerPosition]) -> dict[str, Any]:
        """The common position of the workers, as plain data; `last` as for `Dataset`.

        Asynchronous workers continue after the last global batch that all of them have taken.
        Samples that faster workers took after it are used again.
        """
        epoch, step = min(map(min, last_positions(last, (self._first, -1))))
        skipped = self._skip if epoch == self._first else 0
        start = skipped + max(step + 1 - skipped // self.batch, 0) * self.batch
        resumes = self._one_shot_iterator is None
        if self.samples is not None and start >= self.samples:
            epoch, start = epoch + 1, 0
        return {"epoch": epoch, "taken": start, "batch": self.batch, "left": {}, "resumes": resumes}

    def restore(self, position: dict[str, Any]) -> None:
        """Continue at `position`.

        Errors: DataError if `samples` is an iterator, which cannot resume.
        """
        start = int(position.get("taken", 0))
        if self._one_shot_iterator is not None and (start or position["epoch"]):
            raise DataError(
                "a stream of an iterator cannot resume: an iterator cannot be read again",
                rank=self.context.rank,
                hint="give a function of the epoch that makes the iterator, or restore the "
                "variables alone (hf.train.Saver)",
            )
        self._first, self._skip = int(position["epoch"]), start
        self._skipped_batch = int(position.get("batch", 1))


def _make_part(
    epoch: int, step: int, start: int, joined: list[Any], low: int, high: int, line: int = 0
) -> StreamShare:
    share = BatchShare(step, np.arange(start + low, start + high), len(joined), 0, low, line)
    return epoch, share, joined[low:high]
