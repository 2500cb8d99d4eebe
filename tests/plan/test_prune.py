"""Pruning: what a step needs, feeds in place, shapes from the fed arrays, typed errors."""

from __future__ import annotations

import pytest

import hpcflow as hf
from hpcflow.errors import FeedError, FetchError, ShapeError
from hpcflow.plan.frontend.graph_pruning import prune_to_fetches
from hpcflow.plan.ir.program import Ref

from .model import graph, spec


def test_only_what_is_needed_stays_in_creation_order():
    with graph() as g:
        x = hf.placeholder(hf.float32, [None, 3], name="x")
        a = hf.tanh(x, name="a")
        hf.negative(a, name="unused")
        b = hf.add(a, a, name="b")
    program = prune_to_fetches(g, [b, a], {x: spec(2, 3)})
    assert list(program.nodes) == ["x", "a", "b"]
    assert program.feeds == ("x",) and program.fetches == (Ref("b"), Ref("a"))
    assert program.nodes["x"].type == "Feed"


def test_sizes_come_from_the_fed_array():
    with graph() as g:
        x = hf.placeholder(hf.float32, [None, 3], name="x")
        y = hf.matmul(x, hf.ones([3, 4]), name="y")
    assert y.shape == (None, 4)
    assert prune_to_fetches(g, [y], {x: spec(7, 3)}).spec(Ref("y")).shape == (7, 4)


def test_any_tensor_can_be_fed_and_cuts_what_made_it():
    with graph() as g:
        x = hf.placeholder(hf.float32, [2], name="x")
        middle = hf.tanh(x, name="middle")
        end = hf.negative(middle, name="end")
    program = prune_to_fetches(g, [end, middle], {middle: spec(2)})
    assert list(program.nodes) == ["middle/feed_0", "end"]
    assert program.fetches == (Ref("end"), Ref("middle/feed_0"))


def test_one_of_several_outputs_can_be_fed():
    with graph() as g:
        x = hf.placeholder(hf.float32, [4], name="x")
        left, right = hf.split(x, 2)
        both = hf.add(left, right, name="both")
    program = prune_to_fetches(g, [both], {left: spec(2), x: spec(4)})
    name = left.op.name
    assert program.nodes["both"].inputs == (Ref(f"{name}/feed_0"), Ref(name, 1))
    assert program.feeds == (f"{name}/feed_0", "x")


def test_a_feed_that_nothing_needs_keeps_its_place():
    with graph() as g:
        x, y = (hf.placeholder(hf.float32, [2], name=n) for n in "xy")
        z = hf.negative(y, name="z")
    assert prune_to_fetches(g, [z], {x: spec(2), y: spec(2)}).feeds == ("x", "y")


def test_control_inputs_are_followed_and_survive_a_feed():
    with graph() as g:
        v = hf.Variable(1.0, name="v")
        add = v.assign_add(1.0, name="add")
        x = hf.placeholder(hf.float32, [], name="x")
        with hf.control_dependencies([add, x]):
            after = hf.identity(x, name="after")
        with hf.control_dependencies([after]):
            last = hf.negative(x, name="last")
    program = prune_to_fetches(g, [last], {x: spec(), after: spec()})
    assert program.nodes["last"].control == ("after",)  # it ran for its effects
    assert "add" in program.nodes and program.nodes["after"].control == ("add/value",)


def test_operations_are_targets():
    with graph() as g:
        v = hf.Variable(1.0, name="v")
        program = prune_to_fetches(g, [v.initializer, v.initializer], {})
    assert program.targets == (v.initializer.name,) and program.fetches == ()


def test_a_missing_feed_names_the_placeholder_and_its_line():
    with graph() as g:
        x = hf.placeholder(hf.float32, [None, 3], name="x")
        y = hf.negative(x)
    with pytest.raises(FeedError, match="placeholder 'x' needs a feed") as caught:
        prune_to_fetches(g, [y], {})
    assert "test_prune.py" in str(caught.value) and "[?, 3]" in str(caught.value)
    assert caught.value.op == "x"


@pytest.mark.parametrize("fed, words", [
    (spec(2, 3, dtype="float64"), "is float64, the tensor is float32"),
    (spec(2, 4), r"has shape \[2, 4\], the tensor has \[\?, 3\]"),
    (spec(3), r"has shape \[3\]"),
])  # fmt: skip
def test_a_feed_that_does_not_fit_says_how(fed, words):
    with graph() as g:
        x = hf.placeholder(hf.float32, [None, 3], name="x")
    with pytest.raises(FeedError, match=words) as caught:
        prune_to_fetches(g, [x], {x: fed})
    assert caught.value.op == "x" and "test_prune.py" in caught.value.line


def test_shapes_that_only_the_feeds_contradict_name_the_op():
    with graph() as g:
        x, y = (hf.placeholder(hf.float32, [None], name=n) for n in "xy")
        z = hf.add(x, y, name="z")
    with pytest.raises(ShapeError) as caught:
        prune_to_fetches(g, [z], {x: spec(2), y: spec(3)})
    assert caught.value.op == "z" and "test_prune.py" in caught.value.line


def test_set_shape_is_believed_and_checked():
    with graph() as g:
        x = hf.placeholder(hf.float32, None, name="x")
        y = hf.negative(x, name="y")
        y.set_shape([5])
    with pytest.raises(ShapeError) as caught:
        prune_to_fetches(g, [y], {x: spec(4)})
    assert caught.value.op == "y"


def test_other_graphs_and_other_things_are_refused():
    with graph() as g:
        x = hf.placeholder(hf.float32, [], name="x")
        v = hf.Variable(1.0, name="v")
    with graph() as other:
        y = hf.negative(hf.constant(1.0), name="y")
    with pytest.raises(FetchError, match="'y:0' is of another graph"):
        prune_to_fetches(g, [y], {})
    with pytest.raises(FeedError, match="'x:0' is of another graph"):
        prune_to_fetches(other, [y], {x: spec()})
    with pytest.raises(FetchError, match="cannot be fetched"):
        prune_to_fetches(g, ["x"], {})
    with pytest.raises(FetchError, match="is a handle"):
        prune_to_fetches(g, [v.handle], {})
    with pytest.raises(FeedError, match="is a handle"):
        prune_to_fetches(g, [v.value()], {v.handle: spec()})


def test_a_deep_graph_needs_no_deep_stack():
    with graph() as g:
        x = y = hf.placeholder(hf.float32, [], name="x")
        for _ in range(3000):
            y = hf.negative(y)
    assert len(prune_to_fetches(g, [y], {x: spec()}).nodes) == 3001
