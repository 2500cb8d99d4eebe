"""Values that stay in the process between two runs, by their handles."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import DTypeError, FetchError
from tests.ops.sessions import graph  # noqa: F401


def test_a_value_that_stays() -> None:
    """The program of TensorFlow 1's documentation: 10 * 5, then 50 * 10."""
    product = hf.constant(10) * hf.constant(5)
    kept = hf.get_session_handle(product)
    with hf.Session() as session:
        h, ten = session.run([kept, hf.constant(10)])
        assert ten == 10 and h.eval() == 50 and str(h) == h.handle
        holder, value = hf.get_session_tensor(h.handle, hf.int32)
        wanted = value * 10
        assert session.run(wanted, {holder: h.handle}) == 500
        other = session.run(hf.get_session_handle(hf.constant([1, 2])))
        assert session.run(wanted, {holder: other.handle}).tolist() == [10, 20]
        p = hf.placeholder(hf.int32)
        assert session.run(p + 1, {p: h}) == 51


def test_the_value_is_of_its_run() -> None:
    v = hf.Variable([1.0, 2.0])
    kept, up = hf.get_session_handle(v.value()), v.assign_add([1.0, 1.0])
    with hf.Session() as session:
        session.run(v.initializer)
        first = session.run(kept)
        session.run(up)
        second = session.run(kept)
        first.eval()[:] = 9
        assert first.eval().tolist() == [1, 2] and second.eval().tolist() == [2, 3]


@pytest.mark.slow
def test_deleted_values() -> None:
    kept = hf.get_session_handle(hf.constant(3.0))
    holder, value = hf.get_session_tensor("", hf.float32)
    gone, delete = hf.delete_session_tensor("")
    with hf.Session() as session:

        def refused(handle: str, run: Any = value, at: Any = holder) -> None:
            with pytest.raises(FetchError, match="no tensor with the handle"):
                session.run(run, {at: handle})

        h = session.run(kept)
        session.run(delete, {gone: h.handle})
        refused(h.handle)
        refused(h.handle, delete, gone)
        with pytest.raises(FetchError):
            h.eval()
        h = session.run(kept)
        h.delete()
        with pytest.raises(FetchError):
            h.delete()
        h = session.run(kept)
        text = h.handle
        del h
        gc.collect()
        refused(text)
        h = session.run(kept)
        text = h.get_raw_handle()
        del h
        gc.collect()
        assert session.run(value, {holder: text}) == 3
        session.run(delete, {gone: text})
        refused("nonsense")


def test_another_dtype() -> None:
    holder, value = hf.get_session_tensor("", hf.int64)
    with hf.Session() as session:
        h = session.run(hf.get_session_handle(np.zeros(2)))
        with pytest.raises(DTypeError, match="is float64"):
            session.run(value, {holder: h.handle})


def test_single_values_and_strings_stay() -> None:
    holder, value = hf.get_session_tensor("", hf.string)
    numbers, number = hf.get_session_tensor("", hf.int64)
    with hf.Session() as session:
        text = session.run(hf.get_session_handle(hf.constant("caf\u00e9")))
        count = session.run(hf.get_session_handle(hf.constant(7, hf.int64)))
        assert session.run([value, number], {holder: text.handle, numbers: count.handle}) == [
            "caf\u00e9".encode(),
            7,
        ]
