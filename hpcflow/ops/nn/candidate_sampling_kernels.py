"""Candidate sampling kernel: all randomness is in two words, the key of a Philox generator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.kernels.cuda_graph_restrictions import READS_VALUES
from hpcflow.kernels.kernel_registry import KernelNode, kernel

MOST_DRAWS = 1 << 16  # per block


def classes(kind: str, u: np.ndarray, range_max: int, cumulative: Any) -> np.ndarray:
    """The classes that correspond to uniform numbers in [0, 1)."""
    if kind == "log_uniform":
        ids = np.exp(u * math.log(range_max + 1)).astype(np.int64) - 1
        return ids % range_max
    if kind == "unigram":
        ids = np.searchsorted(cumulative, u * cumulative[-1], side="right")
        return np.asarray(ids, np.int64)
    return np.asarray(u * range_max, np.int64)


def draw(words: np.ndarray, node_attrs: dict[str, Any]) -> tuple[np.ndarray, int]:
    """The classes, and the number of draws."""
    count, range_max = node_attrs["num_sampled"], node_attrs["range_max"]
    weights = node_attrs.get("weights")
    cumulative = None if weights is None else np.cumsum(weights)
    key = int(words[0]) | int(words[1]) << 64
    generator = np.random.Generator(np.random.Philox(key=key))

    def more(n: int) -> np.ndarray:
        return classes(node_attrs["kind"], generator.random(n), range_max, cumulative)

    if not node_attrs["unique"]:
        return more(count), count
    drawn = more(count)
    while True:
        _, first = np.unique(drawn, return_index=True)
        if first.size >= count:
            first.sort()
            return drawn[first[:count]], int(first[count - 1]) + 1
        drawn = np.concatenate([drawn, more(min(drawn.size, MOST_DRAWS))])


@kernel("SampleCandidates", "out", uncaptured=READS_VALUES)
def _sample(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(words: Any, out: Any, tries: Any) -> None:
        host = words if isinstance(words, np.ndarray) else words.get()
        ids, number = draw(host, node.attrs)
        xp.copyto(out, xp.asarray(ids))
        tries[...] = number

    return run
