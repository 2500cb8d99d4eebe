"""Parameter servers as a small discrete-event model, which predicts steps at any size.

Parameters are spread evenly, so all servers are alike: together they are one port in each direction
that those who transfer share evenly, none faster than its own port. A worker's step: its request
waits for a server's processor, it pulls, computes, pushes; then what the rule says.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

ASK, PULL, COMPUTE, PUSH, WAIT = range(5)  # what a worker does
Delays = Callable[[int], float]  # of worker i: seconds that it computes in its next step


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Workers and servers; ports are bytes a second in each direction."""

    workers: int
    servers: int
    port: float
    server_port: float = 0.0  # as the workers' if 0
    fixed: float = 0.0  # seconds of a step that overlap with other workers' steps
    service: float = 0.0  # seconds of each server for each request, one after the other

    def shared(self, count: int) -> float:
        """Bytes a second of each of `count` workers that all transfer."""
        return min(self.port, self.servers * (self.server_port or self.port) / count)


class _Run:
    """The state of a simulation: what each worker does, and until when or how many bytes more."""

    def __init__(self, cluster: Cluster, nbytes: float, delays: Delays) -> None:
        self.cluster, self.nbytes, self.delays = cluster, nbytes, delays
        n = cluster.workers
        self.now = self.free = 0.0  # free: when the servers' processors have served all requests
        self.does = np.full(n, WAIT)
        self.until = np.full(n, math.inf)
        self.left = np.zeros(n)
        for worker in range(n):
            self.ask(worker)

    def ask(self, worker: int) -> None:
        """A worker begins a step."""
        self.free = max(self.now, self.free) + self.cluster.service
        self.does[worker], self.until[worker] = ASK, self.free + self.cluster.fixed

    def advance(self) -> list[int]:
        """Go to the next event; the workers whose push has ended, which now wait."""
        ends = np.full(len(self.does), math.inf)
        rates = {}
        for kind in (PULL, PUSH):
            moving = self.does == kind
            if moving.any():
                rates[kind] = self.cluster.shared(int(moving.sum()))
                ends[moving] = self.now + self.left[moving] / rates[kind]
        timed = (self.does == ASK) | (self.does == COMPUTE)
        ends[timed] = self.until[timed]
        then = float(ends.min())
        for kind, rate in rates.items():
            self.left[self.does == kind] -= rate * (then - self.now)
        self.now = then
        return [int(w) for w in np.flatnonzero(ends <= then) if self._next(int(w))]

    def _next(self, worker: int) -> bool:
        """The worker begins what follows; whether its step is over."""
        did = self.does[worker]
        self.does[worker] = did + 1
        if did == ASK or did == COMPUTE:
            self.left[worker] = self.nbytes
        elif did == PULL:
            self.until[worker] = self.now + self.delays(worker)
        return bool(did == PUSH)


def sync_rounds(
    cluster: Cluster, nbytes: float, delays: Delays, rounds: int, backups: int = 0
) -> np.ndarray:
    """Seconds of each round: it ends with the first `workers - backups` gradients of its version.

    A worker whose gradient comes late begins again at once, with the version of that time.
    """
    run, need = _Run(cluster, nbytes, delays), cluster.workers - backups
    version = np.zeros(cluster.workers, int)  # of the step that each worker is in
    ends: list[float] = []
    while len(ends) < rounds:
        for worker in run.advance():
            if version[worker] < len(ends):
                version[worker] = len(ends)
                run.ask(worker)
        come = np.flatnonzero((run.does == WAIT) & (version == len(ends)))
        if len(come) >= need:
            ends.append(run.now)
            for worker in come:
                version[worker] = len(ends)
                run.ask(int(worker))
    return np.diff([0.0, *ends])


def async_steps(cluster: Cluster, nbytes: float, delays: Delays, steps: int) -> np.ndarray:
    """Seconds of each of about `steps` steps of all workers together, each going on at once."""
    run = _Run(cluster, nbytes, delays)
    begun, found = np.zeros(cluster.workers), []
    while len(found) < steps:
        for worker in run.advance():
            found.append(run.now - begun[worker])
            begun[worker] = run.now
            run.ask(worker)
    return np.array(found)


def nothing(worker: int) -> float:
    """Workers that compute nothing."""
    return 0.0


def lognormal(mean: float, sigma: float, seed: int = 0) -> Delays:
    """Delays of this mean, whose logarithm deviates by `sigma`."""
    rng = np.random.default_rng(seed)
    return lambda worker: float(mean * rng.lognormal(-(sigma**2) / 2, sigma))
