"""Dynamic partition kernels: dynamic_partition and dynamic_stitch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.errors import RangeError
from hpcflow.kernels.cuda_graph_restrictions import READS_VALUES
from hpcflow.kernels.kernel_registry import KernelNode, kernel
from hpcflow.ops.array.gather_kernels import check_indices


@kernel("DynamicPartition", "new", moves=True, uncaptured=READS_VALUES)
def _partition(xp: Any, node: KernelNode) -> Callable[..., Any]:
    num = node.attrs["num"]

    def run(data: Any, partitions: Any) -> Any:
        check_indices(xp, partitions, num, "dynamic_partition: partition")
        rows = data.reshape(partitions.size, *data.shape[partitions.ndim :])
        flat = partitions.reshape(-1)
        order = xp.argsort(flat, kind="stable")
        ends = np.cumsum(xp.bincount(flat.astype(np.int64), minlength=num).tolist())
        parts, start = [], 0
        for end in ends.tolist():
            parts.append(rows[order[start:end]])
            start = end
        return tuple(parts) if num > 1 else parts[0]

    return run


@kernel("DynamicStitch", "new", moves=True)
def _stitch(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(*inputs: Any) -> Any:
        half = len(inputs) // 2
        indices, data = inputs[:half], inputs[half:]
        limits = [(int(i.min()), int(i.max())) for i in indices if i.size]
        if any(low < 0 for low, _ in limits):
            raise RangeError(f"dynamic_stitch: index {min(limits)[0]} is negative")
        size = max((high + 1 for _, high in limits), default=0)
        out = xp.zeros((size, *data[0].shape[indices[0].ndim :]), data[0].dtype)
        for i, d in zip(indices, data, strict=True):
            out[i.reshape(-1)] = d.reshape(i.size, *d.shape[i.ndim :])
        return out

    return run
