"""String sequence ops: string_split and edit_distance with sparse tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ArgumentError, DTypeError, ShapeError
from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.dtypes import float32, int64, string
from hpcflow.graph.graph import Tensor, convert_to_tensor, user_line
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec, merge_shapes
from hpcflow.ops.shape_inference import (
    Attrs,
    first_output,
    make,
    require,
    require_equal,
    require_rank,
)
from hpcflow.ops.sparse.sparse_tensor_ops import SparseTensor


def _string_split(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("string_split", inputs[0], "O")
    require_rank("string_split", inputs[0], 1)
    return [Spec(int64, (None, 2)), Spec(string, (None,)), Spec(int64, (2,))]


def _edit_distance(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require_equal("edit_distance", (inputs[1], inputs[4]))
    for places, values, dense_shape in (inputs[:3], inputs[3:]):
        for s, rank in ((places, 2), (values, 1), (dense_shape, 1)):
            require_rank("a part of a sparse tensor", s, rank)
        for s in (places, dense_shape):
            require("indices", s, "iu")
        if places.shape is not None and values.shape is not None:
            merge_shapes(places.shape[:1], values.shape)
    a, b = inputs[2].value, inputs[5].value
    if a is not None and b is not None:
        if min(a.min(initial=0), b.min(initial=0)) < 0 or a.size != b.size:
            raise ShapeError(
                f"edit_distance: shapes {a.tolist()} and {b.tolist()} are negative or of "
                "different rank"
            )
        return [Spec(float32, tuple(np.maximum(a, b)[:-1].tolist()))]
    lengths = {s.shape[0] for s in (inputs[2], inputs[5]) if s.shape is not None} - {None}
    dense_rank = next(iter(lengths), None)
    return [Spec(float32, None if dense_rank is None else (None,) * (dense_rank - 1))]


op(
    "StringSplit",
    infer=_string_split,
    grad=NoGrad("strings are not differentiable"),
    device="cpu",
)
op(
    "EditDistance",
    infer=_edit_distance,
    grad=NoGrad("it counts edits", none=True),
    device="cpu",
)


@accepts_aliases(sep="delimiter")
def string_split(
    source: Any, delimiter: Any = " ", skip_empty: bool = True, name: str | None = None
) -> SparseTensor:
    """The words of a vector of strings: row i of a sparse matrix has the words of string i.

    Each character of `delimiter`, a string or constant, ends a word; if it is empty, each byte is a
    word. An empty string has no words.
    """
    if isinstance(delimiter, Tensor):
        delimiter = delimiter.constant
    text_of = getattr(delimiter, "item", lambda: delimiter)
    delimiter = text_of() if np.ndim(delimiter) == 0 else None
    if not isinstance(delimiter, (str, bytes)):
        raise ArgumentError(
            "the delimiter of string_split must be a constant string", line=user_line()
        )
    delimiter = delimiter.decode() if isinstance(delimiter, bytes) else delimiter
    text = source if isinstance(source, Tensor) else convert_to_tensor(source, string)
    attrs: Attrs = {"delimiter": delimiter, "skip_empty": bool(skip_empty)}
    return SparseTensor(*make("StringSplit", [text], attrs, name).outputs)


def edit_distance(
    hypothesis: SparseTensor,
    truth: SparseTensor,
    normalize: bool = True,
    name: str | None = "edit_distance",
) -> Tensor:
    """The Levenshtein distance of sequences along the last axis of two sparse tensors.

    It counts insertions, deletions and substitutions; `normalize` divides by the length of `truth`:
    1 if only `hypothesis` is empty, infinity if only `truth` is.
    Shapes: the larger of both sizes along each axis except the last.
    """
    for sp in (hypothesis, truth):
        if not isinstance(sp, SparseTensor):
            raise DTypeError(f"edit_distance takes sparse tensors, not {sp!r}", line=user_line())
    inputs = [*hypothesis.parts(), *truth.parts()]
    return first_output("EditDistance", inputs, {"normalize": bool(normalize)}, name)
