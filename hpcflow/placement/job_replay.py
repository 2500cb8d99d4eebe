"""Job replay: many replicas and several steps of a step template, on the nodes of a network.

A *class* has replicas with equal times of tasks. It is divided into *groups* of replicas, and a
group is replayed as one replica. A message of a group counts as one message of each member.

- In a synchronous job all replicas of a class are sorted by their noise in each step, and a group
  is a range of this order. It is as slow as its slowest member. The largest noise, and that of the
  slowest replicas, have their exact distribution (`draw_order_statistics`).
- In an asynchronous job a group has the noise of one replica, drawn anew for each step. The
  messages of its members come in one burst. That delays a step by at most 1 / groups of the time
  in which a server serves all replicas once.

A replica has one noise between two synchronizations of all replicas (collectives or an update).
What it computes behind the collectives of a step has the noise of the next step. So a group that
is slow before a synchronization is not also slow behind it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from hpcflow.errors import PlacementError
from hpcflow.placement.network import Network
from hpcflow.placement.network_routes import NetworkRoutes, Ports
from hpcflow.placement.noise_statistics import draw_order_statistics, group_sizes, noise_factor
from hpcflow.placement.rank_mapping import RankMapping
from hpcflow.placement.replay import replay
from hpcflow.placement.step_copies import SharedStorage, StepCopies
from hpcflow.placement.step_reduction import reduced
from hpcflow.placement.step_template import StepTemplate
from hpcflow.placement.topology_routes import TopologyRoutes

WARM_UP = 3  # steps before the steady state, which are not counted
LEAST_STEPS = 5  # that are counted, if as many are wanted
MOST_TASKS = 30_000  # of a replay with more steps than these: it bounds the time of a replay


@dataclasses.dataclass(frozen=True)
class ReplicaClass:
    """A class: `count` replicas whose tasks take `factor` times the seconds of the template."""

    count: int
    factor: float = 1.0


@dataclasses.dataclass(frozen=True)
class JobTimes:
    """Results of a replay.

    `steps` has the seconds of steps, an array (groups, counted steps); `weights[i]` is the number
    of replicas of group i. `steps_per_second` counts the steps of all replicas. `busy` has for each
    device and port the share of the time in which it works.
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
        """Return the times with a checkpoint after every `every` steps.

        A checkpoint makes the step after it longer by `held` seconds. It is written in `written`
        seconds of the storage, while steps go on and read their input. If the storage has too
        little time for that, the next checkpoint waits.
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
    """How a job is replayed.

    `sigma` is the standard deviation of the noise, `groups` the number of groups of all replicas,
    `bound` the field of `Seconds` that tasks take. At most `steps` steps are counted, fewer if a
    step has many tasks.
    """

    sigma: float = 0.05
    groups: int = 64
    steps: int = 200
    seed: int = 0
    bound: str = "median"


def replay_job(
    template: StepTemplate,
    network: Network | RankMapping,
    classes: Sequence[ReplicaClass],
    settings: JobSettings,
    storage: SharedStorage | None = None,
) -> JobTimes:
    """Replay the steps of a job whose replicas are those of `classes`.

    Errors: those of `JobReplay`.
    """
    job = JobReplay(template, network, classes, settings, storage)
    return job.run(settings.bound, settings.seed)


class JobReplay:
    """The replays of a job with several bounds and seeds: they share groups and tasks.

    On a topology, `classes` are the classes of the rank mapping in their order, with factor 1: the
    mapping has their speeds.
    Errors: PlacementError if `classes` do not have as many replicas as the template, or if the
    template cannot end.
    """

    def __init__(
        self,
        template: StepTemplate,
        network: Network | RankMapping,
        classes: Sequence[ReplicaClass],
        settings: JobSettings,
        storage: SharedStorage | None = None,
    ) -> None:
        if sum(one.count for one in classes) != template.replicas:
            raise PlacementError(
                f"{sum(one.count for one in classes)} replicas in classes of {template.replicas}"
            )
        self.template, self.network, self.sigma = template, network, settings.sigma
        share = max(1, settings.groups // len(classes))
        self.sizes = [group_sizes(one.count, share) for one in classes]
        self.members = [members for sizes in self.sizes for members in sizes]
        counts = [len(sizes) for sizes in self.sizes]
        self.factors = np.repeat([one.factor for one in classes], counts)
        size = len(template.tasks) * len(self.members) + len(template.update)
        affordable = max(LEAST_STEPS, MOST_TASKS // size - WARM_UP)
        self.steps = WARM_UP + min(settings.steps, affordable)
        self.ports = Ports()
        routes: NetworkRoutes | TopologyRoutes
        if isinstance(network, RankMapping):
            routes = TopologyRoutes(template, network, self.sizes, self.ports)
        else:
            routes = NetworkRoutes(template, network, self.members, self.ports)
        self.copies = StepCopies(reduced(template), self.members, routes, storage)
        self._tasks = self.copies.tasks(self.steps)
        self._missing = self.copies.missing(self.steps)
        self._noise_rows: dict[int, np.ndarray] = {}  # by seed

    def run(self, bound: str, seed: int) -> JobTimes:
        """Replay all steps, with the times of a field of `Seconds`."""
        if seed not in self._noise_rows:
            self._noise_rows[seed] = self._noises(np.random.default_rng(seed))
        copies, groups = self.copies, len(self.members)
        spread = 0.0 if self.template.is_synchronous else self._least_step(bound)
        starts = [(last, spread * i / groups) for i, last in enumerate(copies.lasts.tolist())]
        times = replay(
            self._tasks,
            copies.seconds_of(self._noise_rows[seed], bound),
            self._missing,
            starts,
            len(copies.resource_names),
            self.ports.bandwidths,
        )
        ends = times.ends[:, copies.lasts].T
        steps = np.diff(ends[:, WARM_UP - 1 :], axis=1)
        weights = np.array(self.members, float)
        rates = weights * steps.shape[1] / steps.sum(axis=1)
        end = float(times.ends.max())
        busy: dict[str, float] = {}
        for names, seconds in (
            (copies.resource_names, times.resource_busy),
            (self.ports.names, times.port_busy),
        ):
            for name, value in zip(names, seconds.tolist(), strict=True):
                busy[name] = max(busy.get(name, 0.0), value / end)
        return JobTimes(steps, weights, float(rates.sum()), busy)

    def _noises(self, rng: np.random.Generator) -> np.ndarray:
        """The factors of each step, an array (steps, 2 groups + 1).

        A row has the factors of the groups in the step, those in the next step, and 1.
        """
        rows = np.array([self._noise(rng) for _ in range(self.steps + 1)])
        return np.hstack([rows[:-1], rows[1:], np.ones((self.steps, 1))])

    def _noise(self, rng: np.random.Generator) -> np.ndarray:
        """The factor of each group in a step."""
        sigma = self.sigma
        if not sigma:
            return self.factors
        if not self.template.is_synchronous:
            return self.factors * np.exp(sigma * rng.standard_normal(len(self.factors)))
        noise: list[float] = []
        for sizes in self.sizes:
            quantiles = draw_order_statistics(np.cumsum(sizes).tolist(), rng)
            if max(sizes) == 1:  # each group is one replica, which is slow now and fast then
                rng.shuffle(quantiles)
            noise += [noise_factor(sigma, float(q)) for q in quantiles]
        return self.factors * np.array(noise)

    def _least_step(self, bound: str) -> float:
        """A lower bound of the time of an asynchronous step; the starts of replicas spread over it.

        It is the work of a replica, or the time in which a server computes, sends or receives what
        all replicas need in a step, if that is longer.
        """
        own, loads = 0.0, dict.fromkeys(self.template.servers, np.zeros(3))
        for task in self.template.tasks:
            seconds = float(getattr(task.seconds, bound)) * self.network.slowdown
            moved = task.nbytes / self.network.bandwidth
            own += seconds
            if task.rank in loads:
                loads[task.rank] = loads[task.rank] + np.array([seconds, moved, 0.0])
            if task.to in loads:
                loads[task.to] = loads[task.to] + np.array([0.0, 0.0, moved])
        served = max((float(load.max()) for load in loads.values()), default=0.0)
        return max(own, served * self.template.replicas)
