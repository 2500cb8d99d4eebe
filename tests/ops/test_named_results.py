"""Functions with several results give tuples whose names and fields are TensorFlow's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcflow as hf

SAMPLED = ("sampled_candidates", "true_expected_count", "sampled_expected_count")
CLASSES = np.zeros((1, 1), "i8")
RESULTS: dict[tuple[str, ...], Callable[[], Any]] = {
    ("TopKV2", "values", "indices"): lambda: hf.nn.top_k([3.0, 1.0, 2.0], 2),
    ("Unique", "y", "idx"): lambda: hf.unique([5, 5, 6]),
    ("UniqueWithCounts", "y", "idx", "count"): lambda: hf.unique_with_counts([5, 5, 6]),
    ("ListDiff", "out", "idx"): lambda: hf.setdiff1d([1, 2], [2]),
    ("Qr", "q", "r"): lambda: hf.qr(np.eye(2)),
    ("LogMatrixDeterminant", "sign", "log_abs_determinant"): lambda: hf.linalg.slogdet(np.eye(2)),
    ("MaxPoolWithArgmax", "output", "argmax"): lambda: hf.nn.max_pool_with_argmax(
        np.ones((1, 2, 2, 1)), [1, 2, 2, 1], [1, 1, 1, 1], "VALID"
    ),
    ("UniformCandidateSampler", *SAMPLED): lambda: hf.nn.uniform_candidate_sampler(
        CLASSES, 1, 2, True, 5
    ),
    ("LogUniformCandidateSampler", *SAMPLED): lambda: hf.nn.log_uniform_candidate_sampler(
        CLASSES, 1, 2, True, 5
    ),
    ("FixedUnigramCandidateSampler", *SAMPLED): lambda: hf.nn.fixed_unigram_candidate_sampler(
        CLASSES, 1, 2, True, 3, unigrams=[1.0, 1.0, 1.0]
    ),
    ("AllCandidateSampler", *SAMPLED): lambda: hf.nn.all_candidate_sampler(CLASSES, 1, 2, True),
    ("ComputeAccidentalHits", "indices", "ids", "weights"): lambda: hf.nn.compute_accidental_hits(
        CLASSES, [0, 1], 1
    ),
}


@pytest.mark.parametrize("expected", RESULTS, ids=lambda names: names[0])
def test_names_and_fields(expected: tuple[str, ...]) -> None:
    with hf.Graph().as_default(), hf.Session() as session:
        made = RESULTS[expected]()
        found = session.run(made)
        for one in (made, found):
            assert (type(one).__name__, *one._fields) == expected
        assert all(np.array_equal(found[i], getattr(found, f)) for i, f in enumerate(found._fields))


def test_what_readers_give(tmp_path: Any) -> None:
    with hf.Graph().as_default():
        queue = hf.FIFOQueue(1, [hf.string], [[]])
        one, several = hf.WholeFileReader().read(queue), hf.WholeFileReader().read_up_to(queue, 2)
        assert (type(one).__name__, one._fields) == ("ReaderReadV2", ("key", "value"))
        assert (type(several).__name__, several._fields) == ("ReaderReadUpToV2", ("keys", "values"))
