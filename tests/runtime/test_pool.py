"""Values whose sizes only a step tells lie in blocks that are used again."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.runtime.device.device import Device
from hpcflow.runtime.device.size_class_allocator import MIN_POOLED_BYTES, size_class
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings

F4 = np.dtype("f4")


@given(st.integers(0, 1 << 40))
def test_size_classes(nbytes):
    size = size_class(nbytes)
    assert nbytes <= size <= 1.25 * nbytes + 8
    assert size_class(size) == size


def test_few_sizes_are_kept():
    assert len({size_class(n) for n in range(1 << 20, 1 << 21)}) == 5


def test_a_block_is_used_again_when_nobody_has_it():
    device = Device()
    one = device.take((MIN_POOLED_BYTES,), F4)
    address = one.ctypes.data
    part = one[10:20].reshape(2, 5)
    del one
    other = device.take((MIN_POOLED_BYTES - 7,), F4)
    assert other.ctypes.data != address  # a view of it is in use
    del part
    again = device.take((MIN_POOLED_BYTES - 9,), F4)
    assert again.ctypes.data == address and again.shape == (MIN_POOLED_BYTES - 9,)
    assert device.held_memory.current["values sized by a step"] == 2 * 4 * MIN_POOLED_BYTES


def test_unused_blocks_make_room():
    device = Device()
    device.limit(10 * MIN_POOLED_BYTES)
    device.take((MIN_POOLED_BYTES,), F4)
    used = device.take((MIN_POOLED_BYTES + MIN_POOLED_BYTES // 2,), F4)
    assert (
        device.take((MIN_POOLED_BYTES, 2), np.dtype("u1")).size == 2 * MIN_POOLED_BYTES
    )  # of 4, 6 and then 2
    used[...] = 1
    assert used.sum() == used.size and device.held_memory.total == 8 * MIN_POOLED_BYTES
    device.trim()
    assert device.held_memory.total == 6 * MIN_POOLED_BYTES


def test_small_ones_are_left_to_numpy():
    device = Device()
    assert device.take((10,), F4).base is None and not device.held_memory.total


def test_steps_use_the_same_blocks_and_results_are_the_callers():
    count = 1 << 19
    with use_context(RankContext(Settings())), hf.Graph().as_default(), hf.Session() as session:
        x, chosen = hf.placeholder(hf.float32, [count]), hf.placeholder(hf.bool, [count])
        y = hf.boolean_mask(x, chosen)
        for _ in range(3):
            y = hf.tanh(y * 2) + hf.reverse(y, [0])
        end = y - 1
        rng, held = np.random.default_rng(0), session.context.devices["cpu:0"].held_memory
        results, wanted, sizes = [], [], []
        for _ in range(6):
            given = rng.normal(size=count).astype("f4")
            mask = rng.random(count) < 0.9
            results.append(session.run(end, {x: given, chosen: mask}))
            sizes.append(held.current["values sized by a step"])
            expected = given[mask]
            for _ in range(3):
                expected = np.tanh(expected * 2) + expected[::-1]
            wanted.append(expected - 1)
        for got, expected in zip(results, wanted, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
        assert sizes[1] == sizes[-1]
        assert not any(np.shares_memory(results[0], other) for other in results[1:])
