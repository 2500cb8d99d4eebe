"""String ops: join, slice, match, hash, and conversion to and from numbers; on CPUs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from hpcflow.errors import ArgumentError, DTypeError, GraphError, ShapeError
from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.dtypes import as_dtype, bool_, float32, float64, int32, int64, string
from hpcflow.graph.graph import Tensor, convert_to_tensor, user_line
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec, broadcast_shapes, normalize_axes
from hpcflow.ops.array.dynamic_axis_ops import reduced_over
from hpcflow.ops.shape_inference import (
    Attrs,
    axes_argument,
    first_output,
    integer_argument,
    like,
    require,
    several,
)
from hpcflow.platform.exception_translation import value_text

_STRINGS = NoGrad("strings are not differentiable")


def _elementwise(
    type: str, result: Any = string, takes: str = "O", count: int = 1
) -> Callable[..., list[Spec]]:
    """Shape rule of an op on each string (or each element of dtype `takes`), broadcast."""

    def infer(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
        for s in inputs[:count]:
            require(type, s, takes)
        dtype = attrs["dtype"] if result is None else result
        return [Spec(dtype, broadcast_shapes([s.shape for s in inputs]))]

    return infer


def _string_join(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return _elementwise("string_join", count=len(inputs))(inputs, attrs)


def _reduce_join(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("reduce_join", inputs[0], "O")
    input_shape, axis = inputs[0].shape, attrs["axis"]
    if input_shape is None:
        return [Spec(string, () if axis is None and not attrs["keepdims"] else None)]
    axes = normalize_axes(axis, len(input_shape))
    if attrs["keepdims"]:
        return [Spec(string, tuple(1 if i in axes else d for i, d in enumerate(input_shape)))]
    return [Spec(string, tuple(d for i, d in enumerate(input_shape) if i not in axes))]


def _substr(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("substr", inputs[0], "O")
    for s in inputs[1:]:
        require("substr's position and length", s, "iu")
    return [Spec(string, broadcast_shapes([s.shape for s in inputs]))]


op("AsString", infer=_elementwise("as_string", takes="biufc"), grad=_STRINGS, device="cpu")
op("StringJoin", infer=_string_join, grad=_STRINGS, device="cpu")
op("ReduceJoin", infer=_reduce_join, grad=_STRINGS, device="cpu")
op("Substr", infer=_substr, grad=_STRINGS, device="cpu")
op("StringToNumber", infer=_elementwise("string_to_number", None), grad=_STRINGS, device="cpu")
op(
    "StringToHashBucket",
    infer=_elementwise("string_to_hash_bucket", int64),
    grad=_STRINGS,
    device="cpu",
)
op("StringLength", infer=_elementwise("string_length", int32), grad=_STRINGS, device="cpu")
op("StringCase", infer=_elementwise("a change of case"), grad=_STRINGS, device="cpu")
op("RegexReplace", infer=_elementwise("regex_replace"), grad=_STRINGS, device="cpu")
op("RegexFullMatch", infer=_elementwise("regex_full_match", bool_), grad=_STRINGS, device="cpu")
op("EncodeBase64", infer=_elementwise("encode_base64"), grad=_STRINGS, device="cpu")
op("DecodeBase64", infer=_elementwise("decode_base64"), grad=_STRINGS, device="cpu")


def _strings(strings: Any) -> Tensor:
    return convert_to_tensor(strings, None if isinstance(strings, Tensor) else string)


# -- conversion


def as_string(
    input: Any,
    precision: int = -1,
    scientific: bool = False,
    shortest: bool = False,
    width: int = -1,
    fill: str = "",
    name: str | None = None,
) -> Tensor:
    """Numbers and booleans as text, in the format of C's printf.

    Floating point as %f, %e if `scientific`, %g if `shortest`, with `precision` digits (6 if
    negative); at least `width` characters, with the flag `fill` (`0`, `-`, `+` or a space).
    """
    if scientific and shortest:
        raise ShapeError("as_string cannot be both scientific and shortest", line=user_line())
    if fill not in ("", " ", "0", "-", "+"):
        raise ShapeError(f"fill {fill!r} is not one of '', ' ', '0', '-', '+'", line=user_line())
    x = convert_to_tensor(input)
    if x.dtype.kind in "biu" and (scientific or shortest or precision > -1):
        raise ShapeError(
            f"scientific, shortest and precision need floating-point numbers, not {x.dtype}",
            line=user_line(),
        )
    size = str(width) if width > -1 else ""
    digits = f".{precision}" if precision > -1 else ""
    letter = "e" if scientific else "g" if shortest else "f"
    attrs = {"whole": f"%{fill}{size}d", "real": f"%{fill}{size}{digits}{letter}"}
    attrs["text"] = f"%{'-' if fill == '-' else ''}{size}s"
    return first_output("AsString", [x], attrs, name)


@accepts_aliases(input="string_tensor")
def string_to_number(
    string_tensor: Any, out_type: Any = float32, name: str | None = None
) -> Tensor:
    """The numbers that strings represent; surrounding spaces are ignored.

    Errors: DataError at run time for a string that is no number of `out_type` (float32, float64,
            int32
            or int64).
    """
    dtype = as_dtype(out_type)
    if dtype not in (float32, float64, int32, int64):
        raise DTypeError(f"string_to_number does not return {dtype}", line=user_line())
    return first_output("StringToNumber", [_strings(string_tensor)], {"dtype": dtype}, name)


# -- join and slice


def string_join(inputs: Sequence[Any], separator: str = "", name: str | None = None) -> Tensor:
    """The strings of several tensors, broadcast and concatenated."""
    listed = several(inputs, "string_join")
    if not listed:
        raise ShapeError("string_join needs at least one tensor", line=user_line())
    return first_output("StringJoin", [_strings(t) for t in listed], {"separator": separator}, name)


@accepts_aliases(reduction_indices="axis", keep_dims="keepdims")
def reduce_join(
    inputs: Any,
    axis: Any = None,
    keepdims: bool = False,
    separator: str = "",
    name: str | None = None,
) -> Tensor:
    """All strings along `axis` concatenated; along several axes in order, None: all, reversed."""
    x, axes = _strings(inputs), axes_argument(axis)
    attrs: Attrs = {"keepdims": bool(keepdims), "separator": separator}
    if isinstance(axes, Tensor):
        return reduced_over("ReduceJoin", x, axes, name=name, **attrs)
    return first_output("ReduceJoin", [x], {**attrs, "axis": axes}, name)


def substr(input: Any, pos: Any, len: Any, name: str | None = None, unit: str = "BYTE") -> Tensor:
    """`len` bytes (or UTF8_CHAR characters) of each string from `pos`; negative from the end.

    The three are broadcast.
    Errors: RangeError at run time if `pos` is outside.
    """
    start = convert_to_tensor(pos)
    attrs = {"utf8": _is_utf8(unit)}
    return first_output("Substr", [_strings(input), start, like(len, start)], attrs, name)


def _is_utf8(unit: str) -> bool:
    if unit not in ("BYTE", "UTF8_CHAR"):
        raise ShapeError(f"unit {unit!r} is neither 'BYTE' nor 'UTF8_CHAR'", line=user_line())
    return unit == "UTF8_CHAR"


def string_length(input: Any, name: str | None = None, unit: str = "BYTE") -> Tensor:
    """The number of bytes (or UTF8_CHAR characters) of each string."""
    return first_output("StringLength", [_strings(input)], {"utf8": _is_utf8(unit)}, name)


def string_strip(input: Any, name: str | None = None) -> Tensor:
    """Strings without leading and trailing spaces."""
    return first_output("StringCase", [_strings(input)], {"how": "strip", "utf8": False}, name)


def string_lower(input: Any, encoding: str = "", name: str | None = None) -> Tensor:
    """Strings in lower case: ASCII letters, with encoding "utf-8" all."""
    return first_output(
        "StringCase", [_strings(input)], {"how": "lower", "utf8": _encoded(encoding)}, name
    )


def string_upper(input: Any, encoding: str = "", name: str | None = None) -> Tensor:
    """Strings in upper case: ASCII letters, with encoding "utf-8" all."""
    return first_output(
        "StringCase", [_strings(input)], {"how": "upper", "utf8": _encoded(encoding)}, name
    )


def _encoded(encoding: str) -> bool:
    if encoding not in ("", "utf-8"):
        raise ShapeError(f"encoding {encoding!r} is neither '' nor 'utf-8'", line=user_line())
    return encoding == "utf-8"


def regex_replace(
    input: Any, pattern: str, rewrite: str, replace_global: bool = True, name: str | None = None
) -> Tensor:
    r"""Strings with all matches of `pattern`, or the first, replaced by `rewrite`.

    Patterns are those of Python's `re`; `\\1` in `rewrite` stands for the first group.
    """
    attrs = {"pattern": _compile_timed(pattern), "rewrite": rewrite, "all": bool(replace_global)}
    return first_output("RegexReplace", [_strings(input)], attrs, name)


def regex_full_match(input: Any, pattern: str, name: str | None = None) -> Tensor:
    """Whether `pattern` (of Python's `re`) matches the whole string."""
    return first_output(
        "RegexFullMatch", [_strings(input)], {"pattern": _compile_timed(pattern)}, name
    )


def _compile_timed(pattern: str) -> str:
    if not isinstance(pattern, str):
        raise ArgumentError(
            f"a pattern must be a string, not {value_text(pattern)}", line=user_line()
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise GraphError(f"{pattern!r} is not a valid pattern: {error}", line=user_line()) from None
    return pattern


def encode_base64(input: Any, pad: bool = False, name: str | None = None) -> Tensor:
    """Strings encoded in web-safe Base64, padded with `=` if `pad`."""
    return first_output("EncodeBase64", [_strings(input)], {"pad": bool(pad)}, name)


def decode_base64(input: Any, name: str | None = None) -> Tensor:
    """Strings decoded from web-safe Base64.

    Errors: DataError at run time for an invalid encoding.
    """
    return first_output("DecodeBase64", [_strings(input)], {}, name)


# -- hash


def _hashed(
    strings: Any, buckets: int, algorithm: str, key: Sequence[int], name: str | None
) -> Tensor:
    if integer_argument(buckets, "num_buckets") < 1:
        raise ShapeError(f"num_buckets must be at least 1, not {buckets}", line=user_line())
    attrs = {"how": algorithm, "buckets": int(buckets), "key": tuple(int(k) for k in key)}
    return first_output("StringToHashBucket", [_strings(strings)], attrs, name)


def string_to_hash_bucket_fast(input: Any, num_buckets: int, name: str | None = None) -> Tensor:
    """Strings as numbers below `num_buckets`, by FarmHash64, as in TensorFlow."""
    return _hashed(input, num_buckets, "farm", (), name)


def string_to_hash_bucket_strong(
    input: Any, num_buckets: int, key: Sequence[int], name: str | None = None
) -> Tensor:
    """Strings as numbers below `num_buckets`, by SipHash with a secret `key` of two numbers."""
    if len(key) != 2:
        raise ShapeError(f"key must have two numbers, not {len(key)}", line=user_line())
    return _hashed(input, num_buckets, "sip", key, name)


@accepts_aliases(input="string_tensor")
def string_to_hash_bucket(string_tensor: Any, num_buckets: int, name: str | None = None) -> Tensor:
    """Strings as numbers below `num_buckets`, by MurmurHash64A, as in TensorFlow."""
    return _hashed(string_tensor, num_buckets, "murmur", (), name)
