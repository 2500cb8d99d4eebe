"""The graph: names, scopes, devices, order, and what it refuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import hpcflow as hf
from hpcflow.errors import DTypeError, GraphError, HpcflowError, PlacementError, ShapeError
from hpcflow.graph import device_names
from hpcflow.graph.dtypes import as_array, as_dtype
from hpcflow.graph.graph import as_operation
from hpcflow.graph.op_registry import NoGrad, lookup_op, op
from hpcflow.graph.static_shape import (
    as_shape,
    broadcast_shapes,
    merge_shapes,
    normalize_axes,
    shape_text,
    size_of,
)
from tests.ops.evaluate import evaluate


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


# -- names


def test_names_are_numbered() -> None:
    x = hf.constant(1.0, name="x")
    names = [hf.identity(x, name="y").op.name for _ in range(3)]
    assert names == ["y", "y_1", "y_2"]
    assert hf.exp(x).name == "Exp:0"


def test_a_numbered_name_that_is_taken() -> None:
    names = [hf.constant(1, name=n).op.name for n in ("a_1", "a", "a", "a")]
    assert names[0] == "a_1" and len(set(names)) == 4


def test_name_scopes(graph: hf.Graph) -> None:
    with hf.name_scope("a"):
        assert hf.constant(1, name="x").op.name == "a/x"
        with hf.name_scope("b") as full:
            assert full == "a/b/"
            assert hf.constant(1, name="x").op.name == "a/b/x"
        with hf.name_scope(None):
            assert hf.constant(1, name="x").op.name == "x"
        with hf.name_scope(full):
            assert hf.constant(1, name="x").op.name == "a/b/x_1"
    with hf.name_scope("a"):
        assert hf.constant(1, name="x").op.name == "a_1/x"
    with pytest.raises(ZeroDivisionError), hf.name_scope("c"):
        1 / 0  # noqa: B018
    assert hf.constant(1, name="y").op.name == "y"
    assert graph.get_operation_by_name("a/b/x").type == "Const"


def test_an_exact_name_twice(graph: hf.Graph) -> None:
    hf.constant(1, name="exact/")
    with pytest.raises(GraphError, match="'exact' already"):
        hf.constant(1, name="exact/")


@pytest.mark.parametrize("name", ["", "with space", "ümlaut", "-x", "a:0"])
def test_what_cannot_be_a_name(graph: hf.Graph, name: str) -> None:
    with pytest.raises(GraphError, match="cannot be a name"):
        graph.unique_name(name)


def test_looking_up(graph: hf.Graph) -> None:
    x = hf.constant(1, name="weights")
    assert graph.get_tensor_by_name("weights:0") is x
    for name, says in [("weight:0", "did you mean weights"), ("weights", "write 'weights:0'")]:
        with pytest.raises(GraphError, match="weight") as info:
            graph.get_tensor_by_name(name)
        assert says in str(info.value)
    with pytest.raises(GraphError, match="1 outputs"):
        graph.get_tensor_by_name("weights:1")


def test_collections(graph: hf.Graph) -> None:
    v = hf.Variable([1.0])
    w = hf.Variable([1.0], trainable=False)
    assert graph.get_collection("variables") == hf.global_variables() == [v, w]
    assert hf.trainable_variables() == [v]
    graph.get_collection("variables").clear()
    assert len(hf.global_variables()) == 2
    assert hf.get_collection("none such") == []


# -- devices

NEEDS = st.builds(
    device_names.Requirement,
    st.booleans(),
    st.sets(
        st.builds(device_names.Reservation, st.integers(1, 9), st.integers(1, 10**15)), max_size=2
    ).map(lambda found: tuple(sorted(found))),
    st.sets(st.tuples(st.sampled_from(["worker", "ps"]), st.integers(0, 9)), max_size=2).map(
        lambda found: tuple(sorted(found))
    ),
)
PARTS = st.builds(
    device_names.DeviceName,
    st.none() | st.sampled_from(["worker", "ps"]),
    st.none() | st.integers(0, 9),
    st.none() | st.sampled_from(["cpu", "gpu"]),
    st.none(),
    NEEDS,
)


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("", ""),
        ("/job:ps", "/job:ps"),
        ("/job:worker/task:3/gpu:0", "/job:worker/task:3/gpu:0"),
        ("/job:worker/replica:0/task:3/device:GPU:1", "/job:worker/task:3/gpu:1"),
        ("gpu:*", "/gpu"),
        ("/cpu", "/cpu"),
        ("/task:7", "/task:7"),
        ("job:ps", "/job:ps"),
    ],
)
def test_device_names(text: str, means: str) -> None:
    assert str(device_names.parse_device(text)) == means


@pytest.mark.parametrize(
    "text", ["/job:", "/job:ps/", "cpu:0/!", "/task:x", "a b", "/task", "/job"]
)
def test_what_is_no_device(graph: hf.Graph, text: str) -> None:
    with pytest.raises(PlacementError, match="not a device name"), graph.device(text):
        pass


@given(PARTS)
def test_a_device_name_reads_as_it_prints(name: device_names.DeviceName) -> None:
    assert device_names.parse_device(str(name)) == name
    assert name.matches(name)


@given(PARTS, PARTS)
def test_inner_devices_win(inner: device_names.DeviceName, outer: device_names.DeviceName) -> None:
    both = inner.within(outer)
    assert inner.matches(both._replace(index=inner.index))
    assert both.needs.both(inner.needs) == both.needs == both.needs.both(outer.needs)
    assert both.within(outer) == both
    assert device_names.DeviceName().within(outer) == outer


def test_device_scopes() -> None:
    with hf.device("/job:worker/task:1"):
        assert hf.constant(1).device == "/job:worker/task:1"
        with hf.device("gpu:0"):
            assert hf.constant(1).device == "/job:worker/task:1/gpu:0"
        with hf.device("/job:ps"):  # another job: the task is not meant
            assert hf.constant(1).device == "/job:ps"
        with hf.device(None):
            assert hf.constant(1).device == ""
    assert hf.constant(1).device == ""


def test_a_device_function() -> None:
    places = {"Variable": "/job:ps"}
    with hf.device(lambda o: places.get(o.type, "/job:worker")):
        v = hf.Variable([1.0])
        assert (v.device, (v * 2).device) == ("/job:ps", "/job:worker")


def test_colocation() -> None:
    with hf.device("/job:ps/task:1"):
        v = hf.Variable([1.0], name="v")
    with hf.device("/job:worker"), hf.colocate_with(v):
        x = hf.constant(1)
        with hf.colocate_with(x):
            y = hf.constant(2)
    assert (x.op.colocate, x.device) == (("v",), "")
    assert y.op.colocate == ("v", x.op.name)
    with hf.device("/job:worker"):
        assert v.assign([2.0]).op.colocate == ("v",)
        assert v.value().op.colocate == ("v",) and v.value().device == ""


# -- order


def test_control_dependencies() -> None:
    a, b = hf.no_op(), hf.constant(1.0)
    with hf.control_dependencies([a, b]):
        x = hf.constant(2.0)
        y = hf.exp(b)
        with hf.control_dependencies([x]):
            z = hf.no_op()
        with hf.control_dependencies(None):
            free = hf.constant(3.0)
    assert x.op.control_inputs == (a, b.op)
    assert y.op.control_inputs == (a,)  # b comes first anyway
    assert z.control_inputs == (a, b.op, x.op)
    assert free.op.control_inputs == ()


def test_group_and_initializers() -> None:
    v, w = hf.Variable([1.0]), hf.Variable([2.0])
    init = hf.global_variables_initializer()
    assert set(init.control_inputs) == {v.initializer, w.initializer}
    state: dict = {}
    evaluate(init, state=state)
    assert {k: x.tolist() for k, x in state.items()} == {"Variable": [1], "Variable_1": [2]}
    read = v.value()
    assert hf.group(v, init, read).control_inputs == (v.op, init, read.op)
    with hf.Graph().as_default():
        assert hf.global_variables_initializer().control_inputs == ()


def test_default_names_of_operations_without_outputs_are_tensorflows() -> None:
    x = hf.get_variable("x", [2])
    assert [hf.no_op().name, hf.no_op().name] == ["NoOp", "NoOp_1"]
    assert [hf.group(x).name, hf.group(x.op, name="all").name] == ["group_deps", "all"]
    hf.global_variables_initializer()
    assert hf.local_variables_initializer().name == "init_1"


def test_variables_stand_outside_control_scopes() -> None:
    with hf.control_dependencies([hf.no_op()]):
        v = hf.Variable([1.0])
        assert len(v.value().op.control_inputs) == 1
        assert len(v.read_value().op.control_inputs) == 1
        (update,) = v.assign([2.0]).op.control_inputs
        assert update.type == "Assign" and len(update.control_inputs) == 1
    assert v.initializer.control_inputs == v.fetched.op.control_inputs == ()


def test_a_variables_shape_must_be_known() -> None:
    with pytest.raises(ShapeError, match=r"\[\?, 2\]"):
        hf.Variable(hf.placeholder("float32", [None, 2]))
    assert hf.Variable(lambda: [1.0, 2.0]).shape == (2,)
    assert hf.Variable(1, dtype="float64").dtype == hf.float64


# -- what it refuses


def test_a_finalized_graph(graph: hf.Graph) -> None:
    x = hf.constant(1.0)
    version = graph.version
    graph.finalize()
    with pytest.raises(GraphError, match="a Exp cannot be added") as info:
        hf.exp(x)
    assert "test_graph.py:" in str(info.value.line)
    assert graph.version == version


def test_an_operation_cannot_be_altered() -> None:
    x = hf.reshape(hf.constant([1.0, 2.0]), [2, 1])
    with hf.Session() as session:
        session.run(x)
    changes = [
        lambda: setattr(x.op, "inputs", ()),
        lambda: setattr(x.op, "device", "/cpu:0"),
        lambda: x.op.attrs.update(shape=(1, 2)),
        lambda: x.op.attrs.__setitem__("shape", (1, 2)),
        lambda: x.op.attrs.pop("shape"),
    ]
    for change in changes:
        with pytest.raises(
            GraphError, match="'Reshape' is in the graph and cannot be changed"
        ) as info:
            change()
        assert "test_graph.py:" in str(info.value.line)
    assert {**x.op.attrs, "more": 1}["more"] == 1


def test_tensors_of_another_graph() -> None:
    x = hf.constant(1.0)
    with (
        hf.Graph().as_default(),
        pytest.raises(GraphError, match="'Const:0' belongs to another graph"),
    ):
        hf.exp(x)


def test_a_failed_op_leaves_nothing(graph: hf.Graph) -> None:
    before = graph.get_operations()
    x, y = hf.zeros([2]), hf.zeros([3])
    for _ in range(2):
        with pytest.raises(ShapeError):
            hf.add(x, y, name="sum")
    assert graph.get_operations() == [*before, x.op, y.op]


def test_set_shape() -> None:
    x = hf.placeholder("float32", [None, 3])
    x.set_shape([2, None])
    assert x.shape == x.get_shape() == (2, 3)
    for bad in ([4, 3], [2], [None, None, 3]):
        with pytest.raises(
            ShapeError, match=r"'Placeholder' has shape \[2, 3\], which cannot be"
        ) as raised:
            x.set_shape(bad)
        assert raised.value.op == "Placeholder"
        assert raised.value.line.startswith(__file__) and raised.value.line != x.op.line
        assert raised.value.hint.endswith(x.op.line)


def test_the_shape_of_a_variable_is_known() -> None:
    v = hf.get_variable("v", [2, 3])
    v.set_shape([None, 3])
    assert v.shape == (2, 3)
    with pytest.raises(
        ShapeError, match=r"'v' has shape \[2, 3\], which cannot be set to \[3, 3\]"
    ) as raised:
        v.set_shape([3, 3])
    assert raised.value.op == "v" and raised.value.line.startswith(__file__)


def test_the_op_table() -> None:
    with pytest.raises(GraphError, match="already in the table"):
        op("Add", infer=lambda inputs, attrs: [], grad=NoGrad("a second one"))
    with pytest.raises(GraphError, match="no op 'Nonsense'"):
        lookup_op("Nonsense")
    assert (
        lookup_op("Add").pure and not lookup_op("ReadVariable").pure and not lookup_op("NoOp").pure
    )


def test_what_is_no_operation() -> None:
    x = hf.constant(1)
    assert as_operation(x) is as_operation(x.op) is x.op
    with pytest.raises(GraphError, match="'x' is not an operation"):
        as_operation("x")
    with pytest.raises(GraphError):
        hf.no_op().graph.get_operation_by_name("x")


def test_errors_print_what_where_and_what_next() -> None:
    error = HpcflowError("it broke", op="a/b", line="model.py:3", rank=2, hint="mend it")
    assert str(error).splitlines() == [
        *["it broke", "  op       a/b", "  made at  model.py:3", "  rank     2"],
        "  next     mend it",
    ]
    assert str(HpcflowError("only this")) == "only this"


def test_consumers() -> None:
    x = hf.constant(1.0)
    y, z = hf.exp(x), x * x
    assert x.consumers() == [y.op, z.op]
    assert repr(x) == "<hf.Tensor 'Const:0' shape=[] dtype=float32>"
    assert repr(y.op) == "<hf.Operation 'Exp' type=Exp>"


# -- default graphs


def test_default_graphs_nest(graph: hf.Graph) -> None:
    other = hf.Graph()
    with other.as_default():
        assert hf.get_default_graph() is other
        with graph.as_default():
            assert hf.get_default_graph() is graph
            with pytest.raises(GraphError, match="as_default"):
                hf.reset_default_graph()
        assert hf.get_default_graph() is other
    assert hf.get_default_graph() is graph


def test_default_graphs_are_a_threads_own(graph: hf.Graph) -> None:
    seen = []

    def look() -> None:
        seen.append(hf.get_default_graph())
        with hf.device("/job:ps"), graph.as_default(), hf.name_scope("t"):
            seen.append(hf.constant(1, name="x"))

    with hf.device("/job:worker"), hf.name_scope("main"):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert seen[0] is not graph
    assert (seen[1].op.name, seen[1].device) == ("t/x", "")


def test_threads_build_one_graph(graph: hf.Graph) -> None:
    def build() -> None:
        with graph.as_default():
            for _ in range(200):
                hf.constant(1, name="x")

    threads = [threading.Thread(target=build) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    ops = graph.get_operations()
    assert len({o.name for o in ops}) == graph.version == 800
    assert [o.index for o in ops] == list(range(800))


def test_reset_default_graph() -> None:
    seen = []

    def reset() -> None:
        first = hf.get_default_graph()
        hf.reset_default_graph()
        seen.append(hf.get_default_graph() is not first)

    thread = threading.Thread(target=reset)
    thread.start()
    thread.join()
    assert seen == [True]


# -- shapes and dtypes


@given(hnp.mutually_broadcastable_shapes(num_shapes=3, max_side=4))
def test_broadcast_is_numpys(shapes) -> None:
    assert broadcast_shapes(shapes.input_shapes) == shapes.result_shape


@pytest.mark.slow
@given(hnp.mutually_broadcastable_shapes(num_shapes=2, min_side=0, max_side=3), st.data())
def test_broadcast_of_partly_known_shapes(shapes, data) -> None:
    hidden = [
        tuple(None if data.draw(st.booleans()) else d for d in s) for s in shapes.input_shapes
    ]
    merge_shapes(broadcast_shapes(hidden), shapes.result_shape)
    assert broadcast_shapes([hidden[0], None]) is None


@given(st.lists(st.none() | st.integers(0, 3), max_size=3), st.data())
def test_merge(shape, data) -> None:
    full = tuple(data.draw(st.integers(0, 3)) if d is None else d for d in shape)
    assert merge_shapes(tuple(shape), full) == merge_shapes(full, tuple(shape)) == full
    assert merge_shapes(None, full) == full
    assert size_of(full) == np.prod(full)


def test_shapes() -> None:
    assert as_shape([None, -1, 3]) == (None, None, 3)
    assert as_shape(4) == (4,) and as_shape(None) is None and as_shape([]) == ()
    for wrong in ([-2], "ab", [1.5, "x"], 2.5):
        with pytest.raises(ShapeError):
            as_shape(wrong)
    assert shape_text((None, 3)) == "[?, 3]" and shape_text(None) == "[unknown rank]"
    assert normalize_axes([-1, 0], 3) == (0, 2) and normalize_axes(None, 2) == (0, 1)
    with pytest.raises(ShapeError, match="different ranks"):
        merge_shapes((1,), (1, 1))


def test_dtypes() -> None:
    assert as_dtype("float32") == as_dtype(np.float32) == hf.float32
    assert as_dtype(float) == hf.float32 and as_dtype(bool) == hf.bool
    for wrong in ("nonsense", "datetime64[s]", object, list):
        with pytest.raises(DTypeError):
            as_dtype(wrong)
    assert as_array([]).dtype == hf.float32
    assert as_array(2**31).dtype == hf.int64 and as_array(-(2**31)).dtype == hf.int32
