"""Non-maximum suppression op: the best of overlapping boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Tensor, convert_to_tensor
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec, merge_shapes
from hpcflow.ops.shape_inference import Attrs, first_output, require, require_rank


def _suppressed(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    boxes, scores, most = inputs[:3]
    for spec in (boxes, scores):
        require("best_boxes", spec, "f")
        require_rank("best_boxes", spec, 3)
    require("best_boxes' number of boxes", most, "iu")
    if boxes.shape is not None:
        merge_shapes(boxes.shape[2:], (4,))
        if scores.shape is not None:
            merge_shapes((boxes.shape[0], boxes.shape[1]), (scores.shape[0], scores.shape[2]))
    return [Spec(int64, (None, 3))]


op("BestBoxes", infer=_suppressed, grad=NoGrad("its output is integers"))


def best_boxes(
    boxes: Any,
    scores: Any,
    max_output_size: Any,
    iou_threshold: Any = 0.5,
    score_threshold: Any = float("-inf"),
    centered: bool = False,
    name: str | None = None,
) -> Tensor:
    """Greedy non-maximum suppression for each class: boxes that overlap no better one.

    Shapes: `boxes` [batch, n, 4] of two corners (y, x, y, x), or (x, y, width, height) around the
            center if `centered`; `scores` [batch, classes, n]; the result is [m, 3]: sample, class
            and box, in descending order of score within each class.
    """
    x = convert_to_tensor(boxes)
    limits = [convert_to_tensor(v, x.dtype) for v in (iou_threshold, score_threshold)]
    inputs = [x, convert_to_tensor(scores, x.dtype), convert_to_tensor(max_output_size), *limits]
    return first_output("BestBoxes", inputs, {"centered": bool(centered)}, name)
