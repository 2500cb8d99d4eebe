"""Canonical attribute values: plain values that can be compared and hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from hpcflow.graph.dtypes import string, text_of
from hpcflow.graph.string_encoding import encode_strings


def canonical(value: Any) -> Hashable:
    """Return a hashable form of an attribute: equal exactly if type and content are equal.

    Arrays are digested. A value that is not plain data, such as a function, equals only itself.
    """
    kind = type(value)
    if kind is tuple:
        return "list", tuple([canonical(v) for v in value])
    if value is None or isinstance(value, (bool, int, str, bytes)):
        return kind.__name__, value
    if isinstance(value, float):
        return "float", value.hex()
    if isinstance(value, complex):
        return "complex", value.real.hex(), value.imag.hex()
    if isinstance(value, np.dtype):
        return "dtype", value.str
    if isinstance(value, (np.ndarray, np.generic)):
        return "array", *digest_array(np.asarray(value))
    if isinstance(value, Mapping):
        return "dict", tuple(sorted((str(k), canonical(v)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return "list", tuple([canonical(v) for v in value])
    return "object", kind.__name__, id(value)


class CanonicalValue:
    """A hashable wrapper: equal if all contents are equal in type and value."""

    __slots__ = ("key", "value")

    def __init__(self, value: Any) -> None:
        self.value, self.key = value, canonical(value)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CanonicalValue) and self.key == other.key


def digest_array(array: np.ndarray) -> tuple[str, tuple[int, ...], str]:
    """Return the dtype, the shape and a digest of the elements."""
    data = encode_strings(array) if array.dtype == string else np.ascontiguousarray(array).tobytes()
    digest = hashlib.blake2b(data, digest_size=16)
    return text_of(array.dtype), array.shape, digest.hexdigest()
