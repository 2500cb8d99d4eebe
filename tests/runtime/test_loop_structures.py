"""What while_loop gives is packed as what its body gives; the values were read off TensorFlow."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import ArgumentError, GraphError

Pair = namedtuple("Pair", "a b")


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def below(i: Any, *_: Any) -> Any:
    return i < 3


def of_pair(p: Any, *_: Any) -> Any:
    return p[0] < 3


def more(p: Any) -> Any:
    return Pair(p.a + 1, p.b)


LOOPS: list[tuple[Any, Any, Any, Any, Any]] = [  # condition, body, variables; packed, and the same
    (below, lambda i: i + 1, [0], 3, [3]),
    (below, lambda i: [i + 1], [0], 3, [3]),
    (below, lambda i: (i + 1,), [0], 3, (3,)),
    (below, lambda i: i + 1, (0,), 3, [3]),
    (below, lambda i, j: (i + 1, j + 2), [0, 1], (3, 7), (3, 7)),
    (below, lambda i, j: [i + 1, j + 2], (0, 1), [3, 7], [3, 7]),
    (below, lambda i, j: Pair(i + 1, j), [0, 1], Pair(3, 1), Pair(3, 1)),
    (below, lambda i, j: (i + 1, j), Pair(0, 1), (3, 1), (3, 1)),
    (below, lambda i, j: Pair(i + 1, j), Pair(0, 1), Pair(3, 1), Pair(3, 1)),
    (of_pair, lambda p, i: (more(p), i), [Pair(0, 1), 7], (Pair(3, 1), 7), (Pair(3, 1), 7)),
    (of_pair, lambda p: [more(p)], [Pair(0, 1)], [Pair(3, 1)], [Pair(3, 1)]),
    (
        lambda d, j: d["i"] < 3,
        lambda d, j: ({"i": d["i"] + 1, "b": d["b"]}, j),
        [{"i": 0, "b": 1}, 7],
        ({"i": 3, "b": 1}, 7),
        ({"i": 3, "b": 1}, 7),
    ),
]


def kinds(value: Any) -> Any:
    """A structure with the kinds of its lists."""
    if isinstance(value, dict):
        return {key: kinds(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [kinds(v) for v in value]
    return int(value)


def checked(found: Any, wanted: Any) -> None:
    with hf.Session() as session:
        assert kinds(session.run(found)) == kinds(wanted)


@pytest.mark.parametrize("cond, body, variables, packed, same", LOOPS)
def test_the_result_is_packed_as_the_body_packs(
    cond: Any, body: Any, variables: Any, packed: Any, same: Any
) -> None:
    checked(hf.while_loop(cond, body, variables), packed)
    checked(hf.while_loop(cond, body, variables, return_same_structure=True), same)
    if len(variables) > 1:
        checked(hf.while_loop(cond, body, variables, maximum_iterations=9), packed)


def test_a_single_variable_needs_no_list_of_its_own_in_a_counted_loop() -> None:
    """TensorFlow 1 takes it so where there is a maximum of iterations."""
    found = hf.while_loop(lambda p: p.a < 9, more, [Pair(0, 1)], maximum_iterations=2)
    checked(found, Pair(2, 1))
    whole = hf.while_loop(below, lambda i: [i + 1], [0], None, 10, True, False, None, 2, True)
    checked(whole, [2])


def test_arrays_and_tensor_arrays_keep_their_places() -> None:
    i, (x, rows) = hf.while_loop(
        below,
        lambda i, xs: [i + 1, (xs[0] * 2, xs[1].write(i, xs[0]))],
        [0, (np.ones(2, np.float32), hf.TensorArray("float32", 3))],
    )
    with hf.Session() as session:
        found = session.run([i, x, rows.stack()])
    assert found[0] == 3 and found[1].tolist() == [8, 8]
    assert found[2].tolist() == [[1, 1], [2, 2], [4, 4]]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(GraphError, match="different structures"):
        hf.while_loop(below, lambda i, j: i + 1, [0, 1])
    with pytest.raises(ArgumentError, match="None is not a tensor"):
        hf.while_loop(below, lambda i, j: (i + 1, j), [0, None])
