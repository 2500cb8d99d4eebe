"""Small random split problems, and their optima by trying every assignment."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from hpcflow.placement.pipeline_splits import contiguous_split
from hpcflow.placement.pipeline_splits.split_problem import DeviceType, Part, SplitProblem, Transfer

AMPLE_S = 600.0  # for searches that end by themselves much earlier


class WorkClock:
    """The clock of contiguous splits, which only work moves: the same on every machine.

    A look at it takes 10 ms, and each move between stages 20 us.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        improved = contiguous_split.improved_stages

        def timed(problem: SplitProblem, parts: Sequence[Part], moves: int, rng: random.Random):
            self.now += 2e-5 * moves
            return improved(problem, parts, moves, rng)

        monkeypatch.setattr(contiguous_split, "time", self)
        monkeypatch.setattr(contiguous_split, "improved_stages", timed)

    def monotonic(self) -> float:
        """Return the time, a look later."""
        self.now += 0.01
        return self.now


def made_problem(seed: int, size: int = 6) -> SplitProblem:
    """Blocks of which many have no work, on one to three devices of one or two classes."""
    rng = random.Random(seed)
    edges = [(a, b) for b in range(size) for a in range(b) if rng.random() < rng.choice((0.2, 0.5))]
    idle = [rng.random() < 0.4 for _ in range(size)]
    first = np.array([0.0 if idle[b] else float(rng.randint(1, 9)) for b in range(size)])
    slower = rng.choice((1.0, 3.0, 0.5)) * first + np.array([rng.randint(0, 2) for _ in first])
    second = np.where(first > 0, slower, 0.0)
    if rng.random() < 0.3:
        first[rng.randrange(size)] = np.inf
    nbytes = np.array([float(rng.choice((0, 0, 1, 2))) for _ in range(size)])
    transfers = []
    for producer in range(size):
        consumers = frozenset(b for a, b in edges if a == producer)
        if consumers:
            transfers.append(Transfer(producer, consumers, float(rng.choice((0, 1, 2)))))
        if rng.random() < 0.3:  # of the backward operations, to blocks before it or to any
            others = frozenset(rng.sample([b for b in range(size) if b != producer], 2))
            transfers.append(Transfer(producer, others, float(rng.choice((1, 2)))))
    devices = (
        DeviceType("gpu", rng.choice((1, 2)), rng.choice((np.inf, nbytes.sum() * 0.6 + 1))),
        DeviceType("cpu", rng.choice((0, 1)), np.inf, rng.choice((0.0, 1.0, 0.5))),
    )
    before = tuple(frozenset(a for a, b in edges if b == block) for block in range(size))
    return SplitProblem(devices, np.array([first, second]), nbytes, before, tuple(transfers))


def best_load(problem: SplitProblem, contiguous: bool) -> float:
    """The least greatest load of all assignments, from the definition; infinity if none fits."""
    kinds = [k for k, device in enumerate(problem.devices) for _ in range(device.count)]
    assignments = itertools.product(range(len(kinds)), repeat=problem.size)
    return min(
        (
            max(_load(problem, kinds, of_block, device) for device in range(len(kinds)))
            for of_block in assignments
            if not contiguous or _is_a_chain(problem, of_block)
        ),
        default=np.inf,
    )


def _load(problem: SplitProblem, kinds: list[int], of_block: tuple[int, ...], device: int) -> float:
    kind = problem.devices[kinds[device]]
    mine = [b for b, on in enumerate(of_block) if on == device]
    if sum(problem.nbytes[b] for b in mine) > kind.memory:
        return np.inf
    load = sum(problem.times[kinds[device], b] for b in mine)
    for transfer in problem.transfers:
        produces = of_block[transfer.producer] == device
        elsewhere = any(of_block[b] != device for b in transfer.consumers)
        uses = any(of_block[b] == device for b in transfer.consumers)
        if (produces and elsewhere) or (uses and not produces):
            load += transfer.cost * kind.transfer_factor
    return float(load)


def _is_a_chain(problem: SplitProblem, of_block: tuple[int, ...]) -> bool:
    """Whether the devices have an order in which no block needs a later device."""
    used = sorted(set(of_block))
    return any(
        all(
            place[of_block[a]] <= place[of_block[b]]
            for b, needed in enumerate(problem.before)
            for a in needed
        )
        for place in _orders(used)
    )


def _orders(used: list[int]) -> Iterator[dict[int, int]]:
    for order in itertools.permutations(used):
        yield {device: i for i, device in enumerate(order)}


def covers(problem: SplitProblem, parts: list[Part]) -> bool:
    """Whether each block is in one part, and no class has more parts than devices."""
    blocks = sorted(block for part in parts for block in part.blocks)
    used = [part.device_type for part in parts if part.blocks]
    return blocks == list(range(problem.size)) and all(
        used.count(kind) <= device.count for kind, device in enumerate(problem.devices)
    )
