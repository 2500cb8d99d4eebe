"""Which samples are whose to draw where workers of parameter servers have died.

Such a worker draws its share of each joined batch at its own pace. What one draws in the order of
epochs and steps is a *line*: the share of one worker, or, when that has died, a part of what it
had left: its share of every so-manieth batch. Whoever knows of the same deaths in the same order
knows who draws what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

Place = tuple[int, int]  # of a batch: epoch and step


class Line(NamedTuple):
    """The share of `worker` in the joined batches of which one in `every` is its own."""

    worker: int
    every: int = 1
    rest: int = 0

    def has(self, epoch: int, step: int) -> bool:
        """Whether that batch is one of them."""
        return (epoch + step) % self.every == self.rest


class Loss(NamedTuple):
    """A worker that has died, and the place of the last batch that it had trained of its lines."""

    worker: int
    places: Mapping[int, Place]  # by the numbers of its lines


class Lines:
    """The lines of one dataset over `workers`, of whom those of `losses` have died."""

    def __init__(self, workers: int, losses: Iterable[Loss] = ()) -> None:
        self._workers = workers
        self._living = list(range(workers))
        self._holders = {Line(worker): worker for worker in self._living}
        self.places: dict[Line, Place] = {}  # behind which lines of the dead go on
        for loss in losses:
            self._lose(loss)

    def _lose(self, loss: Loss) -> None:
        held = self.of(loss.worker)
        self._living.remove(loss.worker)
        for number, line in held.items():
            del self._holders[line]
            place = loss.places.get(number, self.places.pop(line, None))
            for piece in self._pieces(line):
                self._holders[piece] = min(self._living, key=lambda one: (self._load(one), one))
                if place is not None:
                    self.places[piece] = place

    def _pieces(self, line: Line) -> list[Line]:
        """A whole share goes to all who live, a part of one to one of them."""
        count = len(self._living)
        return [line] if line.every > 1 else [Line(line.worker, count, i) for i in range(count)]

    def _load(self, worker: int) -> Fraction:
        held = (line for line, holder in self._holders.items() if holder == worker)
        return sum((Fraction(1, line.every) for line in held), Fraction())

    def of(self, worker: int) -> dict[int, Line]:
        """The lines of a worker by their numbers, which stay; its own share is number 0."""
        held = sorted(line for line, holder in self._holders.items() if holder == worker)
        return dict(sorted((self._number(line, worker), line) for line in held))

    def _number(self, line: Line, holder: int) -> int:
        is_own = line == Line(holder)
        return 0 if is_own else 1 + line.worker + self._workers * line.rest

    def together(self, told: Mapping[int, Mapping[int, Place]]) -> list[Sequence[Place | None]]:
        """Where each worker's share stands, by `rest` where it is in pieces.

        `told` has the places of the last batches of those who live, by worker and line.
        """
        places = dict(self.places)
        for worker, some in told.items():
            held = self.of(worker)
            places |= {held[number]: place for number, place in some.items() if number in held}
        found: list[list[Place | None]] = [[] for _ in range(self._workers)]
        for line in sorted(self._holders):
            found[line.worker].append(places.get(line))
        return list(found)
