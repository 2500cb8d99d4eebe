"""File and record ops: read_file, write_file, matching_files, decode_raw, decode_csv."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import DTypeError, ShapeError
from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.dtypes import as_dtype, float32, float64, int32, int64, string
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, user_line
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec
from hpcflow.ops.shape_inference import Attrs, first_output, make, require, require_rank, several

_FILES = NoGrad("files are not differentiable")
_RECORDS = NoGrad("strings are not differentiable")


def _one_string(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    for s in inputs:
        require("a file", s, "O")
        require_rank("a file", s, 0)
    return [Spec(string, ())]


def _written(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    _one_string(inputs, attrs)
    return []


def _rows(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [Spec(np.dtype(attrs["dtype"]), tuple(attrs["shape"]))]


def _matching(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("matching_files", inputs[0], "O")
    require_rank("matching_files", inputs[0], 0, 1)
    return [Spec(string, (None,))]


def _decode_raw(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("decode_raw", inputs[0], "O")
    input_shape = inputs[0].shape
    return [Spec(attrs["dtype"], None if input_shape is None else (*input_shape, None))]


def _decode_csv(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("decode_csv", inputs[0], "O")
    return [Spec(dtype, inputs[0].shape) for dtype in attrs["dtypes"]]


op("ReadFile", infer=_one_string, grad=_FILES, stateful=True, device="cpu")
op("WriteFile", infer=_written, grad=_FILES, stateful=True, device="cpu")
op(
    "ReadCheckpoint",
    infer=_rows,
    grad=_FILES,
    stateful=True,
    device="cpu",
    kernels="checkpoint.read_checkpoint_kernels",
)
op("MatchingFiles", infer=_matching, grad=_FILES, stateful=True, device="cpu")
op("DecodeRaw", infer=_decode_raw, grad=_RECORDS, device="cpu")
op("DecodeCSV", infer=_decode_csv, grad=_RECORDS, device="cpu")


def _strings(strings: Any) -> Tensor:
    return convert_to_tensor(strings, None if isinstance(strings, Tensor) else string)


def read_file(filename: Any, name: str | None = None) -> Tensor:
    """The contents of a file on the rank that runs it.

    Errors: DataError at run time if it cannot be read.
    """
    return first_output("ReadFile", [_strings(filename)], {}, name)


def write_file(filename: Any, contents: Any, name: str | None = None) -> Operation:
    """An operation that writes a file, and creates its parent folders.

    Errors: DataError at run time if it cannot be written.
    """
    return make("WriteFile", [_strings(filename), _strings(contents)], {}, name)


def matching_files(pattern: Any, name: str | None = None) -> Tensor:
    """The sorted names of files that match one of the patterns (`*`, `?`, `[...]`)."""
    return first_output("MatchingFiles", [_strings(pattern)], {}, name)


@accepts_aliases(input_bytes="bytes")
def decode_raw(
    bytes: Any, out_type: Any, little_endian: bool = True, name: str | None = None
) -> Tensor:
    """The bytes of strings as numbers along a new last axis.

    Errors: DataError at run time if lengths differ or are no multiple of the number's size.
    """
    dtype = as_dtype(out_type)
    if dtype.kind not in "iufcb":
        raise DTypeError(f"decode_raw does not return {dtype}", line=user_line())
    attrs = {"dtype": dtype, "little": bool(little_endian)}
    return first_output("DecodeRaw", [_strings(bytes)], attrs, name)


def decode_csv(
    records: Any,
    record_defaults: Sequence[Any],
    field_delim: str = ",",
    use_quote_delim: bool = True,
    name: str | None = None,
    na_value: str = "",
    select_cols: Sequence[int] | None = None,
) -> list[Tensor]:
    """The fields of CSV lines, one tensor per column with the dtype of its default.

    A default is a value for empty fields, or an empty vector or dtype for a required column.
    `na_value` is text that also counts as empty. `select_cols` selects columns.
    Errors: DataError at run time for a line with a wrong number of fields, a missing required
            field,
            or a field that is no number.
    """
    dtypes, defaults = [], []
    for column_default in several(record_defaults, "record_defaults"):
        dtype, default = _default(column_default)
        dtypes.append(dtype)
        defaults.append(default)
    if len(field_delim) != 1:
        raise ShapeError(f"field_delim {field_delim!r} is not one character", line=user_line())
    columns = None if select_cols is None else tuple(int(c) for c in select_cols)
    if columns is not None and (len(columns) != len(dtypes) or sorted(set(columns)) != [*columns]):
        raise ShapeError(
            f"select_cols {columns} must increase and have {len(dtypes)} entries, one for "
            "each default",
            line=user_line(),
        )
    attrs: Attrs = {"dtypes": tuple(dtypes), "defaults": tuple(defaults), "na": na_value}
    attrs |= {"delimiter": field_delim, "quotes": bool(use_quote_delim), "columns": columns}
    return list(make("DecodeCSV", [_strings(records)], attrs, name).outputs)


def _default(column_default: Any) -> tuple[np.dtype, Any]:
    """The dtype of a column, and the value of empty fields; None if required."""
    if isinstance(column_default, (np.dtype, type)):
        dtype, value = as_dtype(column_default), None
    else:
        t = convert_to_tensor(column_default)
        if t.constant is None or t.constant.size > 1:
            raise ShapeError(
                f"a default must be a single constant, not {column_default!r}", line=user_line()
            )
        dtype, value = t.dtype, t.constant.reshape(-1)[0] if t.constant.size else None
    if dtype not in (float32, float64, int32, int64, string):
        raise DTypeError(f"decode_csv does not return {dtype}", line=user_line())
    return dtype, value.item() if isinstance(value, np.generic) else value
