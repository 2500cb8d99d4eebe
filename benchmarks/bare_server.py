"""The least a parameter server can cost: mpi4py with persistent requests, nothing else.

The server is a generator per worker and value, polled in turn; each waits for a request, sends the
value, receives the update and adds it. What a framework adds on top of this is its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import numpy as np
from mpi4py import MPI

IDLE_S = 0.05  # without work for this long the server sleeps between polls
STOP = 1 << 20  # a worker's good-bye, beside the tags of the values


def serve(values: list[np.ndarray]) -> None:
    """Serve `values`, numbered by their place, until every worker has said good-bye."""
    world = MPI.COMM_WORLD
    workers = range(world.size - 1)
    crowded = world.size > len(os.sched_getaffinity(0))
    plans = [_serving(value, tag, w) for tag, value in enumerate(values) for w in workers]
    byes = [world.Irecv(np.zeros(0, "u1"), w, STOP) for w in workers]
    last, rounds = time.perf_counter(), 0
    while True:
        moved = False
        for plan in plans:
            moved = next(plan) or moved
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


def _serving(value: np.ndarray, tag: int, worker: int) -> Iterator[bool]:
    """Steps of one worker with one value; yields whether anything moved."""
    world = MPI.COMM_WORLD
    addend = np.empty_like(value)
    asked = world.Recv_init(np.zeros(0, "u1"), worker, 3 * tag)
    pull = world.Send_init(value, worker, 3 * tag + 1)
    push = world.Recv_init(addend, worker, 3 * tag + 2)
    asked.Start()
    while True:
        while not asked.Test():
            yield False
        asked.Start()
        push.Start()
        pull.Start()
        yield True
        while not (pull.Test() and push.Test()):
            yield False
        np.add(value, addend, value)
        yield True


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
