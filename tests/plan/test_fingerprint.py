"""Digests of graphs: equal for equal programs, and the first difference by name and line."""

from __future__ import annotations

import json

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.plan.ir.attribute_values import canonical
from hpcflow.plan.serialization.graph_fingerprint import (
    OpDigest,
    first_difference,
    graph_fingerprint,
    op_digests,
)

from .model import Net, graph


def build(change=None):
    with graph() as g:
        x = hf.placeholder(hf.float64 if change == "dtype" else hf.float32, [None, 2], name="x")
        value = [[1.0, 2.0], [3.0, 4.5 if change == "constant" else 4.0]]
        w = hf.constant(value, x.dtype, name="w")
        with hf.device("cpu:0" if change == "device" else ""):
            y = hf.matmul(x, w, name="y", transpose_b=change == "attribute")
        z = hf.add(y, x, name="z") if change == "inputs" else hf.add(y, y, name="z")
        with hf.control_dependencies([y] if change == "order" else []):
            hf.tanh(x, name="t")
        if change == "more":
            hf.square(z, name="extra")
        hf.negative(z, name="renamed" if change == "name" else "end")
    return g


def difference(change):
    return first_difference(op_digests(build()), op_digests(build(change)))


def test_equal_programs_have_equal_digests():
    assert difference(None) is None
    assert graph_fingerprint(build()) == graph_fingerprint(build())
    assert graph_fingerprint(Net().graph) == graph_fingerprint(Net().graph)


@pytest.mark.parametrize("change, op", [
    ("dtype", "x"), ("constant", "w"), ("device", "y"), ("attribute", "y"), ("inputs", "z"),
    ("order", "t"), ("more", "end"), ("name", "end"),
])  # fmt: skip
def test_the_first_difference_is_named_with_its_line(change, op):
    text = difference(change)
    assert f"'{op}'" in text and "test_fingerprint.py:" in text
    assert graph_fingerprint(build()) != graph_fingerprint(build(change))


def test_other_ops_at_one_place_are_both_named():
    text = difference("more")
    assert "'end' (Neg" in text and "'extra' (Square" in text and "here and" in text


def test_an_op_too_many_is_told_on_either_side():
    digests = op_digests(build())
    assert "exists only here" in first_difference(digests, digests[:-1])
    assert "'end' (Neg" in first_difference(digests[:-1], digests)
    assert "exists only there" in first_difference(digests[:-1], digests)


def test_digests_travel_as_json():
    digests = op_digests(build())
    again = [OpDigest(*row) for row in json.loads(json.dumps(digests))]
    assert first_difference(digests, again) is None


def test_lines_are_not_compared():
    digests = op_digests(build())
    moved = [d._replace(line="elsewhere.py:1") for d in digests]
    assert first_difference(digests, moved) is None


@pytest.mark.parametrize("a, b", [
    (1, 1.0), (1, True), (0.0, -0.0), ("1", 1), ((1,), (1.0,)), (np.float32(1), np.float64(1)),
    (np.zeros(2), np.zeros((1, 2))), ({"a": 1}, {"a": 2}), (None, "None"), (1j, 1),
    (np.dtype("f4"), "<f4"), (object(), object()),
])  # fmt: skip
def test_attributes_are_equal_only_in_type_and_content(a, b):
    assert canonical(a) != canonical(b)
    assert canonical(a) == canonical(a)
    hash(canonical(a))


def test_nan_equals_itself():
    assert canonical(float("nan")) == canonical(float("nan"))
    assert canonical(np.array([np.nan])) == canonical(np.array([np.nan]))
