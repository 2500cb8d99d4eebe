"""Dead worker's data: the other workers of parameter servers train on the rest of its shard.

Each worker reports every trained batch to the first server. A worker that detects a death asks this
server for the position of the dead worker; all get the same answer. At the end of its data a worker
waits for the others, since a further death would leave more data to train on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.graph.graph import Graph
from hpcflow.runtime.failure.shard_reassignment import ShardAssignment, WorkerLoss
from hpcflow.runtime.job.message_headers import BatchTrained
from hpcflow.runtime.job.rank_context import RankContext


class DeadWorkerData:
    """This worker's view of dead workers, for the datasets of `graph` in one training session.

    `meet` waits for all other workers when this one has no batches left. `number` is the number of
    the session.
    """

    def __init__(
        self, context: RankContext, graph: Graph, number: int, meet: Callable[[], None]
    ) -> None:
        assert context.control is not None
        self._context, self._control = context, context.control
        self._number, self._meet = number, meet
        self._server = context.roles.servers[0]
        self._datasets: list[Any] = graph.get_collection("datasets")
        self._trained: set[int] = set()  # datasets of which this worker trained a batch
        self._losses: list[dict[str, Any]] = []  # in the order of the first server
        self._agreed = False  # at the last meeting: no data is left
        for dataset in self._datasets:
            dataset._begin_inheriting(self)

    def count(self, batch: Any) -> None:
        """Report a completed step on this batch to the first server."""
        number = self._number_of(getattr(batch, "source", None))
        if number < 0:
            return
        self._trained.add(number)
        message = BatchTrained(self._number, number, batch.step, batch.epoch, batch.line)
        tell = self._control.send
        self._context.executor.run_locked(lambda: tell(self._server, message), lambda: True)

    def _number_of(self, dataset: Any) -> int:
        return next((i for i, entry in enumerate(self._datasets) if entry is dataset), -1)

    # -- deaths

    def deaths(self, dataset: Any) -> int:
        """The number of deaths that affect the sharding of `dataset`; 0 unless it is trained on."""
        if len(self._lost()) > len(self._losses):
            self.ask()
        return len(self._losses) if self._number_of(dataset) in self._trained else 0

    def ask(self) -> None:
        """Fetch from the first server all deaths known to any worker."""
        request = {"service": "losses", "session": self._number, "lost": self._lost()}
        self._losses = self._control.call({self._server: request})()[self._server]["losses"]

    def _lost(self) -> list[int]:
        world = self._context.world
        assert world is not None
        return [rank for rank in self._context.roles.drivers if rank in world.lost]

    def lines(self, dataset: Any) -> ShardAssignment:
        """The assignment of shards of `dataset` to workers, after the deaths known here."""
        number, drivers = self._number_of(dataset), self._context.roles.drivers
        losses = [
            WorkerLoss(
                drivers.index(loss["rank"]),
                {line: (epoch, step) for of, line, epoch, step in loss["places"] if of == number},
            )
            for loss in self._losses
        ]
        return ShardAssignment(len(drivers), losses)

    # -- end of data

    def reshards(self, dataset: Any, deaths: int, has_drawn: bool) -> bool:
        """At the end of a worker's data, sharded after `deaths` deaths: whether to shard it again.

        If not, all workers are at the end of their data.
        """
        if has_drawn and self._number_of(dataset) not in self._trained:
            return False
        self._trained.add(self._number_of(dataset))
        return not self.finish(deaths)

    def finish(self, deaths: int | None = None) -> bool:
        """Wait until all workers are at the end of their data; returns True.

        With `deaths` it returns False as soon as this worker knows of more deaths.
        """
        while True:
            self.ask()
            if deaths is not None and len(self._losses) > deaths:
                return False
            self._meet()
            if self._agreed:
                return True

    def all_finished(self, at_end: bool, steps: int) -> int:
        """Agree whether all living workers are at the end of their data and know of all deaths.

        Returns the largest step number of a worker for synchronous workers (sync=all), where those
        with fewer batches waited; otherwise this worker's own.

        Ranks: every living worker, at each meeting.
        """
        context, workers = self._context, len(self._context.roles.drivers)
        knowing = np.zeros(workers + 1, np.int64)  # number of workers that know of so many deaths
        knowing[len(self._losses)] = at_end
        assert context.drivers is not None
        context.executor.finish(context.drivers.all_reduce(knowing), "the list of living workers")
        heard = int(knowing.argmax())
        self._agreed = knowing[heard] == workers - heard and knowing.sum() == knowing[heard]
        if not context.cluster.in_step:
            return steps
        most = np.array([steps])
        context.executor.finish(
            context.drivers.all_reduce(most, "max"), "the numbers of steps of all workers"
        )
        return int(most[0])

    def close(self) -> None:
        """Detach from the datasets; the session is closed."""
        for dataset in self._datasets:
            dataset._end_inheriting()
