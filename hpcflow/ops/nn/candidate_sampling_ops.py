"""Candidate sampling ops: random classes, and their expected counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.graph.dtypes import float32, float64, int32, int64
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph, user_line
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec, merge_shapes, shape_text
from hpcflow.ops.array.array_ops import constant, ensure_shape, expand_dims, reshape
from hpcflow.ops.array.array_ops import range as sequence
from hpcflow.ops.array.broadcast_ops import fill, ones_like
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.array.where_unique_ops import positions
from hpcflow.ops.math.arithmetic_ops import cast, equal, log1p, where
from hpcflow.ops.math.elementwise_math_ops import expm1
from hpcflow.ops.named_results import (
    AllCandidateSampler,
    ComputeAccidentalHits,
    FixedUnigramCandidateSampler,
    LogUniformCandidateSampler,
    UniformCandidateSampler,
)
from hpcflow.ops.random.random_ops import random_uniform
from hpcflow.ops.shape_inference import Attrs, integer_argument, make, require
from hpcflow.ops.variables.row_list_ops import gather_values

Candidates = tuple[Tensor, Tensor, Tensor]  # classes, expected counts of true ones and samples


def _sampled(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("the words of a draw", inputs[0], "iu")
    merge_shapes(inputs[0].shape, (2,))
    return [Spec(int64, (attrs["num_sampled"],)), Spec(int64, ())]


# Its input, two random words, is the only source of randomness; so the op is pure and can be placed
# anywhere.
op("SampleCandidates", infer=_sampled, grad=NoGrad("its outputs are integers"))


def _draw(
    kind: str,
    true_classes: Any,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int | None,
    name: str | None,
    weights: np.ndarray | None = None,
) -> Candidates:
    """Classes sampled by `kind` and the expected counts; `weights` are for "unigram"."""
    labels = checked_labels(true_classes, num_true)
    num_sampled, range_max = (
        integer_argument(num_sampled, "num_sampled"),
        integer_argument(range_max, "range_max"),
    )
    if num_sampled < 1 or range_max < 1 or (unique and num_sampled > range_max):
        raise ShapeError(
            f"{num_sampled} {'different ' * unique}classes cannot be drawn from {range_max}",
            line=user_line(),
        )
    with get_default_graph().name_scope(name or f"{kind}_candidate_sampler"):
        words = random_uniform([2], 0, 2**63 - 1, int64, seed, "words")
        attrs = {"kind": kind, "range_max": range_max, "num_sampled": num_sampled}
        attrs["unique"] = bool(unique)
        if weights is not None:
            attrs["weights"] = weights
        sampled, tries = make("SampleCandidates", [words], attrs).outputs

        def expected(classes: Tensor) -> Tensor:
            p = _probability(kind, classes, range_max, weights)
            return _expected(p, num_sampled, tries if unique else None)

        counts = expected(labels)
        counts.set_shape((None, num_true))
        return sampled, counts, expected(sampled)


def checked_labels(true_classes: Any, num_true: int) -> Tensor:
    """The true classes as int64 [batch, num_true]. Errors: DTypeError, ShapeError."""
    labels = convert_to_tensor(true_classes)
    require("the true classes", labels.spec, "iu")
    labels = cast(labels, int64)
    try:
        merge_shapes(labels.shape, (None, num_true))
    except ShapeError:
        raise ShapeError(
            f"true classes {shape_text(labels.shape)} are not [batch, num_true = {num_true}]",
            op=labels.op.name,
            line=user_line(),
        ) from None
    return labels


def _probability(kind: str, classes: Tensor, range_max: int, weights: np.ndarray | None) -> Tensor:
    """The probability of each class in one draw, float64."""
    if kind == "log_uniform":
        return log1p(1.0 / (cast(classes, float64) + 1.0)) / math.log(range_max + 1)
    if weights is not None:
        return gather_values(constant(weights / weights.sum()), classes)
    return ones_like(cast(classes, float64)) / float(range_max)


def _expected(p: Tensor, num_sampled: int, tries: Tensor | None) -> Tensor:
    """The expected count of a class of probability `p` among the sampled.

    With repetitions: `p * num_sampled`. Without, where `tries` draws were needed for `num_sampled`
    distinct classes: the probability `1 - (1 - p)^tries` that the class is drawn.
    """
    plain = p * float(num_sampled)
    if tries is None:
        return cast(plain, float32)
    drawn = -expm1(cast(tries, float64) * log1p(-p))
    return cast(where(equal(tries, num_sampled), plain, drawn), float32)


def uniform_candidate_sampler(
    true_classes: Any,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """`num_sampled` classes below `range_max`, uniformly distributed; distinct if `unique`.

    Returns the classes (int64), and the expected counts of `true_classes` [batch, num_true] and of
    the sampled classes (float32). All replicas draw the same classes.
    """
    drawn = _draw("uniform", true_classes, num_true, num_sampled, unique, range_max, seed, name)
    return UniformCandidateSampler(*drawn)


def log_uniform_candidate_sampler(
    true_classes: Any,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """As `uniform_candidate_sampler`, with P(c) = log((c + 2) / (c + 1)) / log(range_max + 1).

    This is Zipf's law for classes sorted by decreasing frequency.
    """
    drawn = _draw("log_uniform", true_classes, num_true, num_sampled, unique, range_max, seed, name)
    return LogUniformCandidateSampler(*drawn)


def fixed_unigram_candidate_sampler(
    true_classes: Any,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    distortion: float = 1.0,
    num_reserved_ids: int = 0,
    unigrams: Sequence[float] = (),
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """As `uniform_candidate_sampler`, with P(c) proportional to `unigrams[c] ** distortion`.

    The first `num_reserved_ids` classes are never drawn; `unigrams` are those of the other classes.
    """
    counts = np.asarray(unigrams, float64)
    if counts.ndim != 1 or counts.size + num_reserved_ids != range_max or (counts < 0).any():
        raise ShapeError(
            f"{counts.size} unigrams and {num_reserved_ids} reserved ids do not fit "
            f"{range_max} classes",
            line=user_line(),
            hint="give each class after the reserved ones a count of at least 0",
        )
    weights = np.concatenate([np.zeros(num_reserved_ids), counts**distortion])
    if np.count_nonzero(weights) < (num_sampled if unique else 1):
        raise ShapeError(
            f"{np.count_nonzero(weights)} classes have a count above 0; {num_sampled} "
            "cannot be drawn",
            line=user_line(),
        )
    drawn = _draw(
        "unigram", true_classes, num_true, num_sampled, unique, range_max, seed, name, weights
    )
    return FixedUnigramCandidateSampler(*drawn)


def all_candidate_sampler(
    true_classes: Any,
    num_true: int,
    num_sampled: int,
    unique: bool,
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """All classes below `num_sampled`, each with expected count 1; for tests of sampled losses."""
    labels = checked_labels(true_classes, num_true)
    one = constant(np.float32(1))
    return AllCandidateSampler(
        sequence(num_sampled, dtype=int64),
        ones_like(ensure_shape(cast(labels, float32), [None, num_true])),
        fill([num_sampled], one),
    )


def compute_accidental_hits(
    true_classes: Any,
    sampled_candidates: Any,
    num_true: int,
    seed: int | None = None,
    name: str | None = None,
) -> ComputeAccidentalHits:
    """Sampled classes that are true classes: row numbers, sample positions, and weights.

    Shapes: [hits] each: int32, int64, float32. A weight is the lowest float32; added to the logit
            at this position it removes the sample.
    """
    with get_default_graph().name_scope(name or "compute_accidental_hits"):
        hits = positions(hits_of(checked_labels(true_classes, num_true), sampled_candidates))
        rows, _, places = (getitem(hits, (slice(None), i)) for i in range(3))
        least = constant(np.finfo(np.float32).min)
        weights = where(equal(rows, rows), least, least)
        return ComputeAccidentalHits(cast(rows, int32), places, weights)


def hits_of(labels: Tensor, sampled: Any) -> Tensor:
    """Booleans [batch, num_true, num_sampled]: whether the true class equals the sampled class."""
    drawn = cast(convert_to_tensor(sampled), int64)
    return equal(expand_dims(labels, 2), reshape(drawn, [1, 1, -1]))
