"""String kernels: strings are Python bytes in object arrays; on CPUs only."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.errors import DataError, RangeError
from hpcflow.kernels.kernel_registry import KernelNode, kernel
from hpcflow.ops.strings import string_hash_kernels

Make = Callable[[KernelNode], Callable[..., Any]]


def _elementwise(type: str) -> Callable[[Make], Make]:
    """Decorator: `make(node)` returns the function of one element of each input, broadcast."""

    def add(make: Make) -> Make:
        @kernel(type, "out", on="cpu")
        def elements(xp: Any, node: KernelNode) -> Callable[..., Any]:
            function = make(node)

            def run(*args: Any) -> None:
                out, flat = args[-1], args[-1].reshape(-1)
                inputs = [np.broadcast_to(x, out.shape).reshape(-1).tolist() for x in args[:-1]]
                for i, values in enumerate(zip(*inputs, strict=True)):
                    flat[i] = function(*values)

            return run

        return make

    return add


@_elementwise("AsString")
def _as_string(node: KernelNode) -> Callable[..., bytes]:
    attrs, kind = node.attrs, node.inputs[0].dtype.kind
    if kind == "b":
        return lambda x: (attrs["text"] % ("true" if x else "false")).encode()
    if kind in "iu":
        return lambda x: (attrs["whole"] % x).encode()
    if kind == "c":
        real = attrs["real"]
        return lambda x: (f"({real},{real})" % (x.real, x.imag)).encode()
    return lambda x: (attrs["real"] % x).encode()


@_elementwise("StringJoin")
def _join(node: KernelNode) -> Callable[..., bytes]:
    separator = node.attrs["separator"].encode()
    return lambda *parts: separator.join(parts)


@kernel("ReduceJoin", "out", on="cpu")
def _reduce_join(xp: Any, node: KernelNode) -> Callable[..., Any]:
    attrs = node.attrs
    separator = attrs["separator"].encode()

    def run(x: Any, out: Any) -> None:
        axis = range(x.ndim)[::-1] if attrs["axis"] is None else attrs["axis"]
        axes = [a % x.ndim for a in ([axis] if isinstance(axis, int) else axis)]
        outer_axes = [a for a in range(x.ndim) if a not in axes]
        size = math.prod(x.shape[a] for a in axes)
        rows = x.transpose(*outer_axes, *reversed(axes)).reshape(out.size, size)
        flat = out.reshape(-1)
        for i, row in enumerate(rows):
            flat[i] = separator.join(row.tolist())

    return run


@_elementwise("Substr")
def _substr(node: KernelNode) -> Callable[..., bytes]:
    def cut(text: Any, at: int, length: int) -> Any:
        if not -len(text) <= at <= len(text):
            raise RangeError(f"substr: position {at} is outside {text!r}, of length {len(text)}")
        if length < 0:
            raise RangeError(f"substr: length {length} is negative")
        start = at if at >= 0 else len(text) + at
        return text[start : start + length]

    if node.attrs["utf8"]:
        return lambda s, at, length: cut(_decoded(s), at, length).encode()
    return cut


def _decoded(s: bytes) -> str:
    try:
        return s.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{s!r} is not UTF-8: {error}") from None


@_elementwise("StringLength")
def _length(node: KernelNode) -> Callable[..., int]:
    return (lambda s: len(_decoded(s))) if node.attrs["utf8"] else len


@_elementwise("StringCase")
def _case(node: KernelNode) -> Callable[..., bytes]:
    how = node.attrs["how"]
    if node.attrs["utf8"]:
        return lambda s: getattr(_decoded(s), how)().encode()
    return lambda s: getattr(s, how)()


@_elementwise("RegexReplace")
def _regex_replace(node: KernelNode) -> Callable[..., bytes]:
    attrs = node.attrs
    pattern, rewrite = re.compile(attrs["pattern"].encode()), attrs["rewrite"].encode()
    rewrite = re.sub(rb"\\0", rb"\\g<0>", rewrite)
    return lambda s: pattern.sub(rewrite, s, count=0 if attrs["all"] else 1)


@_elementwise("RegexFullMatch")
def _regex_full_match(node: KernelNode) -> Callable[..., bool]:
    pattern = re.compile(node.attrs["pattern"].encode())
    return lambda s: pattern.fullmatch(s) is not None


@_elementwise("EncodeBase64")
def _encode(node: KernelNode) -> Callable[..., bytes]:
    if node.attrs["pad"]:
        return base64.urlsafe_b64encode
    return lambda s: base64.urlsafe_b64encode(s).rstrip(b"=")


_WEB_SAFE = re.compile(rb"[A-Za-z0-9_-]*={0,2}")


@_elementwise("DecodeBase64")
def _decode(node: KernelNode) -> Callable[..., bytes]:
    def decode(s: bytes) -> bytes:
        if not _WEB_SAFE.fullmatch(s):
            raise DataError(f"{s!r} is not web-safe Base64")
        try:
            return base64.urlsafe_b64decode(s + b"=" * (-len(s) % 4))
        except binascii.Error as error:
            raise DataError(f"{s!r} is not Base64: {error}") from None

    return decode


# -- numbers

_REAL = re.compile(rb"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf(inity)?|nan)", re.I)
_INTEGER = re.compile(rb"[+-]?\d+")


def number(text: bytes, dtype: np.dtype) -> Any:
    """The number that `text` represents.

    Errors: DataError if it is not a number of `dtype`.
    """
    stripped = text.strip()
    form = _INTEGER if dtype.kind in "iu" else _REAL
    if not form.fullmatch(stripped):
        raise DataError(f"{text!r} is not a number of {dtype}")
    if dtype.kind == "f":
        return float(stripped)
    value, limits = int(stripped), np.iinfo(dtype)
    if not limits.min <= value <= limits.max:
        raise DataError(f"{text!r} is outside the range of {dtype}")
    return value


@_elementwise("StringToNumber")
def _to_number(node: KernelNode) -> Callable[..., Any]:
    dtype = node.attrs["dtype"]
    return lambda s: number(s, dtype)


@kernel("StringToHashBucket", "out", on="cpu")
def _hash_bucket(xp: Any, node: KernelNode) -> Callable[..., Any]:
    attrs = node.attrs
    functions: dict[str, Any] = {
        "farm": string_hash_kernels.farm,
        "murmur": string_hash_kernels.murmur,
    }
    functions["sip"] = lambda s: string_hash_kernels.sip(s, attrs["key"])
    function, buckets = functions[attrs["how"]], np.uint64(attrs["buckets"])

    def run(x: Any, out: Any) -> None:
        bucket_ids = string_hash_kernels.of_strings(x.reshape(-1), function) % buckets
        np.copyto(out, bucket_ids.reshape(out.shape), casting="unsafe")

    return run
