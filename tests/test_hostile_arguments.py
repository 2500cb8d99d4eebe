"""Whatever the arguments are: a public call succeeds, or raises an error of hpcflow."""

from __future__ import annotations

import inspect
import json
import sys

import numpy as np
import pytest

import hpcflow as hf
import hpcflow.onnx
from hpcflow.errors import (
    ArgumentError,
    DTypeError,
    FeedError,
    FetchError,
    GraphError,
    HpcflowError,
    KernelError,
    OutOfMemoryError,
    PlacementError,
    ShapeError,
)
from hpcflow.graph.op_registry import OPS, all_ops
from tools import fuzz_api
from tools.fuzz_api import Call, attempt

MODULES = [*fuzz_api.modules("hf", hf).values(), hf.test]


@pytest.fixture(autouse=True)
def graph():
    with hf.Graph().as_default() as made:
        yield made


def foreign():
    with hf.Graph().as_default():
        return hf.constant([1.0, 2.0])


def endless():
    made = []
    made.append(made)
    return made


@pytest.mark.slow
def test_random_calls_raise_nothing_raw():
    found = fuzz_api.fuzz(seed=16, count=300)
    assert not found["differences"], "\n".join(d["program"] for d in found["differences"])
    assert found["accepted"] > 30 and found["refused"] > 100


def update_of(value):
    return hf.train.GradientDescentOptimizer(0.1).apply_gradients(value)


CHECKED = {
    "a tensor for a variable": (lambda: hf.assign(hf.zeros([2]), 1.0), "assign needs a variable"),
    "a list of variables": (lambda: hf.assign_add([hf.Variable(1.0)], 1.0), "needs a variable"),
    "a count of a tensor": (lambda: hf.count_up_to(hf.constant(1), 3), "needs a variable"),
    "a limit that is a list": (lambda: hf.count_up_to(hf.Variable(1), [3]), "limit is"),
    "gradients without variables": (lambda: update_of([1.0, 2.0]), r"takes pairs \(gradient, var"),
    "gradients that are no list": (lambda: update_of(3), "takes a list"),
    "a gradient beside a tensor": (lambda: update_of([(1.0, hf.zeros([]))]), "needs a variable"),
    "a step that is a number": (
        lambda: hf.train.GradientDescentOptimizer(0.1).minimize(hf.Variable(1.0), 2),
        "global_step needs a variable",
    ),
    "a range of a list": (lambda: hf.range([1, 1]), "range takes numbers"),
    "pairs that are no list": (lambda: hf.case(-3), "case takes a list"),
    "defaults that are no list": (lambda: hf.decode_csv(["a"], 3), "record_defaults takes a list"),
    "a pattern that is a tensor": (
        lambda: hf.regex_full_match("a", hf.zeros([])),
        "must be a string",
    ),
    "paddings that are no pairs": (lambda: hf.space_to_batch_nd([1.0], [2], 7), "must be pairs"),
    "crops that are no integers": (lambda: hf.batch_to_space([1.0], 0.5, 2), "must be integers"),
    "queues that are no list": (lambda: hf.QueueBase.from_list(0, 2), "takes a list"),
    "no queues": (lambda: hf.QueueBase.from_list(0, []), "list of queues"),
    "no variables": (lambda: hf.variables_initializer([None]), "needs a variable"),
    "batches of a number": (lambda: hf.train.batch_join(0.5, 2), "takes a list"),
    "an operation's name": (lambda: hf.Graph().get_operation_by_name(None), "not an operation"),
    "a fan-in of unknown size": (lambda: hf.glorot_uniform([None, 3]), "is not known"),
    "no elements": (lambda: hf.map_fn(lambda x: x, []), "elems must hold at least one tensor"),
    "no elements to scan": (
        lambda: hf.scan(lambda a, x: x, {}),
        "elems must hold at least one tensor",
    ),
    "a folder that is a tensor": (lambda: hf.train.latest_checkpoint(hf.zeros([])), "is a path"),
    "a file that is a number": (lambda: hf.data.hdf5(3, "x"), "path is a path, not 3"),
}


@pytest.mark.parametrize("name", CHECKED)
def test_a_mistake_has_an_error_of_its_own(name):
    call, told = CHECKED[name]
    with pytest.raises(GraphError, match=told) as info:
        call()
    assert "these arguments do not fit" not in str(info.value) and __file__ in str(info.value)


def test_a_piece_of_another_shape_is_told():
    cut = hf.get_variable("p", [4, 2], partitioner=hf.fixed_size_partitioner(2))
    with pytest.raises(ShapeError):
        cut.assign_sub(hf.constant([1.0, 2.0]))


# -- one case of each kind of mistake, with the error that says it

CASES = {
    "a name that is no text": (lambda: hf.square(1.0, name=3), GraphError),
    "a name of bytes": (lambda: hf.square(1.0, name=b"a"), GraphError),
    "a name of an array": (lambda: hf.square(1.0, name=np.array([1, 2])), GraphError),
    "a name with a space": (lambda: hf.square(1.0, name="a b"), GraphError),
    "a scope of a number": (lambda: hf.name_scope(3).__enter__(), GraphError),
    "an op's name": (lambda: hf.get_default_graph().get_operation_by_name([]), GraphError),
    "a tensor's name": (lambda: hf.get_default_graph().get_tensor_by_name({}), GraphError),
    "a device of a number": (lambda: hf.device(3).__enter__(), PlacementError),
    "a device of a list": (lambda: hf.device(["cpu"]).__enter__(), PlacementError),
    "dependencies": (lambda: hf.control_dependencies(3).__enter__(), GraphError),
    "a flag": (lambda: hf.colocate_with(hf.no_op(), np.zeros(2)).__enter__(), GraphError),
    "a dtype": (lambda: hf.placeholder("float3"), DTypeError),
    "a dtype of a dict": (lambda: hf.cast([1.0], {"a": 1}), DTypeError),
    "a dtype to convert to": (lambda: hf.convert_to_tensor(hf.constant(1), "text"), DTypeError),
    "a shape of a text": (lambda: hf.placeholder(hf.float32, "23"), ShapeError),
    "a shape of bytes": (lambda: hf.zeros(b"23"), ShapeError),
    "a shape of a fraction": (lambda: hf.placeholder(hf.float32, [2.5]), ShapeError),
    "a shape beyond 64 bits": (lambda: hf.reshape([1.0], [2**70]), ShapeError),
    "a shape of nothing": (lambda: hf.zeros(object()), ShapeError),
    "a shape of NaN": (lambda: hf.ones([float("nan")]), ShapeError),
    "an axis of a text": (lambda: hf.nn.softmax([1.0], axis="a"), ArgumentError),
    "an axis of a list": (lambda: hf.argmax([[1.0]], axis=[0, 1]), ArgumentError),
    "an axis of a fraction": (lambda: hf.nn.log_softmax([1.0], axis=0.5), ArgumentError),
    "an axis of None": (lambda: hf.concat([[1.0], [2.0]], None), ShapeError),
    "axes in lists": (lambda: hf.reduce_sum([[1.0]], [[0], [1]]), ShapeError),
    "a count": (lambda: hf.dynamic_partition([1], [0], "two"), ArgumentError),
    "a seed": (lambda: hf.set_random_seed(float("inf")), ArgumentError),
    "a capacity": (lambda: hf.FIFOQueue("", hf.float32), ArgumentError),
    "a permutation": (lambda: hf.transpose([[1.0]], hf.constant(0)), ShapeError),
    "no parts": (lambda: hf.split([1.0, 2.0], 0), GraphError),
    "a number for a list": (lambda: hf.add_n(3), ArgumentError),
    "a list for a number": (lambda: hf.range([1, 2]), ArgumentError),
    "a number for a function": (lambda: hf.while_loop(3, 4, 5), ArgumentError),
    "a function of two": (lambda: hf.map_fn(lambda a, b: a, hf.zeros([2])), ArgumentError),
    "a function of nothing": (lambda: hf.foldl(lambda: 1.0, hf.zeros([2])), ArgumentError),
    "no sparse tensor": (lambda: hf.sparse_reorder(None), ArgumentError),
    "no variable": (lambda: hf.assign_add([], 1.0), ArgumentError),
    "no queue": (lambda: hf.QueueBase.from_list(0, ["text"]), ArgumentError),
    "no pairs": (lambda: hf.train.AdamOptimizer().apply_gradients("ab"), ArgumentError),
    "no path": (lambda: hf.train.load_variable(3, "v"), ArgumentError),
    "no hash": (lambda: hf.add_to_collection([], 1), ArgumentError),
    "no session": (lambda: hf.constant(1.0).eval(session="text"), FetchError),
    "no graph": (lambda: hf.Session(graph=2.0), GraphError),
    "no feeds": (lambda: hf.Session().run(hf.constant(1.0), [1]), FeedError),
    "no feeds by a deadline": (
        lambda: hf.Session().run(hf.constant(1.0), [1], deadline=9),
        FeedError,
    ),
    "no fetch": (lambda: hf.Session().run(np.timedelta64(1)), FetchError),
    "an endless list": (lambda: hf.check_numerics(endless(), "m"), ShapeError),
    "an endless list beside a tensor": (lambda: hf.constant(1.0) * endless(), ShapeError),
    "rows beside a tensor": (lambda: hf.constant([1.0]) - [[1], [2, 3]], ShapeError),
    "rows of what is no variable": (lambda: hf.scatter_add([1.0], [0], [1.0]), ArgumentError),
    "a handle": (lambda: hf.cast(hf.Variable(1.0).handle, hf.float32), DTypeError),
    "a tensor's name, a number": (lambda: hf.Graph().get_tensor_by_name(3), GraphError),
    "too much memory": (lambda: hf.constant(1.0, shape=[2**45]), OutOfMemoryError),
    "an operator's other side": (lambda: hf.constant(1.0) + object(), GraphError),
    "an operator of texts": (lambda: {"a": 1} - hf.constant(1.0), GraphError),
    "an index": (lambda: hf.constant([1.0])["a"], GraphError),
    "another graph's": (lambda: hf.concat([foreign(), [1.0]], 0), GraphError),
    "another graph's variable": (lambda: hf.no_op().graph.adopt(3), ArgumentError),
    "a learning rate": (
        lambda: hf.train.AdamOptimizer("fast").minimize(hf.Variable(1.0) * 1.0),
        HpcflowError,
    ),
    "a cell's width": (lambda: hf.nn.rnn_cell.GRUCell("wide"), ArgumentError),
    "a layer's kernel": (lambda: hf.layers.conv1d(hf.ones([1, 4, 2]), 1, ()), GraphError),
    "a model": (lambda: hf.onnx.prepare(3), HpcflowError),
    "a data set": (lambda: hf.data.Dataset(3, 2), HpcflowError),
}


@pytest.mark.parametrize("case", CASES)
def test_mistakes_are_said_by_errors_of_ours(case):
    call, kind = CASES[case]
    with pytest.raises(kind) as raised:
        call()
    assert isinstance(raised.value, HpcflowError)


def test_the_error_says_what_was_called_with_what_and_where():
    with pytest.raises(ArgumentError, match=r"dynamic_stitch\(5, 'text', name=None\)") as raised:
        hf.dynamic_stitch(5, "text", name=None)
    here = inspect.currentframe()
    assert here is not None
    assert raised.value.line == f"{__file__}:{here.f_lineno - 3}"
    assert isinstance(raised.value, (TypeError, ValueError)) and raised.value.__cause__ is not None


def test_an_inherited_method_is_called_by_the_class_of_the_object():
    with pytest.raises(ArgumentError, match=r"fit: AdamOptimizer\.get_slot\(") as raised:
        hf.train.AdamOptimizer(0.1).get_slot([], "m")
    assert "help(AdamOptimizer.get_slot)" in str(raised.value)
    with pytest.raises(ArgumentError, match=r"fit: LooperThread\.loop\(3, 1, 2\)"):
        hf.train.LooperThread.loop(3, 1, 2)  # a static method has no object


def test_an_error_in_a_shape_rule_names_the_operation_and_the_line():
    x = hf.placeholder(hf.float32, [2, 3])
    with pytest.raises(ShapeError, match=r"Concat.*float32 \[2, 3\]") as raised:
        hf.concat([x, x], None, name="joined")
    assert raised.value.op == "joined" and __file__ in str(raised.value.line)


def test_a_call_that_does_not_fit_the_signature_is_pythons_type_error():
    for call in (
        lambda: hf.square(),
        lambda: hf.square(1.0, no_such=2),
        lambda: hf.FIFOQueue(),
        lambda: hf.constant(1.0).eval(no_such=1),
    ):
        with pytest.raises(TypeError) as raised:
            call()
        assert type(raised.value) is TypeError


def test_an_attribute_that_a_kernel_does_not_take_is_an_error_of_the_operation():
    joined = hf.reduce_join(["a", "b"], separator=hf.placeholder(hf.float32), name="joined")
    with pytest.raises(KernelError) as raised:
        hf.Session().run(joined)
    assert raised.value.op == "joined" and __file__ in str(raised.value.line)


# -- errors of the user's own functions


class Mine(ValueError):
    pass


def raising(*args, **kwargs):
    raise Mine("mine")


def with_user_rule():
    all_ops()  # the whole table, which stays as it is
    make = hf.op("RuleThatRaises", infer=raising)
    try:
        make(hf.constant(1.0))
    finally:
        del OPS["RuleThatRaises"]


USERS = {
    "cond": lambda: hf.cond(hf.constant(True), raising, raising),
    "while": lambda: hf.while_loop(lambda i: i < 3, raising, [0]),
    "while's condition": lambda: hf.while_loop(raising, lambda i: i, [0]),
    "map_fn": lambda: hf.map_fn(raising, hf.zeros([2])),
    "scan": lambda: hf.scan(raising, hf.zeros([2])),
    "initial value": lambda: hf.Variable(raising),
    "initializer": lambda: hf.get_variable("v", [2], initializer=raising),
    "regularizer": lambda: hf.get_variable("w", [2], regularizer=raising),
    "custom_getter": lambda: hf.get_variable("u", [2], custom_getter=raising),
    "partitioner": lambda: hf.get_variable("p", [2], partitioner=raising),
    "template": lambda: hf.make_template("t", raising)(),
    "custom_gradient": lambda: hf.custom_gradient(raising)(1.0),
    "activation": lambda: hf.layers.dense(hf.ones([1, 2]), 2, activation=raising),
    "a device function": lambda: on_device(raising),
    "shape rule": with_user_rule,
    "inside a scope": lambda: scoped(raising),
}


def on_device(function):
    with hf.device(function):
        hf.constant(1.0)


def scoped(function):
    with hf.name_scope("a"), hf.device("/cpu:0"), hf.control_dependencies([]):
        with hf.variable_scope("v"):
            function()


@pytest.mark.parametrize("case", USERS)
def test_errors_of_the_users_own_functions_pass_as_they_are(case):
    with pytest.raises(Mine) as raised:
        USERS[case]()
    assert type(raised.value) is Mine


# -- nothing public is left out


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_all_that_is_public_is_guarded(module):
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) and not issubclass(value, (BaseException, tuple)):
            for method in ("__init__", *(m for m in vars(value) if not m.startswith("_"))):
                found = vars(value).get(method)
                names = {value.__name__, f"{value.__name__}.{method}"}
                if inspect.isfunction(found) and not names & LEFT_OUT:
                    assert hasattr(found, "_guards"), f"{module.__name__}.{name}.{method}"
        elif inspect.isfunction(value):
            assert hasattr(value, "_guards"), f"{module.__name__}.{name}"


LEFT_OUT = {
    "TestCase",
    "Session.run",
    *(f"Coordinator.{name}" for name in ("join", "request_stop", "raise_requested_exception")),
}


def test_one_function_is_one_object_under_all_its_names():
    assert hf.tanh is hf.nn.tanh is hf.math.tanh


# -- the tool


def test_the_tool_finds_what_is_raised_raw():
    call = Call(
        "__import__('hpcflow.ops.control_flow.assertions').ops.control_flow.assertions.assert_rank_in",
        ("3", "3"),
        (),
    )
    outcome = attempt(call)  # the function where it is defined has no guard
    assert outcome.verdict == "wrong" and outcome.error.startswith("TypeError")
    assert "ops/control_flow/assertions.py" in outcome.line


@pytest.mark.parametrize(
    ("target", "args", "verdict"),
    [
        ("hf.square", ("2.0",), "accepted"),
        ("hf.square", (), "refused"),  # by its signature
        ("hf.cond", ("True", "lambda: 1 / 0", "lambda: 1.0"), "refused"),  # the caller's own error
        ("hf.zeros", ("[-5, 3, object()]",), "refused"),
        ("hf.name_scope", ("5",), "refused"),
        ("hf.assert_rank_in", ("3", "3"), "caught"),
        ("hf.add_n", ("5",), "refused"),
        ("hf.zeros", ("[2**40]",), "accepted"),  # too large to be run
    ],
)
def test_the_tool_tells_how_a_call_ended(target, args, verdict):
    assert attempt(Call(target, args, ())).verdict == verdict


def test_the_tool_is_a_function_of_its_seed():
    known = fuzz_api.targets()
    assert fuzz_api.drawn(3, 20, known) == fuzz_api.drawn(3, 20, known)
    assert fuzz_api.drawn(3, 20, known) != fuzz_api.drawn(4, 20, known)
    assert {"hf.matmul", "hf.layers.dense"} <= {t.text for t in known}


@pytest.mark.parametrize(("found", "code"), [("", 0), ("wrong", 1), ("unable", 2)])
def test_the_tools_exit_code_tells_what_it_found(found, code, monkeypatch, tmp_path, capsys):
    differences = [{"program": "hf.f()\n", "error": "TypeError: no", "line": "a.py:1: f"}]
    made = {"wrong": 0, "unable": 0, "differences": differences if found else []}
    if found:
        made[found] = 1
    monkeypatch.setattr(fuzz_api, "fuzz", lambda *_: made)
    monkeypatch.setattr(sys, "argv", ["fuzz_api.py", "--json", str(tmp_path / "found.json")])
    assert fuzz_api.main() == code
    assert json.loads((tmp_path / "found.json").read_text()) == made
    assert ("hf.f()" in capsys.readouterr().out) == bool(found)
