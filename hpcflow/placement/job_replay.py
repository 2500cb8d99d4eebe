"""Job replay: many replicas and several steps of a step template, on the nodes of a network.

Equal replicas are grouped: a *group* is replayed as one replica, and its messages weigh as many as
it has members. Within a synchronous step the groups are ranges of the sorted noise of all replicas,
and each is as slow as its slowest member, so the largest noise and the order statistics of the
slowest replicas are exact (`draw_order_statistics`). In an asynchronous job the noise of a group is
that of one replica, drawn anew for each step; its members' messages come in one burst, which
delays a step by at most 1 / groups of the time in which a server serves all replicas once.

A replica has one noise from one meeting of all replicas, a collective or an update, to the next.
What it computes behind the collectives of a step has the noise of the next step, so that a group
that is slow before a meeting is not slow behind it, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from hpcflow.errors import PlacementError
from hpcflow.placement.durations import (
    draw_order_statistics,
    group_sizes,
    noise_factor,
)
from hpcflow.placement.job_places import JobPlaces
from hpcflow.placement.network import Network
from hpcflow.placement.network_routes import NetworkRoutes, Ports
from hpcflow.placement.replay import replay
from hpcflow.placement.step_copies import SharedStorage, StepCopies
from hpcflow.placement.step_template import StepTemplate
from hpcflow.placement.topology_routes import TopologyRoutes

WARM_UP = 3  # steps before the steady state, which are not counted
LEAST_STEPS = 5  # that are counted, if as many are wanted
MOST_TASKS = 30_000  # of a replay with more steps than these: it bounds the time of a replay


@dataclasses.dataclass(frozen=True)
class ReplicaClass:
    """`count` replicas that take `factor` times as long as the template says."""

    count: int
    factor: float = 1.0


@dataclasses.dataclass(frozen=True)
class JobTimes:
    """Results of a replay: seconds of each counted step of each group, and how busy things were.

    `weights[i]` is how many replicas the steps in row i of `steps` stand for. `steps_per_second`
    counts the steps of all replicas. `busy` has the share of the time for each resource.
    """

    steps: np.ndarray
    weights: np.ndarray
    steps_per_second: float
    busy: dict[str, float]

    def quantile(self, share: float) -> float:
        """Return the quantile of the times of steps over all replicas."""
        values = self.steps.ravel()
        order = np.argsort(values)
        sums = np.cumsum(np.repeat(self.weights, self.steps.shape[1])[order])
        place = int(np.searchsorted(sums, share * sums[-1] * (1 - 1e-12)))
        return float(values[order[min(place, len(order) - 1)]])

    def with_saves(self, every: int, held: float, written: float) -> JobTimes:
        """Return the times with a checkpoint in each `every` steps.

        It makes the step after it longer by `held` seconds. Its `written` seconds of the storage go
        on beside the steps and their reading; if those leave too little, the next one waits.
        """
        mean = float(self.weights.sum()) / self.steps_per_second
        spare = every * mean * (1 - self.busy.get("storage", 0.0))
        delay = max(held, written - spare)
        longer = mean + delay / every
        busy = {name: share * mean / longer for name, share in self.busy.items()}
        busy["storage"] = busy.get("storage", 0.0) + written / (every * longer)
        return JobTimes(
            np.vstack([self.steps, self.steps + delay]),
            np.append(self.weights * (every - 1), self.weights),
            self.steps_per_second * mean / longer,
            busy,
        )


@dataclasses.dataclass(frozen=True)
class JobSettings:
    """How a job is replayed: `bound` is the field of `Seconds` that tasks take.

    `steps` are counted at most: of a job with many groups and tasks only `LEAST_STEPS`.
    """

    sigma: float = 0.05
    groups: int = 64
    steps: int = 200
    seed: int = 0
    bound: str = "median"


def replay_job(
    template: StepTemplate,
    network: Network | JobPlaces,
    classes: Sequence[ReplicaClass],
    settings: JobSettings,
    storage: SharedStorage | None = None,
) -> JobTimes:
    """Replay the steps of a job; the classes together are its replicas.

    On a topology the classes are those of its places, which have their speeds.
    Errors: PlacementError if they are not, or if the template cannot end.
    """
    if sum(one.count for one in classes) != template.replicas:
        raise PlacementError(
            f"{sum(one.count for one in classes)} replicas in classes of {template.replicas}"
        )
    return _JobReplay(template, network, classes, settings, storage).run()


class _JobReplay:
    """The groups of a job, with their noise."""

    def __init__(
        self,
        template: StepTemplate,
        network: Network | JobPlaces,
        classes: Sequence[ReplicaClass],
        settings: JobSettings,
        storage: SharedStorage | None,
    ) -> None:
        self.template, self.network, self.settings = template, network, settings
        self.storage = storage
        self.rng = np.random.default_rng(settings.seed)
        share = max(1, settings.groups // len(classes))
        self.sizes = [group_sizes(one.count, share) for one in classes]
        self.members = [members for sizes in self.sizes for members in sizes]
        counts = [len(sizes) for sizes in self.sizes]
        self.factors = np.repeat([one.factor for one in classes], counts)
        size = len(template.tasks) * len(self.members) + len(template.update)
        affordable = max(LEAST_STEPS, MOST_TASKS // size - WARM_UP)
        self.steps = WARM_UP + min(settings.steps, affordable)

    def run(self) -> JobTimes:
        """Replay all steps."""
        ports = Ports()
        routes: NetworkRoutes | TopologyRoutes
        if isinstance(self.network, JobPlaces):
            routes = TopologyRoutes(self.template, self.network, self.sizes, ports)
        else:
            routes = NetworkRoutes(self.template, self.network, self.members, ports)
        bound = self.settings.bound
        copies = StepCopies(self.template, self.members, routes, bound, self.storage)
        spread = 0.0 if self.template.is_synchronous else self._least_step()
        groups = len(self.members)
        starts = [(last, spread * i / groups) for i, last in enumerate(copies.lasts)]
        times = replay(
            copies.tasks(self.steps),
            copies.seconds_of(self._noises()),
            copies.missing(self.steps),
            starts,
            len(copies.resource_names),
            ports.bandwidths,
        )
        ends = times.ends[:, copies.lasts].T
        steps = np.diff(ends[:, WARM_UP - 1 :], axis=1)
        weights = np.array(self.members, float)
        rates = weights * steps.shape[1] / steps.sum(axis=1)
        end = float(times.ends.max())
        busy: dict[str, float] = {}
        for names, seconds in (
            (copies.resource_names, times.resource_busy),
            (ports.names, times.port_busy),
        ):
            for name, value in zip(names, seconds.tolist(), strict=True):
                busy[name] = max(busy.get(name, 0.0), value / end)
        return JobTimes(steps, weights, float(rates.sum()), busy)

    def _noises(self) -> np.ndarray:
        """A row of factors for each step: of the groups in this step, in the next one, and 1."""
        rows = np.array([self._noise() for _ in range(self.steps + 1)])
        return np.hstack([rows[:-1], rows[1:], np.ones((self.steps, 1))])

    def _noise(self) -> np.ndarray:
        """The factor of each group in a step."""
        sigma = self.settings.sigma
        if not sigma:
            return self.factors
        if not self.template.is_synchronous:
            return self.factors * np.exp(sigma * self.rng.standard_normal(len(self.factors)))
        noise: list[float] = []
        for sizes in self.sizes:
            quantiles = draw_order_statistics(np.cumsum(sizes).tolist(), self.rng)
            if max(sizes) == 1:  # each group is one replica, which is slow now and fast then
                self.rng.shuffle(quantiles)
            noise += [noise_factor(sigma, float(q)) for q in quantiles]
        return self.factors * np.array(noise)

    def _least_step(self) -> float:
        """A bound of the time of an asynchronous step, over which its workers are spread.

        It is the work of a replica, or the time in which a server computes, sends or receives what
        all replicas need in a step.
        """
        own, loads = 0.0, dict.fromkeys(self.template.servers, np.zeros(3))
        for task in self.template.tasks:
            seconds = float(getattr(task.seconds, self.settings.bound)) * self.network.slowdown
            moved = task.nbytes / self.network.bandwidth
            own += seconds
            if task.rank in loads:
                loads[task.rank] = loads[task.rank] + np.array([seconds, moved, 0.0])
            if task.to in loads:
                loads[task.to] = loads[task.to] + np.array([0.0, 0.0, moved])
        served = max((float(load.max()) for load in loads.values()), default=0.0)
        return max(own, served * self.template.replicas)
