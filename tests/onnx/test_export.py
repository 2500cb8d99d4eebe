"""Trained graphs exported, run in onnxruntime, and imported again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnxruntime
import pytest

import hpcflow as hf
from hpcflow.errors import OnnxError
from hpcflow.onnx import export_model, import_model
from tests.onnx.nets import NETS, Net, array, dense_net


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as made:
        yield made


def ready(net: Net) -> tuple[hf.Tensor, hf.Tensor, hf.Session, np.ndarray]:
    x, y = net()
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    return x, y, session, array(3, *(d for d in x.shape[1:]))


def in_onnxruntime(model: onnx.ModelProto, *arrays: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [v.name for v in session.get_inputs()]
    return session.run(None, dict(zip(names, arrays, strict=True)))


@pytest.mark.parametrize("net", NETS)
def test_onnxruntime_computes_what_the_session_does(net: Net) -> None:
    x, y, session, samples = ready(net)
    model = export_model(y, x, session)
    (made,) = in_onnxruntime(model, samples)
    np.testing.assert_allclose(made, session.run(y, {x: samples}), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("net", NETS)
def test_what_was_exported_comes_back_and_trains(net: Net) -> None:
    x, y, session, samples = ready(net)
    before = session.run(y, {x: samples})
    model = export_model({"y": y}, {"x": x}, session)
    with hf.Graph().as_default():
        made = import_model(model)
        loss = hf.reduce_mean(made.outputs["y"][..., 0])
        step = hf.train.GradientDescentOptimizer(0.05).minimize(loss)
        again = hf.Session()
        again.run(hf.global_variables_initializer())
        feeds = {made.inputs["x"]: samples}
        np.testing.assert_allclose(again.run(made.outputs["y"], feeds), before, 1e-4, 1e-5)
        first = again.run(loss, feeds)
        for _ in range(20):
            again.run(step, feeds)
        assert again.run(loss, feeds) < first - 1e-3


def test_names_are_kept() -> None:
    x, y, session, _ = ready(dense_net)
    model = export_model([y], [x], session)
    graph = model.graph
    assert [v.name for v in graph.input] == ["x"]
    assert [v.name for v in graph.output] == ["probabilities"]
    names = {i.name for i in graph.initializer}
    assert {"hidden/weights", "hidden/bias", "logits/weights", "logits/bias"} <= names
    assert graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert "Identity" not in {n.op_type for n in graph.node}
    assert model.opset_import[0].version == 17


def test_values_may_be_arrays_by_name() -> None:
    x = hf.placeholder(hf.float32, [2], name="x")
    y = x * hf.Variable([1.0, 1.0], name="scale")
    model = export_model(y, x, {"scale": np.array([2, 3], np.float32)})
    np.testing.assert_array_equal(in_onnxruntime(model, np.ones(2, np.float32))[0], [2, 3])
    with pytest.raises(OnnxError, match="variable 'scale' has no value"):
        export_model(y, x, {})
    with pytest.raises(OnnxError, match=r"float32\[2\], but its value is float32\[3\]"):
        export_model(y, x, {"scale": np.ones(3, np.float32)})


def test_a_tensor_in_the_middle_may_be_an_input() -> None:
    x = hf.placeholder(hf.float32, [2], name="x")
    half = x * 0.5
    model = export_model({"y": half + 1.0}, {"half": half}, {})
    np.testing.assert_array_equal(in_onnxruntime(model, np.ones(2, np.float32))[0], [2, 2])


def test_what_cannot_be_said_is_named() -> None:
    x = hf.placeholder(hf.float32, [2], name="x")
    noise = hf.random_uniform([2], name="noise")
    with pytest.raises(OnnxError, match=r"RandomUniform 'noise' cannot be exported: .*dropout"):
        export_model(x + noise, x, {})
    with pytest.raises(OnnxError, match="Placeholder 'x' cannot be exported: add it to the feeds"):
        export_model(x + 1.0, {}, {})
    with pytest.raises(OnnxError, match="Lgamma 'odd' cannot be exported: ONNX has no such"):
        export_model(hf.lgamma(x, name="odd"), x, {})
    z = hf.placeholder(hf.complex64, [2], name="z")
    with pytest.raises(OnnxError, match="complex numbers"):
        export_model(z + z, z, {})
    try:
        export_model(x + noise, x, {})
    except OnnxError as error:
        assert error.op == "noise" and "test_export.py" in str(error.line)
