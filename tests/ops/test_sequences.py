"""Words of strings and distances of sequences, over sparse tensors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.errors import DTypeError, ShapeError
from hpcflow.ops.strings.string_sequence_kernels import levenshtein
from tests.ops.sessions import graph, run  # noqa: F401 - graph is a fixture


def test_string_split() -> None:
    x = hf.placeholder(hf.string, [None])
    words = hf.string_split(x)
    dense = hf.sparse_tensor_to_dense(words, default_value="")
    assert run(dense, {x: ["hello world", "", "a b c"]}).tolist() == [
        [b"hello", b"world", b""],
        [b"", b"", b""],
        [b"a", b"b", b"c"],
    ]
    value = run(hf.string_split(["a,;b"], ",;", skip_empty=False))
    assert (value.values.tolist(), value.dense_shape.tolist()) == ([b"a", b"", b"b"], [1, 3])
    assert run(hf.string_split(["abc"], "")).values.tolist() == [b"a", b"b", b"c"]
    value = run(hf.string_split(["", "a", ",b"], ",", skip_empty=False))
    assert (value.values.tolist(), value.dense_shape.tolist()) == ([b"a", b"", b"b"], [3, 2])


def test_edit_distance_of_words() -> None:
    h = hf.string_split(["the cat sat", "x", ""])
    t = hf.string_split(["the bat sat down", "", "y"])
    assert run(hf.edit_distance(h, t)).tolist() == [0.5, np.inf, 1]
    assert run(hf.edit_distance(h, t, normalize=False)).tolist() == [2, 1, 1]
    short, long = hf.string_split(["a"]), hf.string_split(["a", "b"])
    assert run(hf.edit_distance(short, long)).tolist() == [0, 1]
    assert run(hf.edit_distance(long, short)).tolist() == [0, np.inf]
    flat = hf.SparseTensor([[0]], np.array([1]), [2])
    with pytest.raises(
        ShapeError, match=r"shapes \[2\] and \[1, 2\] are negative or of different rank"
    ):
        hf.edit_distance(flat, hf.SparseTensor([[0, 0]], np.array([1]), [1, 2]))
    with pytest.raises(DTypeError):
        hf.edit_distance(hf.constant([1]), h)


@given(*[st.lists(st.integers(0, 2), max_size=6)] * 2)
def test_levenshtein_by_its_definition(a: list[int], b: list[int]) -> None:
    def distance(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        return min(
            distance(i - 1, j) + 1,
            distance(i, j - 1) + 1,
            distance(i - 1, j - 1) + (a[i - 1] != b[j - 1]),
        )

    assert levenshtein(np.array(a), np.array(b)) == distance(len(a), len(b))
