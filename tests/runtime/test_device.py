"""A device is one object with three duties; a toy one joins a graph with cpu:0."""

import weakref

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import DeviceError
from hpcflow.kernels.kernel_registry import kernel
from hpcflow.runtime.device import device
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from tests.runtime.ranks import run_ranks


class ToyArray:
    """An array that NumPy cannot touch by mistake."""

    def __init__(self, values):
        self.values, self.dtype, self.shape = values, values.dtype, values.shape
        self.nbytes = values.nbytes


class ToyDevice(device.Device):
    """A device with memory of its own and two kernels."""

    kind = "toy"
    xp = None

    def allocate(self, shape, dtype):
        return ToyArray(np.empty(shape, dtype))

    def view(self, block, shape, dtype, start=0):
        return ToyArray(super().view(block.values, shape, dtype, start))

    def to_host(self, array):
        return array.values.copy()

    def from_host(self, array):
        return ToyArray(array.copy())


@kernel("Add", "new", on="toy")
def toy_add(xp, node):
    return lambda a, b: ToyArray(a.values + b.values)


@kernel("Mul", "out", on="toy")
def toy_multiply(xp, node):
    return lambda a, b, out: np.multiply(a.values, b.values, out=out.values)


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setattr(device, "_FACTORIES", dict(device._FACTORIES))
    hf.register_device("toy", ToyDevice)


def across(x):
    with hf.device("/toy:0"):
        y = x * x
        y = (y + x) * y
    with hf.device("/cpu:0"):
        return y - x


@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "c16"])
def test_a_large_array_begins_where_a_cache_line_does_and_lives_as_long_as_its_views(dtype):
    made = [device.Device().allocate((70, 65), np.dtype(dtype)) for _ in range(5)]
    assert all(array.ctypes.data % 64 == 0 for array in made)
    assert all(array.flags.c_contiguous and array.flags.writeable for array in made)
    alive, view = weakref.ref(made[0]), made.pop(0)[3:].reshape(-1)[7:]
    assert alive() is not None
    del view
    assert alive() is None


def test_a_graph_runs_across_a_toy_device_and_the_cpu(toy):
    with use_context(RankContext(Settings())), hf.Graph().as_default():
        x = hf.placeholder(hf.float32, [3])
        session = hf.Session()
        found = session.run(across(x), {x: np.array([1, 2, 3], np.float32)})
        np.testing.assert_array_equal(found, [1, 22, 105])
        plan = session.plan(across(x), {x: np.zeros(3, np.float32)})
        kinds = [n.device.split("/")[-1] for n in plan.parts[plan.driver].nodes.values()]
        assert {"toy:0", "cpu:0"} == set(kinds)


def test_a_toy_device_on_each_of_two_ranks(toy):
    def body(context):
        x = hf.placeholder(hf.float32, [3])
        with hf.device("/job:worker/task:1"):
            y = across(x)
        return hf.Session().run(across(y), {x: np.array([1, 1, 2], np.float32)})

    (found,) = run_ranks(2, body, tasks_per_replica=2)
    np.testing.assert_array_equal(found, [1, 1, 22 * (22 * 22 + 22) * 22 - 22])


def test_an_op_without_a_kernel_on_the_device_says_what_to_do(toy):
    with use_context(RankContext(Settings())), hf.Graph().as_default():
        x = hf.placeholder(hf.float32, [3], name="x")
        with hf.device("/toy:0"):
            y = hf.tanh(x)
        with pytest.raises(DeviceError, match="no kernel for Tanh on toy"):
            hf.Session().run(y, {x: np.zeros(3, np.float32)})
