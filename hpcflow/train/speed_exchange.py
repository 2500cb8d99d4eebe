"""Speed exchange: workers report their speed; the chief rebalances the shards of global batches."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import Graph
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.job.message_headers import WorkerPace
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.train.step_timing import StepTiming, TimingRow, TimingWindow

TELL_S = 0.25  # seconds between reports of a worker, about
LEAST_STEPS = 5  # and at least so many steps
MOST_TOLD = 1000  # reports per second of all workers, to limit the chief's load
MOST_NAMED = 16  # shares in a log line
Rows = list[tuple[int, TimingRow]]  # of workers


class SpeedExchange:
    """Speed reports of workers by messages that no rank waits for.

    The chief decides on new shares. They apply from a batch that no worker can have started: a
    worker is at most two steps ahead of the chief, which continues when all have answered.

    Ranks: every driver; `step` after each of its steps. The datasets of `graph` are the same on
    all.
    """

    def __init__(self, context: RankContext, graph: Graph) -> None:
        assert context.control is not None
        self._context, self._control, self._graph = context, context.control, graph
        self.number = context.control.new_training_session()  # in the same order on all ranks
        self._paces = self._control.paces[self.number]
        self._shares = self._control.shares[self.number]
        self._interval_s = max(TELL_S, context.roles.replicas / MOST_TOLD)
        self._sent_at = 0.0
        self._speeds: dict[int, dict[int, float]] = {}  # dataset -> worker -> samples per second
        self._has_said: set[int] = set()  # rebalanced datasets that were logged

    def step(self, pace: StepTiming) -> Rows:
        """Exchange speeds after a step; returns the reports received on the chief."""
        while self._shares:
            message = self._shares.popleft()
            if len(message["shares"]) == self._context.roles.replicas:  # no worker died since
                self._balance(message["dataset"]).change(message["first"], message["shares"])
        rows: Rows = []
        if not self._sent_at or (
            pace.ended - self._sent_at >= self._interval_s and pace.window.steps >= LEAST_STEPS
        ):
            if self._sent_at:  # not the first step, which includes planning
                self._report_window(pace.window, rows)
            self._sent_at = pace.ended
            pace.window.clear()
        if self._context.is_chief:
            while self._paces:
                self._receive(*self._paces.popleft(), rows)
        return rows

    def _report_window(self, window: TimingWindow, rows: Rows) -> None:
        row, dataset = window.row(), self._dataset(window)
        if self._context.is_chief:
            rows.append((self._context.replica, row))
            self._record(self._context.replica, row, dataset)
            return
        origin = WorkerPace.packed(row.steps, self.number, dataset)
        times = int(row.work * 1e9), int(row.wait * 1e9)
        means = int(row.mean_work * 1e9), int(row.input * 1e9)
        message = WorkerPace(origin, *times, int(row.samples * 1e3), *means)
        chief, control = self._context.roles.drivers[0], self._control
        self._context.executor.run_locked(lambda: control.send(chief, message), lambda: True)

    def _receive(self, rank: int, pace: WorkerPace, rows: Rows) -> None:
        if rank not in self._context.roles.drivers:
            return  # it has died since
        worker = self._context.roles.task_of(rank)[1]
        samples = pace.millisamples / 1e3
        means = pace.mean_work_ns / 1e9, pace.input_ns / 1e9
        row = TimingRow(pace.steps, pace.work_ns / 1e9, pace.wait_ns / 1e9, samples, *means)
        rows.append((worker, row))
        self._record(worker, row, pace.dataset)

    # -- shares

    def replicas_changed(self) -> None:
        """After the death of a replica: equal shares for the others until all have reported."""
        self._speeds.clear()

    def _dataset(self, window: TimingWindow) -> int:
        """The number of the dataset of all steps, if it balances by speed; else -1."""
        if getattr(window.source, "balance", None) is None:
            return -1
        return self._graph.get_collection("datasets").index(window.source)

    def _balance(self, dataset: int) -> Any:
        return self._graph.get_collection("datasets")[dataset].balance

    def _record(self, worker: int, row: TimingRow, dataset: int) -> None:
        """Record a speed; rebalance when all workers have reported."""
        if dataset < 0 or not row.samples:
            return
        speeds = self._speeds.setdefault(dataset, {})
        speeds[worker] = row.samples / max(row.work, 1e-9)
        if len(speeds) < self._context.roles.replicas:
            return
        balance = self._balance(dataset)
        decision = balance.decide([speed for _, speed in sorted(speeds.items())])
        speeds.clear()
        if decision is None:
            return
        first, shares = decision
        request = {"service": "shares", "session": self.number, "dataset": dataset}
        request |= {"first": first, "shares": shares}
        self._control.call(dict.fromkeys(self._context.roles.drivers[1:], request))()
        balance.change(first, shares)
        if dataset not in self._has_said:
            self._has_said.add(dataset)
            shares_text = ", ".join(map(str, shares)) if len(shares) <= MOST_NAMED else ""
            logger.info(
                "balance: a batch of %d samples is sharded as %s by the speed of "
                "workers; the shares "
                "follow the speed",
                *(balance.batch, shares_text or f"{min(shares)} to {max(shares)}"),
            )
