"""File and record kernels; they read files of the rank's own file system."""

from __future__ import annotations

import csv
import glob
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.errors import DataError
from hpcflow.kernels.kernel_registry import KernelNode, kernel
from hpcflow.ops.strings.string_kernels import number


def _failed(action: str, path: str, error: OSError) -> DataError:
    return DataError(f"{path!r} cannot be {action}: {error.strerror or error}")


@kernel("ReadFile", "out", on="cpu")
def _read(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(name: Any, out: Any) -> None:
        path = os.fsdecode(name.item())
        try:
            with open(path, "rb") as file:
                out[()] = file.read()
        except OSError as error:
            raise _failed("read", path, error) from None

    return run


@kernel("WriteFile", "out", on="cpu")
def _write(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(name: Any, contents: Any) -> None:
        path = os.fsdecode(name.item())
        try:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with open(path, "wb") as file:
                file.write(contents.item())
        except OSError as error:
            raise _failed("written", path, error) from None

    return run


@kernel("MatchingFiles", "new", on="cpu")
def _matching(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(patterns: Any) -> Any:
        paths = {name for p in patterns.reshape(-1).tolist() for name in glob.glob(p)}
        return np.array([*sorted(paths), None], object)[:-1]

    return run


@kernel("DecodeRaw", "new", on="cpu")
def _decode_raw(xp: Any, node: KernelNode) -> Callable[..., Any]:
    dtype = node.attrs["dtype"]
    stored_dtype = dtype.newbyteorder("<" if node.attrs["little"] else ">")

    def run(strings: Any) -> Any:
        flat = strings.reshape(-1).tolist()
        lengths = {len(s) for s in flat}
        if len(lengths) > 1:
            raise DataError(f"decode_raw: the strings have different lengths {sorted(lengths)}")
        length = lengths.pop() if lengths else 0
        if length % dtype.itemsize:
            raise DataError(f"decode_raw: {length} bytes are not a multiple of the size of {dtype}")
        numbers = np.frombuffer(b"".join(flat), stored_dtype).astype(dtype)
        return numbers.reshape((*strings.shape, length // dtype.itemsize))

    return run


@kernel("DecodeCSV", "new", on="cpu")
def _decode_csv(xp: Any, node: KernelNode) -> Callable[..., Any]:
    attrs = node.attrs
    quoting: Any = csv.QUOTE_MINIMAL if attrs["quotes"] else csv.QUOTE_NONE
    facts = list(zip(attrs["dtypes"], attrs["defaults"], strict=True))
    empty = ("", attrs["na"])

    def fields(line: bytes) -> list[str]:
        text = line.decode("utf-8", "surrogateescape")
        rows = list(csv.reader([text], delimiter=attrs["delimiter"], quoting=quoting, strict=True))
        row = rows[0] if rows and rows[0] else [""]
        chosen = attrs["columns"]
        if chosen is not None and chosen and chosen[-1] < len(row):
            return [row[c] for c in chosen]
        if chosen is not None or len(row) != len(facts):
            needed = len(facts) if chosen is None else chosen[-1] + 1
            raise DataError(f"decode_csv: {line!r} has {len(row)} fields; {needed} are needed")
        return row

    def value(text: str, dtype: np.dtype, default: Any, line: bytes) -> Any:
        if text in empty:
            if default is None:
                raise DataError(f"decode_csv: a required field of {line!r} is empty")
            return default
        data = text.encode("utf-8", "surrogateescape")
        return data if dtype.kind == "O" else number(data, dtype)

    def run(records: Any) -> Any:
        columns = [np.empty(records.size, dtype) for dtype, _ in facts]
        for i, line in enumerate(records.reshape(-1).tolist()):
            try:
                texts = fields(line)
            except csv.Error as error:
                raise DataError(f"decode_csv: {line!r}: {error}") from None
            for column, text, (dtype, default) in zip(columns, texts, facts, strict=True):
                column[i] = value(text, dtype, default, line)
        shaped = tuple(column.reshape(records.shape) for column in columns)
        return shaped if len(shaped) > 1 else shaped[0]

    return run
