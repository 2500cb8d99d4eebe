"""Split search: simulated annealing over all splits, also those that are not contiguous.

A move gives a block to another device. Only the loads of the two devices change, so a move costs
as much as the block has transfers. The energy is the p-norm of the loads, which follows the
greatest load and still sees the others.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence

from hpcflow.placement.pipeline_splits.split_problem import Part, SplitProblem, fits, greatest_load

NORM = 12
HOT = (100.0, 1.0, 0.1, 0.01, 0.001)  # first temperatures of coolings, relative to the energy
COLD = 1e-5  # the last temperature
FAR = 1e6  # loads above the first by this factor are not tried; powers of more would overflow
MOST_MOVES = 1 << 28  # of one call


class Devices:
    """Which device has each block, and the load and the memory of each device.

    Device i has the blocks of part i, which may be none.
    """

    def __init__(self, problem: SplitProblem, parts: Sequence[Part]) -> None:
        self.problem = problem
        self.kinds = [part.device_type for part in parts]
        self.of_block = [0] * problem.size
        for device, part in enumerate(parts):
            for block in part.blocks:
                self.of_block[block] = device
        self.times = problem.times.tolist()
        self.nbytes = problem.nbytes.tolist()
        self.factors = [problem.devices[kind].transfer_factor for kind in self.kinds]
        self.limits = [problem.devices[kind].memory * (1 + 1e-12) for kind in self.kinds]
        self.produced: list[list[int]] = [[] for _ in range(problem.size)]
        self.used: list[list[int]] = [[] for _ in range(problem.size)]
        for i, transfer in enumerate(problem.transfers):
            self.produced[transfer.producer].append(i)
            for block in transfer.consumers:
                self.used[block].append(i)
        self.cost = [transfer.cost for transfer in problem.transfers]
        self.producer = [transfer.producer for transfer in problem.transfers]
        self.consumers = [len(transfer.consumers) for transfer in problem.transfers]
        self._count()

    def _count(self) -> None:
        devices = range(len(self.kinds))
        self.members = [[0] * len(self.kinds) for _ in self.cost]  # consumers on each device
        for i, transfer in enumerate(self.problem.transfers):
            for block in transfer.consumers:
                self.members[i][self.of_block[block]] += 1
        self.held = [0.0 for _ in devices]
        self.load = [0.0 for _ in devices]
        for block, device in enumerate(self.of_block):
            self.held[device] += self.nbytes[block]
            self.load[device] += self.times[self.kinds[device]][block]
        for i in range(len(self.cost)):
            for device in devices:
                self.load[device] += self._paid(i, device)

    def _paid(self, i: int, device: int) -> float:
        inside = self.members[i][device]
        if self.of_block[self.producer[i]] == device:
            crosses = inside < self.consumers[i]
        else:
            crosses = inside > 0
        return self.cost[i] * self.factors[device] if crosses else 0.0

    def loads_after(self, block: int, device: int) -> tuple[float, float]:
        """Return the loads of the block's old and new device if it moved there."""
        old, of_block, cost = self.of_block[block], self.of_block, self.cost
        lost = -self.times[self.kinds[old]][block]
        won = self.times[self.kinds[device]][block]
        old_factor, new_factor = self.factors[old], self.factors[device]
        for i in self.produced[block]:
            members, all_of_it = self.members[i], self.consumers[i]
            lost += cost[i] * old_factor * ((members[old] > 0) - (members[old] < all_of_it))
            won += cost[i] * new_factor * ((members[device] < all_of_it) - (members[device] > 0))
        for i in self.used[block]:
            members, home = self.members[i], of_block[self.producer[i]]
            if home == old:  # it sends from now on, if it did not before
                lost += cost[i] * old_factor * (members[old] == self.consumers[i])
            else:
                lost -= cost[i] * old_factor * (members[old] == 1)
            if home == device:
                won -= cost[i] * new_factor * (members[device] + 1 == self.consumers[i])
            else:
                won += cost[i] * new_factor * (members[device] == 0)
        return self.load[old] + lost, self.load[device] + won

    def has_room(self, block: int, device: int) -> bool:
        """Whether the device has the memory for one more block, and can run it."""
        if self.held[device] + self.nbytes[block] > self.limits[device]:
            return False
        return math.isfinite(self.times[self.kinds[device]][block])

    def move(self, block: int, device: int, loads: tuple[float, float]) -> None:
        """Move a block; `loads` are those of `loads_after`."""
        old = self.of_block[block]
        self.load[old], self.load[device] = loads
        self.of_block[block] = device
        self.held[old] -= self.nbytes[block]
        self.held[device] += self.nbytes[block]
        for i in self.used[block]:
            self.members[i][old] -= 1
            self.members[i][device] += 1

    def parts(self, of_block: Sequence[int]) -> list[Part]:
        """Return the parts if block i is on device `of_block[i]`."""
        return _parts(self.kinds, of_block)


def _parts(kinds: Sequence[int], of_block: Sequence[int]) -> list[Part]:
    """Return a part for each device, of its type, if block i is on device `of_block[i]`."""
    members: list[list[int]] = [[] for _ in kinds]
    for block, device in enumerate(of_block):
        members[device].append(block)
    return [Part(kind, frozenset(found)) for kind, found in zip(kinds, members, strict=True)]


def spare_parts(problem: SplitProblem, parts: Sequence[Part]) -> list[Part]:
    """Return a part without blocks for each device that no part is on."""
    used = [part.device_type for part in parts]
    return [
        Part(kind, frozenset())
        for kind, device in enumerate(problem.devices)
        for _ in range(device.count - used.count(kind))
    ]


def improved_split(
    problem: SplitProblem, parts: Sequence[Part], moves: int, seed: int = 0
) -> list[Part]:
    """Return the split with the least greatest load found by so many moves, or `parts`.

    The same arguments give the same split on every rank.
    """
    rng = random.Random(seed)
    best, least = [*parts, *spare_parts(problem, parts)], greatest_load(problem, parts)
    if len(best) < 2:
        return best

    def anywhere(_block: int) -> int:
        return rng.randrange(len(best))

    for hot in HOT:
        found = anneal(Devices(problem, best), rng, moves // len(HOT), hot, anywhere)
        load = greatest_load(problem, found)
        if load < least and all(fits(problem, part) for part in found):
            best, least = found, load
    return [part for part in best if part.blocks]


def improve_within(
    seconds: float, improve: Callable[[list[Part], int, int], list[Part]], parts: Sequence[Part]
) -> list[Part]:
    """Call `improve(parts, moves, seed)` again and again, as often as fits into `seconds`."""
    best, moves, seed, end = list(parts), 4096, 0, time.monotonic() + seconds
    while 64 <= moves <= MOST_MOVES:  # more are reached only if there is nothing to move
        begin = time.monotonic()
        best = improve(best, moves, seed)
        now = time.monotonic()
        most = moves * (end - now) / max(now - begin, 1e-6)
        moves, seed = int(min(moves * 8, 0.9 * most)), seed + 1
    return best


def anneal(
    devices: Devices,
    rng: random.Random,
    moves: int,
    hot: float,
    target: Callable[[int], int],
) -> list[Part]:
    """Return the parts with the least greatest load of one slow cooling, one for each device.

    A move takes a random block to the device that `target` gives for it.
    """
    best, least = list(devices.of_block), max(devices.load)
    blocks = len(devices.of_block)
    load, scale, cooling = devices.load, least, COLD / hot
    for step in range(moves if least else 0):
        block = rng.randrange(blocks)
        old, device = devices.of_block[block], target(block)
        if device == old or not devices.has_room(block, device):
            continue
        after = devices.loads_after(block, device)
        if max(after) > FAR * scale:
            continue
        before = (load[old] / scale) ** NORM + (load[device] / scale) ** NORM
        change = (after[0] / scale) ** NORM + (after[1] / scale) ** NORM - before
        heat = hot * cooling ** (step / moves)
        if change > 0 and rng.random() >= math.exp(-change / heat):
            continue
        devices.move(block, device, after)
        if max(after) < least and max(load) < least - 1e-12 * scale:
            least, best = max(load), list(devices.of_block)
    return devices.parts(best)


def greedy_split(problem: SplitProblem) -> list[Part] | None:
    """Return a split that fits the memory: the largest blocks first, each where work ends first.

    None if a block then fits no device.
    """
    kinds = [k for k, device in enumerate(problem.devices) for _ in range(device.count)]
    free = [problem.devices[kind].memory for kind in kinds]
    busy = [0.0] * len(kinds)
    of_block = [0] * problem.size
    for block in sorted(range(problem.size), key=lambda b: -problem.nbytes[b]):
        times = [float(problem.times[kind, block]) for kind in kinds]
        able = [
            device
            for device in range(len(kinds))
            if free[device] >= problem.nbytes[block] and math.isfinite(times[device])
        ]
        if not able:
            return None
        best = min(able, key=lambda device: busy[device] + times[device])
        of_block[block] = best
        free[best] -= problem.nbytes[block]
        busy[best] += times[best]
    return [part for part in _parts(kinds, of_block) if part.blocks]
