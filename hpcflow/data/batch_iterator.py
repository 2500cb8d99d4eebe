"""Batches and their iteration: the base of all datasets, from read rows to feeds."""

from __future__ import annotations

import copy
import itertools
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from hpcflow.data.fork_guard import forbid_forks
from hpcflow.data.global_batch_sharding import BatchShare, split_points
from hpcflow.data.placeholder_checks import check_fits, check_key, check_may_vary
from hpcflow.data.prefetch_threads import PrefetchThreads
from hpcflow.data.speed_weighted_sharding import SpeedBalance
from hpcflow.errors import DataError, HpcflowError, ShapeError
from hpcflow.graph.graph import Graph, Tensor
from hpcflow.ops.replicas.replica_ops import replica_share
from hpcflow.platform.exception_translation import user_line
from hpcflow.platform.rank_logging import say_once
from hpcflow.runtime.failure.shard_reassignment import BatchPosition, DataShard, ShardAssignment
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.step.feed_and_fetch import cast, read_feed

Portion = TypeVar("Portion")
Columns = Mapping[Tensor, np.ndarray]


class Batch(dict[Tensor, np.ndarray]):
    """One worker's share of a global batch, usable as a feed_dict.

    `indices` are its samples and `size` is their number. `joined_size` is the size of the global
    batch, in which its first sample has number `offset`. `epoch`, and `step` within it, count from
    0. `source` is the dataset that it comes from.
    """

    def __init__(self, feeds: Columns, epoch: int, share: BatchShare, source: Any = None) -> None:
        super().__init__(feeds)
        self.indices, self.size = share.indices, len(share.indices)
        self.joined_size, self.epoch, self.step = share.joined_size, epoch, share.step
        self.offset, self.line = share.offset, share.line
        self.source = source
        self._dealing = getattr(source, "dealing", 0)

    def renew(self) -> None:
        """Replace this batch by this worker's current share of the same global batch.

        The share changes when workers have died. Other feeds in it stay.
        """
        if self.source is None or self._dealing == self.source.dealing:
            return
        fresh = self.source.deal_again(self)
        self.update(fresh)
        self.__dict__.update(fresh.__dict__)

    def __or__(self, other: Any) -> Batch:  # type: ignore[override]
        """The same share with more feeds: `batch | {rate: 0.1}` counts as `batch` does."""
        batch = copy.copy(self)
        batch.update(other)
        return batch

    def copy(self) -> Batch:
        """The same share with the same arrays."""
        return copy.copy(self)

    def __deepcopy__(self, memo: Any) -> Batch:
        """The same share of the same dataset, with copies of the arrays."""
        return self | {key: array.copy() for key, array in self.items()}


Map = Callable[[Batch], Columns]
WorkerPosition = (
    BatchPosition | None | Sequence[BatchPosition | None]
)  # of a worker, or of each part of a dead one's share
HeldShards = Mapping[
    int, tuple[DataShard, BatchPosition]
]  # a worker's lines by number, with their last places


class DeadWorkerShards(Protocol):
    """A training session's data about dead workers (`train/dead_worker_data.py`)."""

    def deaths(self, dataset: Any) -> int:
        """The number of deaths that count for the sharding of `dataset`."""
        ...

    def lines(self, dataset: Any) -> ShardAssignment:
        """The assignment of lines of `dataset` to workers."""
        ...

    def reshards(self, dataset: Any, deaths: int, has_drawn: bool) -> bool:
        """At the end of a worker's batches: whether to shard again; if False, all have ended."""
        ...


class ShardedBatches:
    """A worker's batches: sharded, mapped, weighted, prefetched.

    `input_wait_seconds` is the time that the consumer of batches has waited for them.
    """

    readers = 1  # prefetch threads
    # of the training session, with --survive and parameter servers
    heirs: DeadWorkerShards | None = None

    def __init__(
        self, keys: Iterable[Any], batch: int, map: Map | None, context: RankContext
    ) -> None:
        self.context, self.batch = context, batch
        self.replica, self.replicas = context.replica, context.roles.replicas
        self.input_wait_seconds = 0.0
        self._map = map
        self._mapped_bytes = 0  # bytes of a mapped sample; 0 before the first
        self._keys = list(keys)
        for key in self._keys:
            check_key(key)
        self._share: Tensor | None = None
        if context.cluster.mode != "single" and self._keys:
            self._share = _share_tensor(self._keys[0].graph)
        self._balance: SpeedBalance | None = None
        self._numbered: dict[int, int] = {}  # epoch -> the number of its step 0, see `SpeedBalance`
        self._reading: weakref.WeakSet[PrefetchThreads[Any, Any]] = weakref.WeakSet()
        self._finished: set[int] = set()  # the lines of this worker when it last reached the end
        self._last: Batch | None = None  # the last batch that was taken
        self.dealing = 0  # number of times that the workers have become fewer
        context.followers.add(self)
        if context.world is not None:
            forbid_forks()

    @property
    def _is_synchronous(self) -> bool:
        """Whether the workers' gradients are combined; a session may choose this later.

        Also True after all other workers have died, so that batches keep the same feeds.
        """
        return self.context.cluster.joins or self.dealing > 0

    @property
    def balance(self) -> SpeedBalance | None:
        """The sharding by speed; None without `balance`, or if workers do not run equal steps."""
        return self._balance if self.context.cluster.in_step else None

    @property
    def keys(self) -> list[Any]:
        """The placeholders that its batches feed."""
        return self._keys

    @property
    def shares(self) -> list[int]:
        """The number of samples of a full global batch for each worker."""
        if self.balance is not None:
            return self.balance.shares
        return np.diff(split_points(self._full(), self.replicas)).tolist()

    def _full(self) -> int:
        """The size of a global batch that is not the last of an epoch."""
        return self.batch

    def _begin_balance(self, lead: int) -> None:
        """Shard by speed from now on; at most `lead` batches are sharded ahead of those taken.

        Errors: HpcflowError if that is not possible.
        """
        context = self.context
        if self._can_reassign:
            raise HpcflowError(
                "balance=True does not work with survive=1 and parameter servers: shares by speed "
                "are not reassigned when a worker dies",
                rank=context.rank,
                hint="leave out balance, survive or the servers",
            )
        if context.settings.exact or context.settings.tasks_per_replica > 1:
            is_exact = context.settings.exact
            raise HpcflowError(
                "balance=True shards by measured time, "
                + (
                    "but exact=1 needs equal runs"
                    if is_exact
                    else "which needs one rank per worker"
                ),
                rank=context.rank,
                hint="leave out "
                f"{'balance or exact' if is_exact else '--tasks-per-replica or balance'}",
            )
        check_may_vary(self._keys)
        if self.replicas > 1:
            self._balance = SpeedBalance(self.replicas, self._full(), lead, context.rank)

    def _numbers(self) -> Iterator[int]:
        """The numbers of the next batches; equal on all workers that run equal steps."""
        if self._balance is None:
            return itertools.count()
        cluster = self.context.cluster
        if not cluster.in_step and self.context.is_chief:
            why = "with asynchronous workers: each reads its own shard at its own speed"
            if cluster.joins:
                why = f"with sync={cluster.sync}: late gradients are dropped"
            say_once(f"balance=True has no effect {why}")
        return itertools.count(self._balance.consumed)

    def _log_shares(self, samples: str) -> str:
        most, least = max(self.shares), min(self.shares)
        each = f"{most}" if most == least else f"{least} or {most}"
        workers = f"each of {self.replicas} workers" if self.replicas > 1 else "one worker"
        return f"{samples}; a batch of {self._full():,} is {each} for {workers}"

    def _note_empty(self) -> None:
        """Log once if a full batch has no rows for some workers."""
        if self._is_synchronous and min(self.shares) == 0 and self.context.is_chief:
            say_once(
                f"a batch of {self._full():,} leaves {self.shares.count(0)} of {self.replicas} "
                f"workers without samples ({user_line()})\n"
                "  next  use fewer ranks, or larger batches"
            )

    def _batches(
        self,
        portions: Iterator[Portion],
        load: Callable[[Portion], list[Batch]],
        prefetch_depth: int,
        label: str,
    ) -> Iterator[Batch]:
        """The batches of all portions; `prefetch_depth`: by threads. Counts the wait time."""
        reader = (
            PrefetchThreads(portions, load, prefetch_depth, self.readers)
            if prefetch_depth
            else None
        )
        if reader is not None:
            self._reading.add(reader)
        try:
            while True:
                begun = time.perf_counter()
                if reader is None:
                    portion = next(portions, None)
                    loaded = None if portion is None else load(portion)
                else:
                    loaded = reader.take(self.context.executor.ledger, label)
                self.input_wait_seconds += time.perf_counter() - begun
                if loaded is None:
                    return
                loaded.reverse()
                while loaded:  # release each batch once it is consumed
                    if self.balance is not None:
                        self.balance.take()
                    yield self._with_offset(loaded.pop())
        finally:
            if reader is not None:
                reader.close()

    @property
    def _can_reassign(self) -> bool:
        """Whether workers take over the samples of dead ones: --survive with parameter servers."""
        return self.context.settings.survive and self.context.cluster.mode == "ps"

    def _begin_inheriting(self, heirs: DeadWorkerShards) -> None:
        """A training session begins: take over samples of dead workers, as `heirs` shares them."""
        self.heirs = heirs

    def _end_inheriting(self) -> None:
        """The training session ends: samples of dead workers are taken over no more."""
        self.heirs = None

    def replicas_changed(self) -> None:
        """Workers have died: from now on global batches are sharded over the other workers."""
        self.replica, self.replicas = self.context.replica, self.context.roles.replicas
        self.dealing += 1
        if self._balance is not None:  # all workers restart with equal shares, without a message
            old = self._balance
            self._balance = SpeedBalance(
                self.replicas, old.batch, old.lead, self.context.rank, old.consumed
            )

    def deal_again(self, batch: Batch) -> Batch:
        """This worker's current share of the global batch that contains `batch`."""
        raise NotImplementedError

    def _reshard_after_deaths(
        self, begin: Callable[[BatchPosition, Iterator[int]], Iterator[Batch]]
    ) -> Iterator[Batch]:
        """The batches of `begin(...)` after the last one taken; sharded again after deaths.

        The arguments of `begin` are the (epoch, step) of that batch and the numbers of all batches.
        """
        last, is_over, start = (-1, -1), False, next(self._numbers())
        while not is_over:
            dealing, is_over = self.dealing, True
            batches = begin(last, itertools.count(start))
            for batch in batches:
                last = batch.epoch, batch.step
                self._batch_in_use(batch.step)
                yield batch
                if self.dealing != dealing:
                    is_over = False
                    break
            batches.close()  # type: ignore[attr-defined]

    def _batch_in_use(self, step: int) -> None:
        """Batch `step` is in use: earlier batches will not be sharded again."""

    def _reassigned_batches(
        self, begin: Callable[[HeldShards], Iterator[Batch]], first: int
    ) -> Iterator[Batch]:
        """The batches of `begin(...)` for this worker's lines from epoch `first` on.

        Lines of dead workers that it takes over are added. Their batches that others have trained
        are left out.
        """
        before, has_drawn = (first, -1), False
        last: dict[int, BatchPosition] = {}  # line -> place of the last batch taken
        while True:
            heirs = self.heirs  # a session may begin after this call
            deaths = heirs.deaths(self) if heirs is not None else 0
            lines = (
                heirs.lines(self)
                if deaths and heirs is not None
                else ShardAssignment(self.replicas)
            )
            shards = lines.shards_of(self.replica)
            for number, line in shards.items():
                place = before if number in self._finished else lines.places.get(line, before)
                last.setdefault(number, max(place, before))
            batches = begin({number: (line, last[number]) for number, line in shards.items()})
            for batch in batches:
                last[batch.line], has_drawn = (batch.epoch, batch.step), True
                yield batch
                if self.heirs is not None and self.heirs.deaths(self) != deaths:
                    break
            else:
                if self.heirs is None or not self.heirs.reshards(self, deaths, has_drawn):
                    self._finished = set(last)
                    return
            batches.close()  # type: ignore[attr-defined]

    def _with_offset(self, batch: Batch) -> Batch:
        """The batch, with the offset of its samples if a random op of the graph needs it by now."""
        if self._is_synchronous and self._keys:
            for offset in self._keys[0].graph.get_collection("replica_offset"):
                batch[offset] = np.array(batch.offset, offset.dtype)
        self._last = batch
        return batch

    def copied(self, feeds: Mapping[Any, Any]) -> Batch | None:
        """The last batch with `feeds`, if `feeds` has at least one of its arrays; else None."""
        last = self._last
        if last is None or not any(feeds.get(key) is array for key, array in last.items()):
            return None
        return last | feeds

    def check_unfed(self, feeds: Mapping[Any, Any]) -> None:
        """Errors: DataError if `feeds`, which is no batch, feeds this dataset's placeholders."""
        fed = [key.name for key in self._keys if key in feeds]
        if fed and self._last is not None:
            raise DataError(
                f"a step feeds {', '.join(fed)}, a placeholder of a dataset, but not a "
                "batch of it: the "
                "samples would not be counted, and a resumed run would train on them again",
                rank=self.context.rank,
                hint="feed the last batch of the dataset, or `batch | {placeholder: value}`; "
                "session.run does not count samples",
            )

    def close(self) -> None:
        """Stop the prefetch threads; a later epoch starts new ones."""
        for reader in list(self._reading):
            reader.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- from rows to feeds

    def _batch(self, columns: Columns, epoch: int, share: BatchShare) -> Batch:
        batch = Batch(columns, epoch, share, self)
        if self._map is not None:
            batch = Batch(self._mapped(self._map, batch), epoch, share, self)
        if self._share is not None and self._is_synchronous:
            fraction = len(share.indices) / share.joined_size
            batch[self._share] = np.array(fraction, self._share.dtype)
        return batch

    def _mapped(self, map: Map, batch: Batch) -> dict[Tensor, np.ndarray]:
        """The result of the user's function on a batch, cast to its placeholders' dtypes."""
        origin = f"map of epoch {batch.epoch}, step {batch.step}, {_samples(batch.indices)}"
        try:
            feeds = dict(map(batch))
        except HpcflowError:
            raise
        except Exception as error:
            raise DataError(
                f"{origin}: {type(error).__name__}: {error}",
                rank=self.context.rank,
                hint="the cause is printed above; map takes a Batch, {placeholder: rows}, and "
                "returns a dict of the same form",
            ) from error
        for key, value in feeds.items():
            check_key(key)
            array = read_feed(key, value)
            check_fits(key, f"what {origin} made", array.dtype, array.shape)
            if len(array) != batch.size:
                raise ShapeError(
                    f"{origin} returned {len(array)} rows for {key.name!r}, not {batch.size}",
                    hint="map must keep the number of samples",
                )
            feeds[key] = np.ascontiguousarray(cast(key, array))
        if batch.size:
            self._mapped_bytes = sum(array.nbytes for array in feeds.values()) // batch.size
        return feeds


def last_positions(
    last: Sequence[WorkerPosition], before: BatchPosition
) -> list[list[BatchPosition]]:
    """The places of the parts of each worker's share; `before` for parts without a batch yet."""
    places = []
    for position in last:
        parts: Any = position if isinstance(position, list) else [position]
        places.append([before if part is None else (part[0], part[1]) for part in parts])
    return places


def _samples(indices: np.ndarray) -> str:
    few = ", ".join(map(str, indices[:3].tolist()))
    return f"samples {few}{', ...' if len(indices) > 3 else ''}"


def _share_tensor(graph: Graph) -> Tensor | None:
    """The tensor fed with this replica's fraction; None if no operation can depend on it."""
    if graph.finalized and not graph.get_collection("replica_share"):
        return None
    with graph.as_default():
        return replica_share()
