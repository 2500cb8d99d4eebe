"""A string without axes is bytes in arrays and for functions, never an array or a str in an array.

The results are those of TensorFlow 2.21's tf.compat.v1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import hpcflow as hf


def padded_rows() -> hf.Tensor:
    rows = hf.data.Dataset.from_generator(lambda: iter(["a", "b"]), hf.string)
    return rows.padded_batch(2, []).make_one_shot_iterator().get_next()


JOINED: dict[str, tuple[Callable[[], hf.Tensor], list[bytes]]] = {
    "stack": (lambda: hf.stack(["a", hf.constant("b")]), [b"a", b"b"]),
    "stack of many": (lambda: hf.stack([hf.constant("a")] * 3, axis=-1), [b"a"] * 3),
    "padded_batch": (padded_rows, [b"a", b"b"]),
    "map_fn": (
        lambda: hf.map_fn(lambda x: hf.string_join([x, "!"]), hf.constant(["a", "b"])),
        [b"a!", b"b!"],
    ),
    "scattered elements": (
        lambda: hf.TensorArray(hf.string, 2).scatter([1, 0], ["a", "b"]).stack(),
        [b"b", b"a"],
    ),
    "one_hot": (lambda: hf.one_hot(1, 2, "hot", "cold"), [b"cold", b"hot"]),
    "one_hot of bytes": (lambda: hf.one_hot(0, 2, b"hot", b"cold"), [b"hot", b"cold"]),
    "py_func": (
        lambda: hf.stack([hf.py_func(lambda x: x.decode().upper(), ["a"], hf.string)]),
        [b"A"],
    ),
}


@pytest.mark.parametrize("name", JOINED)
def test_strings_are_joined_as_bytes(name: str) -> None:
    make, told = JOINED[name]
    with hf.Graph().as_default(), hf.Session() as session:
        value = session.run(make())
    assert value.tolist() == told
    assert {type(v) for v in value} == {bytes}


def test_a_function_is_given_scalars_of_numpy() -> None:
    """They are keys of dicts and no arrays; tensors with axes are arrays."""
    seen = []
    with hf.Graph().as_default(), hf.Session() as session:
        inputs = [3, 1.5, "a", [2], hf.placeholder(hf.int64, None)]
        done = hf.py_func(lambda *values: seen.extend(values), inputs, [])
        session.run(done, {inputs[-1]: 4})
    kinds = [type(value) for value in seen]
    assert kinds == [np.int32, np.float32, bytes, np.ndarray, np.int64]
    assert seen == [3, 1.5, b"a", [2], 4]
