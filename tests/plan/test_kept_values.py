"""What a loop keeps for its gradient, or in an array, is computed in memory of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.lowering.instructions import Opcode
from hpcflow.lowering.kept_values import OWNED
from hpcflow.plan.ir.program import Node
from hpcflow.runtime.device.device import Device
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.step.lowered_partition import lower_partition
from hpcflow.settings import Settings

STEPS, ROWS, UNITS = 40, 8, 6


def states(x: Any, w: Any) -> Any:
    """All states of h = tanh(h w + x_t), by a loop that writes an array."""

    def step(t: Any, h: Any, kept: Any) -> Any:
        h = hf.tanh(hf.matmul(h, w) + hf.gather(x, t))
        return t + 1, h, kept.write(t, h * 2.0)

    begin = hf.zeros([ROWS, UNITS], x.dtype), hf.TensorArray(x.dtype, STEPS)
    return hf.while_loop(lambda t, *_: t < STEPS, step, [hf.constant(0), *begin])[2].stack()


def nodes(fetches: Any, feeds: Any, context: Any) -> Iterator[tuple[Node, Any]]:
    """The nodes of loops as they run, each with the instructions of its partition."""
    with hf.Session() as session:
        plan = session.plan(fetches, feeds)
    lowered = lower_partition(plan.parts[plan.driver], context.devices, context.settings)
    for frame in lowered.frames.values():
        for inside in frame.values():
            for node in inside.part.nodes.values():
                yield node, inside.code


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((STEPS, ROWS, UNITS)), rng.standard_normal((UNITS, UNITS)) / 3


def recurrence(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    h, found = np.zeros((ROWS, UNITS)), []
    for row in x:
        h = np.tanh(h @ w + row)
        found.append(2 * h)
    return np.stack(found)


def test_values_of_all_iterations_are_kept() -> None:
    """A kept buffer that is used again would have the values of a later iteration."""
    x, w = data()
    with hf.Graph().as_default(), hf.Session() as session:
        a, b = hf.placeholder("float64", x.shape), hf.placeholder("float64", w.shape)
        all_states = states(a, b)
        (slope,) = hf.gradients(hf.reduce_sum(hf.square(all_states)), [b])
        for _ in range(3):  # memory is used again
            found, by_w = session.run([all_states, slope], {a: x, b: w})
            np.testing.assert_allclose(found, recurrence(x, w), 1e-12, 1e-12)
            for i, j in ((0, 0), (3, 1)):
                moved = w.copy()
                moved[i, j] += 1e-6
                change = (recurrence(x, moved) ** 2).sum() - (recurrence(x, w) ** 2).sum()
                assert by_w[i, j] == pytest.approx(change / 1e-6, rel=1e-3)


def test_they_are_not_copied() -> None:
    """What kernels compute and the loop's variables are kept as they are, views are copied."""
    x, w = data()
    with use_context(RankContext(Settings())) as context, hf.Graph().as_default():
        a, b = hf.placeholder("float64", x.shape), hf.placeholder("float64", w.shape)
        all_states = states(a, b)
        (slope,) = hf.gradients(hf.reduce_sum(all_states), [b])
        kept = 0
        for node, code in nodes([all_states, slope], {a: x, b: w}, context):
            if node.row.keeps is None:
                continue
            kept += 1
            assert node.attrs.get(OWNED), node
            (call,) = (
                i
                for function in code.functions
                for i in function.body
                if i.opcode == Opcode.CALL_KERNEL and i.node == node.name
            )
            assert not call.operands[node.row.keeps].name.startswith("b"), "it is in the arena"
        assert kept >= 3


def test_a_capture_of_the_loop_is_copied() -> None:
    """Its buffer may be used again behind the loop, and the list lives on."""
    with use_context(RankContext(Settings())) as context, hf.Graph().as_default():
        a = hf.placeholder("float64", [ROWS, UNITS])
        captured = hf.tanh(a)

        def step(t: Any, array: Any) -> Any:
            return t + 1, array.write(t, captured)

        begin = [hf.constant(0), hf.TensorArray("float64", 3)]
        array = hf.while_loop(lambda t, _: t < 3, step, begin)[1]
        later = hf.exp(captured * 3.0) + array.read(2)
        feeds = {a: np.ones((ROWS, UNITS))}
        marked = [n.attrs.get(OWNED) for n, _ in nodes(later, feeds, context) if n.row.keeps]
        assert marked == [None]
        with hf.Session() as session:
            found = session.run(later, feeds)
    np.testing.assert_allclose(found, np.exp(3 * np.tanh(1)) + np.tanh(np.ones((ROWS, UNITS))))


def test_a_value_that_a_user_also_fetches_is_his() -> None:
    """Changing a fetched array changes neither the loop's history nor the next result."""
    x, w = data()
    with hf.Graph().as_default(), hf.Session() as session:
        a, b = hf.placeholder("float64", x.shape), hf.placeholder("float64", w.shape)
        all_states = states(a, b)
        found = session.run(all_states, {a: x, b: w})
        found[...] = 0
        again = session.run(all_states, {a: x, b: w})
    np.testing.assert_allclose(again, recurrence(x, w), 1e-12, 1e-12)


def test_fetched_elements_of_arrays_are_copies() -> None:
    """Else a user who changes one result changes another."""
    with hf.Graph().as_default(), hf.Session() as session:
        a = hf.placeholder("float64", [3, 4])
        x = hf.tanh(a)
        array = hf.TensorArray("float64", 2).write(0, x)
        fetched = [x, array.read(0), array.read(hf.constant(0) + 0)]

        def step(t: Any, h: Any, kept: Any) -> Any:
            h = hf.tanh(h + 1.0)
            return t + 1, h, kept.write(t, h)

        begin = [hf.constant(0), a, hf.TensorArray("float64", 3)]
        _, h, kept = hf.while_loop(lambda t, *_: t < 3, step, begin)
        found = session.run([*fetched, h, kept.read(2)], {a: np.ones((3, 4))})
    for i, one in enumerate(found):
        assert not any(np.shares_memory(one, other) for other in found[i + 1 :])


def test_rows_of_a_larger_array_are_allocated() -> None:
    """Each is free memory; large arrays and scalars are allocated one by one."""
    device = Device()
    allocate = device.row_allocator((4, 4), np.dtype("float32"))
    rows = [allocate() for _ in range(50)]
    for i, row in enumerate(rows):
        row[...] = i
    assert [row[0, 0] for row in rows] == [*range(50)]
    assert all(row.flags.c_contiguous and row.flags.writeable for row in rows)
    for shape in ((), (1 << 20,)):
        first, second = (device.row_allocator(shape, np.dtype("float64"))() for _ in range(2))
        assert first.shape == shape and isinstance(first, np.ndarray)
        assert not np.shares_memory(first, second)


def test_a_mask_that_is_computed_behind_a_product_does_not_split_the_loop_around_it() -> None:
    """Small values are computed first: what the mask of an iteration selects is in one loop."""
    with use_context(RankContext(Settings())) as context, hf.Graph().as_default():
        lengths = hf.placeholder("int32", [ROWS * 8])
        w = hf.placeholder("float32", [64, 64])

        def step(t: Any, h: Any) -> Any:
            new = hf.tanh(hf.matmul(h, w) + 1.0)
            return t + 1, hf.where(hf.expand_dims(t < lengths, 1), new, h)

        begin = [hf.constant(0), hf.ones([ROWS * 8, 64])]
        h = hf.while_loop(lambda t, _: t < 4, step, begin)[1]
        feeds = {lengths: np.arange(64, dtype="i4") % 5, w: np.zeros((64, 64), "f4")}
        fused = [n.attrs["types"] for n, _ in nodes(h, feeds, context) if n.type == "Fused"]
        assert [set(types) for types in fused] == [{"Add", "Tanh", "Select"}]
        with hf.Session() as session:
            found = session.run(h, feeds)
    wanted = np.where(np.arange(64) % 5 > 0, np.tanh(1), 1)
    np.testing.assert_allclose(found, np.repeat(wanted[:, None], 64, 1), 1e-6)
