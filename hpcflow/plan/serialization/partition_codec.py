"""Partition codec: a partition as bytes and back, checked on arrival; no source, no pickle.

Layout: 8 bytes magic, 8 bytes header length (little-endian), the header as JSON, then the arrays of
attributes, each at a multiple of 64 bytes from the start of the message.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.errors import HpcflowError, VerifyError
from hpcflow.graph.dtypes import as_dtype, string, text_of
from hpcflow.graph.op_registry import OPS, all_ops
from hpcflow.graph.static_shape import Spec
from hpcflow.graph.string_encoding import decode_strings, encode_strings
from hpcflow.plan.ir.program import Node, Partition, Ref
from hpcflow.plan.verification.plan_verifier import verify_partition

MAGIC = b"HPCFPRT1"
ALIGN = 64
RULE = "plan-format"


def encode_partition(part: Partition) -> bytes:
    """Return the partition as bytes, equal for equal partitions.

    Errors: VerifyError if an attribute is not plain data.
    """
    blobs: list[bytes] = []
    header = _encode_partition(part, blobs)
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    start = MAGIC + len(text).to_bytes(8, "little") + text
    return b"".join(_pad(chunk) for chunk in [start, *blobs])


def decode_partition(data: bytes) -> Partition:
    """Return the partition in `data`; its arrays are read-only views of `data`.

    Errors: VerifyError (plan-format) if the bytes are malformed, or the rule that the partition
    breaks.
    """
    try:
        part = _decode_partition(data)
    except VerifyError:
        raise
    except (
        HpcflowError,
        ValueError,
        TypeError,
        ArithmeticError,
        LookupError,
        RecursionError,
    ) as error:
        raise VerifyError(RULE, f"a received part is malformed: {error}") from None
    verify_partition(part)
    return part


def _pad(chunk: bytes) -> bytes:
    return chunk + bytes(-len(chunk) % ALIGN)


# -- encoding


def _encode_partition(part: Partition, blobs: list[bytes]) -> dict[str, Any]:
    return {
        "task": part.task,
        "feeds": list(part.feeds),
        "fetches": [list(ref) for ref in part.fetches],
        "nodes": [_encode_node(node, blobs) for node in part.nodes.values()],
    }


def _encode_node(node: Node, blobs: list[bytes]) -> dict[str, Any]:
    try:
        attrs = {name: _encode_value(value, blobs) for name, value in node.attrs.items()}
    except TypeError as error:
        raise VerifyError(
            RULE, f"{node.name!r} cannot be sent to its task: {error}", op=node.name, line=node.line
        ) from None
    return {
        "name": node.name,
        "type": node.type,
        "inputs": [list(ref) for ref in node.inputs],
        "control": list(node.control),
        "attrs": attrs,
        "specs": [[text_of(s.dtype), s.shape and list(s.shape)] for s in node.specs],
        "device": node.device,
        "colocate": list(node.colocate),
        "line": node.line,
    }


def _encode_value(value: Any, blobs: list[bytes]) -> Any:
    """Encode a value: None, bool, int and str as themselves, everything else as [kind, ...]."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, complex):
        return ["complex", value.real.hex(), value.imag.hex()]
    if isinstance(value, np.dtype):
        return ["dtype", text_of(value)]
    if isinstance(value, (tuple, list)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return [kind, [_encode_value(v, blobs) for v in value]]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return ["dict", {key: _encode_value(v, blobs) for key, v in value.items()}]
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        if as_dtype(array.dtype) == string:
            blobs.append(encode_strings(array))
            return ["strings", len(blobs[-1]), list(array.shape)]
        blobs.append(array.tobytes())
        return ["array", text_of(array.dtype), list(array.shape)]
    if isinstance(value, Partition):
        return ["part", _encode_partition(value, blobs)]
    raise TypeError(f"{type(value).__name__} {value!r} is not plain data")


# -- decoding


def _decode_partition(data: bytes) -> Partition:
    if data[:8] != MAGIC:
        raise ValueError("its header is not that of a partition")
    size = int.from_bytes(data[8:16], "little")
    if not 0 < size <= len(data) - 16:
        raise ValueError("its header is longer than the message")
    header = json.loads(data[16 : 16 + size].decode())
    reader = _ArrayReader(data, 16 + size)
    part = _read_partition(reader, header)
    reader.finish()
    return part


def _read_partition(reader: _ArrayReader, header: Any) -> Partition:
    _check_keys(header, {"task", "feeds", "fetches", "nodes"})
    nodes: dict[str, Node] = {}
    for encoded in _check_list(header["nodes"]):
        node = _decode_node(encoded, reader)
        if node.name in nodes:
            raise ValueError(f"two nodes are called {node.name!r}")
        nodes[node.name] = node
    return Partition(
        _check_text(header["task"]),
        nodes,
        tuple(_check_text(name) for name in _check_list(header["feeds"])),
        tuple(_read_ref(ref) for ref in _check_list(header["fetches"])),
    )


class _ArrayReader:
    """Reads the arrays behind the header in order."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at + -at % ALIGN

    def take(self, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        count = 1
        for size in shape:
            count *= size
        end = self.at + count * dtype.itemsize
        if end > len(self.data):
            raise ValueError("an array is longer than the message")
        array = np.frombuffer(self.data, dtype, count, self.at) if count else np.empty(0, dtype)
        self.at = end + -end % ALIGN
        array = array.reshape(shape)
        array.flags.writeable = False
        return array

    def finish(self) -> None:
        if self.at != len(self.data):
            raise ValueError(f"{len(self.data)} bytes came, {self.at} were announced")


def _decode_node(encoded: Any, reader: _ArrayReader) -> Node:
    fields = {"name", "type", "inputs", "control", "attrs", "specs", "device", "colocate", "line"}
    _check_keys(encoded, fields)
    type = _check_text(encoded["type"])
    row = OPS.get(type) or all_ops().get(type)
    if row is not None and row.generated:
        raise ValueError(f"{encoded['type']} holds generated code: each rank makes its own")
    if not isinstance(encoded["attrs"], dict):
        raise ValueError("attributes are not a table")
    return Node(
        _check_text(encoded["name"]),
        _check_text(encoded["type"]),
        tuple(_read_ref(ref) for ref in _check_list(encoded["inputs"])),
        tuple(_check_text(name) for name in _check_list(encoded["control"])),
        {name: _decode_value(value, reader) for name, value in encoded["attrs"].items()},
        tuple(_read_spec(spec) for spec in _check_list(encoded["specs"])),
        _check_text(encoded["device"]),
        tuple(_check_text(name) for name in _check_list(encoded["colocate"])),
        _check_text(encoded["line"]),
    )


def _decode_value(value: Any, reader: _ArrayReader) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    kind, *rest = _check_list(value)
    if not isinstance(kind, str) or kind not in _READERS:
        raise ValueError(f"{kind!r} is no kind of value")
    return _READERS[kind](reader, *rest)


def _read_array(reader: _ArrayReader, dtype: Any, shape: Any) -> np.ndarray:
    return reader.take(
        as_dtype(_check_text(dtype)), tuple(_check_size(d) for d in _check_list(shape))
    )


def _read_strings(reader: _ArrayReader, nbytes: Any, shape: Any) -> np.ndarray:
    data = reader.take(np.dtype(np.uint8), (_check_size(nbytes),)).tobytes()
    array = decode_strings(data, tuple(_check_size(d) for d in _check_list(shape)))
    array.flags.writeable = False
    return array


def _read_dict(reader: _ArrayReader, encoded: Any) -> dict[str, Any]:
    if not isinstance(encoded, dict):
        raise ValueError(f"{encoded!r} is not a table")
    return {name: _decode_value(value, reader) for name, value in encoded.items()}


_READERS: dict[str, Callable[..., Any]] = {
    "float": lambda reader, text: float.fromhex(_check_text(text)),
    "complex": lambda reader, a, b: complex(
        float.fromhex(_check_text(a)), float.fromhex(_check_text(b))
    ),
    "dtype": lambda reader, text: as_dtype(_check_text(text)),
    "tuple": lambda reader, items: tuple(_decode_value(v, reader) for v in _check_list(items)),
    "list": lambda reader, items: [_decode_value(v, reader) for v in _check_list(items)],
    "dict": _read_dict,
    "array": _read_array,
    "part": _read_partition,
    "strings": _read_strings,
    "bytes": lambda reader, text: bytes.fromhex(_check_text(text)),
}


def _check_keys(encoded: Any, names: set[str]) -> None:
    if not isinstance(encoded, dict) or set(encoded) != names:
        raise ValueError(f"a table has not exactly the fields {', '.join(sorted(names))}")


def _check_list(encoded: Any) -> list[Any]:
    if not isinstance(encoded, list):
        raise ValueError(f"{encoded!r} is not a list")
    return encoded


def _check_text(encoded: Any) -> str:
    if not isinstance(encoded, str):
        raise ValueError(f"{encoded!r} is not a string")
    return encoded


def _check_size(encoded: Any) -> int:
    if not isinstance(encoded, int) or isinstance(encoded, bool) or not 0 <= encoded < 1 << 62:
        raise ValueError(f"{encoded!r} is not a size")
    return encoded


def _read_ref(encoded: Any) -> Ref:
    node, index = _check_list(encoded)
    return Ref(_check_text(node), _check_size(index))


def _read_spec(encoded: Any) -> Spec:
    dtype, shape = _check_list(encoded)
    decoded_shape = (
        None
        if shape is None
        else tuple(None if d is None else _check_size(d) for d in _check_list(shape))
    )
    return Spec(as_dtype(_check_text(dtype)), decoded_shape)
