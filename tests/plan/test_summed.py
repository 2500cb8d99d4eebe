"""Losses that sum over the batch are found; means, and sums of what no sample enters, are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.plan.verification.suspicious_graph_warnings import batch_sums, summed_loss_warnings
from tests.runtime.ranks import run_ranks

FEATURES, CLASSES = 6, 3


class Net:
    """Logits and losses of a batch of unknown size, or of a known one."""

    def __init__(self, batch: int | None = None) -> None:
        self.x = hf.placeholder(hf.float32, [batch, FEATURES], name="x")
        self.y = hf.placeholder(hf.int32, [batch], name="y")
        self.mask = hf.placeholder(hf.float32, [batch], name="mask")
        self.w = hf.Variable(np.ones((FEATURES, CLASSES), "f4"), name="w")
        self.h = hf.matmul(self.x, self.w)
        self.losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=self.y, logits=self.h)
        self.hot = hf.one_hot(self.y, CLASSES)


Loss = Callable[[Net], Any]
MEANS: dict[str, Loss] = {
    "mean": lambda n: hf.reduce_mean(n.losses),
    "mean of sums over classes": lambda n: hf.reduce_mean(hf.reduce_sum(hf.square(n.h), 1)),
    "sum over classes of means": lambda n: hf.reduce_sum(hf.reduce_mean(hf.square(n.h), 0)),
    "by the shape": lambda n: hf.reduce_sum(n.losses) / hf.cast(hf.shape(n.x)[0], hf.float32),
    "by the size": lambda n: hf.div(hf.reduce_sum(n.losses), hf.to_float(hf.size(n.y))),
    "times the reciprocal": lambda n: (
        hf.reduce_sum(n.losses) * hf.reciprocal(hf.to_float(hf.size(n.y)))
    ),
    "by the mask": lambda n: hf.reduce_sum(n.losses * n.mask) / hf.reduce_sum(n.mask),
    "elements by the size": lambda n: hf.reduce_sum(n.losses / hf.to_float(hf.shape(n.x)[0])),
    "by shares of the mask": lambda n: hf.reduce_sum(n.losses * (n.mask / hf.reduce_sum(n.mask))),
    "regularized": lambda n: hf.reduce_mean(n.losses) + 1e-3 * hf.nn.l2_loss(n.w),
    "regularized by a sum": lambda n: hf.reduce_mean(n.losses) + hf.reduce_sum(hf.abs(n.w)),
    "hf.losses": lambda n: hf.losses.sparse_softmax_cross_entropy(n.y, n.h),
    "hf.losses with weights": lambda n: hf.losses.mean_squared_error(
        n.hot, n.h, hf.expand_dims(n.mask, 1)
    ),
    "hf.losses over the size": lambda n: hf.losses.absolute_difference(
        n.hot, n.h, reduction=hf.losses.Reduction.SUM_OVER_BATCH_SIZE
    ),
    "transposed": lambda n: hf.reduce_sum(hf.reduce_mean(hf.transpose(n.h), 1)),
    "a branch": lambda n: hf.cond(
        hf.size(n.y) > 0, lambda: hf.reduce_mean(n.losses), lambda: hf.constant(0.0)
    ),
}
SUMS: dict[str, Loss] = {
    "sum": lambda n: hf.reduce_sum(n.losses),
    "of all elements": lambda n: hf.reduce_sum(hf.square(n.h - n.hot)),
    "halved": lambda n: hf.reduce_sum(hf.square(n.h - n.hot)) / 2,
    "l2_loss": lambda n: hf.nn.l2_loss(n.h - n.hot),
    "one axis after the other": lambda n: hf.reduce_sum(hf.reduce_sum(n.h, 1), 0),
    "kept axes": lambda n: hf.squeeze(hf.reduce_sum(hf.reduce_sum(n.h, 1, True), 0, True)),
    "mean over classes": lambda n: hf.reduce_sum(hf.reduce_mean(n.h, 1)),
    "transposed": lambda n: hf.reduce_sum(hf.transpose(n.h)),
    "with a mean": lambda n: hf.reduce_mean(n.losses) + 0.1 * hf.nn.l2_loss(n.h),
    "of a part": lambda n: hf.reduce_sum(n.h[:, 0]),
    "negative": lambda n: -hf.reduce_sum(n.hot * hf.nn.log_softmax(n.h)),
    "hf.losses": lambda n: hf.losses.sparse_softmax_cross_entropy(
        n.y, n.h, reduction=hf.losses.Reduction.SUM
    ),
    "total loss": lambda n: [
        hf.losses.mean_squared_error(n.hot, n.h, reduction=hf.losses.Reduction.SUM),
        hf.losses.get_total_loss(),
    ][1],
}


@pytest.mark.parametrize("loss", MEANS.values(), ids=MEANS)
def test_a_mean_is_no_sum(loss: Loss) -> None:
    with hf.Graph().as_default() as graph:
        assert list(batch_sums(loss(Net()), graph)) == []


@pytest.mark.parametrize("loss", SUMS.values(), ids=SUMS)
def test_a_sum_over_the_batch_is_found(loss: Loss) -> None:
    with hf.Graph().as_default() as graph:
        assert list(batch_sums(loss(Net()), graph))


@pytest.mark.parametrize(("divisor", "is_sum"), [(6, True), (4, False), (12, False), (2, True)])
def test_a_constant_is_a_size_if_each_replica_is_dealt_as_many(divisor: int, is_sum: bool) -> None:
    """Of a joined batch of 8 two replicas have 4 each; 12 is 4 of 3 classes."""

    def body(context: Any) -> bool:
        net = Net()
        features, labels = np.zeros((8, FEATURES), "f4"), np.zeros(8, "i4")
        hf.data.Dataset({net.x: features, net.y: labels}, batch=8, context=context)
        loss = hf.reduce_sum(hf.square(net.h)) / divisor
        times = hf.reduce_sum(hf.square(net.h)) * (1 / divisor)
        graph = hf.get_default_graph()
        assert bool(list(batch_sums(loss, graph))) == bool(list(batch_sums(times, graph)))
        return bool(list(batch_sums(loss, graph)))

    assert run_ranks(2, body) == [is_sum] * 2


def test_batches_of_a_queue_are_batches() -> None:
    with hf.Graph().as_default() as graph:
        queue = hf.FIFOQueue(10, [hf.float32], [[FEATURES]])
        rows = queue.dequeue_many(4)
        assert list(batch_sums(hf.reduce_sum(rows), graph))
        assert not list(batch_sums(hf.reduce_sum(rows) / 4, graph))
        assert not list(batch_sums(hf.reduce_mean(rows), graph))


PLACES = [
    (1, {}, False),
    (3, {}, True),
    (3, {"ps": 1, "sync": "all"}, True),
    (3, {"ps": 1}, False),  # asynchronous workers join nothing
]


@pytest.mark.parametrize(("ranks", "places", "warns"), PLACES)
@pytest.mark.parametrize("session", [hf.Session, hf.train.TrainingSession])
def test_replicas_that_join_gradients_are_warned_once(
    ranks: int, places: Any, warns: bool, session: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def body(context: Any) -> None:
        net = Net()
        optimizer = hf.train.GradientDescentOptimizer(0.1)
        train = optimizer.minimize(hf.reduce_sum(net.losses, name="total"))
        feeds = {net.x: np.ones((2, FEATURES), "f4"), net.y: np.zeros(2, "i4")}
        with session(context=context) as running:
            if session is hf.Session:
                running.run(hf.global_variables_initializer())
            for _ in range(3):
                running.run(train, feeds)

    run_ranks(ranks, body, **places)
    found = [r for r in caplog.records if "sums over the samples" in r.getMessage()]
    assert len(found) == warns
    if warns:
        text = found[0].getMessage()
        assert "'total:0'" in text and __file__ in text and "hf.reduce_mean" in text


def test_the_warning_is_true() -> None:
    """Two replicas that are dealt halves of a batch: their gradient of a sum is half of one's."""

    def body(context: Any) -> Any:
        net = Net()
        x = np.arange(8 * FEATURES, dtype="f4").reshape(8, FEATURES)
        data = hf.data.Dataset({net.x: x}, batch=8, context=context, shuffle=False)
        (gradient, _), *_ = hf.train.GradientDescentOptimizer(1.0).compute_gradients(
            hf.reduce_sum(net.h)
        )
        (batch,) = data.epochs(1)
        with hf.train.TrainingSession(context=context) as session:
            assert summed_loss_warnings(session.graph, 2)
            return session.run(gradient, batch)

    one, (first, second) = run_ranks(1, body)[0], run_ranks(2, body)
    np.testing.assert_allclose(first, one / 2)
    np.testing.assert_array_equal(first, second)
