"""Nested structures: flatten and pack lists, tuples, named tuples and dicts.

A TensorShape is one value, as in `tf.nest`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hpcflow.errors import GraphError
from hpcflow.graph.tensor_shape import TensorShape


def flatten_structure(structure: Any) -> list[Any]:
    """The leaves of a structure, dicts by sorted key; a single value is its own leaf."""
    return list(_leaves(structure))


def _has_items(structure: Any) -> bool:
    return isinstance(structure, (list, tuple)) and not isinstance(structure, TensorShape)


def _leaves(structure: Any) -> Iterator[Any]:
    if isinstance(structure, Mapping):
        for key in sorted(structure):
            yield from _leaves(structure[key])
    elif _has_items(structure):
        for item in structure:
            yield from _leaves(item)
    else:
        yield structure


def pack_structure(like: Any, leaves: Sequence[Any]) -> Any:
    """`leaves` packed in the structure of `like`."""
    remaining_leaves = iter(leaves)
    packed = _pack(like, remaining_leaves)
    if next(remaining_leaves, None) is not None:
        raise GraphError(f"{len(leaves)} values are too many for the structure {like!r}")
    return packed


def _pack(like: Any, remaining_leaves: Iterator[Any]) -> Any:
    if isinstance(like, Mapping):
        packed_items = {key: _pack(like[key], remaining_leaves) for key in sorted(like)}
        return type(like)((key, packed_items[key]) for key in like)  # type: ignore[call-arg]
    if _has_items(like):
        items = [_pack(item, remaining_leaves) for item in like]
        return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)
    return next(remaining_leaves)


def same_structure(a: Any, b: Any) -> bool:
    """Whether two structures are the same, where lists equal tuples."""
    return bool(_structure_outline(a) == _structure_outline(b))


def check_same_structure(a: Any, b: Any, label: str) -> None:
    """Errors: GraphError unless the two structures are alike."""
    if not same_structure(a, b):
        raise GraphError(
            f"{label} have different structures: {_structure_outline(a)} and "
            f"{_structure_outline(b)}"
        )


def _structure_outline(structure: Any) -> Any:
    if isinstance(structure, Mapping):
        return {key: _structure_outline(structure[key]) for key in sorted(structure)}
    if _has_items(structure):
        return [_structure_outline(item) for item in structure]
    return "."


def map_structure(function: Callable[..., Any], *structures: Any) -> Any:
    """`function` of the corresponding leaves, in the structure of the first argument."""
    for structure in structures[1:]:
        check_same_structure(structures[0], structure, "the arguments")
    columns = zip(*map(flatten_structure, structures), strict=True)
    return pack_structure(structures[0], [function(*leaves) for leaves in columns])
