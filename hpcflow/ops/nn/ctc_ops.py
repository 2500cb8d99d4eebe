"""CTC ops: connectionist temporal classification (Graves et al., 2006), loss and decoders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, user_line
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec, merge_shapes
from hpcflow.ops.array.array_ops import constant, ensure_shape, shape, transpose
from hpcflow.ops.array.broadcast_ops import fill
from hpcflow.ops.array.concat_split_ops import concat, stack
from hpcflow.ops.array.cumulative_ops import cumsum
from hpcflow.ops.array.gather_nd_scatter_nd import gather_nd
from hpcflow.ops.array.rearrange_ops import sequence_mask
from hpcflow.ops.array.segment_ops import unsorted_segment_sum
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.array.where_unique_ops import positions
from hpcflow.ops.math.arithmetic_ops import cast, logical_and, multiply, not_equal, where
from hpcflow.ops.math.reduction_ops import argmax, reduce_max, reduce_sum
from hpcflow.ops.nn.sliding_window import full
from hpcflow.ops.shape_inference import Attrs, first_output, integer_argument, make, require
from hpcflow.ops.sparse.sparse_tensor_ops import SparseTensor, sparse_tensor_to_dense

# -- rows. `blank` is the blank's class, negative from the last one. `collapse` first merges equal
# adjacent labels. `merge` merges equal adjacent classes of a path.


def _ctc(type: str, inputs: Sequence[Spec]) -> tuple[Any, Any]:
    """The shapes of logits and batch, from: logits, labels, label lengths, numbers of steps."""
    logits, labels, sizes, steps = inputs
    require(type, logits, "f")
    for spec, what in ((labels, "labels"), (sizes, "label lengths"), (steps, "sequence lengths")):
        require(f"{type}'s {what}", spec, "iu")
    time, batch, classes = full(f"{type}'s logits", logits.shape, 3)
    rows = (full(f"{type}'s labels", labels.shape, 2)[0],)
    joined = merge_shapes(merge_shapes(merge_shapes((batch,), rows), sizes.shape), steps.shape)
    assert joined is not None
    return (time, joined[0], classes), joined


def _loss(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [Spec(inputs[0].dtype, _ctc("ctc_loss", inputs)[1])]


def _loss_grad(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    logits_shape, batch = _ctc("ctc_loss", inputs[1:])
    joined = merge_shapes(batch, inputs[0].shape)
    assert joined is not None
    return [Spec(inputs[1].dtype, (logits_shape[0], joined[0], logits_shape[2]))]


def _loss_back(op: Operation, g: Tensor) -> list[Any]:
    return [lambda: first_output("CTCLossGrad", [g, *op.inputs], op.attrs), None, None, None]


def _beam(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    logits, steps = inputs
    require("ctc_beam_search_decoder", logits, "f")
    require("its sequence lengths", steps, "iu")
    time, batch, _ = full("ctc_beam_search_decoder's inputs", logits.shape, 3)
    joined = merge_shapes((batch,), steps.shape)
    assert joined is not None
    paths = attrs["paths"]
    return [
        Spec(int64, (paths, joined[0], time)),
        Spec(int64, (paths, joined[0])),
        Spec(logits.dtype, (joined[0], paths)),
    ]


op("CTCLoss", infer=_loss, grad=_loss_back)
op("CTCLossGrad", infer=_loss_grad, grad=NoGrad("the gradient of CTC is not differentiated again"))
op("CTCBeamSearch", infer=_beam, grad=NoGrad("it chooses among sequences", none=True))


# -- losses


@accepts_aliases(logits="inputs")
def ctc_loss(
    labels: SparseTensor,
    inputs: Any,
    sequence_length: Any,
    preprocess_collapse_repeated: bool = False,
    ctc_merge_repeated: bool = True,
    ignore_longer_outputs_than_inputs: bool = False,
    time_major: bool = True,
    name: str | None = None,
) -> Tensor:
    """The negative log-likelihood of `labels`, summed over all paths that collapse to them.

    The last class is the blank; `inputs` are logits before softmax.

    Shapes:   `inputs` [time, batch, classes], or [batch, time, classes] unless `time_major`;
              `labels` a sparse [batch, any] of integers; the loss is [batch].
    Gradient: by `inputs`, exact.
    Errors:   at run time: NumericError if labels need more steps (loss 0 with
              `ignore_longer_outputs_than_inputs`), RangeError for an invalid label.
    """
    if not isinstance(labels, SparseTensor):
        raise ShapeError(
            f"ctc_loss takes labels as a SparseTensor, not {labels!r}",
            line=user_line(),
            hint="hf.nn.ctc_loss_v2 takes dense labels and their lengths",
        )
    rows = getitem(labels.indices, (slice(None), 0))
    batch = getitem(labels.dense_shape, 0)
    sizes = unsorted_segment_sum(fill(shape(rows), constant(1, int64)), rows, batch)
    dense = sparse_tensor_to_dense(labels, -1)
    attrs: Attrs = {
        "blank": -1,
        "collapse": bool(preprocess_collapse_repeated),
        "merge": bool(ctc_merge_repeated),
        "ignore_longer": bool(ignore_longer_outputs_than_inputs),
    }
    logits = convert_to_tensor(inputs)
    logits = logits if time_major else transpose(logits, [1, 0, 2])
    return first_output(
        "CTCLoss", [logits, dense, sizes, convert_to_tensor(sequence_length)], attrs, name
    )


def ctc_loss_v2(
    labels: Any,
    logits: Any,
    label_length: Any,
    logit_length: Any,
    logits_time_major: bool = True,
    blank_index: int = 0,
    name: str | None = None,
) -> Tensor:
    """`ctc_loss` for dense labels [batch, longest], the first `label_length` of which are valid.

    `blank_index` is the class of the blank, negative from the last one.
    """
    x = convert_to_tensor(logits)
    x = x if logits_time_major else transpose(x, [1, 0, 2])
    attrs: Attrs = {
        "blank": integer_argument(blank_index, "blank_index"),
        "collapse": False,
        "merge": True,
    }
    attrs["ignore_longer"] = False
    inputs = [convert_to_tensor(t) for t in (labels, label_length, logit_length)]
    return first_output("CTCLoss", [x, *inputs], attrs, name)


# -- decoders


def _sparse(keep: Tensor, columns: Tensor, values: Tensor) -> SparseTensor:
    """The sparse tensor of `values` [batch, time] where `keep` is true, at `columns` of row b."""
    places = positions(keep)
    at = gather_nd(columns, places)
    rows = getitem(places, (slice(None), 0))
    sizes = reduce_sum(cast(keep, int64), 1)
    longest = reduce_max(concat([sizes, constant([0], int64)], 0))
    batch = getitem(shape(keep, out_type=int64), 0)
    indices = stack([rows, at], 1)
    return SparseTensor(indices, gather_nd(values, places), stack([batch, longest]))


def ctc_greedy_decoder(
    inputs: Any, sequence_length: Any, merge_repeated: bool = True
) -> tuple[list[SparseTensor], Tensor]:
    """The most probable class of each step, without blanks and with repetitions merged.

    Shapes: `inputs` [time, batch, classes], the last class the blank: a list of one sparse [batch,
            longest] of int64, and the negative sum of the largest logits, [batch, 1].
    """
    logits = ensure_shape(inputs, (None, None, None))
    length = getitem(shape(logits), 0)
    steps = ensure_shape(sequence_length, (logits.shape and logits.shape[1],))
    alive = sequence_mask(steps, length)
    best = transpose(argmax(logits, 2), [1, 0])
    top = transpose(reduce_max(logits, 2), [1, 0])
    scores = multiply(reduce_sum(where(alive, top, 0), 1, True), -1)
    scores.set_shape((steps.shape and steps.shape[0], 1))
    blank = cast(getitem(shape(logits), -1), int64) - 1
    keep = logical_and(alive, not_equal(best, blank))
    if merge_repeated:
        start = fill(stack([getitem(shape(best), 0), 1]), constant(-1, int64))
        before = getitem(concat([start, best], 1), (slice(None), slice(None, -1)))
        keep = logical_and(keep, not_equal(best, before))
    columns = cumsum(cast(keep, int64), 1, exclusive=True)
    return [_sparse(keep, columns, best)], scores


def ctc_beam_search_decoder(
    inputs: Any,
    sequence_length: Any,
    beam_width: int = 100,
    top_paths: int = 1,
    merge_repeated: bool = True,
) -> tuple[list[SparseTensor], Tensor]:
    """The most probable labels over all paths, by beam search with `beam_width` prefixes.

    `merge_repeated` merges equal adjacent labels of the result, as TensorFlow 1 does.

    Shapes: `inputs` [time, batch, classes], the last class the blank: `top_paths` sparse [batch,
            longest] of int64, and their log-probabilities [batch, top_paths]; -inf for missing
            paths.
    """
    if not 1 <= top_paths <= beam_width:
        raise ShapeError(f"top_paths {top_paths} is not in [1, {beam_width}]", line=user_line())
    attrs = {
        "width": integer_argument(beam_width, "beam_width"),
        "paths": integer_argument(top_paths, "top_paths"),
        "blank": -1,
    }
    attrs["merge"] = bool(merge_repeated)
    operands = [convert_to_tensor(inputs), convert_to_tensor(sequence_length)]
    labels, sizes, scores = make("CTCBeamSearch", operands, attrs).outputs
    decoded = []
    for k in range(top_paths):
        values = getitem(labels, k)
        keep = sequence_mask(getitem(sizes, k), getitem(shape(values), 1))
        columns = cumsum(cast(keep, int64), 1, exclusive=True)
        decoded.append(_sparse(keep, columns, values))
    return decoded, scores
