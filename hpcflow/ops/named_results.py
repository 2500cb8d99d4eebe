"""What functions with several results give: tuples with the names that TensorFlow gives them."""

from __future__ import annotations

from typing import NamedTuple

from hpcflow.graph.graph import Tensor


class TopKV2(NamedTuple):
    """What `nn.top_k` gives."""

    values: Tensor
    indices: Tensor


class Unique(NamedTuple):
    """What `unique` gives."""

    y: Tensor
    idx: Tensor


class UniqueWithCounts(NamedTuple):
    """What `unique_with_counts` gives."""

    y: Tensor
    idx: Tensor
    count: Tensor  # type: ignore[assignment]  # a tuple has a method of this name


class ListDiff(NamedTuple):
    """What `setdiff1d` gives."""

    out: Tensor
    idx: Tensor


class Qr(NamedTuple):
    """What `qr` gives."""

    q: Tensor
    r: Tensor


class LogMatrixDeterminant(NamedTuple):
    """What `linalg.slogdet` gives."""

    sign: Tensor
    log_abs_determinant: Tensor


class MaxPoolWithArgmax(NamedTuple):
    """What `nn.max_pool_with_argmax` gives."""

    output: Tensor
    argmax: Tensor


class UniformCandidateSampler(NamedTuple):
    """What `nn.uniform_candidate_sampler` gives."""

    sampled_candidates: Tensor
    true_expected_count: Tensor
    sampled_expected_count: Tensor


class LogUniformCandidateSampler(NamedTuple):
    """What `nn.log_uniform_candidate_sampler` gives."""

    sampled_candidates: Tensor
    true_expected_count: Tensor
    sampled_expected_count: Tensor


class FixedUnigramCandidateSampler(NamedTuple):
    """What `nn.fixed_unigram_candidate_sampler` gives."""

    sampled_candidates: Tensor
    true_expected_count: Tensor
    sampled_expected_count: Tensor


class AllCandidateSampler(NamedTuple):
    """What `nn.all_candidate_sampler` gives."""

    sampled_candidates: Tensor
    true_expected_count: Tensor
    sampled_expected_count: Tensor


class ComputeAccidentalHits(NamedTuple):
    """What `nn.compute_accidental_hits` gives."""

    indices: Tensor
    ids: Tensor
    weights: Tensor


class ReaderReadV2(NamedTuple):
    """What `read` of a reader gives."""

    key: Tensor
    value: Tensor


class ReaderReadUpToV2(NamedTuple):
    """What `read_up_to` of a reader gives."""

    keys: Tensor
    values: Tensor
