"""Shard reassignment: live workers train what is left of the shards of dead ones (PS mode).

Each worker draws its share of each global batch at its own pace. A *line* is a sequence of shares,
in the order of epochs and steps: the share of one worker in each global batch or, after its death,
in every n-th of the remaining ones. The assignment of lines is a function of the deaths and their
order, so all workers compute the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

BatchPosition = tuple[int, int]  # of a batch: epoch and step


class DataShard(NamedTuple):
    """The share of `worker` in one of `modulus` global batches, selected by `remainder`."""

    worker: int
    modulus: int = 1
    remainder: int = 0

    def has(self, epoch: int, step: int) -> bool:
        """Whether the global batch of this epoch and step is one of them."""
        return (epoch + step) % self.modulus == self.remainder


class WorkerLoss(NamedTuple):
    """A worker that has died, and the place of the last trained batch of each of its lines."""

    worker: int
    last_batches: Mapping[int, BatchPosition]  # by the numbers of its lines


class ShardAssignment:
    """The lines of one dataset over `workers`, after the deaths in `losses`."""

    def __init__(self, workers: int, losses: Iterable[WorkerLoss] = ()) -> None:
        self._workers = workers
        self._living = list(range(workers))
        self._holders = {DataShard(worker): worker for worker in self._living}
        self.places: dict[DataShard, BatchPosition] = {}  # lines of the dead -> last trained batch
        for loss in losses:
            self._reassign(loss)

    def _reassign(self, loss: WorkerLoss) -> None:
        lines = self.shards_of(loss.worker)
        self._living.remove(loss.worker)
        for number, line in lines.items():
            del self._holders[line]
            place = loss.last_batches.get(number, self.places.pop(line, None))
            for piece in self._pieces(line):
                self._holders[piece] = min(self._living, key=lambda one: (self._load(one), one))
                if place is not None:
                    self.places[piece] = place

    def _pieces(self, line: DataShard) -> list[DataShard]:
        """Split a whole share among all live workers; a piece of a share is not split again."""
        count = len(self._living)
        return (
            [line] if line.modulus > 1 else [DataShard(line.worker, count, i) for i in range(count)]
        )

    def _load(self, worker: int) -> Fraction:
        lines = (line for line, holder in self._holders.items() if holder == worker)
        return sum((Fraction(1, line.modulus) for line in lines), Fraction())

    def shards_of(self, worker: int) -> dict[int, DataShard]:
        """The lines of a worker by their numbers, which never change; its own share is number 0."""
        lines = sorted(line for line, holder in self._holders.items() if holder == worker)
        return dict(sorted((self._number(line, worker), line) for line in lines))

    def _number(self, line: DataShard, holder: int) -> int:
        is_own = line == DataShard(holder)
        return 0 if is_own else 1 + line.worker + self._workers * line.remainder

    def last_batches_by_share(
        self, last_batches: Mapping[int, Mapping[int, BatchPosition]]
    ) -> list[Sequence[BatchPosition | None]]:
        """The last trained batches of each worker's share; of its pieces by `remainder` if split.

        `last_batches` has those of live workers, by worker and line number.
        """
        places = dict(self.places)
        for worker, some in last_batches.items():
            lines = self.shards_of(worker)
            places |= {lines[number]: place for number, place in some.items() if number in lines}
        batches: list[list[BatchPosition | None]] = [[] for _ in range(self._workers)]
        for line in sorted(self._holders):
            batches[line.worker].append(places.get(line))
        return list(batches)
