"""Closed sets: all sets of blocks that contain, with a block, each block that comes before it.

A split whose cuts keep the order is a chain of closed sets: each device has the difference of two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from hpcflow.placement.split_problem import followers


def closed_sets(before: Sequence[Iterable[int]], most: int) -> list[int] | None:
    """Return all closed sets as bit masks, None if there are more than `most`."""
    needed = [sum(1 << other for other in others) for others in before]
    after = followers(before)
    found = {0: sum(1 << block for block, mask in enumerate(needed) if not mask)}
    level = [0]  # sets of one size; `found` has the blocks that each can be extended by
    while level:
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


def packed(sets: Sequence[int], size: int) -> np.ndarray:
    """Return bit masks of `size` bits as rows of bytes, the lowest bit first."""
    width = (size + 7) // 8
    joined = b"".join(closed.to_bytes(width, "little") for closed in sets)
    return np.frombuffer(joined, np.uint8).reshape(len(sets), width)


def unpacked(rows: np.ndarray, size: int) -> np.ndarray:
    """Return rows of bytes as rows of zeros and ones, float64."""
    return np.unpackbits(rows, axis=1, bitorder="little")[:, :size].astype(np.float64)
