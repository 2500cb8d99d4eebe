"""Plan cache format: plans and generated code as bytes, for a folder of the user's own.

The format is compressed JSON: numbers, texts and lists, from which records are rebuilt. No entry
names a function. A partition from another rank uses another format, which checks it
(`hpcflow.plan.serialization.partition_codec`).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hpcflow.codegen.fused_loop_ir import AxisShift, KernelBody, KernelOperand, KernelStep
from hpcflow.codegen.row_gather_scatter_codegen import RowUpdateFormula
from hpcflow.graph.dtypes import as_dtype, text_of
from hpcflow.graph.static_shape import Shape, Spec
from hpcflow.lowering.arena_allocation import Lifetime, MemoryBlock
from hpcflow.lowering.instructions import (
    Access,
    Binding,
    BindingKind,
    BufferView,
    CodeFunction,
    Instruction,
    Opcode,
    Use,
)
from hpcflow.lowering.kernel_metadata import GeneratedCode, LoweredPartition, SendInfo
from hpcflow.lowering.segments_between_waits import Segment
from hpcflow.plan.ir.program import (
    Cluster,
    Edge,
    Node,
    Partition,
    Plan,
    Program,
    Ref,
    ServerMessage,
    VariableBytes,
)

SPEED = 1  # zlib compression level: the fastest
PLAIN = (type(None), bool, int, str)  # encoded as themselves
OPCODES = {int(opcode): opcode for opcode in Opcode}
BINDINGS = {int(kind): kind for kind in BindingKind}
ACCESSES = {int(access): access for access in Access}
RECORDS = (
    *(
        Node,
        Partition,
        Program,
        Edge,
        VariableBytes,
        ServerMessage,
        MemoryBlock,
        Lifetime,
        Segment,
        SendInfo,
        GeneratedCode,
        LoweredPartition,
    ),
    *(KernelBody, KernelOperand, AxisShift, KernelStep, RowUpdateFormula, CodeFunction),
)


def encode_plan(plan: Plan, driver_code: LoweredPartition) -> bytes:
    """Encode a plan; `driver_code` is the generated code of the driver's partition.

    Errors: TypeError if the plan contains a value that is not plain data.
    """
    data = [encode_value(driver_code), _encode_plan(plan, without=plan.driver)]
    return zlib.compress(json.dumps(data, separators=(",", ":")).encode(), SPEED)


def decode_plan(data: bytes, cluster: Cluster) -> tuple[Plan, LoweredPartition]:
    """Return the plan, made for `cluster`, and the generated code of its driver's partition."""
    encoded_driver, plan = json.loads(zlib.decompress(data))
    generated = decode_value(encoded_driver)
    return _decode_plan(plan, cluster, {generated.part.task: generated.part}), generated


def encode_lowered(lowered: LoweredPartition) -> bytes:
    """Encode the code of a partition. Errors: TypeError if a value is not plain data."""
    return zlib.compress(json.dumps(encode_value(lowered), separators=(",", ":")).encode(), SPEED)


def decode_lowered(data: bytes) -> LoweredPartition:
    """Return the code in `data`."""
    return decode_value(json.loads(zlib.decompress(data)))


def _encode_plan(plan: Plan, without: str = "") -> list[Any]:
    parts = {task: part for task, part in plan.parts.items() if task != without}
    after = None if plan.round is None else _encode_plan(plan.round)
    about = plan.reasons, plan.updates, plan.messages, plan.forecast, plan.task_seconds
    fields = [parts, plan.edges, plan.driver, *about, plan.warnings]
    return [encode_value(fields), plan.cluster.lead, after]


def _decode_plan(data: list[Any], cluster: Cluster, decoded_parts: Mapping[str, Partition]) -> Plan:
    fields, lead, after = data
    parts, edges, driver, why, updates, messages, *automatic = decode_value(fields)
    cluster = dataclasses.replace(cluster, lead=lead)
    all_parts = {**decoded_parts, **parts}
    there = None if after is None else _decode_plan(after, cluster, {})
    return Plan(all_parts, edges, driver, cluster, why, there, updates, messages, *automatic)


# -- values


def encode_value(value: Any) -> Any:
    """Encode a value for JSON: a value that is not of a `PLAIN` type becomes [kind, ...].

    Errors: TypeError if it is not plain data.
    """
    kind = type(value)
    if kind in PLAIN:
        return value
    write = _WRITERS.get(kind)
    if write is not None:
        return write(value)
    if isinstance(value, np.dtype):
        return ["dtype", text_of(value)]
    if isinstance(value, dict):
        return _encode_map(value)
    if isinstance(value, np.generic):
        return ["number", _encode_array(np.asarray(value))]
    raise TypeError(f"{kind.__name__} {value!r} is not plain data")


def decode_value(data: Any) -> Any:
    """Return the value that `encode_value` encoded."""
    if data.__class__ is not list:
        return data
    return _READERS[data[0]](data)


def _decode_values(data: list[Any]) -> list[Any]:
    """Decode the values after the kind at the head of a list."""
    return [_READERS[elem[0]](elem) if elem.__class__ is list else elem for elem in data[1:]]


def _encode_items(kind: str, value: Any) -> list[Any]:
    if all(type(v) in PLAIN for v in value):
        return [f"plain {kind}", *value]
    return [kind, *map(encode_value, value)]


def _encode_spec(spec: Spec) -> list[Any]:
    shape = None if spec.shape is None else list(spec.shape)
    if spec.value is None:
        return ["spec", text_of(spec.dtype), shape]
    return ["known", text_of(spec.dtype), shape, encode_value(spec.value)]


@functools.lru_cache(4096)
def _decode_spec(dtype: str, shape: Shape) -> Spec:
    return Spec(as_dtype(dtype), shape)


def _encode_array(array: np.ndarray) -> list[Any]:
    if array.dtype.hasobject:
        raise TypeError("texts are not plain data")
    return ["array", text_of(array.dtype), list(array.shape), array.tobytes().hex()]


def _decode_array(data: list[Any]) -> np.ndarray:
    _, dtype, shape, text = data
    if not text:
        return np.empty(shape, as_dtype(dtype))
    return np.frombuffer(bytes.fromhex(text), as_dtype(dtype)).reshape(shape)


def _encode_map(value: Mapping[Any, Any]) -> list[Any]:
    return ["map", *(x for pair in value.items() for x in map(encode_value, pair))]


def _decode_map(data: list[Any]) -> dict[Any, Any]:
    values = _decode_values(data)
    return dict(zip(values[::2], values[1::2], strict=True))


def _instruction_out(value: Instruction) -> list[Any]:
    """Encode an instruction without a kind for each of its many small parts."""
    opcode, node, targets, operands, callee, numbers, body = value
    names = [part for operand in operands for part in operand]
    inside = [*map(_instruction_out, body)]
    return ["do", int(opcode), node, [*targets], names, callee, [*numbers], inside]


def _instruction_in(data: list[Any]) -> Instruction:
    _, opcode, node, targets, names, callee, numbers, inside = data
    accesses = map(ACCESSES.__getitem__, names[1::3])
    operands = tuple(map(Use, names[::3], accesses, names[2::3]))
    body = tuple(map(_instruction_in, inside)) if inside else ()
    return Instruction(
        OPCODES[opcode], node, tuple(targets), operands, callee, tuple(numbers), body
    )


def _binding_out(value: Binding) -> list[Any]:
    kind, node, position, text, buffers = value
    views = [[v.device, v.block, text_of(v.dtype), v.shape, v.start] for v in buffers]
    return ["bind", int(kind), node, position, text, *views]


def _binding_in(data: list[Any]) -> Binding:
    _, kind, node, position, text, *views = data
    buffers = tuple([_view_in(view) for view in views]) if views else ()
    return Binding(BINDINGS[kind], node, position, text, buffers)


def _view_in(data: list[Any]) -> BufferView:
    device, block, dtype, shape, start = data
    return BufferView(device, block, _dtype(dtype), tuple(shape), start)


_dtype = functools.lru_cache(64)(as_dtype)


def _register_record(cls: Any) -> None:
    """Register a NamedTuple or dataclass, encoded as its fields in order."""
    name = cls.__name__
    if issubclass(cls, tuple):
        _WRITERS[cls] = lambda value: [name, *map(encode_value, value)]
    else:
        fields = [field.name for field in dataclasses.fields(cls)]
        _WRITERS[cls] = lambda value: [name, *(encode_value(getattr(value, f)) for f in fields)]
    _READERS[name] = lambda data: cls(*_decode_values(data))


_WRITERS: dict[Any, Callable[[Any], list[Any]]] = {
    Ref: lambda ref: ["ref", *ref],
    Spec: _encode_spec,
    float: lambda x: ["float", x.hex()],
    complex: lambda x: ["complex", x.real.hex(), x.imag.hex()],
    bytes: lambda x: ["bytes", x.hex()],
    tuple: lambda value: _encode_items("tuple", value),
    list: lambda value: _encode_items("list", value),
    frozenset: lambda value: _encode_items("set", sorted(value)),
    dict: _encode_map,
    np.ndarray: _encode_array,
    Instruction: _instruction_out,
    Binding: _binding_out,
}
_READERS: dict[str, Callable[[list[Any]], Any]] = {
    "ref": lambda data: Ref(data[1], data[2]),
    "spec": lambda data: _decode_spec(data[1], None if data[2] is None else tuple(data[2])),
    "known": lambda data: Spec(as_dtype(data[1]), tuple(data[2]), decode_value(data[3])),
    "float": lambda data: float.fromhex(data[1]),
    "complex": lambda data: complex(float.fromhex(data[1]), float.fromhex(data[2])),
    "bytes": lambda data: bytes.fromhex(data[1]),
    "dtype": lambda data: as_dtype(data[1]),
    "array": _decode_array,
    "number": lambda data: _decode_array(data[1])[()],
    "tuple": lambda data: tuple(_decode_values(data)),
    "plain tuple": lambda data: tuple(data[1:]),
    "list": _decode_values,
    "plain list": lambda data: data[1:],
    "set": lambda data: frozenset(_decode_values(data)),
    "plain set": lambda data: frozenset(data[1:]),
    "map": _decode_map,
    "do": _instruction_in,
    "bind": _binding_in,
}
for _cls in RECORDS:
    _register_record(_cls)
