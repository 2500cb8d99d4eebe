"""Named results: named tuples for functions with several results, as in TensorFlow."""

from __future__ import annotations

from typing import NamedTuple

from hpcflow.graph.graph import Tensor


class TopKV2(NamedTuple):
    """The result of `nn.top_k`."""

    values: Tensor
    indices: Tensor


class Unique(NamedTuple):
    """The result of `unique`."""

    y: Tensor
    idx: Tensor


class UniqueWithCounts(NamedTuple):
    """The result of `unique_with_counts`."""

    y: Tensor
    idx: Tensor
    count: Tensor  # type: ignore[assignment]  # a tuple has a method of this name


class ListDiff(NamedTuple):
    """The result of `setdiff1d`."""

    out: Tensor
    idx: Tensor


class Qr(NamedTuple):
    """The result of `qr`."""

    q: Tensor
    r: Tensor


class LogMatrixDeterminant(NamedTuple):
    """The result of `linalg.slogdet`."""

    sign: Tensor
    log_abs_determinant: Tensor


class MaxPoolWithArgmax(NamedTuple):
    """The result of `nn.max_pool_with_argmax`."""

    output: Tensor
    argmax: Tensor


class UniformCandidateSampler(NamedTuple):
    """The result of `nn.uniform_candidate_sampler`."""

    sampled_candidates: Tensor
    true_expected_count: Tensor
    sampled_expected_count: Tensor


class LogUniformCandidateSampler(NamedTuple):
    """The result of `nn.log_uniform_candidate_sampler`."""

    sampled_candidates: Tensor
    true_expected_count: Tensor
    sampled_expected_count: Tensor


class FixedUnigramCandidateSampler(NamedTuple):
    """The result of `nn.fixed_unigram_candidate_sampler`."""

    sampled_candidates: Tensor
    true_expected_count: Tensor
    sampled_expected_count: Tensor


class AllCandidateSampler(NamedTuple):
    """The result of `nn.all_candidate_sampler`."""

    sampled_candidates: Tensor
    true_expected_count: Tensor
    sampled_expected_count: Tensor


class ComputeAccidentalHits(NamedTuple):
    """The result of `nn.compute_accidental_hits`."""

    indices: Tensor
    ids: Tensor
    weights: Tensor


class ReaderReadV2(NamedTuple):
    """The result of a reader's `read`."""

    key: Tensor
    value: Tensor


class ReaderReadUpToV2(NamedTuple):
    """The result of a reader's `read_up_to`."""

    keys: Tensor
    values: Tensor
