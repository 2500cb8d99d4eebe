"""The kernel of `Fused`: several operations in one loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.kernels.table import Node, fast, provider
from hpcflow.native import kept, machine


def _nothing(node: Node) -> str:
    return ""


provider("llvm", machine.absent)


@fast("llvm", "Fused", "out", on="cpu", refuses=_nothing, exact=True)
def _fused(xp: Any, node: Node) -> Callable[..., Any]:
    loose = node.attrs["loose"]
    run = kept.builtin(node.attrs["text"])
    if not loose:
        return run

    def call(*arrays: Any) -> None:
        given = list(arrays)
        for i in loose:
            given[i] = plain(given[i])
        run(*given)

    return call


def plain(value: Any) -> np.ndarray:
    """An array whose elements lie in C order."""
    array = np.asarray(value)
    return array if array.flags.c_contiguous and array.flags.aligned else array.copy()
