"""The kernel of `Fused`: several operations in one loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.kernels.slicing import check_indices
from hpcflow.kernels.table import Node, fast
from hpcflow.native import kept
from hpcflow.native.call import plain


@fast("llvm", "Fused", "out", on="cpu", exact=True)
def _fused(xp: Any, node: Node) -> Callable[..., Any]:
    loose, checks = node.attrs["loose"], node.attrs["checks"]
    run = kept.builtin(node.attrs["text"])
    if not loose and not checks:
        return run

    def call(*arrays: Any) -> None:
        given = list(arrays)
        for i in loose:
            given[i] = plain(given[i])
        for i, classes in checks:
            check_indices(np, given[i], classes, "label")
        run(*given)

    return call
