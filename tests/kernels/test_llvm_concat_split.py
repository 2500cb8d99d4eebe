"""Generated concatenation and splits: NumPy's bits, for any axis, dtype and widths."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from hpcflow.codegen import row_copy_codegen
from hpcflow.codegen.kernel_cache import builtin
from tests.kernels.against_plain import chosen, run_all

DTYPES = ["bool", "int8", "int32", "float64", "complex128", "float16", ml_dtypes.bfloat16]
SHAPES = [  # of a part but for its axis, the axis, and the widths
    *[((9, 0), 1, (40, 64, 33)), ((3, 4, 0, 5), 2, (7, 8)), ((20, 0, 16), -2, (3, 1, 9, 2))],
    ((130, 0), 1, (64, 128)),
]


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: object) -> np.ndarray:
    return rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)


def with_width(shape: tuple[int, ...], axis: int, width: int) -> tuple[int, ...]:
    at = axis % len(shape)
    return (*shape[:at], width, *shape[at + 1 :])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@np.errstate(invalid="ignore")  # outputs start as NaN, also integers
def test_joined_and_split_again(dtype: object) -> None:
    rng = np.random.default_rng(3)
    served = 0
    for shape, axis, widths in SHAPES:
        parts = [random(rng, with_width(shape, axis, n), dtype) for n in widths]
        choice, node = chosen("Concat", {"axis": axis}, parts)
        (whole,) = run_all(choice, node, parts)
        np.testing.assert_array_equal(whole, np.concatenate(parts, axis))
        back, node = chosen("Split", {"axis": axis, "sizes": widths}, [whole])
        for found, part in zip(run_all(back, node, [whole]), parts, strict=True):
            np.testing.assert_array_equal(found, part)
        served += choice.kernel.provider == back.kernel.provider == "llvm"
    assert served >= 1


@pytest.mark.parametrize("axis", [1, -2])
def test_stacked_and_unstacked_again(axis: int) -> None:
    rng = np.random.default_rng(4)
    parts = [random(rng, (30, 12), "float32") for _ in range(5)]
    choice, node = chosen("Pack", {"axis": axis}, parts)
    (whole,) = run_all(choice, node, parts)
    back, again = chosen("Unpack", {"axis": axis, "num": 5}, [whole])
    assert choice.kernel.provider == back.kernel.provider == "llvm"
    np.testing.assert_array_equal(whole, np.stack(parts, axis))
    for found, part in zip(run_all(back, again, [whole]), parts, strict=True):
        np.testing.assert_array_equal(found, part)


def test_strided_parts_are_read_as_they_are() -> None:
    rng = np.random.default_rng(5)
    wide = rng.standard_normal((40, 90))
    parts = [wide[:, 3:40], np.asfortranarray(wide[:, :20]), wide[::-1, 50:70]]
    choice, node = chosen("Concat", {"axis": 1}, parts)
    assert choice.kernel.provider == "llvm"
    np.testing.assert_array_equal(run_all(choice, node, parts)[0], np.concatenate(parts, 1))


def test_nothing_is_written_beside_the_result() -> None:
    parts = [np.ones((6, 3), "int16"), np.ones((6, 5), "int16")]
    room = np.full((8, 8), 7, "int16")
    builtin(row_copy_codegen.text(2, 1, 2, False))(*parts, room[1:7])
    assert (room[[0, -1]] == 7).all() and (room[1:7] == 1).all()


@pytest.mark.parametrize(
    ("shape", "axis", "word"),
    [
        *[((4, 4), 0, "one row"), ((3, 4), 1, "few elements"), ((900, 1), 1, "bytes")],
        ((4, 5000), 1, "bytes"),
    ],
)
def test_what_numpy_copies_as_fast_is_left_to_it(
    shape: tuple[int, ...], axis: int, word: str
) -> None:
    parts = [np.ones(shape, "float32")] * 2
    choice, _ = chosen("Concat", {"axis": axis}, parts)
    assert choice.kernel.provider == "plain" and word in dict(choice.refused)["llvm"]
