"""Parcels as they run: values of all kinds, produced in the message, read where it came."""

from __future__ import annotations

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import NumericError
from tests.runtime.ranks import run_ranks


def on(k):
    return hf.device(f"/job:worker/task:{k}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_values_of_all_kinds_and_ends_arrive_as_they_left(seed):
    """float64 behind a bool behind three bytes, none at all, and an order without a value."""

    def body(context):
        x = hf.placeholder(hf.float64, [3], name="x")
        with on(0):
            v = hf.Variable(np.zeros(3), name="v")
            small, sign = hf.cast(x, hf.uint8), hf.greater(x[1], 0.0)
            empty, wide = hf.reshape(x[:0], [0, 3]), hf.negative(x)
            half = hf.cast(x, hf.bfloat16)
            with hf.control_dependencies([v.assign_add(wide)]):
                told = hf.no_op("told")
        with on(1):
            total = wide * hf.cast(sign, hf.float64) + hf.cast(small, hf.float64)
            total = total + hf.cast(half, hf.float64)
            rows = hf.reduce_sum(empty, axis=0)
            with hf.control_dependencies([told]):
                late = hf.identity(total) + 1.0
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        feeds = {x: np.array([1.0, 2.0, 250.0])}
        plan = session.plan([total, rows, late], feeds)
        there = [e for e in plan.edges if e.dest.endswith("task:1")]
        found = [session.run([total, rows, late], feeds) for _ in range(3)]
        return len(there), found, session.run(v)

    ((messages, found, v),) = run_ranks(2, body, seed=seed, tasks_per_replica=2)
    assert messages == 1
    for total, rows, late in found:
        assert total.tolist() == [1.0, 2.0, 250.0]
        assert rows.tolist() == [0.0, 0.0, 0.0] and late.tolist() == [2.0, 3.0, 251.0]
    assert v.tolist() == [-3.0, -6.0, -750.0]


def test_values_are_produced_in_the_message_and_read_where_it_came():
    """Nothing is copied but what has a place of its own: a variable."""

    def body(context):
        x = hf.placeholder(hf.float32, [4], name="x")
        v = hf.Variable(np.ones(4, np.float32), name="v")
        a, b = hf.tanh(x), hf.sin(x)
        with on(1):
            end = a * b + v
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        session.run(end, {x: np.ones(4, np.float32)})
        (step,) = [s for f in session._families.values() for s in f._steps.values()][1:]
        (instance,) = step.instances
        copies = [line for line in instance.code.source.splitlines() if "[...] =" in line]
        (send,) = instance.channels.sends
        nodes = instance.part.nodes.values()
        kernels = [n for n in nodes if n.type in ("Fused", "Sin")]
        names = [f"p{list(instance.part.nodes).index(n.name)}" for n in nodes if n.type == "Parcel"]
        message = instance.arrays[names[0]]
        inside = [a for n, a in instance.arrays.items() if n.startswith(f"{names[0]}_")]
        shared = [np.shares_memory(a, message) for a in inside]
        return len(copies), len(kernels), shared, send is not None

    ((copies, kernels, shared, fixed),) = run_ranks(2, body, tasks_per_replica=2)
    assert (copies, kernels, shared, fixed) == (1, 2, [True] * 3, True)


@pytest.mark.parametrize("seed", range(3))
def test_a_parcel_of_a_failed_step_is_missing_once(seed):
    def body(context):
        x = hf.placeholder(hf.float32, [3], name="x")
        with on(1):
            good = hf.check_numerics(x, "the input")
            a, b = hf.tanh(good), hf.sin(good)
        end = a + b
        session, found = hf.Session(), []
        for i in range(9):
            value = np.full(3, np.nan if i % 3 == 1 else 0.5, np.float32)
            try:
                found.append(session.run(end, {x: value}).tolist())
            except NumericError as error:
                assert error.rank == 1
                found.append(None)
        return found

    ((found),) = run_ranks(2, body, seed=seed, tasks_per_replica=2)
    right = (np.tanh(np.full(3, 0.5, "f4")) + np.sin(np.full(3, 0.5, "f4"))).tolist()
    for i, value in enumerate(found):
        if i % 3 == 1:
            assert value is None
        else:
            np.testing.assert_allclose(value, right, rtol=1e-6)
