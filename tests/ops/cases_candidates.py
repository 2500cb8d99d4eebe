"""Cases of the draw of candidates: one number after the other, as the algorithm is written down."""

from __future__ import annotations

import math

import numpy as np

from tests.ops.cases import CASES, I64, Case, v


def drawn(kind: str, range_max: int, num_sampled: int, unique: bool, weights=None):
    def oracle(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        philox = np.random.Philox(key=int(words[0]) + int(words[1]) * 2**64)
        generator = np.random.Generator(philox)
        found: list[int] = []
        tries = 0
        while len(found) < num_sampled:
            u, tries = generator.random(), tries + 1
            if kind == "uniform":
                c = math.floor(u * range_max)
            elif kind == "log_uniform":
                c = (math.floor(math.exp(u * math.log(range_max + 1))) - 1) % range_max
            else:
                shares = np.cumsum(weights) / np.sum(weights)
                c = next(i for i, s in enumerate(shares) if u < s)
            if not (unique and c in found):
                found.append(c)
        return np.array(found, I64), np.array(tries, I64)

    return oracle


for kind in ("uniform", "log_uniform", "unigram"):
    for range_max, num, unique in [(50, 20, False), (50, 40, True), (7, 7, True), (1, 1, True)]:
        attrs = {"kind": kind, "range_max": range_max, "num_sampled": num, "unique": unique}
        if kind == "unigram":
            attrs["weights"] = 1.0 + np.arange(range_max) % 5
        CASES.append(
            Case("SampleCandidates", [v([2**40 + 7, 12345], I64)], drawn(**attrs), attrs, (I64,))
        )
