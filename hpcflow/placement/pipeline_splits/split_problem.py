"""Split problem: blocks of operations, their times on types of devices, and their transfers.

It is that of a pipeline over devices. `placement=auto` has another: `placement/step_problem.py`.

A *block* is the smallest thing that is placed: one operation, or several that must share a device.
The *load* of a device is the time that it is busy for one sample: its blocks, what it sends and
what it receives. The greatest load is the time per sample of a pipeline. (Tarnawski et al.,
Efficient Algorithms for Device Placement of DNN Graph Operators, 2020.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from hpcflow.errors import PlacementError


@dataclasses.dataclass(frozen=True)
class DeviceType:
    """`count` equal devices, each with `memory` bytes.

    `transfer_factor` scales the cost of what a device sends and receives; 0: that is free.
    """

    name: str
    count: int
    memory: float = np.inf
    transfer_factor: float = 1.0


@dataclasses.dataclass(frozen=True)
class Transfer:
    """The output of a block that other blocks use.

    A device that has the producer but not all consumers pays `cost` once, to send it. One that has
    consumers but not the producer pays it once, to receive it.
    """

    producer: int
    consumers: frozenset[int]
    cost: float


@dataclasses.dataclass(frozen=True)
class SplitProblem:
    """Blocks 0 to n - 1 and the devices for them.

    `times[t, b]` is the time of block b on a device of type t, infinity if it cannot run there.
    Costs of transfers have the same unit. `nbytes[b]` are the bytes that block b needs. `before[b]`
    are the blocks that a contiguous split must not put behind b; this order has no cycle.
    """

    devices: tuple[DeviceType, ...]
    times: np.ndarray
    nbytes: np.ndarray
    before: tuple[frozenset[int], ...]
    transfers: tuple[Transfer, ...]

    @property
    def size(self) -> int:
        """The number of blocks."""
        return len(self.before)


@dataclasses.dataclass(frozen=True)
class Part:
    """The blocks of one device, and the number of its type."""

    device_type: int
    blocks: frozenset[int]


def load_of(problem: SplitProblem, part: Part) -> float:
    """Return the load of a device, infinity if it cannot run its blocks or lacks the memory."""
    blocks, device = part.blocks, problem.devices[part.device_type]
    members = sorted(blocks)
    if not fits(problem, part):
        return np.inf
    load = float(problem.times[part.device_type, members].sum())
    for transfer in problem.transfers:
        if transfer.producer in blocks:
            crosses = not transfer.consumers <= blocks
        else:
            crosses = not transfer.consumers.isdisjoint(blocks)
        load += crosses * transfer.cost * device.transfer_factor
    return load


def fits(problem: SplitProblem, part: Part) -> bool:
    """Whether the memory of a device holds its blocks."""
    needed = float(problem.nbytes[sorted(part.blocks)].sum())
    return needed <= problem.devices[part.device_type].memory * (1 + 1e-12)


def greatest_load(problem: SplitProblem, parts: Iterable[Part]) -> float:
    """Return the greatest load of the devices."""
    return max((load_of(problem, part) for part in parts), default=0.0)


def followers(before: Sequence[Iterable[int]]) -> list[list[int]]:
    """Return for each block those that come directly after it."""
    after: list[list[int]] = [[] for _ in before]
    for block, needed in enumerate(before):
        for other in needed:
            after[other].append(block)
    return after


def topological_order(
    before: Sequence[Collection[int]], pick: Callable[[list[int]], int] = lambda free: -1
) -> list[int]:
    """Return the blocks in an order that `before` allows.

    `pick` returns the index of the next of the free blocks. By default that is the last: depth
    first, a block comes soon after the blocks that it needs.
    Errors: PlacementError if there is a cycle.
    """
    after, missing = followers(before), [len(needed) for needed in before]
    free = [block for block, count in enumerate(missing) if not count]
    order: list[int] = []
    while free:
        block = free.pop(pick(free))
        order.append(block)
        for follower in after[block]:
            missing[follower] -= 1
            if not missing[follower]:
                free.append(follower)
    if len(order) < len(before):
        raise PlacementError("the order of the blocks has a cycle")
    return order
