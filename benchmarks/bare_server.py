"""The least a parameter server can cost: mpi4py with persistent requests, nothing else.

The server asks MPI in one call which of the requests of all workers and values are over, and goes
on with those: a request of a worker is answered by the value, whose update is received and added.
What a framework adds on top of this is its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

IDLE_S = 0.05  # without work for this long the server sleeps between polls
STOP = 1 << 20  # a worker's good-bye, beside the tags of the values


def serve(values: list[np.ndarray]) -> None:
    """Serve `values`, numbered by their place, until every worker has said good-bye."""
    world = MPI.COMM_WORLD
    crowded = world.size > len(os.sched_getaffinity(0))
    byes = [world.Irecv(np.zeros(0, "u1"), w, STOP) for w in range(world.size - 1)]
    last, rounds = time.perf_counter(), 0
    for moved in sweeps(values, MPI):
        rounds = 0 if moved else rounds + 1
        if not moved and rounds % 64 == 0:
            now = time.perf_counter()
            last = now if rounds == 64 else last
            if MPI.Request.Testall(byes):
                return
            if now - last > IDLE_S:
                time.sleep(0.001)
        elif crowded and rounds > 4:
            os.sched_yield()


def sweeps(values: list[np.ndarray], mpi: Any) -> Iterator[bool]:
    """Serve `values`; yields each time when all that has come is answered, and whether any has."""
    world = mpi.COMM_WORLD
    workers = range(world.size - 1)
    steps = [_Steps(world, value, tag, w) for tag, value in enumerate(values) for w in workers]
    requests = [*(s.asked for s in steps), *(s.push for s in steps), *(s.pull for s in steps)]
    acts = [*(s.answer for s in steps), *2 * [s.moved for s in steps]]
    while True:
        over = mpi.Request.Testsome(requests)
        for place in over or ():
            acts[place]()
        yield bool(over)


class _Steps:
    """Those of one worker with one value."""

    def __init__(self, world: Any, value: np.ndarray, tag: int, worker: int) -> None:
        self.value, self.addend = value, np.empty_like(value)
        self.asked = world.Recv_init(np.zeros(0, "u1"), worker, 3 * tag)
        self.pull = world.Send_init(value, worker, 3 * tag + 1)
        self.push = world.Recv_init(self.addend, worker, 3 * tag + 2)
        self.left = 0  # messages of the step that have yet to leave or to come
        self.asked.Start()

    def answer(self) -> None:
        """The worker has asked: a step begins."""
        self.push.Start()
        self.pull.Start()
        self.left = 1 if self.pull.Test() else 2

    def moved(self) -> None:
        """The value has left, or the update has come."""
        self.left -= 1
        if not self.left:
            np.add(self.value, self.addend, self.value)
            self.asked.Start()


def client(value: np.ndarray, tag: int) -> Callable[[], None]:
    """A function that does one step: read the value, send value * 1e-6 + 1 as its update."""
    world = MPI.COMM_WORLD
    server, update = world.size - 1, np.empty_like(value)
    ask = world.Send_init(np.zeros(0, "u1"), server, 3 * tag)
    pull = world.Recv_init(value, server, 3 * tag + 1)
    push = world.Send_init(update, server, 3 * tag + 2)
    small, one = value.dtype.type(1e-6), value.dtype.type(1)
    crowded = world.size > len(os.sched_getaffinity(0))

    def wait(request: MPI.Prequest) -> None:
        polls = 0
        while not request.Test():
            polls += 1
            if crowded and polls > 4:
                os.sched_yield()

    def step() -> None:
        pull.Start()
        ask.Start()
        wait(pull)
        np.multiply(value, small, update)
        np.add(update, one, update)
        push.Start()
        wait(ask)
        wait(push)

    return step


def leave() -> None:
    """A worker's good-bye."""
    MPI.COMM_WORLD.Send(np.zeros(0, "u1"), MPI.COMM_WORLD.size - 1, STOP)
