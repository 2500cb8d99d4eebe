"""Words: the vectors of Random123, NumPy's generator, and what numbers are made of them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from hpcflow.ops.random import bits_to_numbers_kernels, rejection_sampling_kernels
from hpcflow.ops.random.philox_kernels import ALL, PhiloxWords, constants, product, rounds, u64
from tests.ops.test_table import OtherModule

# counter, key, words: Random123's examples/kat_vectors, "philox4x64 10"
KNOWN = [
    ((0,) * 4, (0,) * 2, "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b"),
    ((ALL,) * 4, (ALL,) * 2, "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0"),
    (
        (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
        (0x452821E638D01377, 0xBE5466CF34E90C6C),
        "a528f45403e61d95 38c72dbd566e9788 a5a1610e72fd18b5 57bd43b5e52b7fe6",
    ),
]


def words(xp: object, key: int = (9 << 64) + 5, ordinal: int = 3) -> PhiloxWords:
    made = PhiloxWords(xp)
    made.key, made.ordinal = key, ordinal
    return made


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter: tuple, key: tuple, expected: str) -> None:
    first = np.array([counter[0]], u64)
    known = constants(np, key[0] | key[1] << 64)
    found = rounds(np, known, first, *counter[1:])
    assert [f"{int(w[0]):016x}" for w in found] == expected.split()


def test_products_have_all_their_bits() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, ALL, (2, 500), u64, endpoint=True)
    a[:2], b[:2] = (ALL, 0), (ALL, ALL)
    high, low = product(a, b)
    exact = [int(x) * int(y) for x, y in zip(a, b, strict=True)]
    assert high.tolist() == [p >> 64 for p in exact] and low.tolist() == [p & ALL for p in exact]


@pytest.mark.parametrize("first", [0, 1, 6, 4 * ALL - 17, 1 << 40])
def test_arithmetic_of_arrays_makes_the_words_of_numpys_generator(first: int) -> None:
    mine, other = words(np), words(OtherModule())
    theirs = np.random.Philox(key=mine.key, counter=(3 << 128) + first // 4)
    assert mine.run(first, 5).tolist() == other.run(first, 5).tolist()
    raw = theirs.random_raw(8)  # its counter is one ahead
    assert mine.run(4 * (first // 4) + 4, 8).tolist() == raw.tolist()


def test_words_depend_on_their_place_alone() -> None:
    mine = words(np)
    whole = mine.run(0, 100)
    for first, count in ((0, 7), (3, 90), (99, 1), (50, 0)):
        assert (mine.run(first, count) == whole[first : first + count]).all()
    blocks = np.array([7, 2, 24], u64)
    assert (np.stack(mine.at(blocks), -1) == whole.reshape(25, 4)[blocks.astype(int)]).all()
    assert (np.stack(mine.at(blocks, 1), -1) != whole.reshape(25, 4)[blocks.astype(int)]).all()


def test_seeds_ordinals_and_attempts_are_other_words() -> None:
    blocks = np.arange(50, dtype=u64)
    kinds = [words(np, k, o).at(blocks, a) for k in (1, 2, 1 << 64) for o in (0, 1) for a in (0, 1)]
    together = np.concatenate([np.concatenate(kind) for kind in kinds])
    assert len(np.unique(together)) == len(together)
    bits = np.unpackbits(np.stack(kinds).reshape(len(kinds), -1).view(np.uint8), axis=1)
    signs = bits * 2.0 - 1
    alike = signs @ signs.T / signs.shape[1] - np.eye(len(kinds))
    assert abs(alike).max() < 5 / np.sqrt(signs.shape[1])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    "draw",
    [
        bits_to_numbers_kernels.unit,
        bits_to_numbers_kernels.normal,
        bits_to_numbers_kernels.cut_normal,
    ],
)
def test_numbers_depend_on_their_place_alone(draw, dtype: str) -> None:
    """Also on another array module, which has the same logarithm here."""
    given = (np.dtype(dtype), 11) if draw is bits_to_numbers_kernels.unit else (np.dtype(dtype),)
    whole = draw(words(np), 0, 40, *given)
    for first, count in ((0, 40), (1, 39), (6, 1), (7, 2), (40, 0)):
        for xp in (np, OtherModule()):
            part = draw(words(xp), first, count, *given)
            assert part.tobytes() == whole[first : first + count].tobytes()


def tries(xp: object, first: int, count: int) -> list[np.ndarray]:
    """Numbers drawn by trying, of parameters that go with the place."""
    place = np.arange(first, first + count)
    alpha = 0.1 + place % 7
    rate = np.array([0.0, 0.5, 9.0, 10.0, 300.0])[place % 5]
    span = np.array([1, 3, 1 << 32, (1 << 63) + 1, 0], u64)[place % 5]
    draws = [
        (rejection_sampling_kernels.gamma, alpha),
        (rejection_sampling_kernels.poisson, rate),
        (rejection_sampling_kernels.uniform_integers, span),
    ]
    return [draw(words(xp), first, count, given) for draw, given in draws]


def test_numbers_drawn_by_trying_depend_on_their_place_alone() -> None:
    whole = tries(np, 0, 400)
    for first, count in ((0, 400), (1, 3), (77, 200), (399, 1), (5, 0)):
        for xp in (np, OtherModule()):
            for part, all_ in zip(tries(xp, first, count), whole, strict=True):
                assert part.tobytes() == all_[first : first + count].tobytes()


def test_factorials() -> None:
    n = np.concatenate([np.arange(200.0), 10.0 ** np.arange(3, 16)])
    found = rejection_sampling_kernels._log_factorial(np, n)
    np.testing.assert_allclose(found, special.gammaln(n + 1), rtol=1e-14, atol=1e-13)


def test_sine_cosine_and_the_inverse_error_function() -> None:
    for dtype, tolerance in (("float32", 2e-7), ("float64", 5e-16)):
        d = np.dtype(dtype)
        bits = words(np).run(0, 5000).view(np.uint64 if d.itemsize == 8 else np.uint32)
        x, y = bits_to_numbers_kernels.circle(np, bits, d)
        angle = (bits.view(f"i{d.itemsize}") >> 2) * (np.pi / 4 * 2.0 ** (3 - 8 * d.itemsize))
        c, s = np.cos(angle), np.sin(angle) * 1.0
        c = np.where(bits & 2, -c, c)
        swap = (bits & 1).astype(bool)
        np.testing.assert_allclose(x, np.where(swap, s, c), rtol=0, atol=tolerance)
        np.testing.assert_allclose(y, np.where(swap, c, s), rtol=0, atol=tolerance)
        found = bits_to_numbers_kernels.cut_normal(words(np), 0, 5000, d)
        part = (bits[:5000].view(f"i{d.itemsize}") + 0.5) * 2.0 ** (1 - 8 * d.itemsize)
        expected = np.sqrt(2) * special.erfinv(part * special.erf(np.sqrt(2)))
        np.testing.assert_allclose(found, expected, rtol=0, atol=8 * tolerance)


def test_the_least_and_the_largest_word() -> None:
    """No infinity, no NaN, and 1 is never reached where it must not be."""
    ends = np.array([0, ALL, ALL - 1, 1 << 63, (1 << 63) - 1, 1], u64)

    class Ends(PhiloxWords):
        def run(self, first: int, count: int) -> np.ndarray:
            return np.resize(ends, count)

    for dtype, digits in (("float16", 11), ("float32", 24), ("float64", 53)):
        d = np.dtype(dtype)
        unit = bits_to_numbers_kernels.unit(Ends(np), 0, 12, d, digits).astype(d)
        assert unit.min() == 0 and unit.max() < 1
        with np.errstate(all="raise"):
            normal = bits_to_numbers_kernels.normal(Ends(np), 0, 12, d)
            cut = bits_to_numbers_kernels.cut_normal(Ends(np), 0, 12, d)
        assert np.isfinite(normal).all() and abs(cut).max() <= 2
