"""ONNX exporter: graph -> ONNX model; variables become initializers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from hpcflow.errors import OnnxError
from hpcflow.graph.graph import Operation, Tensor
from hpcflow.graph.op_registry import lookup_op
from hpcflow.onnx.element_types import to_onnx
from hpcflow.onnx.export_emitter import Emitter, find_exporter, rank_of, refused

OPSET, IR = 17, 8  # of 2022: supported by runtimes and quantizers
NamedTensors = Mapping[str, Tensor] | Sequence[Tensor] | Tensor

EXPORT_HINTS = {  # operations absent from inference graphs -> what to do
    **dict.fromkeys(
        ("RandomUniform", "RandomNormal", "TruncatedNormal"),
        "export the graph of inference, without dropout",
    ),
    **dict.fromkeys(("PyFunc", "PyFuncStateless"), "a Python function is not in the model"),
    "Placeholder": "add it to the feeds",
    "Variable": "a handle is not a number",
}


def export_model(
    outputs: NamedTensors,
    inputs: NamedTensors,
    values: Any,
    name: str = "hpcflow",
) -> onnx.ModelProto:
    """The ONNX model that computes `outputs` from `inputs`, placeholders or other tensors.

    Both are tensors, or dicts {name in the model: tensor}; the default name is that of the
    operation. `values` gives the values of variables: a session, or a dict {variable name: array}.
    Errors: OnnxError names the operation that cannot be exported, its line, and the reason.
    """
    fetched, fed = _name_tensors(outputs), _name_tensors(inputs)
    order = _reachable_operations(list(fetched.values()), set(fed.values()))
    emitter = Emitter()
    for tensor_name, tensor in fed.items():
        emitter.names[tensor] = emitter.free(tensor_name)
    for tensor_name, tensor in fetched.items():
        if tensor in emitter.names and tensor_name in fed:
            raise OnnxError(
                f"{tensor_name!r} is both an input and an output: give the output another name"
            )
        emitter.reserve(tensor, tensor_name)
    variables = _values([op for op in order if op.type == "ReadVariable"], values)
    for op in order:
        _write_operation(emitter, op, variables)
    _finish(emitter, fetched)
    graph = helper.make_graph(
        emitter.nodes,
        name,
        [_info(tensor_name, tensor) for tensor_name, tensor in fed.items()],
        [_info(tensor_name, tensor) for tensor_name, tensor in fetched.items()],
        _used_constants(emitter),
    )
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR, producer_name="hpcflow")
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise OnnxError(f"ONNX's checker rejects the exported model: {error}") from error
    return model


def _name_tensors(tensors: NamedTensors) -> dict[str, Tensor]:
    if isinstance(tensors, Tensor):
        tensors = [tensors]
    if isinstance(tensors, Mapping):
        return dict(tensors)
    return {t.op.name if t.index == 0 else t.name: t for t in tensors}


def _reachable_operations(fetched: Sequence[Tensor], fed: set[Tensor]) -> list[Operation]:
    """The operations that the outputs depend on, in the order of the graph."""
    stack = [t.op for t in fetched if t not in fed]
    reachable = set(stack)
    while stack:
        op = stack.pop()
        if op.type == "ReadVariable":
            continue
        for t in op.inputs:
            if t not in fed and t.spec.value is None and t.op not in reachable:
                reachable.add(t.op)
                stack.append(t.op)
    return sorted(reachable, key=lambda op: op.index)


def _values(reads: Sequence[Operation], values: Any) -> dict[Operation, np.ndarray]:
    """The value of each variable that is read."""
    if not isinstance(values, Mapping):
        arrays = values.run([op.outputs[0] for op in reads]) if reads else []
        return dict(zip(reads, arrays, strict=True))
    variable_arrays = {}
    for op in reads:
        variable = op.inputs[0].op.name
        if variable not in values:
            raise OnnxError(f"variable {variable!r} has no value", op=op.name, line=op.line)
        array = np.asarray(values[variable])
        spec = op.outputs[0]
        if array.shape != spec.shape or array.dtype != spec.dtype:
            raise OnnxError(
                f"variable {variable!r} is {spec.dtype}{list(spec.shape or ())}, but its value is "
                f"{array.dtype}{list(array.shape)}",
                op=op.name,
                line=op.line,
            )
        variable_arrays[op] = array
    return variable_arrays


def _write_operation(
    emitter: Emitter, op: Operation, variables: Mapping[Operation, np.ndarray]
) -> None:
    """Emit the nodes of one operation."""
    if op.type == "ReadVariable":
        name = emitter.constant(variables[op], op.inputs[0].op.name)
        emitter.names[op.outputs[0]] = name
        return
    if all(t.spec.value is not None for t in op.outputs) and op.outputs:
        return
    if any(t.dtype.kind == "c" for t in (*op.inputs, *op.outputs)):
        raise refused(op, "ONNX does not compute with complex numbers")
    if any(t.dtype.kind == "O" for t in (*op.inputs, *op.outputs)):
        raise refused(op, "strings are not exported")
    say = find_exporter(op.type)
    if say is None:
        why = EXPORT_HINTS.get(op.type)
        if why is None:
            why = (
                "ONNX has no such operator" if lookup_op(op.type).pure else "it has or reads state"
            )
        raise refused(op, why)
    since = emitter.begin(op)
    names = say(emitter, op)
    for tensor, name in zip(op.outputs, [names] if isinstance(names, str) else names, strict=False):
        emitter.set_name(tensor, name, since)


def _finish(emitter: Emitter, fetched: Mapping[str, Tensor]) -> None:
    """Emit Identity nodes for outputs that could not get their names directly."""
    for name, tensor in fetched.items():
        emitted = emitter.name(tensor)
        if emitted != name:
            emitter.nodes.append(helper.make_node("Identity", [emitted], [name], name))


def _used_constants(emitter: Emitter) -> list[onnx.TensorProto]:
    """The constants that nodes use."""
    used_names = {name for node in emitter.nodes for name in node.input}
    return [c for c in emitter.constants if c.name in used_names]


def _info(name: str, tensor: Tensor) -> onnx.ValueInfoProto:
    """The type of an input or output; unknown sizes get names, the first axis that of the batch."""
    shape: list[int | str] = []
    for i in range(rank_of(tensor)):
        size = (tensor.shape or ())[i]
        shape.append(size if size is not None else f"{name}_{i}" if i else "batch")
    return helper.make_tensor_value_info(name, to_onnx(tensor.dtype), shape)
