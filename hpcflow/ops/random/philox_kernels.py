"""Philox4x64-10: 256 random bits as a function of a 128-bit key and a 256-bit counter.

J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A 64-bit word depends only
on its position, so that results do not depend on the rank, the order or the number of words drawn
at a time. The counter is (block of four words, attempt, ordinal of the draw, 0). NumPy implements
the rounds in C; for other array modules they are computed by array arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np

u64 = np.uint64
ALL = (1 << 64) - 1  # also: the number of words in a stream, minus one
_HALF, _LOW = u64(32), u64(0xFFFFFFFF)
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10
MAX_SEQUENTIAL_BLOCKS = 48  # blocks for which NumPy's generator is faster than array arithmetic


def product(a: Any, m: Any) -> tuple[Any, Any]:
    """The high and the low 64 bits of `a * m`, arrays of uint64; `m` may be one number."""
    a0, a1, m0, m1 = a & _LOW, a >> _HALF, m & _LOW, m >> _HALF
    middle = a1 * m0 + (a0 * m0 >> _HALF)
    cross = a0 * m1 + (middle & _LOW)
    return a1 * m1 + (middle >> _HALF) + (cross >> _HALF), a * m


def constants(xp: Any, key: int) -> tuple[Any, Any]:
    """The key of each round, and the multipliers."""
    keys = [[(k + i * w) & ALL for k, w in zip((key & ALL, key >> 64), _WEYL, strict=True)]
            for i in range(_ROUNDS)]  # fmt: skip
    by_round = xp.asarray(np.array(keys, u64)[..., None])
    return by_round, xp.asarray(np.array(_MULTIPLIERS, u64)[:, None])


def rounds(
    xp: Any, key_constants: tuple[Any, Any], c0: Any, c1: int, c2: Any, c3: int = 0
) -> tuple[Any, Any, Any, Any]:
    """The four words at each counter; `c0` is an array of uint64, the others are numbers.

    `c2` may be an array of one element. `key_constants` are the `constants` of the key.
    """
    even, odd = xp.empty((2, *c0.shape), u64), xp.empty((2, *c0.shape), u64)
    even[0], even[1] = c0, u64(c2) if isinstance(c2, int) else c2
    odd[0], odd[1] = u64(c1), u64(c3)
    by_round, multipliers = key_constants
    for i in range(_ROUNDS):
        high, low = product(even, multipliers)
        even, odd = high[::-1] ^ odd ^ by_round[i], low[::-1]
    return even[0], odd[0], even[1], odd[1]


class PhiloxWords:
    """The words of one draw, identified by `key` and `ordinal`.

    For array modules other than NumPy the ordinal may be an array of one element.
    """

    def __init__(self, xp: Any) -> None:
        self.xp, self.key = xp, 0
        self.ordinal: Any = 0
        self._key_constants: dict[int, tuple[Any, Any]] = {}  # key -> constants, of the last key
        if xp is np:
            self._bits = np.random.Philox(key=0)
            self._state: Any = self._bits.state  # only counter and key change

    def at(self, blocks: Any, attempt: int = 0) -> tuple[Any, Any, Any, Any]:
        """The four words of each of `blocks`, an array of uint64."""
        if self.xp is np and len(blocks) <= MAX_SEQUENTIAL_BLOCKS:
            words = [self._raw(int(block), 4, attempt) for block in blocks]
            return tuple(np.array(words, u64).reshape(-1, 4).T)
        if self.key not in self._key_constants:
            self._key_constants = {self.key: constants(self.xp, self.key)}
        return rounds(self.xp, self._key_constants[self.key], blocks, attempt, self.ordinal)

    def run(self, first: int, count: int) -> Any:
        """`count` words from `first` on."""
        block, skipped = divmod(first, 4)
        if self.xp is np:
            return self._raw(block, skipped + count)[skipped:]
        block_count = (skipped + count + 3) // 4
        blocks = self.xp.arange(block_count, dtype=u64) + u64(block & ALL)
        return self.xp.stack(self.at(blocks), axis=-1).reshape(-1)[skipped : skipped + count]

    def _raw(self, block: int, count: int, attempt: int = 0) -> np.ndarray:
        counter = (self.ordinal << 128) + (attempt << 64) + (block & ALL)
        before = (counter - 1) % (1 << 256)  # the generator increments before it draws
        state = self._state["state"]
        state["counter"][:] = [before >> shift & ALL for shift in (0, 64, 128, 192)]
        state["key"][:] = [self.key & ALL, self.key >> 64]
        self._bits.state = self._state
        return self._bits.random_raw(count)
