"""Feeds and fetches of `Session.run`: feeds are checked and cast, fetches flattened and rebuilt."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping

import numpy as np

from hpcflow.errors import FeedError, FetchError, HpcflowError
from hpcflow.graph import nested_structure
from hpcflow.graph.composite_tensor import Composite
from hpcflow.graph.dtypes import as_strings, kind_of, name_of, string
from hpcflow.graph.graph import Graph, Operation, Tensor
from hpcflow.graph.static_shape import Shape, merge, show
from hpcflow.platform.exception_translation import shown
from hpcflow.runtime.device.dlpack_exchange import hands_over, taken
from hpcflow.runtime.dynamic_types import Fed, Feeds, Fetches, Given, Rebuild, Value


def structure(graph: Graph, fetches: Fetches, wanted: list[Tensor | Operation]) -> Rebuild:
    """Append the fetches to `wanted`; returns a function that rebuilds their structure.

    The function takes the list of the values of the tensors in `wanted`, without its operations.
    """
    if isinstance(fetches, Composite):
        parts = [structure(graph, part, wanted) for part in fetches.parts()]
        return lambda values: fetches.Value(*[part(values) for part in parts])
    found = _as_fetch(graph, fetches)
    if isinstance(found, Operation):
        wanted.append(found)
        return _none
    if found is not None:
        at = sum(isinstance(w, Tensor) for w in wanted)
        wanted.append(found)
        return (lambda values: values[at]) if found.shape else lambda values: _given(values[at])
    if isinstance(fetches, Mapping):
        named = {k: structure(graph, v, wanted) for k, v in fetches.items()}
        return lambda values: _like(fetches, {k: part(values) for k, part in named.items()})
    if isinstance(fetches, (list, tuple)):
        made = [structure(graph, v, wanted) for v in fetches]
        if hasattr(fetches, "_fields"):
            kind = type(fetches)
            return lambda values: kind(*[part(values) for part in made])
        whole = type(fetches)
        return lambda values: whole([part(values) for part in made])
    raise FetchError(
        f"{shown(fetches)} cannot be fetched",
        hint="fetch tensors, operations, variables, their names, or lists and dicts of them",
    )


def _none(values: Value) -> None:
    return None


def _given(value: Value) -> Value:
    """A value as it is returned: a NumPy scalar if it has no axes."""
    return value[()] if value.__class__ is np.ndarray and not value.ndim else value


def _like(fetches: Feeds, values: Fed) -> Feeds:
    """The values of a mapping, as a copy of `fetches` with them if its type is mutable."""
    if not isinstance(fetches, MutableMapping):
        return values
    made = copy.copy(fetches)
    made.update(values)
    return made


def _as_fetch(graph: Graph, given: Fetches) -> Tensor | Operation | None:
    if isinstance(given, str):
        by_name = graph.get_tensor_by_name if ":" in given else graph.get_operation_by_name
        return by_name(given)
    if hasattr(given, "as_tensor"):
        given = given.fetched if hasattr(given, "fetched") else given.as_tensor()
    if not isinstance(given, (Tensor, Operation)):
        return None
    if given.graph is not graph and given.graph.root is graph:
        op = given if isinstance(given, Operation) else given.op
        raise FetchError(
            f"{given.name!r} is inside a loop or a branch",
            op=op.name,
            line=op.line,
            hint="give it as a result of the body, and fetch that result",
        )
    if given.graph is not graph:
        raise FetchError(
            f"{given.name!r} belongs to another graph than this session's", hint="hf.Session(graph)"
        )
    return given


def has_composites(feed_dict: Feeds) -> bool:
    """Whether a key of the feeds stands for several tensors.

    Errors: FeedError if the feeds are not a dict.
    """
    if not isinstance(feed_dict, Mapping):
        raise FeedError(
            f"feeds are {shown(feed_dict)}, not a dict", hint="give {placeholder: value}"
        )
    return any(isinstance(key, (Composite, tuple)) for key in feed_dict)


def by_tensor(feed_dict: Feeds) -> Fed:
    """The feeds by tensor: composite tensors and tuples of tensors are flattened.

    Errors: FeedError for a value that does not match them.
    """
    if not has_composites(feed_dict):
        return dict(feed_dict)
    found: Fed = {}
    for key, value in feed_dict.items():
        if isinstance(key, tuple):
            found |= by_tensor(_paired(key, value))
            continue
        if not isinstance(key, Composite):
            found[key] = value
            continue
        parts = key.parts()
        if not isinstance(value, (tuple, list)) or len(value) != len(parts):
            raise FeedError(
                f"{key.name!r} was fed {shown(value)}",
                op=key.op.name,
                line=key.op.line,
                hint=f"feed hf.{key.Value.__name__}({', '.join(key.Value._fields)})",
            )
        for part, array in zip(parts, value, strict=True):
            if part.spec.value is None:
                found[part] = array
            elif not np.array_equal(part.spec.value, array):
                raise _contradiction(part, part.spec.value.tolist(), array)
            if part.op.type == "Placeholder" and not _are(part.op.attrs.get("sizes"), array):
                raise _contradiction(part, show(part.op.attrs["sizes"]), array)
    return found


def _are(sizes: Shape, fed: Given) -> bool:
    """Whether the fed sizes match the known ones."""
    given = np.array(fed, object).ravel().tolist()
    return sizes is None or (
        len(sizes) == len(given)
        and all(d is None or d == g for d, g in zip(sizes, given, strict=True))
    )


def _contradiction(part: Tensor, known: Given, array: Given) -> FeedError:
    return FeedError(
        f"{part.name!r} is {known}, but {shown(array)} was fed",
        op=part.op.name,
        line=part.op.line,
    )


def _paired(key: tuple[object, ...], value: Given) -> Fed:
    """The tensors of a nested tuple with their values, of a structure of the same size."""
    keys, values = nested_structure.flatten(key), nested_structure.flatten(value)
    if len(keys) != len(values):
        raise FeedError(
            f"{shown(key)} are {len(keys)} tensors and were fed {len(values)} values",
            hint="feed a tuple of the same structure, or each tensor by itself",
        )
    return dict(zip(keys, values, strict=True))


def as_fed(tensor: Tensor, value: Given) -> np.ndarray:
    """`value` as an array that fits `tensor`.

    An array of another library is imported by DLPack, without a copy.

    Errors: FeedError for a shape that does not fit, and as `cast`.
    """
    if hands_over(value) and tensor.dtype != string:
        value = taken(tensor, value)
    array = cast(tensor, as_read(tensor, value))
    try:
        merge(array.shape, tensor.shape)
    except HpcflowError:
        raise FeedError(
            f"{tensor.name!r} was fed an array of shape {show(array.shape)}; "
            f"it takes {show(tensor.shape)}",
            op=tensor.op.name,
            line=tensor.op.line,
            hint="reshape the array, or the placeholder",
        ) from None
    return array


def as_read(tensor: Tensor, value: Given) -> np.ndarray:
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
        raise _unfit(tensor, value) from None


def castable(given: np.dtype, taken: np.dtype) -> bool:
    """Whether feeds of dtype `given` are cast to `taken`: NumPy's same_kind, and among integers."""
    return kind_of(given) in _CASTS.get(kind_of(taken), "")


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
        raise _unfit(tensor, array.flat[0], f"feed array.astype({name_of(dtype)!r}) if you mean it")
    with np.errstate(all="ignore"):
        made = array.astype(dtype)
    if not np.can_cast(array.dtype, dtype, "safe"):
        lost = _lost(array, made)
        if lost.any():
            raise _unfit(tensor, array[lost][0], "feed other numbers, or a wider placeholder")
    return made


def _lost(array: np.ndarray, made: np.ndarray) -> np.ndarray:
    """Where the cast of `array` to `made` changed a number by more than rounding."""
    if kind_of(made.dtype) in "fc":
        return np.isfinite(array) & ~np.isfinite(made)
    return (made.astype(array.dtype) != array) | ((made < 0) != (array < 0))


def _unfit(tensor: Tensor, value: Given, hint: str | None = None) -> FeedError:
    kind = "text or bytes" if tensor.dtype == string else "numbers"
    told = f"{value.dtype} {value}" if isinstance(value, np.generic) else shown(value)
    return FeedError(
        f"{tensor.name!r} is {name_of(tensor.dtype)} and cannot hold {told}",
        op=tensor.op.name,
        line=tensor.op.line,
        hint=hint or f"feed {kind}, or an array of them",
    )
