"""Closed sets: all sets of blocks that contain, with a block, each block that comes before it.

A split whose cuts keep the order is a chain of closed sets: each device has the difference of two.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from hpcflow.placement.pipeline_splits.split_problem import followers


def closed_sets(
    before: Sequence[Iterable[int]], most: int, check: Callable[[], None] = lambda: None
) -> list[int] | None:
    """Return all closed sets as bit masks, None if there are more than `most`.

    `check` is called once for each size of the sets. It may raise an error to end this.
    """
    needed = [sum(1 << other for other in others) for others in before]
    after = followers(before)
    found = {0: sum(1 << block for block, mask in enumerate(needed) if not mask)}
    level = [0]  # sets of one size; `found` has the blocks that each can be extended by
    while level:
        check()
        larger: list[int] = []
        for closed in level:
            free = found[closed]
            while free:
                bit = free & -free
                free ^= bit
                more = closed | bit
                if more in found:
                    continue
                following = found[closed] ^ bit
                for block in after[bit.bit_length() - 1]:
                    if needed[block] & more == needed[block]:
                        following |= 1 << block
                found[more] = following
                larger.append(more)
        if len(found) > most:
            return None
        level = larger
    return list(found)


def prefixes(order: Iterable[int]) -> list[int]:
    """Return the closed sets along one order of the blocks."""
    found = [0]
    for block in order:
        found.append(found[-1] | 1 << block)
    return found


def near_sets(
    before: Sequence[Iterable[int]], cut: int, count: int, rng: random.Random
) -> list[int]:
    """Return about `count` closed sets that few blocks more or less distinguish from `cut`.

    The nearest come first; of those that are equally near, random ones.
    """
    after = followers(before)
    needed = [sum(1 << other for other in others) for others in before]
    users = [sum(1 << other for other in others) for others in after]
    free = last = 0  # blocks that can be added, and taken away
    for block, (first, later) in enumerate(zip(needed, users, strict=True)):
        if cut >> block & 1:
            last |= (not later & cut) << block
        else:
            free |= (first & cut == first) << block
    found, level = {cut: None}, [(cut, free, last)]
    while level and len(found) < count:
        following: list[tuple[int, int, int]] = []
        for closed, free, last in level:
            for block in _members(free | last):
                bit = 1 << block
                other = closed ^ bit
                if other in found:
                    continue
                found[other] = None
                if free & bit:
                    more = [b for b in after[block] if needed[b] & other == needed[b]]
                    masks = free ^ bit | _mask(more), last & ~needed[block] | bit
                else:
                    more = [b for b in before[block] if not users[b] & other]
                    masks = free & ~users[block] | bit, last ^ bit | _mask(more)
                following.append((other, *masks))
        rng.shuffle(following)
        level = following[: count // 4 + 1]
    return list(found)[:count]


def _members(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit.bit_length() - 1
        mask ^= bit


def _mask(blocks: Iterable[int]) -> int:
    return sum(1 << block for block in blocks)


def packed(sets: Sequence[int], size: int) -> np.ndarray:
    """Return bit masks of `size` bits as rows of bytes, the lowest bit first."""
    width = (size + 7) // 8
    joined = b"".join(closed.to_bytes(width, "little") for closed in sets)
    return np.frombuffer(joined, np.uint8).reshape(len(sets), width)


def bits(rows: np.ndarray, size: int) -> np.ndarray:
    """Return rows of bytes as rows of zeros and ones, uint8."""
    return np.unpackbits(rows, axis=1, bitorder="little")[:, :size]


def unpacked(rows: np.ndarray, size: int) -> np.ndarray:
    """Return rows of bytes as rows of zeros and ones, float64."""
    return bits(rows, size).astype(np.float64)
