"""Workers tell the chief their pace, seldom; it deals the samples of joined batches anew by it."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import Graph
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.job.message_headers import WorkerPace
from hpcflow.runtime.job.rank_context import Context
from hpcflow.train.step_timing import Pace, Row, Window

TELL_S = 0.25  # between two tellings of a worker about,
LEAST_STEPS = 5  # and as many steps
MOST_TOLD = 1000  # a second, by all workers together: the chief has work of its own
MOST_NAMED = 16  # shares in a line
Rows = list[tuple[int, Row]]  # of workers


class Exchange:
    """Each worker tells in its own time, in a message that nobody waits for.

    New shares are the chief's decision. They hold from a batch on that no worker can have been
    dealt: none can be more than two steps ahead of the chief, which goes on when all have answered.

    Ranks: every driver; `step` after each of its steps. The datasets of `graph` are alike on all.
    """

    def __init__(self, context: Context, graph: Graph) -> None:
        assert context.control is not None
        self._context, self._control, self._graph = context, context.control, graph
        self.number = context.control.new_training_session()
        self._paces = self._control.paces[self.number]
        self._shares = self._control.shares[self.number]
        self._every = max(TELL_S, context.roles.replicas / MOST_TOLD)
        self._told = 0.0
        self._speeds: dict[int, dict[int, float]] = {}  # dataset -> worker -> samples a second
        self._has_said: set[int] = set()  # datasets that were dealt anew

    def step(self, pace: Pace) -> Rows:
        """After a step: on the chief what workers have told since the last one."""
        while self._shares:
            told = self._shares.popleft()
            if len(told["shares"]) == self._context.roles.replicas:  # none has died since
                self._balance(told["dataset"]).change(told["first"], told["shares"])
        rows: Rows = []
        if not self._told or (
            pace.ended - self._told >= self._every and pace.window.steps >= LEAST_STEPS
        ):
            if self._told:  # the first step, which makes plans, is not told of
                self._tell(pace.window, rows)
            self._told = pace.ended
            pace.window.clear()
        if self._context.is_chief:
            while self._paces:
                self._hear(*self._paces.popleft(), rows)
        return rows

    def _tell(self, window: Window, rows: Rows) -> None:
        row, dataset = window.row(), self._dataset(window)
        if self._context.is_chief:
            rows.append((self._context.replica, row))
            self._note(self._context.replica, row, dataset)
            return
        times = int(row.work * 1e9), int(row.wait * 1e9)
        samples = int(row.samples * 1e3)
        message = WorkerPace(row.steps, *times, samples, dataset, self.number)
        chief, control = self._context.roles.drivers[0], self._control
        self._context.engine.with_baton(lambda: control.tell(chief, message), lambda: True)

    def _hear(self, rank: int, pace: WorkerPace, rows: Rows) -> None:
        if rank not in self._context.roles.drivers:
            return  # it has died since
        worker = self._context.roles.task_of(rank)[1]
        samples = pace.millisamples / 1e3
        row = Row(pace.steps, pace.work_ns / 1e9, pace.wait_ns / 1e9, samples)
        rows.append((worker, row))
        self._note(worker, row, pace.dataset)

    # -- shares

    def replicas_changed(self) -> None:
        """A replica has died: the others are dealt equal shares until all have told their speed."""
        self._speeds.clear()

    def _dataset(self, window: Window) -> int:
        """The number of the one dataset of all steps, if it deals by speed; else -1."""
        if getattr(window.source, "balance", None) is None:
            return -1
        return self._graph.get_collection("datasets").index(window.source)

    def _balance(self, dataset: int) -> Any:
        return self._graph.get_collection("datasets")[dataset].balance

    def _note(self, worker: int, row: Row, dataset: int) -> None:
        """Deal anew when all workers have told how fast they are."""
        if dataset < 0 or not row.samples:
            return
        speeds = self._speeds.setdefault(dataset, {})
        speeds[worker] = row.samples / max(row.work, 1e-9)
        if len(speeds) < self._context.roles.replicas:
            return
        balance = self._balance(dataset)
        found = balance.decide([speed for _, speed in sorted(speeds.items())])
        speeds.clear()
        if found is None:
            return
        first, shares = found
        request = {"service": "shares", "session": self.number, "dataset": dataset}
        request |= {"first": first, "shares": shares}
        self._control.call(dict.fromkeys(self._context.roles.drivers[1:], request))()
        balance.change(first, shares)
        if dataset not in self._has_said:
            self._has_said.add(dataset)
            told = ", ".join(map(str, shares)) if len(shares) <= MOST_NAMED else ""
            logger.info(
                "balance: of a batch of %d samples the workers get %s by their speed, and others "
                "when it changes",
                *(balance.batch, told or f"{min(shares)} to {max(shares)}"),
            )
