"""Counting up to a limit: on one rank, on a server by several workers, beside reads of it."""

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import DTypeError, OutOfRangeError, ShapeError
from tests.runtime.ranks import run_ranks


def test_it_counts_and_stops():
    with hf.Graph().as_default():
        v = hf.Variable(np.int64(0), trainable=False, name="v")
        before = v.value()
        with hf.control_dependencies([before]):
            count = hf.count_up_to(v, 3, name="count")
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        assert [session.run([before, count]) for _ in range(3)] == [[0, 0], [1, 1], [2, 2]]
        for _ in range(2):
            with pytest.raises(OutOfRangeError, match="'v' has reached 3") as caught:
                session.run(count)
            assert caught.value.op == "count" and "test_counting.py" in str(caught.value)
        assert session.run(v) == 3
        session.run(v.assign(1))
        assert session.run(count).dtype == np.int64
        with pytest.raises(DTypeError, match="integer"):
            hf.count_up_to(hf.Variable(1.0), 3)
        with pytest.raises(ShapeError, match="scalar"):
            hf.count_up_to(hf.Variable([1, 2]), 3)


def test_workers_share_a_count():
    def body(context):
        v = hf.Variable(np.int32(0), trainable=False, name="v")
        count, found = hf.count_up_to(v, 60), []
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        with pytest.raises(OutOfRangeError, match="'v' has reached 60"):
            while True:
                found.append(int(session.run(count)))
        return found

    results = run_ranks(4, body, ps=1, seed=3)
    assert sorted(n for found in results for n in found) == list(range(60))
