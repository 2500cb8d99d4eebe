"""Every operation that is exported, by the cases of the op table, run in onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime

from hpcflow.graph.graph import Graph
from hpcflow.onnx.export_emitter import exported
from hpcflow.onnx.exporter import export_model
from hpcflow.ops.array.array_ops import constant, placeholder
from hpcflow.ops.shape_inference import make
from tests.ops.cases import F32, F64, for_each_case
from tests.ops.test_table import CASES, Case, made


def kind(case: Case) -> np.dtype:
    return F32 if F32 in case.dtypes else case.dtypes[0]


def elsewhere(case: Case) -> str:
    """Why a case is not for onnxruntime; "" if it is."""
    arrays = made(case, kind(case))
    empty = any(a.size == 0 for a in arrays)
    if case.type in ("MaxPool", "AvgPool") and (empty or arrays[0].dtype.kind == "i"):
        return "pooling of no channels, or of integers"
    if case.type == "AvgPool" and any(d != 1 for d in case.attrs["dilations"]):
        return "since opset 19"
    if (case.type in ("Fill", "Tile") and len(arrays) > 1) or case.attrs.get("shape", 0) is None:
        return "the rank of its output is not known"
    if case.type == "Cast" and case.attrs["dtype"].kind == "c":
        return "there are no complex numbers"
    if case.type == "StridedSlice" and any(
        isinstance(part[-1], tuple) for part in case.attrs["key"]
    ):
        return "a step must be known" if case.attrs["key"][0][0] == "slice" else ""
    if case.type == "Where" and arrays[0].ndim == 0:
        return "does not support scalars"
    if getattr(case.attrs.get("dtype"), "kind", "") == "O":
        return "strings are not exported"
    if case.type == "Einsum" and "..." in case.attrs["equation"]:
        return "further axes are not broadcast there"
    if case.type == "Pad" and empty:
        return "nothing is padded there"
    return "the mean of nothing is 0 there" if case.type == "Mean" and empty else ""


def computes(case: Case) -> bool:
    """True for a case of numbers that ONNX computes with."""
    return case.type in exported() and all(a.dtype.kind in "biuf" for a in made(case, kind(case)))


REAL = [case for case in CASES if computes(case)]
HERE = [case for case in REAL if not elsewhere(case)]


@for_each_case(HERE)
def test_onnxruntime_computes_what_the_oracle_does(case: Case) -> None:
    arrays = made(case, kind(case))
    with Graph().as_default():
        inputs = [placeholder(a.dtype, a.shape, f"x{i}") for i, a in enumerate(arrays)]
        if case.type == "ConvInputGrad":  # ONNX takes its shape as attributes
            inputs[2:] = [constant(a) for a in arrays[2:]]
        if case.type == "Roll":  # its axes must be known
            inputs[2] = constant(arrays[2])
        op = make(case.type, inputs, case.attrs)
        model = export_model(op.outputs, [t for t in inputs if t.constant is None], {})
    session = onnxruntime.InferenceSession(model.SerializeToString())
    got = session.run(None, {v.name: arrays[int(v.name[1:])] for v in session.get_inputs()})
    wide = [a.astype(F64) if a.dtype.kind == "f" else a for a in arrays]
    wanted = case.oracle(*wide)
    for g, w in zip(got, wanted if isinstance(wanted, tuple) else [wanted], strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)


def test_every_operation_that_is_exported_is_tried() -> None:
    assert exported() - {case.type for case in HERE} <= {"PlaceholderWithDefault"}
