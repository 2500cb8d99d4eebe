"""Kernel of ReadCheckpoint: rows of an array of a checkpoint, as a value of the graph.

Attributes: `path` of the checkpoint, its `id`, `array`, `start` (the first row), `dtype`, `shape`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hpcflow.checkpoint import header_digests
from hpcflow.checkpoint.checkpoint_reader import SavedCheckpoint
from hpcflow.errors import CheckpointError
from hpcflow.kernels.kernel_registry import KernelNode, kernel


@kernel("ReadCheckpoint", "new", on="cpu", moves=True)
def _read_checkpoint(xp: Any, node: KernelNode) -> Callable[..., Any]:
    attrs = node.attrs

    def run() -> np.ndarray:
        saved = _opened(attrs["path"], attrs["id"])
        rows, shape = np.empty(attrs["shape"], attrs["dtype"]), attrs["shape"]
        count = shape[0] if shape else 1
        try:
            saved.read_checked(attrs["array"], attrs["start"], attrs["start"] + count, rows)
        except OSError as error:
            raise CheckpointError(f"{saved.path} cannot be read: {error}") from error
        return rows

    return run


@functools.lru_cache(maxsize=4)
def _opened(path: str, id: str) -> SavedCheckpoint:
    """Errors: CheckpointCorruptError if another checkpoint has replaced it."""
    saved = SavedCheckpoint(Path(path))
    if saved.facts["id"] != id:
        raise header_digests.foreign_file_error(
            saved.index, "it was replaced since the graph was made"
        )
    return saved
