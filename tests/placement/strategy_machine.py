"""A machine for tests of the cost model of strategies: it simulates steps event by event.

Each kernel of a layer is launched and run in turn, and each micro-batch passes the stages in the
order of the 1F1B schedule. Nothing is shared with hpcflow's formulas.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np

from hpcflow.placement.allreduce_tables import AllreduceTables
from hpcflow.placement.parallel_strategy import LayeredModel, ParallelStrategy, TrainingSetup

FLOPS, BYTES_PER_S, LAUNCH_S, KERNEL_S = 120e12, 1.1e12, 18e-6, 8e-6
LATENCY_S, BUS_BYTES_PER_S = 30e-6, 180e9
SIZES = 2.0 ** np.arange(16, 33)


def allreduce_seconds(ranks: int, size: float) -> float:
    """Ring: 2 (n - 1) / n of the message through each link."""
    return LATENCY_S * math.log2(ranks) + 2 * (ranks - 1) / ranks * size / BUS_BYTES_PER_S


def tables() -> AllreduceTables:
    counts = (2, 4, 8)
    times = {n: np.array([allreduce_seconds(n, size) for size in SIZES]) for n in counts}
    return AllreduceTables({n: (SIZES, times[n]) for n in counts})


def schedule(stage: int, stages: int, batches: int) -> list[tuple[str, int]]:
    """The order of a stage: a few forward passes, then one of each, then backward passes."""
    ahead = min(stages - stage - 1, batches)
    order = [("F", i) for i in range(ahead)]
    for i in range(batches - ahead):
        order += [("F", ahead + i), ("B", i)]
    return order + [("B", i) for i in range(batches - ahead, batches)]


def pipeline(forward: list[float], backward: list[float], batches: int, send: float = 0.0) -> float:
    """When the last stage to end has ended, by stages that each run their order."""
    stages = len(forward)
    orders = [schedule(stage, stages, batches) for stage in range(stages)]
    done: dict[tuple[int, str, int], float] = {}
    clock, at = [0.0] * stages, [0] * stages
    while any(at[stage] < len(orders[stage]) for stage in range(stages)):
        for stage in range(stages):
            if at[stage] == len(orders[stage]):
                continue
            kind, batch = orders[stage][at[stage]]
            source = stage - 1 if kind == "F" else stage + 1
            ready = 0.0
            if 0 <= source < stages:
                if (source, kind, batch) not in done:
                    continue
                ready = done[source, kind, batch] + send
            takes = forward[stage] if kind == "F" else backward[stage]
            clock[stage] = max(clock[stage], ready) + takes
            done[stage, kind, batch] = clock[stage]
            at[stage] += 1
    return max(clock)


def kernels(model: LayeredModel, strategy: ParallelStrategy) -> Iterator[float]:
    """Device times of a layer's forward pass, one a kernel; all-reduces among them."""
    rows, h, t = strategy.micro_batch * model.sequence, model.hidden, strategy.tensor
    scores = strategy.micro_batch * model.heads * model.sequence**2 / t
    for columns, inner in ((3 * h / t, h), (h, h / t), (4 * h / t, h), (h, 4 * h / t)):
        yield 2 * rows * columns * inner / FLOPS + 2 * rows * columns / BYTES_PER_S
    for _ in range(2):
        yield 2 * scores * h / model.heads / FLOPS
    for size in (scores,) * 5 + (rows * h,) * 14 + (rows * 4 * h / t,) * 4:
        yield 4 * size / BYTES_PER_S
    if t > 1:
        for _ in range(2):
            yield allreduce_seconds(t, 2 * rows * h)


def launched(times: Iterator[float]) -> float:
    """When the last kernel has ended: a host launches ahead of a device that runs in order."""
    host = device = 0.0
    for time in times:
        host += LAUNCH_S
        device = max(device, host) + KERNEL_S + time
    return device


def step_seconds(setup: TrainingSetup) -> float:
    """A step without noise."""
    model, strategy = setup.model, setup.strategy
    layers = model.layers // strategy.pipeline
    once = list(kernels(model, strategy))
    forward = launched(iter(once * layers))
    backward = launched(t for kernel in once * layers for t in (kernel, kernel))
    rows = strategy.micro_batch * model.sequence
    last = 2 * rows * model.hidden * model.vocabulary / strategy.tensor / FLOPS + 3e-4
    stages = strategy.pipeline
    forwards = [forward] * (stages - 1) + [forward + last]
    backwards = [backward] * (stages - 1) + [backward + 2 * last]
    send = 2 * rows * model.hidden / 150e9 + 15e-6
    spent = pipeline(forwards, backwards, strategy.micro_batches, send)
    weights = 12 * model.hidden**2 * layers + model.vocabulary * model.hidden
    weights /= strategy.tensor
    if strategy.data > 1:
        spent += allreduce_seconds(strategy.data, 2 * weights)
    return spent + 30 * weights / BYTES_PER_S + 1.5e-3


def setups() -> list[TrainingSetup]:
    """All strategies of a few models on 2, 4 and 8 devices."""
    models = [LayeredModel(n, h, h // 96, 512, 30720) for n in (8, 24) for h in (768, 1536, 3072)]
    degrees = (1, 2, 4, 8)
    found = []
    for model, data, tensor, stages in itertools.product(models, degrees, degrees, (1, 2, 4)):
        if data * tensor * stages not in (2, 4, 8) or tensor == 8:
            continue
        for micro, global_batch in itertools.product((1, 2, 4, 8), (16, 64)):
            batches, rest = divmod(global_batch, micro * data)
            if rest == 0 and batches >= stages:
                strategy = ParallelStrategy(data, tensor, stages, micro, batches)
                found.append(TrainingSetup(model, strategy))
    return found


def noisy(found: list[TrainingSetup], seed: int, share: float = 0.01) -> np.ndarray:
    """Times as measured, with noise of this standard deviation."""
    noise = np.random.default_rng(seed).normal(0, share, len(found))
    return np.array([step_seconds(setup) for setup in found]) * np.exp(noise)


def by_group(found: list[TrainingSetup]) -> list[list[int]]:
    """Setups with the same model, devices and global batch."""
    key: Callable[[int], tuple] = lambda i: (  # noqa: E731
        str(found[i].model),
        found[i].strategy.devices,
        found[i].strategy.global_batch,
    )
    order = sorted(range(len(found)), key=key)
    return [list(group) for _, group in itertools.groupby(order, key)]
