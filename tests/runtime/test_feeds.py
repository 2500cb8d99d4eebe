"""What may be fed and fetched, as TensorFlow 1 has it, and what is refused."""

import collections

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import FeedError

A = np.arange(6, dtype=np.float32).reshape(2, 3)
ARRAYS = {
    "fortran order": np.asfortranarray(A),
    "transposed": A.T,
    "reversed": A[::-1, ::-1],
    "every other": np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2],
    "big endian": A.astype(">f4"),
    "broadcast": np.broadcast_to(np.float32(3), (2, 3)),
    "a list": A.tolist(),
    "of small integers": A.astype(np.int16),
    "empty": np.empty((0, 3), np.float32),
}


@pytest.fixture(autouse=True)
def graph():
    with hf.Graph().as_default():
        yield


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_any_layout(name):
    given = ARRAYS[name]
    expected = np.array(given, np.float32)
    x = hf.placeholder(hf.float32, [None, None])
    session = hf.Session()
    fetches = [x, x * 2.0, hf.reshape(x, [-1]), hf.matmul(x, hf.transpose(x))]
    for _ in range(2):  # the second time by the runner kept from the first
        found = session.run(fetches, {x: given})
        assert all(f.flags.writeable for f in found)
        np.testing.assert_array_equal(found[0], expected)
        np.testing.assert_array_equal(found[1], expected * 2)
        np.testing.assert_array_equal(found[2], expected.reshape(-1))
        np.testing.assert_allclose(found[3], expected @ expected.T)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (hf.int32, 2**40),
        (hf.int32, 2**70),
        (hf.uint8, [-1, 300]),
        (hf.int32, 1.5),
        (hf.float32, None),
        (hf.float32, "a"),
        (hf.float32, [[1], [1, 2]]),
        (hf.float32, 1j),
        (hf.bool, 2),
        (hf.float32, [0.0, 1e300]),
        (hf.float32, np.array([1.0, -1e39])),
        (hf.float16, np.array(70000.0, np.float32)),
        (hf.float16, np.array(70000)),
        (hf.bfloat16, np.array(3.4e38)),
        (hf.complex64, np.array(1e300j)),
        (hf.int32, np.array([0, 2**31])),
        (hf.int64, np.array(2**63, np.uint64)),
        (hf.uint64, np.array(-1)),
        (hf.uint8, np.array([255, 256], np.int32)),
        (hf.int32, np.array([1.0])),
        (hf.bool, np.array(1.0)),
        (hf.float32, np.array(["1"])),
        (hf.float32, np.array([1.0, None], object)),
        (hf.string, np.array(1.0)),
    ],
)
def test_a_value_that_the_dtype_cannot_hold_is_refused(dtype, value):
    x = hf.placeholder(dtype, name="fed")
    session = hf.Session()
    one = b"" if dtype == hf.string else 1
    for run in (  # also by the runner that an earlier run has left
        lambda v: session.run(x, {x: v}),
        session.make_callable(x, [x]),
        lambda v: session.run(x, {x: v}, deadline=60),
        lambda v: session.partial_run(session.partial_run_setup(x, [x]), x, {x: v}),
    ):
        run(np.full(np.shape(value), one) if isinstance(value, np.ndarray) else one)
        with pytest.raises(FeedError, match=r"'fed:0' .* cannot hold(.|\n)*test_feeds.py"):
            run(value)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (hf.float32, np.array([0.1, np.inf, np.nan, 1e-60])),
        (hf.float32, np.array([2**31 - 1, -5])),
        (hf.float32, np.array([True, False])),
        (hf.float32, np.array([1, 2.5], object)),
        (hf.float16, np.array([0.1, 65504.0, -np.inf])),
        (hf.bfloat16, np.array([0.1, 1e38])),
        (hf.complex64, np.array([0.1 + 0.2j])),
        (hf.int32, np.array([2**31 - 1, -(2**31)])),
        (hf.uint8, np.array([0, 255])),
        (hf.int64, np.array([2**63 - 1], np.uint64)),
        (hf.int32, np.array([3, 4], object)),
        (hf.int32, np.empty((0,))),
        (hf.bool, np.array([0, 1])),
    ],
)
def test_arrays_are_cast_as_numpy_casts_numbers_of_the_same_kind(dtype, value):
    x = hf.placeholder(dtype, [None])
    session = hf.Session()
    expected = value.astype(dtype)
    call, partial = session.make_callable(x, [x]), session.partial_run_setup(x, [x])
    found = [session.run(x, {x: given}) for given in (value, value, value.tolist(), expected)]
    found += [call(value), call(value), session.partial_run(partial, x, {x: value})]
    found += [session.run(x, {x: value}, deadline=60) for _ in range(2)]
    for array in found:
        assert array.dtype == dtype
        np.testing.assert_array_equal(array, expected)


def test_python_numbers_are_converted():
    f, i, b = hf.placeholder(hf.float32), hf.placeholder(hf.int32), hf.placeholder(hf.bool)
    found = hf.Session().run([f, i, b], {f: 3, i: [], b: 1})
    assert [x.dtype for x in found] == [hf.float32, hf.int32, hf.bool]
    assert (found[0], found[1].size, found[2]) == (3, 0, True)


def test_variables_reads_and_constants_can_be_fed():
    v, c = hf.Variable(A, name="v"), hf.constant(A)
    session = hf.Session()
    session.run(v.initializer)
    read = v.value()
    for key in (v, read, c, c.name):
        fed = v if key in (v, read) else c
        np.testing.assert_array_equal(session.run(fed + 1.0, {key: A * 5}), A * 5 + 1)


def test_what_is_fetched_has_the_structure_asked_for_each_time():
    a, b = hf.constant(1.0), hf.constant(2.0)
    pair = collections.namedtuple("pair", "a b")
    session = hf.Session()
    for _ in range(2):
        for fetches in ([a, b], (a, b), pair(a, b), {"a": a, "b": b}, [], (), {}):
            assert type(session.run(fetches)) is type(fetches)


def test_results_never_share_memory():
    x = hf.placeholder(hf.float32, [2, 3])
    y = x * 2.0
    found = hf.Session().run([x, x, y, y, hf.reshape(y, [6]), hf.reshape(x, [6])], {x: A})
    for i, one in enumerate(found):
        assert not any(np.shares_memory(one, other) for other in [A, *found[:i]])
