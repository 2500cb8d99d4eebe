"""Replays of jobs against a simulation that has an object for each task of each step."""

from __future__ import annotations

import numpy as np
import pytest

from hpcflow.errors import PlacementError
from hpcflow.placement.durations import Seconds
from hpcflow.placement.job_replay import JobSettings, ReplicaClass, replay_job
from hpcflow.placement.network import Network
from hpcflow.placement.replay import Message, StepTasks, replay
from hpcflow.placement.step_template import Gate, StepTemplate, TemplateTask
from tests.placement import job_replay_by_tasks as oracle

RANKS = ["/job:worker/task:0", "/job:worker/task:1"]
SERVERS = ["/job:ps/task:0", "/job:ps/task:1"]


def any_seconds(rng: np.random.Generator) -> Seconds:
    value = float(rng.choice([0.0, rng.uniform(0.01, 1.0)], p=[0.2, 0.8]))
    return Seconds(value, value / 2, value * 2)


def any_task(rng: np.random.Generator, ranks: list[str], after: tuple[int, ...]) -> TemplateTask:
    """A computation or a message, on any ranks."""
    rank, to = (str(name) for name in rng.choice(ranks, 2))
    if rank != to and rng.random() < 0.5:
        nbytes = float(rng.choice([0.0, 1e6, rng.uniform(1e6, 1e8)]))
        messages = float(rng.choice([1.0, rng.uniform(1, 9)]))
        return TemplateTask(rank, after, to=to, nbytes=nbytes, messages=messages)
    device = str(rng.choice(["", "cpu:0", "gpu:0"], p=[0.1, 0.7, 0.2]))
    return TemplateTask(rank, after, any_seconds(rng), device)


def any_collective(rng: np.random.Generator, after: tuple[int, ...]) -> TemplateTask:
    delay = float(rng.choice([0.0, rng.uniform(0.0, 0.5)]))
    least = float(rng.choice([0.0, rng.uniform(0.0, 2.0)]))
    is_sum = bool(rng.random() < 0.7)
    return TemplateTask(
        *(RANKS[0], after, any_seconds(rng)),
        **{"is_collective": True, "delay": delay, "least": least, "in_order": is_sum},
    )


def any_after(rng: np.random.Generator, count: int) -> tuple[int, ...]:
    """Some of the tasks before, mostly the latest."""
    wanted = int(rng.integers(0, min(count, 3) + 1))
    places = count - 1 - rng.geometric(0.5, wanted)
    return tuple(sorted({int(place) for place in places if place >= 0}))


def any_template(rng: np.random.Generator, mode: str, replicas: int) -> StepTemplate:
    """A template of collectives ("sum"), rounds ("update"), or servers of any order ("free")."""
    workers, servers = RANKS[: int(rng.integers(1, 3))], SERVERS[: int(rng.integers(1, 3))]
    servers = [] if mode == "sum" else servers
    tasks: list[TemplateTask] = []
    count = int(rng.integers(3, 12))
    for i in range(count):
        after = any_after(rng, i)
        if mode == "sum" and rng.random() < 0.3:
            tasks.append(any_collective(rng, after))
            continue
        task = any_task(rng, workers + servers, after)
        gates: list[Gate] = ["", "update"] if mode == "update" else ["", "clock"]
        if rng.random() < 0.3 and not task.to:
            task = TemplateTask(task.rank, after, task.seconds, task.device,
                                gate=gates[int(rng.integers(0, 2))])  # fmt: skip
        tasks.append(task)
    if not any(task.is_collective for task in tasks) and mode == "sum":
        tasks.append(any_collective(rng, (count - 1,)))
    ends = tuple(range(len(tasks)))
    counts = {name: 1 + 2 * i for i, name in enumerate(servers)}
    if mode == "update":
        first = TemplateTask(servers[0], (), any_seconds(rng), "cpu:0")
        more = [any_task(rng, servers, any_after(rng, i)) for i in range(1, 4)]
        needed = int(rng.integers(1, replicas + 1))
        ready = (len(tasks) - 1, len(tasks) - 2)
        tasks.append(TemplateTask(workers[0], (0,), any_seconds(rng), "cpu:0", gate="own update"))
        return StepTemplate(tuple(tasks), ends, replicas, counts, (first, *more), ready, needed)
    ahead = int(rng.integers(0, 3)) if mode == "free" and rng.random() < 0.5 else None
    return StepTemplate(tuple(tasks), ends, replicas, counts, ahead=ahead, ticks=(len(tasks) - 1,))


@pytest.mark.parametrize("mode", ["sum", "update", "free"])
@pytest.mark.parametrize("seed", range(40))
def test_a_replay_is_that_of_one_object_for_each_task(mode: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = [int(rng.integers(1, 20)) for _ in range(int(rng.integers(1, 4)))]
    classes = [ReplicaClass(count, float(rng.uniform(1, 3))) for count in counts]
    template = any_template(rng, mode, sum(counts))
    network = Network(
        bandwidth=float(rng.choice([1e8, 1e9])),
        latency=float(rng.choice([0.0, 1e-3])),
        ranks_per_node=int(rng.integers(1, 9)),
        cores=int(rng.integers(0, 5)),
    )
    groups, bound = int(rng.integers(3, 30)), str(rng.choice(["low", "median"]))
    settings = JobSettings(sigma=0.1, groups=groups, steps=8, seed=seed, bound=bound)
    found = replay_job(template, network, classes, settings)
    by_hand = [oracle.ReplicaClass(one.count, one.factor) for one in classes]
    wanted = oracle.replay_job(template, network, by_hand, settings)  # type: ignore[arg-type]
    assert found.steps == pytest.approx(wanted.steps, rel=1e-6, abs=1e-9)
    assert found.weights.tolist() == wanted.weights.tolist()
    assert found.steps_per_second == pytest.approx(wanted.steps_per_second, rel=1e-6)
    assert {k: v for k, v in found.busy.items() if v} == pytest.approx(
        {k: v for k, v in wanted.busy.items() if v}, rel=1e-6
    )


def fair_by_hand(
    starts: list[float], sizes: list[float], of: list[int], weights: dict[int, float]
) -> list[float]:
    """The ends of messages in a port of 1 byte/s that connections share, from event to event."""
    left, ends, now = list(sizes), [np.inf] * len(sizes), 0.0
    while np.isinf(ends).any():
        here = [i for i, start in enumerate(starts) if start <= now and np.isinf(ends[i])]
        total = sum(weights[which] for which in {of[i] for i in here})
        rates = {i: 1 / total / sum(of[k] == of[i] for k in here) for i in here}
        until = min([now + left[i] / rates[i] for i in here] + [s for s in starts if s > now])
        for i in here:
            left[i] -= (until - now) * rates[i]
            if left[i] < 1e-9:
                ends[i] = until
        now = until
    return ends


@pytest.mark.parametrize("seed", range(20))
def test_connections_share_a_port_and_messages_a_connection(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 12))
    starts, sizes = rng.uniform(0, 10, count).tolist(), rng.uniform(0.1, 5, count).tolist()
    of = rng.integers(0, 4, count).tolist()
    weights = {which: float(rng.integers(1, 4)) for which in range(4)}
    routes: list[Message | None] = [None] * count  # tasks that end when the messages start
    routes += [Message(sizes[i], ((0, weights[of[i]]),), 0.0, of[i]) for i in range(count)]
    users: list[list[int]] = [[count] for _ in range(count)]
    users += [[] for _ in range(count)]
    tasks = StepTasks(users, [1] * 2 * count, [-1] * 2 * count, routes)
    seconds = np.array([[*starts, *[0.0] * count]])
    missing = np.array([[0] * count + [1] * count])
    ends = replay(tasks, seconds, missing, [], 0, [1.0]).ends[0, count:]
    assert ends.tolist() == pytest.approx(fair_by_hand(starts, sizes, of, weights))


def test_tasks_that_can_never_begin_are_an_error() -> None:
    cycle = StepTasks([[1], [-1]], [1, 1], [-1, -1], [None, None])
    never = StepTasks([[1], []], [1, 1], [-1, -1], [None, None])
    for tasks, missing in ((cycle, [1.0, 1.0]), (never, [0.0, 2.0])):
        with pytest.raises(PlacementError, match="of the replay never begins"):
            replay(tasks, np.zeros((1, 2)), np.array([missing]), [], 0, [])
    message = StepTasks([[]], [1], [-1], [Message(1.0, ((0, 1.0),), 0.0)])
    with pytest.raises(PlacementError, match="bandwidth"):
        replay(message, np.zeros((1, 1)), np.zeros((1, 1)), [], 0, [0.0])
