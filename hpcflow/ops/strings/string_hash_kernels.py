"""String hash kernels: TensorFlow's three 64-bit hashes, vectorized over strings of one length.

Each function takes bytes [strings, length] and returns uint64 [strings]; NumPy's integers wrap as
in C. FarmHash (its `Fingerprint64`): github.com/google/farmhash, `farmhashna::Hash64`. SipHash:
Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012 (two and four rounds). The third is
MurmurHash64A with TensorFlow's seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Words = np.ndarray  # of uint64
K0, K1, K2 = (np.uint64(k) for k in (0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F))
MURMUR, MURMUR_SEED = np.uint64(0xC6A4A7935BD1E995), np.uint64(0xDECAFCAFFE)


def of_strings(strings: np.ndarray, hash: Callable[[np.ndarray], Words]) -> Words:
    """`hash` of each element of a flat array of bytes objects, grouped by length."""
    lengths = np.fromiter(map(len, strings), np.int64, strings.size)
    hashes = np.zeros(strings.size, np.uint64)
    with np.errstate(over="ignore"):
        for length in np.unique(lengths).tolist():
            at = np.flatnonzero(lengths == length)
            joined = np.frombuffer(b"".join(strings[at].tolist()), np.uint8)
            hashes[at] = hash(joined.reshape(at.size, length))
    return hashes


def _word(s: np.ndarray, at: int, size: int = 8) -> Words:
    """The little-endian integer of `size` bytes from column `at`."""
    column = np.ascontiguousarray(s[:, at : at + size])
    return column.view(f"<u{size}")[:, 0].astype(np.uint64)


def _rotated(x: Words, right: int) -> Words:
    return (x >> np.uint64(right)) | (x << np.uint64(64 - right))


def _mixed(x: Words) -> Words:
    return x ^ (x >> np.uint64(47))


# -- FarmHash


def farm(s: np.ndarray) -> Words:
    """FarmHash's Fingerprint64."""
    length = s.shape[1]
    if length <= 16:
        return _farm16(s)
    if length <= 32:
        return _farm32(s)
    return _farm64(s) if length <= 64 else _farm_long(s)


def _hash_len16(u: Words, v: Words, mul: Any) -> Words:
    a = _mixed((u ^ v) * mul)
    return _mixed((v ^ a) * mul) * mul


def _mul(s: np.ndarray) -> np.uint64:
    return K2 + np.uint64(2 * s.shape[1])


def _farm16(s: np.ndarray) -> Words:
    n = s.shape[1]
    if n >= 8:
        a, b = _word(s, 0) + K2, _word(s, n - 8)
        c = _rotated(b, 37) * _mul(s) + a
        return _hash_len16(c, (_rotated(a, 25) + b) * _mul(s), _mul(s))
    if n >= 4:
        a = np.uint64(n) + (_word(s, 0, 4) << np.uint64(3))
        return _hash_len16(a, _word(s, n - 4, 4), _mul(s))
    if n == 0:
        return np.full(len(s), K2)
    a, b, c = (s[:, i].astype(np.uint64) for i in (0, n >> 1, n - 1))
    y, z = a + (b << np.uint64(8)), np.uint64(n) + (c << np.uint64(2))
    return _mixed(y * K2 ^ z * K0) * K2


def _farm32(s: np.ndarray) -> Words:
    n, mul = s.shape[1], _mul(s)
    a, b = _word(s, 0) * K1, _word(s, 8)
    c, d = _word(s, n - 8) * mul, _word(s, n - 16) * K2
    first = _rotated(a + b, 43) + _rotated(c, 30) + d
    return _hash_len16(first, a + _rotated(b + K2, 18) + c, mul)


def _farm64(s: np.ndarray) -> Words:
    n, mul = s.shape[1], _mul(s)
    a, b = _word(s, 0) * K2, _word(s, 8)
    c, d = _word(s, n - 8) * mul, _word(s, n - 16) * K2
    y = _rotated(a + b, 43) + _rotated(c, 30) + d
    z = _hash_len16(y, a + _rotated(b + K2, 18) + c, mul)
    e, f = _word(s, 16) * mul, _word(s, 24)
    g, h = (y + _word(s, n - 32)) * mul, (z + _word(s, n - 24)) * mul
    first = _rotated(e + f, 43) + _rotated(g, 30) + h
    return _hash_len16(first, e + _rotated(f + a, 18) + g, mul)


Pair = tuple[Words, Words]


def _weak(s: np.ndarray, at: int, a: Words, b: Words) -> Pair:
    w, x, y, z = (_word(s, at + i) for i in (0, 8, 16, 24))
    a = a + w
    b = _rotated(b + a + z, 21)
    c = a
    a = a + x + y
    return a + z, b + _rotated(a, 44) + c


def _farm_long(s: np.ndarray) -> Words:
    length = s.shape[1]
    seed = np.full(len(s), 81, np.uint64)
    y = seed * K1 + np.uint64(113)
    z = _mixed(y * K2 + np.uint64(113)) * K2
    x = seed * K2 + _word(s, 0)
    v: Pair = (seed * np.uint64(0), seed * np.uint64(0))
    w = v
    end = (length - 1) // 64 * 64
    for at in range(0, end, 64):
        x, y, z, v, w = _farm_round(s, at, (x, y, z), v, w, K1, np.uint64(1))
    mul = K1 + ((z & np.uint64(0xFF)) << np.uint64(1))
    tail_length = np.uint64((length - 1) & 63)
    w = (w[0] + tail_length, w[1])
    v = (v[0] + w[0], v[1])
    w = (w[0] + v[0], w[1])
    x, y, z, v, w = _farm_round(s, length - 64, (x, y, z), v, w, mul, np.uint64(9))
    first = _hash_len16(v[0], w[0], mul) + _mixed(y) * K0 + z
    return _hash_len16(first, _hash_len16(v[1], w[1], mul) + x, mul)


def _farm_round(
    s: np.ndarray, at: int, xyz: tuple[Words, Words, Words], v: Pair, w: Pair, mul: Any, times: Any
) -> tuple[Words, Words, Words, Pair, Pair]:
    """Mix in 64 bytes from `at`; the last round has other multipliers."""
    x, y, z = xyz
    x = _rotated(x + y + v[0] + _word(s, at + 8), 37) * mul
    y = _rotated(y + v[1] + _word(s, at + 48), 42) * mul
    x = x ^ (w[1] * times)
    y = y + v[0] * times + _word(s, at + 40)
    z = _rotated(z + w[0], 33) * mul
    v = _weak(s, at, v[1] * mul, x + w[0])
    w = _weak(s, at + 32, z + w[1], y + _word(s, at + 16))
    return z, y, x, v, w


# -- SipHash


def sip(s: np.ndarray, key: tuple[int, int]) -> Words:
    """SipHash-2-4 with a key of two 64-bit numbers."""
    length = s.shape[1]
    k = [np.uint64(part % (1 << 64)) for part in key]
    start = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    v = [np.full(len(s), np.uint64(c) ^ k[i % 2]) for i, c in enumerate(start)]
    body_length = length // 8 * 8
    last = np.zeros((len(s), 8), np.uint8)
    last[:, : length - body_length] = s[:, body_length:]
    last[:, 7] = length % 256
    for word in (*(_word(s, at) for at in range(0, body_length, 8)), _word(last, 0)):
        v[3] = v[3] ^ word
        _sip_rounds(v, 2)
        v[0] = v[0] ^ word
    v[2] = v[2] ^ np.uint64(0xFF)
    _sip_rounds(v, 4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def _sip_rounds(v: list[Words], count: int) -> None:
    for _ in range(count):
        v[0] = v[0] + v[1]
        v[1] = _rotated(v[1], 64 - 13) ^ v[0]
        v[0] = _rotated(v[0], 32)
        v[2] = v[2] + v[3]
        v[3] = _rotated(v[3], 64 - 16) ^ v[2]
        v[0] = v[0] + v[3]
        v[3] = _rotated(v[3], 64 - 21) ^ v[0]
        v[2] = v[2] + v[1]
        v[1] = _rotated(v[1], 64 - 17) ^ v[2]
        v[2] = _rotated(v[2], 32)


# -- MurmurHash64A


def murmur(s: np.ndarray) -> Words:
    """The hash of `string_to_hash_bucket`."""
    length = s.shape[1]
    h = np.full(len(s), MURMUR_SEED ^ (np.uint64(length) * MURMUR))
    body_length = length // 8 * 8
    for at in range(0, body_length, 8):
        h = (h ^ (_mixed(_word(s, at) * MURMUR) * MURMUR)) * MURMUR
    if body_length < length:
        last = np.zeros((len(s), 8), np.uint8)
        last[:, : length - body_length] = s[:, body_length:]
        h = (h ^ _word(last, 0)) * MURMUR
    return _mixed(_mixed(h) * MURMUR)
