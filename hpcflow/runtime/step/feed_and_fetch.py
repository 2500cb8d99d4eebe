"""Feeds and fetches of `Session.run`: feeds are checked and cast, fetches flattened and rebuilt."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping

import numpy as np

from hpcflow.errors import FeedError, FetchError, HpcflowError
from hpcflow.graph import nested_structure
from hpcflow.graph.composite_tensor import CompositeTensor
from hpcflow.graph.dtypes import as_strings, kind_of, name_of, string
from hpcflow.graph.graph import Graph, Operation, Tensor
from hpcflow.graph.static_shape import Shape, merge_shapes, shape_text
from hpcflow.platform.exception_translation import value_text
from hpcflow.runtime.device.dlpack_exchange import exports_dlpack, feed_from_dlpack
from hpcflow.runtime.dynamic_types import Fed, Feeds, FeedValue, Fetches, Rebuild, Value


def flatten_fetches(graph: Graph, fetches: Fetches, elements: list[Tensor | Operation]) -> Rebuild:
    """Append the fetches to `elements`; returns a function that rebuilds their structure.

    The function takes the list of the values of the tensors in `elements`, without its operations.
    """
    if isinstance(fetches, CompositeTensor):
        parts = [flatten_fetches(graph, part, elements) for part in fetches.parts()]
        return lambda values: fetches.Value(*[part(values) for part in parts])
    element = _as_fetch(graph, fetches)
    if isinstance(element, Operation):
        elements.append(element)
        return _no_values
    if element is not None:
        at = sum(isinstance(w, Tensor) for w in elements)
        elements.append(element)
        return (
            (lambda values: values[at])
            if element.shape
            else lambda values: _returned_value(values[at])
        )
    if isinstance(fetches, Mapping):
        keyed = {k: flatten_fetches(graph, v, elements) for k, v in fetches.items()}
        return lambda values: _mapping_like(fetches, {k: part(values) for k, part in keyed.items()})
    if isinstance(fetches, (list, tuple)):
        rebuilders = [flatten_fetches(graph, v, elements) for v in fetches]
        if hasattr(fetches, "_fields"):
            kind = type(fetches)
            return lambda values: kind(*[part(values) for part in rebuilders])
        sequence_type = type(fetches)
        return lambda values: sequence_type([part(values) for part in rebuilders])
    hint = "fetch tensors, operations, variables, their names, or lists and dicts of them"
    if fetches is None:
        hint = "leave it out: hf.gradients returns None if the result does not depend on a variable"
    raise FetchError(f"{value_text(fetches)} cannot be fetched", hint=hint)


def _no_values(values: Value) -> None:
    return None


def _returned_value(value: Value) -> Value:
    """A value as it is returned: a NumPy scalar if it has no axes."""
    return value[()] if value.__class__ is np.ndarray and not value.ndim else value


def _mapping_like(fetches: Feeds, values: Fed) -> Feeds:
    """The values of a mapping, as a copy of `fetches` with them if its type is mutable."""
    if not isinstance(fetches, MutableMapping):
        return values
    mapping = copy.copy(fetches)
    mapping.update(values)
    return mapping


def _as_fetch(graph: Graph, fetch: Fetches) -> Tensor | Operation | None:
    if isinstance(fetch, str):
        by_name = graph.get_tensor_by_name if ":" in fetch else graph.get_operation_by_name
        return by_name(fetch)
    if hasattr(fetch, "as_tensor"):
        fetch = fetch.fetched if hasattr(fetch, "fetched") else fetch.as_tensor()
    if not isinstance(fetch, (Tensor, Operation)):
        return None
    if fetch.graph is not graph and fetch.graph.root is graph:
        op = fetch if isinstance(fetch, Operation) else fetch.op
        raise FetchError(
            f"{fetch.name!r} is inside a loop or a branch",
            op=op.name,
            line=op.line,
            hint="give it as a result of the body, and fetch that result",
        )
    if fetch.graph is not graph:
        raise FetchError(
            f"{fetch.name!r} belongs to another graph than this session's",
            line=(fetch if isinstance(fetch, Operation) else fetch.op).line,
            hint="run it in a session of its graph: hf.Session(graph)",
        )
    return fetch


def has_composites(feed_dict: Feeds) -> bool:
    """Whether a key of the feeds stands for several tensors.

    Errors: FeedError if the feeds are not a dict.
    """
    if not isinstance(feed_dict, Mapping):
        raise FeedError(
            f"feeds are {value_text(feed_dict)}, not a dict", hint="give {placeholder: value}"
        )
    return any(isinstance(key, (CompositeTensor, tuple)) for key in feed_dict)


def by_tensor(feed_dict: Feeds) -> Fed:
    """The feeds by tensor: composite tensors and tuples of tensors are flattened.

    Errors: FeedError for a value that does not match them.
    """
    if not has_composites(feed_dict):
        return dict(feed_dict)
    feeds: Fed = {}
    for key, value in feed_dict.items():
        if isinstance(key, tuple):
            feeds |= by_tensor(_pair_values(key, value))
            continue
        if not isinstance(key, CompositeTensor):
            feeds[key] = value
            continue
        parts = key.parts()
        if not isinstance(value, (tuple, list)) or len(value) != len(parts):
            raise FeedError(
                f"{key.name!r} was fed {value_text(value)}",
                op=key.op.name,
                line=key.op.line,
                hint=f"feed hf.{key.Value.__name__}({', '.join(key.Value._fields)})",
            )
        for part, array in zip(parts, value, strict=True):
            if part.spec.value is None:
                feeds[part] = array
            elif not np.array_equal(part.spec.value, array):
                raise _shape_contradiction(part, part.spec.value.tolist(), array)
            if part.op.type == "Placeholder" and not _sizes_match(
                part.op.attrs.get("sizes"), array
            ):
                raise _shape_contradiction(part, shape_text(part.op.attrs["sizes"]), array)
    return feeds


def _sizes_match(sizes: Shape, fed: FeedValue) -> bool:
    """Whether the fed sizes match the known ones."""
    fed_sizes = np.array(fed, object).ravel().tolist()
    return sizes is None or (
        len(sizes) == len(fed_sizes)
        and all(d is None or d == g for d, g in zip(sizes, fed_sizes, strict=True))
    )


def _shape_contradiction(part: Tensor, known_shape: FeedValue, array: FeedValue) -> FeedError:
    return FeedError(
        f"{part.name!r} is {known_shape}, but {value_text(array)} was fed",
        op=part.op.name,
        line=part.op.line,
    )


def _pair_values(key: tuple[object, ...], value: FeedValue) -> Fed:
    """The tensors of a nested tuple with their values, of a structure of the same size."""
    keys, values = (
        nested_structure.flatten_structure(key),
        nested_structure.flatten_structure(value),
    )
    if len(keys) != len(values):
        raise FeedError(
            f"{value_text(key)} are {len(keys)} tensors and were fed {len(values)} values",
            hint="feed a tuple of the same structure, or each tensor by itself",
        )
    return dict(zip(keys, values, strict=True))


def feed_array(tensor: Tensor, value: FeedValue) -> np.ndarray:
    """`value` as an array that fits `tensor`.

    An array of another library is imported by DLPack, without a copy.

    Errors: FeedError for a shape that does not fit, and as `cast`.
    """
    if exports_dlpack(value) and tensor.dtype != string:
        value = feed_from_dlpack(tensor, value)
    array = cast(tensor, read_feed(tensor, value))
    try:
        merge_shapes(array.shape, tensor.shape)
    except HpcflowError:
        raise FeedError(
            f"{tensor.name!r} was fed an array of shape {shape_text(array.shape)}; "
            f"it takes {shape_text(tensor.shape)}",
            op=tensor.op.name,
            line=tensor.op.line,
            hint="reshape the array, or the placeholder",
        ) from None
    return array


def read_feed(tensor: Tensor, value: FeedValue) -> np.ndarray:
    """`value`, an array or what NumPy converts to one, not yet in the dtype of `tensor`.

    An array of Python objects is converted through a list.

    Errors: FeedError if it cannot be converted.
    """
    try:
        if tensor.dtype == string:
            return as_strings(value)
        array = np.asarray(value)
        return np.asarray(array.tolist()) if array.dtype == object else array
    except (TypeError, ValueError, OverflowError):  # rows of unequal length, a tensor
        raise _feed_error(tensor, value) from None


def castable(fed_dtype: np.dtype, dtype: np.dtype) -> bool:
    """Whether feeds of dtype `fed_dtype` are cast to `dtype`: NumPy's same_kind, and among
    integers.
    """
    return kind_of(fed_dtype) in _CASTS.get(kind_of(dtype), "")


# kind of the tensor's dtype -> kinds that may be fed
_CASTS = {"b": "biu", "i": "biu", "u": "biu", "f": "biuf", "c": "biufc", "O": "OSU"}


def cast(tensor: Tensor, array: np.ndarray) -> np.ndarray:
    """`array` in the dtype of `tensor`, rounded if necessary.

    Errors: FeedError for a dtype of another kind, for an integer out of range, and for a finite
    number that would become infinite.
    """
    dtype = tensor.dtype
    if array.dtype == dtype:
        return array
    if array.size and not castable(array.dtype, dtype):
        hint = f"feed array.astype({name_of(dtype)!r}) if you mean it"
        if array.dtype.kind in "SU":
            hint = "it is text: convert it, and decide what to do with what is no number"
        raise _feed_error(tensor, array.flat[0], hint)
    with np.errstate(all="ignore"):
        cast_array = array.astype(dtype)
    if not np.can_cast(array.dtype, dtype, "safe"):
        lost = _lossy_element(array, cast_array)
        if lost.any():
            raise _feed_error(tensor, array[lost][0], "feed other numbers, or a wider placeholder")
    return cast_array


def _lossy_element(array: np.ndarray, cast_array: np.ndarray) -> np.ndarray:
    """Where the cast of `array` to `cast_array` changed a number by more than rounding."""
    if kind_of(cast_array.dtype) in "fc":
        return np.isfinite(array) & ~np.isfinite(cast_array)
    return (cast_array.astype(array.dtype) != array) | ((cast_array < 0) != (array < 0))


def _feed_error(tensor: Tensor, value: FeedValue, hint: str | None = None) -> FeedError:
    kind = "text or bytes" if tensor.dtype == string else "numbers"
    shown_value = f"{value.dtype} {value}" if isinstance(value, np.generic) else value_text(value)
    if isinstance(value, (np.str_, np.bytes_)):
        shown_value = f"the text {value.item()!r}"
    return FeedError(
        f"{tensor.name!r} is {name_of(tensor.dtype)} and cannot hold {shown_value}",
        op=tensor.op.name,
        line=tensor.op.line,
        hint=hint or f"feed {kind}, or an array of them",
    )
