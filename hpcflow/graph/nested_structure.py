"""Nested structures: flatten and pack lists, tuples, named tuples and dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hpcflow.errors import GraphError


def flatten(given: Any) -> list[Any]:
    """The leaves of a structure, dicts by sorted key; a single value is its own leaf."""
    return list(_leaves(given))


def _leaves(given: Any) -> Iterator[Any]:
    if isinstance(given, Mapping):
        for key in sorted(given):
            yield from _leaves(given[key])
    elif isinstance(given, (list, tuple)):
        for item in given:
            yield from _leaves(item)
    else:
        yield given


def pack(like: Any, leaves: Sequence[Any]) -> Any:
    """`leaves` packed in the structure of `like`."""
    rest = iter(leaves)
    made = _packed(like, rest)
    if next(rest, None) is not None:
        raise GraphError(f"{len(leaves)} values are too many for the structure {like!r}")
    return made


def _packed(like: Any, rest: Iterator[Any]) -> Any:
    if isinstance(like, Mapping):
        made = {key: _packed(like[key], rest) for key in sorted(like)}
        return type(like)((key, made[key]) for key in like)  # type: ignore[call-arg]
    if isinstance(like, (list, tuple)):
        items = [_packed(item, rest) for item in like]
        return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)
    return next(rest)


def alike(a: Any, b: Any) -> bool:
    """Whether two structures are the same, where lists equal tuples."""
    return bool(_outline(a) == _outline(b))


def same(a: Any, b: Any, what: str) -> None:
    """Errors: GraphError unless the two structures are alike."""
    if not alike(a, b):
        raise GraphError(f"{what} have different structures: {_outline(a)} and {_outline(b)}")


def _outline(given: Any) -> Any:
    if isinstance(given, Mapping):
        return {key: _outline(given[key]) for key in sorted(given)}
    if isinstance(given, (list, tuple)):
        return [_outline(item) for item in given]
    return "."


def mapped(function: Callable[..., Any], *structures: Any) -> Any:
    """`function` of the corresponding leaves, in the structure of the first argument."""
    for other in structures[1:]:
        same(structures[0], other, "the arguments")
    columns = zip(*map(flatten, structures), strict=True)
    return pack(structures[0], [function(*leaves) for leaves in columns])
