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
    ],
)
def test_a_value_that_the_dtype_cannot_hold_is_refused(dtype, value):
    x = hf.placeholder(dtype)
    with pytest.raises(FeedError, match=r"cannot hold(.|\n)*test_feeds.py"):
        hf.Session().run(x, {x: value})


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
