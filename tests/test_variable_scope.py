"""Variables by name: the names, sharing and errors that TensorFlow 1 documents."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import DTypeError, GraphError, ShapeError, VariableNameError
from tests.ops.evaluate import evaluate


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def op_here() -> str:
    return hf.constant(1.0, name="x").op.name


# -- names


def test_names_of_variables_and_operations() -> None:
    with hf.variable_scope("a") as a:
        assert hf.get_variable("w", [1]).name == "a/w"
        assert (a.name, a.original_name_scope) == ("a", "a/")
        with hf.variable_scope("b") as b:
            assert (hf.get_variable("w", [1]).name, op_here()) == ("a/b/w", "a/b/x")
        with hf.variable_scope("b", reuse=True) as again:
            assert (hf.get_variable("w", [1]).name, op_here()) == ("a/b/w", "a/b_1/x")
            assert again.original_name_scope == "a/b_1/"
            with hf.variable_scope(a) as outer:
                assert (outer.name, outer.reuse) == ("a", False)
                assert (hf.get_variable("z", [1]).name, op_here()) == ("a/z", "a/b_1/a/x")
                assert outer.original_name_scope == "a/"
    with hf.variable_scope("a"):
        assert op_here() == "a_1/x"
    with hf.variable_scope("q/r") as q:
        assert (q.name, op_here(), hf.get_variable("v", [1]).name) == ("q/r", "q/r/x", "q/r/v")
    with hf.variable_scope(b):
        assert op_here() == "b/x"


def test_default_names_are_numbered_anew_in_each_entry() -> None:
    for ops in ("outer", "outer_1"):
        with hf.variable_scope("outer"):
            with hf.variable_scope(None, "inner") as s:
                assert (s.name, op_here()) == ("outer/inner", f"{ops}/inner/x")
            with hf.variable_scope(None, "inner") as s:
                assert (s.name, op_here()) == ("outer/inner_1", f"{ops}/inner_1/x")
    with hf.variable_scope("given", "ignored") as s:
        assert s.name == "given"
    with pytest.raises(GraphError, match="needs a name"), hf.variable_scope(None):
        pass
    with pytest.raises(VariableNameError, match="nothing to reuse"):
        with hf.variable_scope(None, "new", reuse=True):
            pass


def test_name_scopes_are_for_operations_and_plain_variables() -> None:
    with hf.name_scope("ns"):
        assert hf.get_variable("v", [1]).name == "v"
        assert hf.Variable([1.0], name="u").name == "ns/u"
        with hf.variable_scope("vs"):
            assert hf.get_variable("v", [1]).name == "vs/v"
            assert hf.Variable([1.0], name="u").name == "ns/vs/u"
    with hf.variable_scope("no", auxiliary_name_scope=False) as no:
        assert (hf.get_variable("v", [1]).name, op_here()) == ("no/v", "x")
        assert no.original_name_scope == ""


def test_the_graph_of_values() -> None:
    other = hf.Graph()
    with other.as_default():
        t = hf.constant(1.0)
    with hf.name_scope("n", None, [3, t]), hf.variable_scope("v", values=[t]):
        assert hf.constant(2.0).graph is other
        assert hf.get_variable("w", [1]).graph is other
    assert hf.constant(2.0).graph is not other


# -- sharing


def test_reuse() -> None:
    with hf.variable_scope("s") as scope:
        w = hf.get_variable("w", [2, 3])
        with pytest.raises(VariableNameError, match="'s/w' exists already") as info:
            hf.get_variable("w", [2, 3])
        assert isinstance(info.value, ValueError) and "test_variable_scope.py" in str(info.value)
        scope.reuse_variables()
        assert hf.get_variable("w", [2, 3]) is hf.get_variable("w") is w
        with hf.variable_scope("inner"), pytest.raises(VariableNameError, match="s/inner/w"):
            hf.get_variable("w", [1])
    with hf.variable_scope("s", reuse=False), pytest.raises(VariableNameError):
        hf.get_variable("w", [2, 3])
    with hf.variable_scope(scope, reuse=False):  # as TensorFlow 1: a scope keeps its reuse
        assert hf.get_variable("w", [2, 3]) is w
    with hf.variable_scope("s", reuse=True):
        for shape, dtype in (([3, 2], None), ([2, 3], "float64")):
            with pytest.raises(VariableNameError, match=r"'s/w' (has shape|is float32)"):
                hf.get_variable("w", shape, dtype)
        assert hf.get_variable("w", [None, 3]) is w


def test_auto_reuse() -> None:
    made = []
    for _ in range(2):
        with hf.variable_scope("s", reuse=hf.AUTO_REUSE), hf.variable_scope("t"):
            made.append(hf.get_variable("w", [2]))
    assert made[0] is made[1]
    assert [v.name for v in hf.global_variables()] == ["s/t/w"]


def test_a_plain_variable_is_not_shared() -> None:
    hf.Variable([1.0], name="w")
    with hf.variable_scope("", reuse=True), pytest.raises(VariableNameError, match="not made by"):
        hf.get_variable("w", [1])
    assert hf.get_variable("w", [1]).name == "w_1"


def test_scopes_belong_to_thread_and_graph(graph: hf.Graph) -> None:
    seen: list[str] = []

    def look() -> None:
        with graph.as_default():
            seen.append(hf.get_variable_scope().name)
            seen.append(hf.get_variable("w", [1]).name)

    with hf.variable_scope("main"):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        with hf.Graph().as_default():
            assert hf.get_variable_scope().name == ""
        assert hf.get_variable_scope().name == "main"
    assert seen == ["", "w"]


def test_an_exception_leaves_the_scope() -> None:
    with pytest.raises(ZeroDivisionError), hf.variable_scope("a"):
        1 / 0  # noqa: B018
    assert hf.get_variable_scope().name == "" and op_here() == "x"


# -- what a scope says


def test_defaults_of_a_scope() -> None:
    with hf.variable_scope("a", initializer=hf.constant_initializer(3.0), dtype="float64"):
        w = hf.get_variable("w", [2])
        with hf.variable_scope("b", initializer=hf.ones_initializer) as b:
            v = hf.get_variable("v", [2])
            b.set_dtype("float32")
            u = hf.get_variable("u", [2], initializer=hf.zeros_initializer())
    assert (w.dtype, v.dtype, u.dtype) == (hf.float64, hf.float64, hf.float32)
    values = evaluate([w.initial_value, v.initial_value, u.initial_value])
    assert [x.tolist() for x in values] == [[3, 3], [1, 1], [0, 0]]


def test_regularizers() -> None:
    def twice(v: hf.Variable) -> hf.Tensor:
        return hf.multiply(v, 2.0, name="l")

    with hf.variable_scope("reg", regularizer=twice):
        w = hf.get_variable("w", [1], initializer=hf.ones_initializer())
        hf.get_variable("free", [1], regularizer=hf.no_regularizer)
    with hf.variable_scope("reg", reuse=True, regularizer=twice):
        assert hf.get_variable("w", [1]) is w
    losses = hf.get_collection(hf.GraphKeys.REGULARIZATION_LOSSES)
    assert [t.name for t in losses] == ["reg/w/Regularizer/l:0"]
    assert losses[0].op.colocate == ("reg/w",)


def test_custom_getters() -> None:
    def adds(suffix: str) -> Any:
        return lambda getter, name, *args, **kwargs: getter(name + suffix, *args, **kwargs)

    with hf.variable_scope("s", custom_getter=adds("_1")):
        with hf.variable_scope("t", custom_getter=adds("_2")):
            assert hf.get_variable("v", [1]).name == "s/t/v_2_1"
        assert hf.get_variable("v", [1], custom_getter=adds("_3")).name == "s/v_1_3"
    with hf.variable_scope("d", custom_getter=lambda getter, **kw: getter(**kw) * 2.0):
        doubled = hf.get_variable("v", initializer=[1.0, 2.0])
    assert evaluate(doubled, state={"d/v": np.array([1, 2], "f4")}).tolist() == [2, 4]


def test_initial_values() -> None:
    seen: list[Any] = []

    def of_shape(shape: Any, dtype: Any) -> hf.Tensor:
        seen.append((shape, dtype))
        return hf.zeros(shape, dtype)

    assert hf.get_variable("a", [2, 3], initializer=of_shape).shape == (2, 3)
    assert seen == [([2, 3], hf.float32)]
    assert hf.get_variable("b", initializer=lambda: hf.ones([4])).shape == (4,)
    assert hf.get_variable("c", initializer=[1.0, 2.0], dtype="float64").dtype == hf.float64
    assert hf.get_variable("d", [], hf.int32).dtype == hf.int32
    assert hf.get_variable("e", initializer=hf.constant(1.0)).initial_value.op.name == "Const"
    assert hf.get_variable("g", initializer=hf.constant(1.0, "float64")).dtype == hf.float64
    assert hf.get_variable("h", initializer=3).dtype == hf.int32
    with pytest.raises(DTypeError, match="its initial value is float64"):
        hf.get_variable("f", dtype="float32", initializer=hf.constant(1.0, "float64"))
    with pytest.raises(ShapeError, match="its initial value"):
        hf.get_variable("f", [3], initializer=[1.0, 2.0])
    for shape in (None, [None, 2]):
        with pytest.raises(ShapeError, match="the new variable 'f'"):
            hf.get_variable("f", shape)
    assert hf.get_variable("f", [2]).name == "f"  # nothing was left behind


# -- collections


def test_collections() -> None:
    with hf.variable_scope("a"):
        v = hf.get_variable("v", [1])
        w = hf.get_variable("w", [1], trainable=False, collections=["mine", "variables"])
    u = hf.Variable([1.0], collections=["mine"])
    assert hf.global_variables() == [v, w] and hf.global_variables("a/v") == [v]
    assert hf.get_collection("mine") == [w, u] and hf.get_collection("mine", "a/") == [w]
    assert hf.trainable_variables() == [v, u] and hf.trainable_variables("nothing") == []
    hf.add_to_collections(["x", "y", "x"], 3)
    assert hf.get_collection("x") == hf.get_collection("y") == [3]
    assert hf.get_collection("x", scope="a") == []  # it has no name
    hf.get_collection_ref("x").append(4)
    assert hf.get_collection("x") == [3, 4]
    graph = hf.get_default_graph()
    assert {"mine", "variables", "x", "y"} <= set(graph.get_all_collection_keys())
    graph.clear_collection("x")
    assert hf.get_collection("x") == []


def test_local_variables() -> None:
    v = hf.get_local_variable("v", [2], initializer=hf.ones_initializer())
    assert hf.local_variables() == [v] and hf.global_variables() == []
    assert not v.trainable and hf.trainable_variables() == []
    state: dict = {}
    evaluate(hf.local_variables_initializer(), state=state)
    assert state["v"].tolist() == [1, 1]
    with pytest.raises(TypeError, match="trainable"):
        hf.get_local_variable("u", [2], trainable=True)
    with hf.Graph().as_default():
        assert hf.local_variables_initializer().control_inputs == ()


# -- templates


def test_templates() -> None:
    def layer(x: Any, size: int) -> tuple[Any, Any]:
        w = hf.get_variable("w", [size], initializer=hf.ones_initializer())
        return w, x * w

    t = hf.make_template("layer", layer, size=2)
    assert t.variables == [] and t.variable_scope is None
    (a, _), (b, y) = t(1.0), t(3.0)
    assert a is b and a.name == "layer/w" and y.op.name == "layer_1/Mul"
    assert t.variables == t.trainable_variables == [a] and t.name == "layer"
    assert hf.make_template("layer", layer, size=2)(1.0)[0].name == "layer_1/w"
    now = hf.make_template("layer", layer, create_scope_now_=True, size=2)
    assert now.variable_scope is not None and now.variable_scope.name == "layer_2"
    assert now(1.0)[0].name == "layer_2/w"
    with pytest.raises(VariableNameError, match="exists already"):
        hf.make_template("layer", layer, unique_name_="layer", size=2)(1.0)


def test_a_template_makes_variables_once() -> None:
    t = hf.make_template("t", lambda: hf.Variable([1.0], name="m"))
    t()
    with pytest.raises(VariableNameError, match=r"'t_1/m' in a later call"):
        t()


# -- pieces


def test_partitioned_variables(graph: hf.Graph) -> None:
    with hf.variable_scope("p", partitioner=hf.fixed_size_partitioner(3)):
        v = hf.get_variable("v", [5, 2], initializer=np.arange(10.0).reshape(5, 2))
        assert hf.get_variable("scalar", []).shape == ()
    assert [(p.name, p.shape) for p in v] == [
        *[("p/v/part_0", (2, 2)), ("p/v/part_1", (2, 2)), ("p/v/part_2", (1, 2))]
    ]
    assert (v.name, v.shape, len(v), v.partitions) == ("p/v", (5, 2), 3, (3, 1))
    assert hf.trainable_variables("p/v") == list(v)
    state: dict = {}
    evaluate(v.initializer, state=state)
    assert evaluate(v + 1.0, state=state).tolist() == (np.arange(10).reshape(5, 2) + 1).tolist()
    assert v.value() is not v.as_tensor()
    evaluate(v.assign_add(np.full((5, 2), 2.0)), state=state)
    evaluate(v.assign_sub(np.full((5, 2), 1.0)), state=state)
    assert evaluate(v[1:4], state=state).tolist() == [[3, 4], [5, 6], [7, 8]]
    evaluate(v.assign(np.zeros((5, 2), "f4")), state=state)
    assert not any(x.any() for x in state.values())
    grads = hf.gradients(hf.reduce_sum(hf.square(v)), list(v))
    assert [g.shape for g in grads] == [(2, 2), (2, 2), (1, 2)]


def test_a_partitioned_variable_is_assigned_all_of_a_value() -> None:
    v = hf.get_variable("v", [4, 2], partitioner=hf.fixed_size_partitioner(2))
    for wrong in (np.ones([6, 2]), np.ones([3, 2]), np.ones([4, 3]), 3.0, np.ones([4])):
        with pytest.raises(ShapeError):
            v.assign(wrong)
    x = hf.placeholder(hf.float32, [None, 2])
    longer = v.assign(x)
    with hf.Session() as session:
        session.run(longer, {x: np.ones([4, 2])})
        for count in (6, 3):
            with pytest.raises(ShapeError, match="do not add up to the size of axis 0"):
                session.run(longer, {x: np.zeros([count, 2])})
        assert session.run(v).tolist() == np.ones([4, 2]).tolist()


def test_sharing_a_partitioned_variable() -> None:
    two = hf.fixed_size_partitioner(2)
    v = hf.get_variable("v", [4], partitioner=two)
    hf.get_variable("w", [4])
    with hf.variable_scope("", reuse=True):
        assert hf.get_variable("v", [4], partitioner=two) is v
        assert hf.get_variable("v", [4]) is v
        for name, cut in (("v", hf.fixed_size_partitioner(4)), ("w", two)):
            with pytest.raises(VariableNameError, match=r"was made with|is split into"):
                hf.get_variable(name, [4], partitioner=cut)


def test_pieces_know_the_whole() -> None:
    seen: list[Any] = []

    def value(shape: Any, dtype: Any, partition_info: Any) -> hf.Tensor:
        seen.append((shape, partition_info.full_shape, partition_info.var_offset))
        return hf.zeros(shape, dtype)

    hf.get_variable("v", [2, 5], initializer=value, partitioner=lambda shape, dtype: [1, 2])
    assert seen == [([2, 3], (2, 5), (0, 0)), ([2, 2], (2, 5), (0, 3))]
    wide = hf.get_variable("w", [4, 8], partitioner=hf.fixed_size_partitioner(4, axis=1))
    limits = {p.initial_value.op.attrs["maxval"] for p in wide}
    assert limits == {np.sqrt(6 / 12)}  # Glorot's, of the whole


def test_create_partitioned_variables() -> None:
    pieces = hf.create_partitioned_variables([4, 3], [1, 2], hf.ones_initializer())
    assert [(p.name, p.shape) for p in pieces] == [
        *[("PartitionedVariable/part_0", (4, 2)), ("PartitionedVariable/part_1", (4, 1))]
    ]
    for wrong in ([2, 2], [1], [5, 1], [0, 1]):
        with pytest.raises(ShapeError, match=r"do not split|cannot be split"):
            hf.create_partitioned_variables([4, 3], wrong, hf.ones_initializer())


@pytest.mark.parametrize(
    ("partitioner", "expected"),
    [
        (hf.variable_axis_size_partitioner(100), [[5, 1], [3, 1], [84, 1], [1, 1]]),
        (hf.variable_axis_size_partitioner(64, 1, max_shards=3), [[1, 3], [1, 3], [1, 2], [1, 1]]),
        (hf.min_max_variable_partitioner(7, min_slice_size=50), [[7, 1], [3, 1], [7, 1], [1, 1]]),
    ],
    ids=["bytes", "axis", "min"],
)
def test_partitioners(partitioner: Any, expected: list[list[int]]) -> None:
    shapes = ((10, 9), (3, 100), (1000, 2), (1, 1))
    assert [partitioner(shape=s, dtype=hf.float32) for s in shapes] == expected


def test_the_name_scope_of_a_variable_scope_that_adds_none() -> None:
    with hf.variable_scope("a", auxiliary_name_scope=False) as outer:
        assert outer.original_name_scope == ""
        assert hf.constant(1.0, name="c").name == "c:0"
    with (
        hf.variable_scope("outer"),
        hf.variable_scope(None, "b", auxiliary_name_scope=False) as inner,
    ):
        assert inner.original_name_scope == "outer/"
        assert hf.get_variable("w", []).name == "outer/b/w"
