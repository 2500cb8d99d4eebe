"""What a step of a worker costs its parameter server, by the number of workers: CPU time.

    python benchmarks/many_workers.py --json FILE

The workers are simulated (simulated.py): each reads a value, sends an update that the server adds,
and begins again. The server is hpcflow's, and a bare loop of persistent requests (bare_server.py),
which has one message less to send: it does not tell a worker that its update is made. Both run over
the same simulated MPI, whose cost is part of either figure.
"""

from __future__ import annotations

import contextlib
import functools
import json
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import bare_server
import common
import numpy as np
import simulated
from common import Contender, Repeat, Tournament, check, role

import hpcflow as hf
from hpcflow.comm import mpi_library
from hpcflow.comm.communicator import TrafficCounter
from hpcflow.comm.mpi_communicator import MpiCommunicator
from hpcflow.plan.ir.program import Partition, Plan
from hpcflow.plan.serialization import partition_codec
from hpcflow.runtime.device.shared_arena import ArenaLeases
from hpcflow.runtime.executor.executor import Executor
from hpcflow.runtime.job.control_messages import MessageDispatcher
from hpcflow.runtime.job.job_membership import PlanningFinished, simulated_driver
from hpcflow.runtime.job.message_headers import BODY_TAG, HEADER_TAG, RegisterPlan, StartStep
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.profile.variable_traffic_counters import VariableTrafficCounters
from hpcflow.runtime.step.step_instance import CompiledPartition
from hpcflow.settings import Settings

OURS, BARE = "hpcflow", "bare loop"
FEW, MANY = 16, 1_000
THINK_S = 4e-6  # of slow workers, times their number: the server is never idle, but has many waits
CASES = {  # numbers of four bytes in the value, seconds
    "scalar": (1, 0.0),
    "scalar, slow workers": (1, THINK_S),
    "256 kB": (65_536, 0.0),
    "256 kB, slow workers": (65_536, THINK_S),
}
STEPS = 20_000  # of all workers together, in one repeat
FIRST_TAG, PLAN, SERVER = 100, 2, "/job:ps/task:0"

Run = Callable[[int], None]  # lets the workers make so many steps together


class Workers:
    """They make steps for as long as they are let; `answers` are their messages, by tag of ours."""

    def __init__(self, world: simulated.World, answers: dict[int, list[tuple[int, Any]]]) -> None:
        self.world, self.answers = world, answers
        self.done = 0
        self.last = max(answers)  # by its message a worker knows that its step is over
        world.workers = [self._worker(rank) for rank in range(world.size - 1)]

    def _worker(self, rank: int) -> simulated.Worker:
        send, answers, last = self.world.send, self.answers, self.last

        def hear(tag: int, data: np.ndarray) -> None:
            if tag == last:
                self.done += 1
            for answer, message in answers.get(tag, ()):
                send(rank, answer, message)

        return hear


def bare(world: simulated.World, count: int) -> Run:
    """The loop of bare_server.py."""
    workers = world.size - 1
    value = np.zeros(count, np.float32)
    asks = (0, np.zeros(0, np.uint8))
    crew = Workers(world, {1: [(2, np.ones(count, np.float32).view(np.uint8)), asks]})
    for rank in range(workers):
        world.send(rank, *asks)
    serving = bare_server.sweeps([value], world.mpi())

    def run(steps: int) -> None:
        end = crew.done + steps
        while crew.done < end:
            next(serving)

    run(2 * workers)
    if not 0 < value[0] <= crew.done:
        raise RuntimeError(f"{crew.done} updates by 1 made {value[0]}")
    return run


def ours(world: simulated.World, count: int) -> Run:
    """hpcflow's engine, as on a rank that serves."""
    workers, part = world.size - 1, server_part(count)
    executor, value = serving(world, part)
    update = np.ones(count, np.float32).view(np.uint8)
    begin = HEADER_TAG, StartStep(PLAN, 0).encode().view(np.uint8)
    crew = Workers(world, {FIRST_TAG: [(FIRST_TAG + 1, update)], FIRST_TAG + 2: [begin]})
    for rank in range(workers):
        for message in (*registration(rank, workers, part), begin):
            world.send(rank, *message)

    def run(steps: int) -> None:
        end = crew.done + steps
        executor.progress(lambda: crew.done >= end)

    run(2 * workers)
    if not 0 < value.array[0] <= crew.done:
        raise RuntimeError(f"{crew.done} updates by 1 made {value.array[0]}")
    return run


def server_part(count: int) -> Partition:
    """What a server does in a step that reads a value and adds an update."""
    plans: list[Plan] = []
    alone = simulated_driver(2, Settings(ps=1), lambda preview: plans.append(preview.plan))
    with contextlib.suppress(PlanningFinished), alone, hf.Graph().as_default():
        v = hf.Variable(hf.zeros([count]), name="v")
        with hf.device("/job:worker/task:0"):
            update = v * 1e-6 + 1.0
        hf.Session().run(v.assign_add(update, read_value=False))
    return plans[-1].parts[SERVER]


def serving(world: simulated.World, part: Partition) -> tuple[Executor, Any]:
    """An engine that listens, and the variable."""
    mpi_library.mpi_module = world.mpi  # in place of mpi4py's
    mpi_library.initialized_mpi.cache_clear()
    mpi_library.misses_any_source.cache_clear()
    ranks = range(world.size)
    hosts = tuple(f"host{rank}" for rank in ranks)
    parent: Any = types.SimpleNamespace(
        **{
            "traffic": TrafficCounter(),
            "tolerant": False,
            "_top": ranks,
            "hosts": hosts,
            "_comm": world,
        }
    )
    context = RankContext(Settings(plan_cache="none"))
    executor = context.executor = Executor(MpiCommunicator(world, parent))

    def compiled(data: bytes, driver: int, session: int, **about: Any) -> CompiledPartition:
        made = context.plans.code(partition_codec.decode_partition(data), data)
        return context.compile(made, driver=driver, **about)

    host: Any = types.SimpleNamespace(
        **{
            "compile_part": compiled,
            "stop": context.stop,
            "counts": VariableTrafficCounters(),
            "group": None,
        }
    )
    MessageDispatcher(executor, host, ArenaLeases(context))
    node = next(node for node in part.nodes.values() if node.type == "Variable")
    variable: Any = context.store.find(node, context.devices["cpu:0"])
    variable.adopt(np.zeros(variable.shape, np.float32))
    return executor, variable


def registration(rank: int, server: int, part: Partition) -> Iterator[tuple[int, np.ndarray]]:
    """The messages by which a worker registers the plan of its steps."""
    ranks = {"/job:worker/task:0": rank, SERVER: server}
    facts = {"sums": 0, "fetches": "v", "trains": True, "seed": [1, 1], "session": 0, "sends": []}
    facts |= {"ranks": ranks, "tag": FIRST_TAG, "channels": 3, "instances": 4, "replica": rank}
    head = json.dumps(facts).encode()
    body = len(head).to_bytes(8, "little") + head + partition_codec.encode_partition(part)
    yield HEADER_TAG, RegisterPlan(PLAN).encode(len(body)).view(np.uint8)
    yield BODY_TAG, np.frombuffer(body, np.uint8)


def cases(make: Callable[[simulated.World, int], Run]) -> dict[str, Repeat]:
    """CPU seconds of a step."""

    def repeat(run: Run) -> float:
        start = time.process_time()
        run(STEPS)
        return (time.process_time() - start) / STEPS

    return {
        f"{case}, {workers:,} workers": functools.partial(
            repeat, make(simulated.World(workers, think_s * workers), count)
        )
        for case, (count, think_s) in CASES.items()
        for workers in (FEW, MANY)
    }


def main() -> None:
    arguments = common.parser(__doc__).parse_args()
    if arguments.role:
        common.serve(cases(ours if arguments.role == "ours" else bare), ["numpy"])
        return
    cup = Tournament(arguments.realtime)
    players = {OURS: "ours", BARE: "bare"}
    made = [Contender(name, [role(None, __file__, kind)]) for name, kind in players.items()]
    cup.play(made, arguments.rounds, arguments.repeats)
    checks = []
    for name in CASES:
        many, few = f"{name}, {MANY:,} workers", f"{name}, {FEW:,} workers"
        own = cup.middle(many, OURS)
        checks.append(check(f"{many}, a step", own and own * 1e6, "µs"))
        checks.append(check("... by the bare loop", cup.ratio(many, OURS, BARE), at_most=1.3))
        checks.append(check(f"... by {FEW} workers", cup.ratio(many, OURS, OURS, few)))
    common.finish(cup.record(checks, "µs", 1e6), arguments.out)


if __name__ == "__main__":
    main()
