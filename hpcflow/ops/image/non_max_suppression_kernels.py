"""Non-maximum suppression kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.kernels.cuda_graph_restrictions import READS_VALUES
from hpcflow.kernels.kernel_registry import KernelNode, kernel


def _corners(xp: Any, boxes: Any, centered: bool) -> tuple[Any, Any]:
    """The smaller and the larger corner of each box."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if centered:
        return first - second / 2, first + second / 2
    return xp.minimum(first, second), xp.maximum(first, second)


def _overlap(xp: Any, low: Any, high: Any, index: int) -> Any:
    """Intersection over union of box `index` with all boxes."""
    sides = xp.minimum(high[index], high) - xp.maximum(low[index], low)
    shared = xp.maximum(sides, 0).prod(-1)
    area = (high - low).prod(-1)
    union = area[index] + area - shared
    return xp.where(union > 0, shared / xp.where(union > 0, union, 1), 0)


@kernel("BestBoxes", "new", uncaptured=READS_VALUES)
def _best_boxes(xp: Any, node: KernelNode) -> Callable[..., Any]:
    centered = node.attrs["centered"]

    def chosen(
        low: Any, high: Any, scores: Any, max_boxes: int, limit: Any, least: Any
    ) -> list[int]:
        candidates = scores > least
        selected: list[int] = []
        while len(selected) < max_boxes and bool(candidates.any()):
            best = int(xp.argmax(xp.where(candidates, scores, -np.inf)))
            selected.append(best)
            candidates &= _overlap(xp, low, high, best) <= limit
            candidates[best] = False
        return selected

    def run(boxes: Any, scores: Any, max_boxes: Any, limit: Any, least: Any) -> Any:
        low, high = _corners(xp, boxes, centered)
        count = int(max_boxes.reshape(-1)[0])
        limit, least = limit.reshape(-1)[0], least.reshape(-1)[0]
        rows = [
            (sample, kind, box)
            for sample in range(scores.shape[0])
            for kind in range(scores.shape[1])
            for box in chosen(low[sample], high[sample], scores[sample, kind], count, limit, least)
        ]
        return xp.asarray(rows, np.int64).reshape(-1, 3)

    return run
