"""Task speeds: finds the tasks of a replica that are slower than automatic placement assumed.

A task counts the time in which it is idle; all other time is its own work. The driver requests the
counters at most once a second, and waits for no answer. The chief keeps what all drivers find in
`placement.json` of the run directory, by which the next start places.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path

from hpcflow.errors import HpcflowError
from hpcflow.placement.measured_speeds import (
    NAME,
    SLOW,
    MeasuredSpeeds,
    TaskWork,
    averaged,
    compare,
    read_speeds,
)
from hpcflow.platform import fault_specification
from hpcflow.platform.quantity_text import format_seconds
from hpcflow.platform.rank_logging import logger, say_once
from hpcflow.runtime.job.message_headers import RequestLoad, ServerLoad
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.train.result_files import write_json

WINDOW_S, WINDOW_STEPS = 1.0, 5  # the least that is compared at once
FIRST_STEPS = 3  # not measured: they plan, compile and allocate
TIMES = 3  # windows in a row in which a task is slow before it is named
PAUSE_S = 1e-3  # waiting between two steps after which the comparison begins anew
SHARES = 0.1  # by which plans may differ in a task's share of the work
CHANGED = 0.1  # a speed that differs so much is sent to the chief


@dataclasses.dataclass(frozen=True)
class _Totals:
    """Sums over the steps of the driver, in seconds; `loads` are the answers of the other tasks."""

    steps: int = 0
    work: float = 0.0
    whole: float = 0.0
    loads: Mapping[int, ServerLoad] = dataclasses.field(default_factory=dict)


class TaskSpeeds:
    """The speeds of the tasks of a replica during a training session.

    Ranks: drivers of a job with placement=auto; `begin` and `end` around each training step,
    `finish` when all workers are done or stop.
    """

    def __init__(self, context: RankContext) -> None:
        assert context.control is not None
        self._context, self._control, self._executor = context, context.control, context.executor
        roles, first = context.roles, context.replica * context.roles.tasks_per_replica
        self._ranks = roles.workers[first : first + roles.tasks_per_replica]
        self._hosts_left_out = self._crowded_hosts()
        self._plans: list[tuple[float, ...]] = []  # predicted work of tasks in the plans of steps
        self._known_plans = 0
        self._totals, self._next = _Totals(), FIRST_STEPS  # at how many steps to ask next
        self._asked: _Totals | None = None  # the totals when the counters were requested
        self._before: dict[int, ServerLoad | None] = {}  # rank -> its last answer until then
        self._last: _Totals | None = None  # the totals of the last request that all answered
        self._due = 0.0  # clock at which to ask next
        self._begun = self._waited = self._waited_before = 0.0
        self._speeds: dict[int, float] = {}  # rank -> speed, a moving average
        self._slow: dict[int, int] = {}  # rank -> windows in a row in which it was slow
        self._named: set[int] = set()  # ranks that were warned of
        self._sent: dict[int, float] = {}  # what the chief knows
        self._step_seconds = 0.0  # in the last window
        self._first_seconds = 0.0  # in the first window, or in the last run of the plan
        self._earlier: MeasuredSpeeds | None = None  # the file at the start; chief only
        self._written: frozenset[int] = frozenset()  # the slow ranks in the file

    def _crowded_hosts(self) -> frozenset[str]:
        """The hosts with more ranks than cores: their ranks disturb each other.

        They are judged in rehearsals of slow ranks.
        """
        context = self._context
        faults = fault_specification.parse_faults(context.settings.inject)
        if any(fault.kind == "slow" for fault in faults):
            return frozenset()
        if context.crowded_hosts and context.is_chief:
            names = ", ".join(sorted(context.crowded_hosts))
            say_once(f"speeds of tasks are not measured on {names}: more ranks than cores")
        return context.crowded_hosts

    def begin(self) -> None:
        """A training step begins now."""
        self._begun, self._waited = time.perf_counter(), self._executor.waited
        self._known_plans = len(self._context.plans.task_seconds)
        if self._waited - self._waited_before > PAUSE_S:
            # a validation or a save: the others may have worked for it
            self._last = self._asked = None
            self._before, self._due = {}, self._begun

    def end(self) -> None:
        """It has ended: from time to time compare the tasks, and request the next counters."""
        now = time.perf_counter()
        whole, waited = now - self._begun, self._executor.waited - self._waited
        totals = self._totals
        self._totals = totals = dataclasses.replace(
            totals,
            steps=totals.steps + 1,
            work=totals.work + whole - waited,
            whole=totals.whole + whole,
        )
        self._plans += self._context.plans.task_seconds[self._known_plans :]
        if now >= self._due and totals.steps >= self._next:
            self._due, self._next = now + WINDOW_S, totals.steps + WINDOW_STEPS
            if self._receive():
                self._ask()
        self._waited_before = self._executor.waited

    def finish(self) -> None:
        """Compare for the last time; the chief writes what it knows."""
        self._receive()
        if self._context.is_chief:
            self._write()

    # -- counters

    def _ask(self) -> None:
        others = self._ranks[1:]
        self._asked = self._totals
        self._before = {rank: self._control.server_loads.get(rank) for rank in others}

        def send() -> None:
            for rank in others:
                self._control.send(rank, RequestLoad())

        self._executor.run_locked(send, lambda: True)

    def _receive(self) -> bool:
        """Compare the tasks since the last request; False if not all have answered this one."""
        loads = self._control.server_loads
        if any(loads.get(rank) is before for rank, before in self._before.items()):
            return False
        if self._asked is None:
            return True
        answered = {rank: loads[rank] for rank in self._before}
        last, self._last = self._last, dataclasses.replace(self._asked, loads=answered)
        self._asked = None
        if last is not None:
            self._compare(last, self._last)
        return True

    def _compare(self, last: _Totals, now: _Totals) -> None:
        steps = now.steps - last.steps
        measured = {self._ranks[0]: (now.work - last.work) / steps}
        for rank, load in now.loads.items():
            clock = load.clock_ns - last.loads[rank].clock_ns
            idle = load.idle_ns - last.loads[rank].idle_ns
            measured[rank] = max(clock - idle, 0) / 1e9 / steps
        self._step_seconds = (now.whole - last.whole) / steps
        self._first_seconds = self._first_seconds or self._usual_seconds()
        for rank, work in compare(self._predicted(), measured).items():
            self._judge(rank, work)
        self._tell_chief()

    def _predicted(self) -> dict[int, float]:
        """The predicted work of each rank; empty if the plans of steps divide it differently."""
        plans = [seconds for seconds in self._plans if sum(seconds)]
        shares = [[one / sum(seconds) for one in seconds] for seconds in plans]
        if any(max(each) - min(each) > SHARES for each in zip(*shares, strict=True)):
            return {}
        return {
            rank: seconds
            for rank, seconds in zip(self._ranks, plans[0] if plans else (), strict=False)
            if self._context.hosts[rank] not in self._hosts_left_out
        }

    def _usual_seconds(self) -> float:
        """The time of a step of the same plan in the last run, else in the first window."""
        earlier, digest = self._file(), self._context.plans.digest
        is_same = earlier.plan == digest and earlier.step_seconds > 0
        return earlier.step_seconds if digest and is_same else self._step_seconds

    def _judge(self, rank: int, work: TaskWork) -> None:
        self._speeds[rank] = speed = (self._speeds.get(rank, work.speed) + work.speed) / 2
        self._slow[rank] = self._slow.get(rank, 0) + 1 if work.is_slow else 0
        if self._slow[rank] < TIMES or speed >= SLOW or rank in self._named:
            return
        self._named.add(rank)
        context = self._context
        step, usual = self._step_seconds, self._first_seconds
        before = f" ({format_seconds(usual)} before)" if usual < SLOW * step else ""
        outlook = ""
        if context.settings.run_dir:
            outlook = f"; the next start places by the measured speeds ({NAME})"
        logger.warning(
            "%s (rank %d, host %s) computes at %.2f of the speed that placement=auto assumed: its "
            "own work takes %s of a step of %s%s, and %s by the speed of the other tasks%s",
            *(context.task_name(rank), rank, context.hosts[rank], speed),
            *(format_seconds(work.measured), format_seconds(step), before),
            *(format_seconds(work.expected), outlook),
        )

    # -- what the next start learns

    def _tell_chief(self) -> None:
        """Send the speeds to the chief where they have changed; it writes the slow ones at once."""
        context, sent = self._context, self._sent
        assumed = context.cluster.speeds or (1.0,) * len(self._ranks)
        speeds = {
            rank: self._speeds[rank] * assumed[k]
            for k, rank in enumerate(self._ranks)
            if rank in self._speeds
        }
        if context.is_chief:
            self._control.rank_speeds.update(speeds)
            slow = {rank for rank, speed in self._control.rank_speeds.items() if speed < SLOW}
            if self._named and slow != self._written:
                self._write()
        elif any(abs(speed - sent.get(rank, 0.0)) > CHANGED for rank, speed in speeds.items()):
            self._sent = speeds
            request = {"service": "speeds", "speeds": list(speeds.items())}
            chief = context.roles.drivers[0]
            self._executor.run_locked(lambda: self._control.post(chief, request), lambda: True)

    def _file(self) -> MeasuredSpeeds:
        """The file at the start; a damaged one, of which the start has warned, counts as none."""
        run_dir = self._context.settings.run_dir
        if self._earlier is None:
            self._earlier = MeasuredSpeeds()
            if run_dir and self._context.is_chief:
                try:
                    self._earlier = read_speeds(Path(run_dir))
                except HpcflowError:
                    pass
        return self._earlier

    def _write(self) -> None:
        """Write the speeds, averaged with those of earlier runs; a full disk is only a warning."""
        context, speeds = self._context, self._control.rank_speeds
        if not context.settings.run_dir or not speeds:
            return
        ranks = averaged(self._file().ranks, context.hosts, speeds)
        found = MeasuredSpeeds(ranks, context.plans.digest, self._step_seconds)
        path = Path(context.settings.run_dir) / NAME
        try:
            write_json(path, found.data())
        except OSError as error:
            logger.warning("%s cannot be written: %s", path, error.strerror)
            return
        self._written = frozenset(rank for rank, speed in speeds.items() if speed < SLOW)
