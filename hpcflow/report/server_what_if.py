"""Server what-if: the time of a step of a run, if its variables were on servers in another way.

The rule of the planner divides the variables over the other servers. The measured work of the
servers is divided in the ratio of the bytes and messages of their variables. Steps are replayed
(`server_replay.py`). The replay is calibrated first: in the replay of the run itself, workers wait
for a delay, so long that the step takes the measured time. Replays with other servers keep it.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from hpcflow.plan.cost.step_correction import EXCHANGE_S
from hpcflow.plan.distribution.variable_cost import VariableLoad
from hpcflow.plan.distribution.variable_placement import least_loaded, piece_count
from hpcflow.report.advised_run import LEAST_GAIN
from hpcflow.report.server_replay import ServerJob, ServerLoad

# Work of a server in each step of a worker, also with small variables: 0.3 to 0.6 ms on a busy node
STEP_OVERHEAD_S = 5e-4
SAME = 0.02  # of a step: what fewer servers may cost
ACCURACY = 0.01  # of the calibration, relative to the measured step


class ServerVariable(NamedTuple):
    """A variable on servers: its rows and bytes, and what it moves in a step of a worker."""

    name: str
    rows: int
    nbytes: int
    load: VariableLoad


class VariableDivision(NamedTuple):
    """Of each server: the bytes that it holds, and its load by a step of a worker.

    The load is that of `VariableLoad.weight`, in bytes.
    """

    held: list[float]
    moved: list[float]


@dataclasses.dataclass(frozen=True)
class CalibratedReplay:
    """Arguments of `ServerJob.step_seconds`, with which the step of the run takes `seconds`.

    `measured_share` is the measured waiting of a worker, divided by the replayed one: below 1 where
    the replay waits longer than the run, also without a delay.
    """

    work: float
    after_gradients: float
    delay: float
    seconds: float
    measured_share: float


def divide_variables(
    variables: Sequence[ServerVariable], servers: int, shard_bytes: int
) -> VariableDivision:
    """The variables on so many servers by the rule of the planner (`variable_placement.py`)."""
    work, held, moved = [0.0] * servers, [0.0] * servers, [0.0] * servers
    for one in variables:
        pieces = piece_count(one.nbytes, shard_bytes, one.load.is_whole)
        for piece in least_loaded(work, one.rows, pieces):
            share = (piece.stop - piece.start) / one.rows
            work[piece.server] += one.load.weight(one.nbytes, share)
            held[piece.server] += share * one.nbytes
            moved[piece.server] += one.load.weight(0, share)
    return VariableDivision(held, moved)


@dataclasses.dataclass(frozen=True)
class ServerWhatIf:
    """A run with servers: predicts its step with other servers, or another `shard_bytes`.

    `own` is the division of the variables in the run, `loads` the measured loads of its servers,
    `median` the measured seconds of a step. `works` are seconds of the own work of a worker in a
    step: a low value, the median and a high one. At most the share `after_gradients` of it comes
    after the first gradient is sent. `memory` are the bytes of variables on all servers, slots
    included, `most_held` those that one server may hold.
    """

    job: ServerJob
    variables: list[ServerVariable]
    own: VariableDivision
    loads: list[ServerLoad]
    median: float
    works: list[float]
    after_gradients: float
    shard_bytes: int
    memory: float
    most_held: float

    @property
    def servers(self) -> int:
        """The number of servers."""
        return len(self.loads)

    def held_bytes(self, servers: int) -> float:
        """The most bytes of variables on one of so many servers."""
        held = divide_variables(self.variables, servers, self.shard_bytes).held
        return self.memory * max(held) / sum(held) if sum(held) else 0.0

    def gain(self, servers: int, shard_bytes: int) -> float:
        """Seconds of a step that another division saves: the smallest by all calibrations.

        `STEP_OVERHEAD_S` of the work of a server for a step of a worker is not divided. 0 if the
        gain is less than `LEAST_GAIN` of a step; nothing is replayed if the work of the busiest
        server falls by less.
        """
        overhead = STEP_OVERHEAD_S * self.job.replicas
        fixed = statistics.fmean(min(load.seconds, overhead) for load in self.loads)
        loads = self._loads(servers, shard_bytes, overhead, fixed)
        least = LEAST_GAIN * self.median
        if max(self.loads).seconds - max(loads).seconds < least:
            return 0.0
        more = 2 * EXCHANGE_S * max(0, servers - self.servers)
        gain = min(
            one.measured_share
            * (
                one.seconds
                - self.job.step_seconds(loads, one.work + more, one.after_gradients, one.delay)
            )
            for one in self.calibrations
        )
        return gain if gain >= least else 0.0

    def step_of_fewer(self, servers: int) -> float:
        """The time of a step with fewer servers: the longest by all calibrations.

        The delay grows as the number of servers falls: the waiting that the replay does not explain
        may be at the ports of the servers.
        """
        loads = self._loads(servers, self.shard_bytes, 0.0, 0.0)
        if max(loads).seconds > (1 + SAME) * self.median:
            return max(loads).seconds
        longer = self.servers / servers
        steps = [
            self.job.step_seconds(loads, one.work, one.after_gradients, longer * one.delay)
            - one.seconds
            for one in self.calibrations
        ]
        return self.median + max(0.0, *steps)

    def _loads(
        self, servers: int, shard_bytes: int, overhead: float, fixed: float
    ) -> list[ServerLoad]:
        """The loads of other servers.

        Of the work of each server of the run, all but `overhead` seconds are divided among the
        other servers in the ratio of their loads. Each of these has `fixed` seconds besides.
        """
        moved = divide_variables(self.variables, servers, shard_bytes).moved
        seconds = sum(max(0.0, load.seconds - overhead) for load in self.loads)
        received, sent = (sum(load[i] for load in self.loads) for i in (1, 2))
        whole = sum(self.own.moved)
        return [
            ServerLoad(fixed + seconds * each / whole, received * each / whole, sent * each / whole)
            for each in moved
        ]

    @functools.cached_property
    def calibrations(self) -> list[CalibratedReplay]:
        """Calibrations with little and much work of a worker, and late and early gradients."""
        works, shares = dict.fromkeys(self.works), dict.fromkeys([0.0, self.after_gradients])
        return [
            self._calibrated(work, after_gradients) for work in works for after_gradients in shares
        ]

    def _calibrated(self, work: float, after_gradients: float) -> CalibratedReplay:
        """Find the delay with which the step of the run takes the measured time, by bisection."""
        own = self.job.step_seconds(self.loads, work, after_gradients)
        if own >= self.median:
            waited = max(0.0, self.median - work)
            return CalibratedReplay(
                work, after_gradients, 0.0, own, waited / (own - work) if own > work else 0.0
            )
        low, high = 0.0, self.median
        while high - low > ACCURACY * self.median:
            middle = (low + high) / 2
            seconds = self.job.step_seconds(self.loads, work, after_gradients, middle)
            low, high, own = (
                (middle, high, seconds) if seconds <= self.median else (low, middle, own)
            )
        return CalibratedReplay(work, after_gradients, low, own, 1.0)
