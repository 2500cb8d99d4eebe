"""CTC kernels: the loss, its gradient, beam search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hpcflow.errors import NumericError, RangeError
from hpcflow.kernels.cuda_graph_restrictions import READS_VALUES
from hpcflow.kernels.kernel_registry import KernelNode, kernel
from hpcflow.ops.array.gather_kernels import check_indices


class _Lattice(NamedTuple):
    """The states of each sample, alternating blanks and labels, and the allowed transitions.

    All are [batch, states]; `scores` [time, batch, states] are log-probabilities.
    """

    labels: Any  # the class of each state
    stay: Any  # whether a path may stay in the state
    skip: Any  # whether a path may skip a state
    final: Any  # 0 where a path may end, else -inf
    scores: Any
    alive: Any  # [time, batch, 1]: whether the sample has this step


def _log_softmax(xp: Any, x: Any) -> Any:
    shifted = x.astype("f8")
    shifted = shifted - shifted.max(axis=-1, keepdims=True)
    return shifted - xp.log(xp.exp(shifted).sum(axis=-1, keepdims=True))


def _checked(xp: Any, logits: Any, labels: Any, sizes: Any, steps: Any, blank: int) -> None:
    check_indices(xp, sizes, labels.shape[1] + 1, "ctc_loss: label length")
    check_indices(xp, steps, logits.shape[0] + 1, "ctc_loss: sequence length")
    if xp is np:
        used = labels[np.arange(labels.shape[1]) < sizes[:, None]]
        check_indices(xp, used, logits.shape[2], "ctc_loss: label")
        if (used == blank).any():
            raise RangeError(f"ctc_loss: {blank} is the blank and cannot be a label")


def _collapsed(xp: Any, labels: Any, sizes: Any) -> tuple[Any, Any]:
    """Labels without repetitions of the previous one, and their number."""
    places = xp.arange(labels.shape[1])
    keep = places < sizes[:, None]
    keep[:, 1:] = xp.logical_and(keep[:, 1:], labels[:, 1:] != labels[:, :-1])
    # kept ones first, in order
    order = xp.argsort(xp.where(keep, places, places + labels.shape[1]), axis=1)
    return xp.take_along_axis(labels, order, axis=1), keep.sum(axis=1)


def _lattice(
    xp: Any, attrs: dict[str, Any], logits: Any, labels: Any, sizes: Any, steps: Any
) -> tuple[_Lattice, Any]:
    """The lattice of a batch, and log-probabilities of the classes."""
    blank = attrs["blank"] % logits.shape[2]
    _checked(xp, logits, labels, sizes, steps, blank)
    if attrs["collapse"]:
        labels, sizes = _collapsed(xp, labels, sizes)
    logs = _log_softmax(xp, logits)
    batch, width = labels.shape[0], 2 * labels.shape[1] + 1
    state, last = xp.arange(width), 2 * sizes[:, None]
    classes = xp.full((batch, width), blank, "i8")
    classes[:, 1::2] = xp.where(state[1::2] < last, labels, blank)
    stay = xp.ones((batch, width), bool)
    skip = xp.zeros((batch, width), bool)
    skip[:, 3::2] = True
    if attrs["merge"]:
        skip[:, 2:] &= classes[:, 2:] != classes[:, :-2]
    else:
        stay[:, 1::2] = False
    ends = xp.logical_or(state == last, xp.logical_and(state == last - 1, last > 0))
    final = xp.where(ends, 0.0, -np.inf)
    scores = xp.take_along_axis(
        logs, xp.broadcast_to(classes, (logs.shape[0], batch, width)), axis=2
    )
    alive = xp.arange(logs.shape[0])[:, None, None] < steps[:, None]
    return _Lattice(classes, stay, skip, final, scores, alive), logs


def _forward(xp: Any, lattice: _Lattice, log_probabilities: Any = None) -> Any:
    """The log-likelihoods [batch]; those of each step and state go to the argument."""
    batch, width = lattice.labels.shape
    room = xp.full((batch, width + 2), -np.inf)  # two states before the first
    now, one, two = room[:, 2:], room[:, 1:-1], room[:, :-2]
    now[:, 0] = 0  # an initial blank
    for t in range(lattice.scores.shape[0]):
        new = xp.logaddexp(xp.where(lattice.stay, now, -np.inf), one)
        new = xp.logaddexp(new, xp.where(lattice.skip, two, -np.inf)) + lattice.scores[t]
        xp.copyto(now, xp.where(lattice.alive[t], new, now))
        if log_probabilities is not None:
            log_probabilities[t] = now
    return _log_sum(xp, now + lattice.final)


def _log_sum(xp: Any, x: Any) -> Any:
    top = x.max(axis=1, keepdims=True)
    top = xp.where(xp.isfinite(top), top, 0)
    total = xp.exp(x - top).sum(axis=1)
    some = total > 0
    return xp.where(some, xp.log(xp.where(some, total, 1)) + top[:, 0], -np.inf)


@kernel("CTCLoss", "out")
def _loss(xp: Any, node: KernelNode) -> Callable[..., Any]:
    ignore = node.attrs["ignore_longer"]

    def run(logits: Any, labels: Any, sizes: Any, steps: Any, out: Any) -> None:
        if not out.size:
            return
        lattice, _ = _lattice(xp, node.attrs, logits, labels, sizes, steps)
        logs = _forward(xp, lattice)
        possible = xp.isfinite(logs)
        if not ignore and xp is np and not possible.all():
            i = int(np.flatnonzero(~possible)[0])
            raise NumericError(
                f"ctc_loss: no path of {steps[i]} steps has the {sizes[i]} labels of sample {i} "
                f"({(~possible).sum()} of {possible.size} samples have none)",
                hint="ignore_longer_outputs_than_inputs=True counts such samples as 0",
            )
        xp.copyto(out, xp.where(possible, -logs, 0 if ignore else np.inf), casting="same_kind")

    return run


@kernel("CTCLossGrad", "out", uncaptured=READS_VALUES)
def _loss_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(g: Any, logits: Any, labels: Any, sizes: Any, steps: Any, out: Any) -> None:
        if not out.size:
            return
        lattice, logs = _lattice(xp, node.attrs, logits, labels, sizes, steps)
        forward = xp.empty(lattice.scores.shape)
        total = _forward(xp, lattice, forward)
        possible = xp.isfinite(total)
        total = xp.where(possible, total, 0)[:, None]
        batch, classes = logits.shape[1:]
        places = (xp.arange(batch)[:, None] * classes + lattice.labels).reshape(-1)
        weight = xp.where(possible, g, 0).astype("f8")[:, None]
        room = xp.full((batch, lattice.labels.shape[1] + 2), -np.inf)  # two states after the last
        now, one, two = room[:, :-2], room[:, 1:-1], room[:, 2:]
        skip = xp.zeros(lattice.skip.shape, bool)
        skip[:, :-2] = lattice.skip[:, 2:]
        xp.copyto(now, lattice.final)
        for t in reversed(range(out.shape[0])):  # `now`: after step t
            share = xp.where(lattice.alive[t], xp.exp(forward[t] + now - total), 0)
            slope = xp.where(lattice.alive[t], xp.exp(logs[t]), 0)
            xp.add.at(slope.reshape(-1), places, -share.reshape(-1))
            xp.copyto(out[t], slope * weight, casting="same_kind")
            previous = now.copy()
            xp.copyto(now, previous + lattice.scores[t])
            new = xp.logaddexp(xp.where(lattice.stay, now, -np.inf), one)
            new = xp.logaddexp(new, xp.where(skip, two, -np.inf))
            xp.copyto(now, xp.where(lattice.alive[t], new, previous))

    return run


# -- beam search: prefixes are nodes of a tree, so that equal ones are identical


class _Beam:
    """The most probable prefixes of one sample, by the total probability of their paths."""

    def __init__(self, width: int, blank: int) -> None:
        self.width, self.blank = width, blank
        self.parent, self.label = [-1], [-1]  # of each node; node 0 is the empty prefix
        self.children: dict[tuple[int, int], int] = {}
        self.nodes = [0]
        self.to_blank, self.to_label = np.zeros(1), np.full(1, -np.inf)  # by the last class

    def step(self, logs: np.ndarray) -> None:
        """Extend the beam by one step with these log-probabilities of classes."""
        last = np.array([self.label[n] for n in self.nodes], np.int64)
        count, rows = len(last), np.arange(len(last))
        total = np.logaddexp(self.to_blank, self.to_label)
        grown = total[:, None] + logs
        some = last >= 0
        grown[rows[some], last[some]] = self.to_blank[some] + logs[last[some]]
        grown[:, self.blank] = -np.inf
        blanks = total + logs[self.blank]
        labels = np.where(some, self.to_label + logs[last], -np.inf)
        place = {node: i for i, node in enumerate(self.nodes)}
        for i, node in enumerate(self.nodes):  # a prefix that extends another
            at = place.get(self.parent[node])
            if at is not None:
                labels[i] = np.logaddexp(labels[i], grown[at, last[i]])
                grown[at, last[i]] = -np.inf
        scores = np.concatenate([np.logaddexp(blanks, labels), grown.ravel()])
        best = np.argsort(-scores, kind="stable")[: self.width]
        best = best[scores[best] > -np.inf]
        nodes = []
        for i in best.tolist():
            if i < count:
                nodes.append(self.nodes[i])
            else:
                row, label = divmod(i - count, len(logs))
                nodes.append(self._child(self.nodes[row], label))
        old = best < count
        old_rows = np.where(old, best, 0)
        self.to_blank = np.where(old, blanks[old_rows], -np.inf)
        self.to_label = np.where(old, labels[old_rows], scores[best])
        self.nodes = nodes

    def _child(self, node: int, label: int) -> int:
        child = self.children.get((node, label))
        if child is None:
            child = self.children[node, label] = len(self.parent)
            self.parent.append(node)
            self.label.append(label)
        return child

    def best(self, count: int) -> list[tuple[list[int], float]]:
        """The labels of the `count` most probable prefixes, and their log-probabilities."""
        scores = np.logaddexp(self.to_blank, self.to_label)
        order = np.argsort(-scores, kind="stable")[:count].tolist()
        return [(self._labels(self.nodes[i]), float(scores[i])) for i in order]

    def _labels(self, node: int) -> list[int]:
        labels = []
        while node > 0:
            labels.append(self.label[node])
            node = self.parent[node]
        return labels[::-1]


@kernel("CTCBeamSearch", "out", on="cpu")
def _beam_search(xp: Any, node: KernelNode) -> Callable[..., Any]:
    attrs = node.attrs

    def run(logits: Any, steps: Any, labels: Any, sizes: Any, scores: Any) -> None:
        labels.fill(-1)
        sizes.fill(0)
        scores.fill(-np.inf)
        check_indices(np, steps, logits.shape[0] + 1, "ctc_beam_search_decoder: sequence length")
        if not logits.size:
            scores[:, :1] = 0
            return
        logs = _log_softmax(np, logits)
        for b in range(logits.shape[1]):
            beam = _Beam(attrs["width"], attrs["blank"] % logits.shape[2])
            for t in range(int(steps[b])):
                beam.step(logs[t, b])
            for k, (path, score) in enumerate(beam.best(attrs["paths"])):
                if attrs["merge"]:
                    path = [c for i, c in enumerate(path) if not i or c != path[i - 1]]
                labels[k, b, : len(path)] = path
                sizes[k, b] = len(path)
                scores[b, k] = score

    return run
