"""Parts as bytes: exact there and back; malformed bytes are refused, whatever they are."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcflow.errors import HpcflowError, VerifyError
from hpcflow.graph.dtypes import as_strings, string
from hpcflow.plan.ir.program import Cluster, Node, Partition
from hpcflow.plan.serialization.partition_codec import decode_partition, encode_partition

from .model import REPLICAS, SINGLE, THREE_TASKS, Net

TASK = "/job:worker/task:0"
GOOD = encode_partition(Net().start(Cluster(2, 2)).parts["/job:ps/task:0"])


def equal(a, b):
    """Equal type and content, arrays included."""
    if isinstance(a, np.ndarray):
        same = isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape
        if same and a.dtype == string:
            return a.tolist() == b.tolist()
        return same and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and type(a) is type(b):
        return len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and (a == b or a != a)


@pytest.mark.parametrize("cluster", [SINGLE, REPLICAS, THREE_TASKS, Cluster(2, 3)], ids=str)
def test_every_part_of_real_plans(cluster):
    net = Net()
    for plan in (net.start(cluster), net.step(cluster)):
        for part in plan.parts.values():
            data = encode_partition(part)
            again = decode_partition(data)
            assert encode_partition(again) == data
            assert (again.task, again.feeds, again.fetches) == (part.task, part.feeds, part.fetches)
            assert list(again.nodes) == list(part.nodes)
            for mine, its in zip(part.nodes.values(), again.nodes.values(), strict=True):
                fields = dataclasses.fields(Node)
                assert all(equal(getattr(mine, f.name), getattr(its, f.name)) for f in fields)


ARRAYS = st.builds(
    lambda shape, dtype: np.arange(int(np.prod(shape, dtype=int))).reshape(shape).astype(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(["f4", "f8", "i4", "?", "u1", "c8"]),
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats() | st.complex_numbers()
    | st.binary() | st.lists(st.binary(), max_size=3).map(as_strings)
    | ARRAYS | st.sampled_from([np.dtype("f4"), np.dtype("?")]),
    lambda inner: st.lists(inner, max_size=3)
    | st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def lone(attrs):
    node = Node("n", "NoOp", attrs=attrs, device=f"{TASK}/cpu:0", line="model.py:3")
    return Partition(TASK, {"n": node})


@given(st.dictionaries(st.text(), PLAIN, max_size=4))
def test_any_plain_attributes(attrs):
    assert equal(decode_partition(encode_partition(lone(attrs))).nodes["n"].attrs, attrs)


@pytest.mark.parametrize("value", [object(), len, {1: 2}, np.array([object()])])
def test_what_is_not_plain_data_is_refused_with_op_and_line(value):
    with pytest.raises(HpcflowError) as caught:
        encode_partition(lone({"bad": value}))
    if isinstance(caught.value, VerifyError):
        assert caught.value.op == "n" and caught.value.line == "model.py:3"


def test_arrays_are_views_that_cannot_be_written():
    part = decode_partition(encode_partition(lone({"a": np.ones(3)})))
    with pytest.raises(ValueError):
        part.nodes["n"].attrs["a"][0] = 2


@settings(max_examples=300)
@given(st.data())
def test_changed_bytes_are_refused_or_still_a_part(data):
    bad = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    _refused_or_part(bytes(bad))


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data):
    with pytest.raises(VerifyError):
        decode_partition(data)
    _refused_or_part(GOOD[:16] + data + GOOD[16 + len(data) :])


@given(st.integers(0, len(GOOD) - 1))
def test_cut_bytes_are_refused(length):
    with pytest.raises(VerifyError):
        decode_partition(GOOD[:length])
    with pytest.raises(VerifyError):
        decode_partition(GOOD + bytes(length + 1))


@pytest.mark.parametrize("old, new", [
    (b'"type":"Assign"', b'"type":"Assigm"'),
    (b'"type":"Assign"', b'"type":"Fused"'),
    (b'"type":"Assign"', b'"type":"UpdateRows1"'),
    (b'"control":[]', b'"control":{}'),
    (b'"line":', b'"lint":'),
    (b'["<f4",[6,8]', b'["<O8",[6,8]'),
    (b'["array","<f4",[6,8]', b'["array","<f4",[7,8]'),
    (b'["array","<f4",[6,8]', b'["array","<f4",-6,8]'),
    (b'["array","<f4",[6,8]', b'["pickle","f",[6,8]'),
    (b'["dtype","<f4"]', b'["dtype","<f4",0]'),
])  # fmt: skip
def test_targeted_damage(old, new):
    size = int.from_bytes(GOOD[8:16], "little")
    text = GOOD[16 : 16 + size]
    assert old in text
    text = text.replace(old, new, 1)
    head = GOOD[:8] + len(text).to_bytes(8, "little") + text
    with pytest.raises(VerifyError):
        decode_partition(head + bytes(-len(head) % 64) + GOOD[16 + size + -(16 + size) % 64 :])


def _refused_or_part(data):
    try:
        assert isinstance(decode_partition(data), Partition)
    except VerifyError as error:
        assert error.rule


WORDS = st.sampled_from([2**62, -1, 0, 1, "", "0", "O", "f4,f4", "V1", "/job:ps/task:0", "x" * 99])


def places(value, above=()):
    """The path of each value inside."""
    if above:
        yield above
    keys = range(len(value)) if isinstance(value, list) else ()
    for key in value if isinstance(value, dict) else keys:
        yield from places(value[key], (*above, key))


@settings(max_examples=300)
@given(st.data())
def test_a_header_that_says_something_else(data):
    """One value of it, anywhere, is another, gone or there twice: a part, or a refusal."""
    size = int.from_bytes(GOOD[8:16], "little")
    header, rest = json.loads(GOOD[16 : 16 + size]), GOOD[16 + size + -(16 + size) % 64 :]
    *path, last = data.draw(st.sampled_from(list(places(header))))
    inside = header
    for key in path:
        inside = inside[key]
    how = data.draw(st.sampled_from(["other", "gone", "twice"]))
    if how == "gone":
        del inside[last]
    elif how == "twice" and isinstance(inside, list):
        inside.insert(last, inside[last])
    else:
        inside[last] = data.draw(WORDS | st.none() | st.lists(WORDS, max_size=3))
    text = json.dumps(header).encode()
    start = GOOD[:8] + len(text).to_bytes(8, "little") + text
    try:
        decode_partition(start + bytes(-len(start) % 64) + rest)
    except HpcflowError as error:
        assert error.message
