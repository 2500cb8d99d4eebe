"""Importing: what becomes a variable, values that must be known, functions, subgraphs, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import hpcflow as hf
from hpcflow.errors import OnnxError, ShapeError
from hpcflow.onnx import HpcflowBackend, import_model, prepare, run_model, run_node
from hpcflow.onnx.importers.importer_table import names
from hpcflow.onnx.unsupported_operators import OPS

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as made:
        yield made


def model(text: str, head: str = HEAD, **initializers: Any) -> onnx.ModelProto:
    made = parser.parse_model(head + text)
    for name, value in initializers.items():
        made.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return made


def linear() -> onnx.ModelProto:
    return model(
        "m (float[N,2] x) => (float[N,3] y) { a = MatMul(x, w)  b = Mul(a, two)  y = Add(b, c) }",
        w=np.ones((2, 3), np.float32),
        two=np.float32(2),
        c=np.zeros(3, np.float32),
    )


def value(fetch: Any, feeds: dict[Any, Any] | None = None) -> Any:
    session = hf.Session()
    if hf.global_variables():
        session.run(hf.global_variables_initializer())
    return session.run(fetch, feeds)


# -- variables and constants


def test_floating_initializers_are_variables_scalars_are_not() -> None:
    made = import_model(linear())
    assert set(made.variables) == {"w", "c"}
    assert hf.trainable_variables() == list(made.variables.values())
    assert made.inputs["x"].shape == (None, 2) and made.outputs["y"].shape == (None, 3)
    x = np.ones((4, 2), np.float32)
    np.testing.assert_array_equal(
        value(made.outputs["y"], {made.inputs["x"]: x}), np.full((4, 3), 4)
    )


def test_trainable_chooses() -> None:
    assert not import_model(linear(), trainable=False).variables
    made = import_model(linear(), trainable=lambda name, array: name == "w")
    assert set(made.variables) == {"w"}


def test_inputs_may_be_given() -> None:
    x = hf.placeholder(hf.float32, [5, 2])
    made = import_model(linear(), {"x": x})
    assert made.inputs["x"] is x and made.outputs["y"].shape == (5, 3)
    made = import_model(linear().SerializeToString(), {"x": np.ones((1, 2), np.float32)})
    np.testing.assert_array_equal(value(made.outputs["y"]), [[4, 4, 4]])
    with pytest.raises(OnnxError, match=r"no inputs \['z'\]"):
        import_model(linear(), {"z": x})


def test_a_file_is_read(tmp_path: Any) -> None:
    onnx.save(linear(), tmp_path / "m.onnx")
    assert set(import_model(tmp_path / "m.onnx").variables) == {"w", "c"}


# -- values that must be known


SUM = "m (float[2,3] x, int64[1] axes) => (float[N] y) { y = ReduceSum <keepdims = 0> (x, %s) }"


def test_a_value_that_must_be_known_is_asked_for_by_name() -> None:
    text = SUM.replace("%s", "axes")
    with pytest.raises(OnnxError, match=r"axes of ONNX ReduceSum must be known.* 'axes'"):
        import_model(model(text))
    made = import_model(model(text), {"axes": np.array([1])})
    assert made.outputs["y"].shape == (2,)
    made = import_model(model(text.replace(", int64[1] axes", ""), axes=np.array([0])))
    assert made.outputs["y"].shape == (3,)


def test_values_are_computed_from_constants() -> None:
    text = """m (float[2,3] x) => (float[N] y) {
      one = Constant <value_ints = [1]> ()  real = Cast <to = 1> (one)
      half = Div(real, two)  axes = Cast <to = 7> (half)
      y = ReduceSum <keepdims = 0> (x, axes) }"""
    assert import_model(model(text, two=np.float32(2))).outputs["y"].shape == (3,)


def test_a_batch_of_unknown_size_goes_through_computed_shapes() -> None:
    text = """m (float[N,4,6] x) => (float[N,4,2,3] y) {
      s = Shape(x)  n = Gather(s, zero)  n1 = Unsqueeze(n, axis)
      wanted = Concat <axis = 0> (n1, rest)  y = Reshape(x, wanted) }"""
    made = import_model(model(text, zero=np.int64(0), axis=np.array([0]), rest=np.array([4, 2, 3])))
    assert made.outputs["y"].shape == (None, 4, 2, 3)
    for n in (1, 5):
        got = value(made.outputs["y"], {made.inputs["x"]: np.ones((n, 4, 6), np.float32)})
        assert got.shape == (n, 4, 2, 3)


# -- functions, subgraphs, versions


def test_functions_of_the_model_are_inlined() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    m (float[2] x) => (float[2] y) { y = own.twice <by = 3.0> (x) }
    <opset_import: ["" : 17], domain: "own">
    twice <by> (a) => (b) { f = Constant <value_float: float = @by> ()  b = Mul(a, f) }"""
    made = import_model(parser.parse_model(text), {"x": np.ones(2, np.float32)})
    np.testing.assert_array_equal(value(made.outputs["y"]), [3, 3])


BRANCH = """m (float[2] x, bool c) => (float[2] y) {
  y = If (c) <then_branch = t () => (float[2] a) { a = Add(x, x) },
              else_branch = e () => (float[2] b) { b = Neg(x) }> }"""


def test_branches_see_names_around_them() -> None:
    x = np.array([1, 2], np.float32)
    prepared = prepare(model(BRANCH))
    np.testing.assert_array_equal(prepared.run([x, np.array(True)])[0], [2, 4])
    np.testing.assert_array_equal(prepared.run([x, np.array(False)])[0], [-1, -2])


LOOP = """m (float[2] x, int64 n, bool go) => (float[2] y, float[N,2] all) {
  y, all = Loop (n, go, x) <
    body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t, float[2] u) {
      f = CastLike(i, s)  t = Add(s, f)  u = Mul(t, x)  d = Identity(c) }> }"""


def test_loops_of_any_number_of_rounds_train() -> None:
    made = import_model(model(LOOP))
    x, n, go = made.inputs.values()
    slope = hf.gradients(hf.reduce_sum(made.outputs["all"]), x)[0]
    start = np.array([1, 2], np.float32)
    for rounds in (1, 3, 5):
        sums = start + np.cumsum(np.arange(rounds, dtype=np.float32))[:, None]
        feeds = {x: start, n: np.int64(rounds), go: np.array(True)}
        y, rows, g = value([made.outputs["y"], made.outputs["all"], slope], feeds)
        np.testing.assert_allclose(y, sums[-1])
        np.testing.assert_allclose(rows, sums * start)
        np.testing.assert_allclose(g, (sums + start).sum(0), rtol=1e-6)


def test_a_branch_may_be_taken_by_a_fed_condition() -> None:
    made = import_model(model(BRANCH))
    x, c = made.inputs.values()
    slope = hf.gradients(made.outputs["y"], x)[0]
    start = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(value(slope, {x: start, c: np.array(True)}), [2, 2])
    np.testing.assert_array_equal(value(slope, {x: start, c: np.array(False)}), [-1, -1])


def test_older_operators_are_built_as_they_were() -> None:
    head = '<ir_version: 4, opset_import: ["" : %d]>'
    text = "m (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax <axis = 1> (x) }"
    x = np.zeros((2, 3, 4), np.float32)
    old = run_model(model(text, head % 11), [x])[0]
    new = run_model(model(text, head % 13), [x])[0]
    np.testing.assert_allclose(old, np.full(x.shape, 1 / 12), rtol=1e-6)
    np.testing.assert_allclose(new, np.full(x.shape, 1 / 3), rtol=1e-6)


def test_opsets_that_are_too_old_or_new_are_refused() -> None:
    text = "m (float[2] x) => (float[2] y) { y = Add(x, x) }"
    for version in (5, onnx.defs.onnx_opset_version() + 1):
        head = f'<ir_version: 4, opset_import: ["" : {version}]>'
        with pytest.raises(OnnxError, match=f"has opset {version}; supported are opsets 6 to"):
            import_model(model(text, head))


# -- errors


def test_what_is_declined_says_why() -> None:
    text = "m (float[2] x) => (uint8[2] y) { y = QuantizeLinear(x, s) }"
    with pytest.raises(OnnxError, match="ONNX QuantizeLinear: quantized"):
        import_model(model(text, s=np.float32(1)))
    with pytest.raises(OnnxError, match="STRING"):
        import_model(model("m (string[2] x) => (string[2] y) { y = Identity(x) }"))
    with pytest.raises(OnnxError, match="Nonsense: the operator is not known"):
        import_model(model("m (float[2] x) => (float[2] y) { y = Nonsense(x) }"))


def test_an_error_names_the_node() -> None:
    made = model("m (float[2] x, float[3] z) => (float[N] y) { y = Add(x, z) }")
    made.graph.node[0].name = "sum"
    with pytest.raises(ShapeError, match=r"ONNX Add 'sum': .*broadcast"):
        import_model(made)


def test_no_operator_is_both_built_and_declined() -> None:
    assert not {name for _, name in names()} & set(OPS)


# -- narrow types, the backend


def test_narrow_types_go_in_and_out() -> None:
    text = "m (bfloat16[3] x) => (int4[3] y) { y = Cast <to = 22> (x) }"
    head = '<ir_version: 10, opset_import: ["" : 21]>'
    bf16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
    x = np.array([1.5, -3, 7], np.float32).astype(bf16)
    (y,) = run_model(model(text, head), [x])
    assert y.dtype == helper.tensor_dtype_to_np_dtype(TensorProto.INT4)
    np.testing.assert_array_equal(y.astype(int), [1, -3, 7])


def test_sizes_that_a_model_leaves_open_are_those_that_are_fed() -> None:
    text = "m (float[1,1,H,W] x) => (float[1,1,N,M] y) { y = MaxPool <kernel_shape = [2, 2]> (x) }"
    with pytest.raises(OnnxError, match=r"shape of an input .*'x'"):
        import_model(model(text))
    prepared = prepare(model(text))
    for size in (3, 5):
        x = np.arange(size * size, dtype=np.float32).reshape(1, 1, size, size)
        np.testing.assert_array_equal(prepared.run([x])[0], x[..., 1:, 1:])


def test_one_node_runs() -> None:
    node = helper.make_node("LeakyRelu", ["x"], ["y"], alpha=0.5)
    (y,) = run_node(node, [np.array([-2, 3], np.float32)])
    np.testing.assert_array_equal(y, [-1, 3])
    assert HpcflowBackend.supports_device("CPU")
