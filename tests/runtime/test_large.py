"""Large values between ranks: no copy on their way, and more than 2**31 elements."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import hpcflow as hf
from tests.runtime.ranks import run_here, run_ranks

ELEMENTS = (1 << 31) + 17
NEEDED = 12 << 30  # bytes: the variable, what is received and what is computed, twice


def free_memory():
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) << 10  # it is told in KiB


@pytest.mark.parametrize("seed", [None, 3])
def test_a_pull_and_a_push_copy_nothing(seed):
    """The variable is sent from where it lies, the update from where it is computed."""
    elements = 5_000_000  # 20 MB
    steps = 4

    def body(context):
        v = hf.Variable(hf.zeros([elements]), name="v")
        with hf.device("/job:worker/task:0"):
            update = hf.negative(v.read_value()) + 1.0
        step = v.assign_add(update, read_value=False)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        session.run(step)  # makes the buffers
        tracemalloc.start()
        for _ in range(steps):
            session.run(step)
        peak = tracemalloc.get_traced_memory()[1]  # of both ranks: they are threads
        tracemalloc.stop()
        return peak, session.run(hf.reduce_max(v)), session.run(hf.reduce_min(v))

    ((peak, most, least),) = run_ranks(2, body, seed=seed, ps=1, shard_bytes=1 << 30)
    assert most == least == 1.0
    assert peak < 4 * elements / 10


@pytest.mark.slow
@pytest.mark.mpi(min_size=2)
@pytest.mark.limit(600)
def test_a_variable_of_more_than_two_to_the_31_elements():
    from hpcflow.comm import mpi_communicator

    world = mpi_communicator.world()
    if world.size > 2:
        pytest.skip("two ranks are enough, and memory for more may be missing")
    free = np.array([free_memory()])
    request = world.all_reduce(free, "min")
    while not request.test():
        pass
    if free[0] < NEEDED:
        pytest.skip("needs 12 GiB of free memory")

    def body(context):
        v = hf.Variable(hf.zeros([ELEMENTS], hf.uint8), name="v")
        more = hf.placeholder(hf.uint8, [])
        with hf.device("/job:worker/task:0"):
            pulled = hf.identity(v.read_value())
            ends = hf.stack([pulled[0], pulled[1 << 20], pulled[ELEMENTS - 1]])
            next_value = pulled + more
        update = v.assign(next_value)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        moved = [e.spec.nbytes for e in session.plan([update], {more: np.uint8(1)}).edges]
        session.run(update, {more: np.uint8(3)})
        return moved, session.run(ends).tolist()

    result = run_here(body, ps=1, shard_bytes=1 << 40)
    if result is not None:
        moved, found = result
        assert sorted(moved)[-2:] == [ELEMENTS, ELEMENTS]
        assert found == [3, 3, 3]
