"""Workers of parameter servers train what is left of the data of those who have died.

Each tells the first server of every batch that it has trained. Who learns of a death asks it how
far the dead had come; all hear the same. At the end of its data a worker waits for the others: if
one of them dies meanwhile there is more to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.graph.graph import Graph
from hpcflow.runtime.failure.shard_reassignment import Lines, Loss
from hpcflow.runtime.job.message_headers import BatchTrained
from hpcflow.runtime.job.rank_context import Context


class Heirs:
    """What this worker knows of the dead; for the datasets of `graph` in one training session.

    `meet` waits for all other workers where this one has no batches. `number` is the session's.
    """

    def __init__(
        self, context: Context, graph: Graph, number: int, meet: Callable[[], None]
    ) -> None:
        assert context.control is not None
        self._context, self._control = context, context.control
        self._number, self._meet = number, meet
        self._server = context.roles.servers[0]
        self._datasets: list[Any] = graph.get_collection("datasets")
        self._trained: set[int] = set()  # datasets of which this worker has trained a batch
        self._losses: list[dict[str, Any]] = []  # in the order of the first server
        self._agreed = False  # by all, when they last met, that nothing is left
        for dataset in self._datasets:
            dataset.heirs = self

    def count(self, batch: Any) -> None:
        """A step on this batch has ended, on all its ranks."""
        number = self._number_of(getattr(batch, "source", None))
        if number < 0:
            return
        self._trained.add(number)
        message = BatchTrained(self._number, number, batch.step, batch.epoch, batch.line)
        tell = self._control.tell
        self._context.engine.with_baton(lambda: tell(self._server, message), lambda: True)

    def _number_of(self, dataset: Any) -> int:
        return next((i for i, one in enumerate(self._datasets) if one is dataset), -1)

    # -- who has died

    def deaths(self, dataset: Any) -> int:
        """How many deaths count for the dealing of `dataset`: none unless it is trained on."""
        if len(self._lost()) > len(self._losses):
            self.ask()
        return len(self._losses) if self._number_of(dataset) in self._trained else 0

    def ask(self) -> None:
        """Hear of all deaths that any worker has asked of, and of those that this rank knows."""
        request = {"service": "losses", "session": self._number, "lost": self._lost()}
        self._losses = self._control.call({self._server: request})()[self._server]["losses"]

    def _lost(self) -> list[int]:
        world = self._context.world
        assert world is not None
        return [rank for rank in self._context.roles.drivers if rank in world.lost]

    def lines(self, dataset: Any) -> Lines:
        """Who draws what of `dataset`, by the deaths that this worker has heard of."""
        number, drivers = self._number_of(dataset), self._context.roles.drivers
        losses = [
            Loss(
                drivers.index(one["rank"]),
                {line: (epoch, step) for of, line, epoch, step in one["places"] if of == number},
            )
            for one in self._losses
        ]
        return Lines(len(drivers), losses)

    # -- the end of the data

    def inherits(self, dataset: Any, deaths: int, has_drawn: bool) -> bool:
        """At the end of a worker's data, dealt by so many `deaths`: whether to deal it anew.

        When not, all workers are at their end and nothing is left.
        """
        if has_drawn and self._number_of(dataset) not in self._trained:
            return False
        self._trained.add(self._number_of(dataset))
        return not self.finish(deaths)

    def finish(self, deaths: int | None = None) -> bool:
        """Wait until all workers are at their end and nothing is left: True.

        False as soon as this one hears of more than so many `deaths`, if that is given.
        """
        while True:
            self.ask()
            if deaths is not None and len(self._losses) > deaths:
                return False
            self._meet()
            if self._agreed:
                return True

    def agree(self, at_end: bool, steps: int) -> int:
        """All workers have met: whether all who live are at their end and know of all deaths.

        The most steps that one of them has made, where they count together (sync=all): who had
        fewer batches waited here; else its own.

        Ranks: every worker that lives, each time that they meet.
        """
        context, workers = self._context, len(self._context.roles.drivers)
        knowing = np.zeros(workers + 1, np.int64)  # how many know of so many deaths
        knowing[len(self._losses)] = at_end
        assert context.drivers is not None
        context.engine.finish(context.drivers.all_reduce(knowing), "who lives")
        heard = int(knowing.argmax())
        self._agreed = knowing[heard] == workers - heard and knowing.sum() == knowing[heard]
        if not context.cluster.in_step:
            return steps
        most = np.array([steps])
        context.engine.finish(context.drivers.all_reduce(most, "max"), "how far they are")
        return int(most[0])

    def close(self) -> None:
        """The session is closed."""
        for dataset in self._datasets:
            dataset.heirs = None
