"""Models that are malformed, or made to do harm: hpcflow's errors, never a crash or a file read."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hpcflow.errors import HpcflowError, OnnxError
from hpcflow.graph.graph import Graph
from hpcflow.onnx import import_model


def model() -> onnx.ModelProto:
    """Two layers, a reshape, a loop-free branch and a few attributes."""
    rng = np.random.default_rng(0)
    w = numpy_helper.from_array(rng.standard_normal((6, 4)).astype(np.float32), "w")
    b = numpy_helper.from_array(rng.standard_normal(4).astype(np.float32), "b")
    shape = numpy_helper.from_array(np.array([-1, 2, 2], np.int64), "shape")
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], alpha=0.5, name="first"),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Reshape", ["r", "shape"], ["s"]),
        helper.make_node("ReduceMean", ["s"], ["m"], axes=[1], keepdims=0),
        helper.make_node("Concat", ["m", "m"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 4])],
        [w, b, shape],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])


def imported(data: bytes | onnx.ModelProto) -> None:
    with Graph().as_default():
        import_model(data)


def refused(data: bytes | onnx.ModelProto) -> bool:
    try:
        imported(data)
    except HpcflowError as error:
        assert error.message
        return True
    return False


def test_the_model_is_good() -> None:
    assert not refused(model()) and not refused(model().SerializeToString())


@pytest.mark.parametrize("data", [b"", b"x", b"\xff" * 40, b"PK\3\4", b"\x0a" * 2000])
def test_what_is_no_model(data: bytes) -> None:
    assert refused(data)


def test_cut_off_anywhere() -> None:
    whole = model().SerializeToString()
    for end in range(0, len(whole), 3):
        refused(whole[:end])


def test_flipped_bits() -> None:
    whole, draw = model().SerializeToString(), random.Random(3)
    for _ in range(400):
        at = draw.randrange(len(whole))
        bit = 1 << draw.randrange(8)
        refused(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])


def changes(made: onnx.ModelProto) -> dict[str, object]:
    graph = made.graph
    return {
        "a tensor of 2**60 elements": lambda: graph.initializer[0].dims.__setitem__(0, 2**60),
        "a negative size": lambda: graph.initializer[0].dims.__setitem__(0, -6),
        "bytes that do not fit": lambda: setattr(graph.initializer[0], "raw_data", b"123"),
        "no such type": lambda: setattr(graph.initializer[0], "data_type", 99),
        "no such op": lambda: setattr(graph.node[0], "op_type", "Evil"),
        "no such domain": lambda: setattr(graph.node[0], "domain", "evil"),
        "no such input": lambda: graph.node[0].input.__setitem__(0, "nowhere"),
        "too few inputs": lambda: graph.node[0].ClearField("input"),
        "too many inputs": lambda: graph.node[1].input.extend(["h"] * 50),
        "an attribute of another type": lambda: (
            graph.node[4].attribute[0].CopyFrom(helper.make_attribute("axis", "x"))
        ),
        "an axis that is not there": lambda: (
            graph.node[4].attribute[0].CopyFrom(helper.make_attribute("axis", 7))
        ),
        "no output": lambda: setattr(graph.output[0], "name", "nowhere"),
        "a node of itself": lambda: graph.node[0].input.__setitem__(0, "y"),
        "no type of the input": lambda: graph.input[0].ClearField("type"),
        "a shape of 2**62": lambda: (
            graph.input[0].type.tensor_type.shape.dim[0].__setattr__("dim_value", 2**62)
        ),
    }


@pytest.mark.parametrize("what", changes(model()))
def test_what_no_model_says(what: str) -> None:
    made = model()
    changes(made)[what]()  # type: ignore[operator]
    assert refused(made) or what == "a shape of 2**62"


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "link", "sub/../../secret"])
def test_tensors_in_files_outside_are_not_read(tmp_path, location) -> None:
    (tmp_path / "secret").write_bytes(bytes(4096))
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "sub").mkdir()
    (tmp_path / "m" / "link").symlink_to(tmp_path / "secret")
    made = model()
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", location
    (tmp_path / "m" / "model.onnx").write_bytes(made.SerializeToString())
    with Graph().as_default(), pytest.raises(OnnxError):
        import_model(tmp_path / "m" / "model.onnx")
