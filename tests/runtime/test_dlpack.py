"""Arrays of other libraries as feeds, variables as theirs: one memory, seen by both."""

import ctypes
import gc

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import FeedError, FetchError, UninitializedError
from hpcflow.runtime.step.feed_and_fetch import feed_array
from tests.runtime.ranks import run_ranks

A = np.arange(12, dtype=np.float32).reshape(3, 4)


class Foreign:
    """An array of another library: it gives its memory by DLPack, and by nothing else."""

    def __init__(self, array, device=(1, 0), refuses=None):
        self.array, self.device, self.refuses = array, device, refuses
        self.given = 0

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        if self.refuses is not None:
            raise self.refuses
        self.given += 1
        return self.array.__dlpack__(**options)


@pytest.fixture(autouse=True)
def graph():
    with hf.Graph().as_default():
        yield


@pytest.mark.parametrize("array", [A, A.T, A[:, ::2], A[::-1], A[:0]])
def test_memory_of_another_library_is_fed_as_it_lies(array):
    x = hf.placeholder(hf.float32, [None, None])
    session, given = hf.Session(), Foreign(array)
    fetches = [x * 2.0, hf.reduce_sum(x)]
    for _ in range(3):
        doubled, total = session.run(fetches, {x: given})
        np.testing.assert_array_equal(doubled, array * 2)
        assert total == array.sum()
    assert given.given == 3
    if array.size:
        assert np.shares_memory(feed_array(x, given), array)


def test_memory_that_nobody_may_write_to_is_read():
    array = A.copy()
    array.flags.writeable = False
    x = hf.placeholder(hf.float32, [3, 4])
    session = hf.Session()
    np.testing.assert_array_equal(session.run(x + 1.0, {x: Foreign(array)}), A + 1)
    fetched = session.run(x, {x: Foreign(array)})
    fetched[...] = 0  # the caller's own
    np.testing.assert_array_equal(array, A)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (Foreign(A, device=(2, 1)), "on device 1 of DLPack's kind 2"),
        (Foreign(A, refuses=BufferError("use tensor.detach()")), "use tensor.detach"),
        (Foreign(A.astype(hf.bfloat16)), "cannot be used"),
        (Foreign(A.astype(np.complex64)), "cannot hold complex64"),
        (Foreign(A[0]), r"shape \(4,\)|shape \[4\]"),
    ],
)
def test_memory_that_does_not_fit_is_refused(given, why):
    x = hf.placeholder(hf.float32, [3, 4], name="x")
    with pytest.raises(FeedError, match=why) as caught:
        hf.Session().run(x + 1.0, {x: given})
    assert "'x:0'" in str(caught.value) and "test_dlpack.py" in str(caught.value)


def test_results_are_arrays_that_others_take_over():
    x = hf.placeholder(hf.float32, [3, 4])
    session = hf.Session()
    fetched = session.run([x, x * 2.0, hf.constant(A), hf.reduce_sum(x, 0)], {x: A})
    for array in fetched:
        taken = np.from_dlpack(array)
        assert np.shares_memory(taken, array) and taken.flags.writeable
        assert not np.shares_memory(array, A)


@pytest.mark.slow
def test_a_variable_seen_by_others_is_not_copied_and_does_not_change():
    v = hf.Variable(A, name="v")
    update = v.assign_add(np.ones_like(A))
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    first = np.from_dlpack(v.dlpack(session))
    state = session.store.states["v"]
    assert np.shares_memory(first, state.array)
    part = v.dlpack(session)[1:, ::2]  # keeps the version, as all that was made of it
    gc.collect()
    for i in range(3):
        session.run(update)
        np.testing.assert_array_equal(session.run(v), A + i + 1)
        np.testing.assert_array_equal(first, A)
        np.testing.assert_array_equal(part, A[1:, ::2])
    second = v.dlpack(session)
    np.testing.assert_array_equal(second, A + 3)
    del first
    gc.collect()
    np.testing.assert_array_equal(part, A[1:, ::2])
    del part, second
    gc.collect()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["assign", "assign_add", "sgd", "adam"])
def test_versions_that_were_let_go_of_serve_again(how):
    """However often others look, there are two buffers: also of updates in tiles."""
    v = hf.Variable(np.ones(100_000, np.float32), name="v")
    loss = hf.reduce_sum(v)
    update = {
        "assign": lambda: v.assign(v.read_value() + 1.0),
        "assign_add": lambda: v.assign_add(np.ones(100_000, np.float32)),
        "sgd": lambda: hf.train.GradientDescentOptimizer(-1.0).minimize(loss),
        "adam": lambda: hf.train.AdamOptimizer(-1.0).minimize(loss),
    }[how]()
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    addresses = set()
    for i in range(20):
        array = v.dlpack(session)
        addresses.add(array.__array_interface__["data"][0])
        before = array.copy()
        session.run(update)
        np.testing.assert_array_equal(array, before)
        assert i < 2 or session.run(v)[0] > before[0]
        del array, before
    assert len(addresses) <= 2
    state = session.store.states["v"]
    session.run(update)
    assert len(state.old) <= 1 and not state.pins


def test_a_variable_without_memory_here():
    v = hf.Variable(A, name="v")
    session = hf.Session()
    with pytest.raises(FetchError, match="'v' has no memory on this rank"):
        v.dlpack(session)
    session.prepare(v)
    with pytest.raises(UninitializedError):
        v.dlpack(session)


def test_a_variable_on_a_server():
    def body(context):
        with hf.device("/job:ps/task:0"):
            v = hf.Variable(A, name="v")
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        with pytest.raises(FetchError, match="no memory on this rank"):
            v.dlpack(session)
        np.testing.assert_array_equal(session.run(v), A)
        return True

    assert run_ranks(2, body, ps=1) == [True]


def test_half_precision_is_seen_as_numpy_has_it():
    v = hf.Variable(A.astype(hf.bfloat16), name="v")
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    found = v.dlpack(session)
    assert found.dtype == hf.bfloat16
    np.testing.assert_array_equal(found.astype(np.float32), A)


class Brain(Foreign):
    """One of bfloat16, which NumPy itself cannot hand over."""

    def __dlpack__(self):
        capsule = self.array.view(np.uint16).__dlpack__()
        find = ctypes.pythonapi.PyCapsule_GetPointer
        find.restype, find.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        code = ctypes.c_uint8.from_address(find(capsule, b"dltensor") + 20)
        assert code.value == 1  # unsigned integers
        code.value = 4  # bfloat
        return capsule


def test_half_precision_of_another_library():
    array = A.astype(hf.bfloat16)
    x = hf.placeholder(hf.bfloat16, [None, None])
    for part in (array, array[:, ::2]):
        assert np.shares_memory(feed_array(x, Brain(part)), array)
        np.testing.assert_array_equal(hf.Session().run(x * 2, {x: Brain(part)}), part * 2)
    y = hf.placeholder(hf.bfloat16, [3, 4])
    np.testing.assert_array_equal(hf.Session().run(y * 2, {y: Foreign(A)}), array * 2)
