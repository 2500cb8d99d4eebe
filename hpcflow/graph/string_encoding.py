"""Encoding of string arrays as bytes: all lengths, 8 bytes little-endian each, then all strings."""

from __future__ import annotations

import numpy as np

from hpcflow.graph.dtypes import as_strings, string


def encode_strings(array: np.ndarray) -> bytes:
    """The encoded elements of an array of strings, in order."""
    flat = as_strings(array).reshape(-1).tolist()
    lengths = np.fromiter(map(len, flat), "<u8", len(flat))
    return b"".join([lengths.tobytes(), *flat])


def decode_strings(data: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """Decode an array of `shape`; ValueError if the bytes do not match the shape."""
    count = 1
    for d in shape:
        count *= d
    if 8 * count > len(data):
        raise ValueError(f"{len(data)} bytes are too few for {count} strings")
    lengths = np.frombuffer(data, "<u8", count).tolist()
    if sum(lengths) != len(data) - 8 * count:
        raise ValueError("the lengths of strings do not add up to their bytes")
    strings, at = np.empty(count, string), 8 * count
    for i, length in enumerate(lengths):
        strings[i] = bytes(data[at : at + length])
        at += length
    return strings.reshape(shape)
