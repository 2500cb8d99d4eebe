"""`hf.metrics` against TensorFlow 1's `tf.metrics`, whose results are written here; and replicas.

`METRICS` are functions of the module, so that TensorFlow computes the same of the same batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import AssertError, ShapeError
from hpcflow.runtime.job.rank_context import RankContext
from tests.ops.metric_values import AFTER_TWO, WEIGHTED
from tests.runtime.ranks import run_here, run_ranks

BATCHES: list[dict[str, Any]] = [
    {
        "yes": [1, 0, 1, 1, 0],
        "p": [0.9, 0.2, 0.35, 0.5, 0.75],
        "t": [0.8, 0.0, 0.5, 0.25, 1.0],
        "z": [0, 1, 3, 3, 2],
        "q": [0, 2, 3, 1, 2],
        "x": [[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [0.8, 0.6], [0.28, 0.96]],
        "y": [[0.6, 0.8], [0.6, 0.8], [1.0, 0.0], [0.0, 1.0], [0.8, -0.6]],
        "scores": [
            [0.1, 0.7, 0.3, 0.5],
            [0.6, 0.2, 0.4, 0.1],
            [0.2, 0.3, 0.9, 0.8],
            [0.5, 0.4, 0.3, 0.2],
            [0.1, 0.2, 0.3, 0.4],
        ],
        "k": [[1, 2, 2], [0, 3, -1], [0, 1, 5], [1, 0, 1], [3, 2, 1]],
        "w": [1.0, 0.0, 2.0, 0.5, 1.0],
    },
    {
        "yes": [0, 1, 1],
        "p": [0.1, 0.6, 1.0],
        "t": [0.3, 0.6, 0.5],
        "z": [1, 1, 0],
        "q": [1, 3, 0],
        "x": [[0.6, 0.8], [0.0, 1.0], [1.0, 0.0]],
        "y": [[0.8, 0.6], [0.0, 1.0], [0.6, 0.8]],
        "scores": [[0.4, 0.3, 0.2, 0.1], [0.2, 0.1, 0.4, 0.3], [0.5, 0.6, 0.8, 0.7]],
        "k": [[0, 0, 0], [1, 3, 0], [2, 3, 1]],
        "w": [1.0, 3.0, 0.0],
    },
]
THRESHOLDS = [0.25, 0.5, 0.8]
KINDS = ["true_positives", "false_positives", "true_negatives", "false_negatives"]
WAYS = ["trapezoidal", "careful_interpolation", "minoring", "majoring"]


def column(tf: Any, w: Any) -> Any:
    return None if w is None else tf.expand_dims(w, 1)


def guess(tf: Any, f: dict[str, Any]) -> Any:
    return tf.cast(f["p"] >= 0.5, tf.int64)


def sparse(tf: Any) -> Any:
    """Labels of five examples, the first batch."""
    places = [[0, 0], [1, 0], [1, 2], [3, 1], [4, 0], [4, 1]]
    values = [1, 3, 3, 9, 0, 2]
    return tf.SparseTensor(
        tf.constant(places, tf.int64), tf.constant(values, tf.int64), tf.constant([5, 4], tf.int64)
    )


METRICS: dict[str, Any] = {
    "mean": lambda tf, f, w: tf.metrics.mean(f["p"], w),
    "mean of a column": lambda tf, f, w: tf.metrics.mean(f["x"], column(tf, w)),
    "accuracy": lambda tf, f, w: tf.metrics.accuracy(f["z"], f["q"], w),
    "accuracy of a column": lambda tf, f, w: tf.metrics.accuracy(column(tf, f["z"]), f["q"], w),
    "below": lambda tf, f, w: tf.metrics.percentage_below(f["p"], 0.4, w),
    "absolute": lambda tf, f, w: tf.metrics.mean_absolute_error(f["t"], f["p"], w),
    "squared": lambda tf, f, w: tf.metrics.mean_squared_error(f["t"], f["p"], w),
    "root": lambda tf, f, w: tf.metrics.root_mean_squared_error(f["t"], f["p"], w),
    "relative": lambda tf, f, w: tf.metrics.mean_relative_error(f["p"], f["p"] + 0.1, f["t"], w),
    "cosine": lambda tf, f, w: tf.metrics.mean_cosine_distance(f["x"], f["y"], 1, column(tf, w)),
    "iou": lambda tf, f, w: tf.metrics.mean_iou(f["z"], f["q"], 5, w),
    "per class": lambda tf, f, w: tf.metrics.mean_per_class_accuracy(f["z"], f["q"], 5, w),
    "precision": lambda tf, f, w: tf.metrics.precision(f["yes"], guess(tf, f), w),
    "recall": lambda tf, f, w: tf.metrics.recall(f["yes"], guess(tf, f), w),
    **{
        kind: lambda tf, f, w, kind=kind: getattr(tf.metrics, kind)(f["yes"], guess(tf, f), w)
        for kind in KINDS
    },
    **{
        f"{kind}_at": lambda tf, f, w, kind=kind: getattr(tf.metrics, f"{kind}_at_thresholds")(
            f["yes"], f["p"], THRESHOLDS, w
        )
        for kind in [*KINDS, "precision", "recall"]
    },
    **{
        f"auc {curve} {way}": lambda tf, f, w, curve=curve, way=way: tf.metrics.auc(
            f["yes"], f["p"], w, 12, curve=curve, summation_method=way
        )
        for curve in ("ROC", "PR")
        for way in WAYS
    },
    "auc told": lambda tf, f, w: tf.metrics.auc(f["yes"], f["p"], w, thresholds=[0.7, 0.2, 0.4]),
    "sensitivity": lambda tf, f, w: tf.metrics.sensitivity_at_specificity(
        f["yes"], f["p"], 0.6, w, 21
    ),
    "specificity": lambda tf, f, w: tf.metrics.specificity_at_sensitivity(
        f["yes"], f["p"], 0.6, w, 21
    ),
    "precision k": lambda tf, f, w: tf.metrics.precision_at_k(f["k"], f["scores"], 2, None, w),
    "precision k one": lambda tf, f, w: tf.metrics.precision_at_k(f["z"], f["scores"], 2, None, w),
    "precision k class": lambda tf, f, w: tf.metrics.precision_at_k(f["k"], f["scores"], 2, 3, w),
    "recall k": lambda tf, f, w: tf.metrics.recall_at_k(f["k"], f["scores"], 2, None, w),
    "recall k class": lambda tf, f, w: tf.metrics.recall_at_k(f["k"], f["scores"], 2, 3, w),
    "average k": lambda tf, f, w: tf.metrics.average_precision_at_k(f["k"], f["scores"], 3, w),
    "precision top": lambda tf, f, w: tf.metrics.precision_at_top_k(
        f["k"], tf.stack([f["z"], f["q"]], 1), weights=w
    ),
    "recall top": lambda tf, f, w: tf.metrics.recall_at_top_k(
        f["k"], tf.stack([f["z"], f["q"]], 1), class_id=1, weights=w
    ),
    "mean of tensors": lambda tf, f, w: tf.metrics.mean_tensor(
        tf.reduce_max(f["x"], 0), None if w is None else tf.reduce_sum(w)
    ),
}
SPARSE: dict[str, Any] = {  # of the first batch alone
    "sparse precision": lambda tf, f, w: tf.metrics.sparse_precision_at_k(
        sparse(tf), f["scores"], 2, None, w
    ),
    "sparse recall": lambda tf, f, w: tf.metrics.recall_at_k(sparse(tf), f["scores"], 2, None, w),
    "sparse recall class": lambda tf, f, w: tf.metrics.recall_at_k(
        sparse(tf), f["scores"], 2, 3, w
    ),
    "sparse average": lambda tf, f, w: tf.metrics.sparse_average_precision_at_k(
        sparse(tf), f["scores"], 2, w
    ),
}


def fed(tf: Any) -> tuple[dict[str, Any], list[dict[Any, Any]]]:
    """Placeholders by name, and the feeds of the batches."""
    first = {name: np.asarray(value) for name, value in BATCHES[0].items()}
    holders = {
        name: tf.placeholder(
            tf.int64 if value.dtype.kind == "i" else tf.float32, [None, *value.shape[1:]]
        )
        for name, value in first.items()
    }
    dtypes = {name: np.int64 if v.dtype.kind == "i" else np.float32 for name, v in first.items()}
    feeds = [{holders[n]: np.asarray(v, dtypes[n]) for n, v in b.items()} for b in BATCHES]
    return holders, feeds


def streamed(tf: Any, weighted: bool) -> dict[str, list[Any]]:
    """Of each metric: the value before all, after the last batch, and what the update returned."""
    holders, feeds = fed(tf)
    weights = holders["w"] if weighted else None
    made = {
        name: (f(tf, holders, weights), feeds[: 1 if name in SPARSE else 2])
        for name, f in {**METRICS, **SPARSE}.items()
    }
    found = {}
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        for name, ((value, update), given) in made.items():
            before = session.run(value)
            last = [session.run(update, feed) for feed in given][-1]
            found[name] = [np.asarray(x).tolist() for x in (before, session.run(value), last)]
    return found


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


@pytest.mark.slow(first=False)
@pytest.mark.parametrize("weighted", [False, True])
def test_two_batches_as_in_tensorflow(weighted: bool) -> None:
    expected = WEIGHTED if weighted else AFTER_TWO
    found = streamed(hf, weighted)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        for mine, theirs in zip(found[name], values, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6, err_msg=name)


def test_variables_and_collections() -> None:
    value, update = hf.metrics.accuracy([1, 0], [1, 1], name="acc", metrics_collections="mine")
    again = hf.metrics.mean([1.0], updates_collections=["a", "b"])
    names = ["acc/total", "acc/count", "mean/total", "mean/count"]
    assert [v.name for v in hf.local_variables()] == names
    assert hf.get_collection(hf.GraphKeys.METRIC_VARIABLES) == hf.local_variables()
    assert hf.global_variables() == hf.trainable_variables() == []
    assert (value.name, update.name) == ("acc/value:0", "acc/update_op:0")
    assert hf.get_collection("mine") == [value]
    assert hf.get_collection("a") == hf.get_collection("b") == [again[1]]


def test_names_of_sums_and_of_the_pair() -> None:
    scores, m = [[0.1, 0.9]], hf.metrics
    made: dict[str, tuple[Any, str, str, list[str]]] = {
        "tp": (m.true_positives([1], [1], name="tp"), "value", "update_op", ["count"]),
        "p": (
            *(m.precision([1], [1], name="p"), "value", "update_op"),
            ["true_positives/count", "false_positives/count"],
        ),
        "r": (
            *(m.recall_at_thresholds([1], [0.5], [0.4], name="r"), "value", "update_op"),
            ["true_positives", "false_negatives"],
        ),
        "iou": (m.mean_iou([1], [1], 2, name="iou"), "mean_iou", "", ["total_confusion_matrix"]),
        "k": (
            *(m.recall_at_k([[1]], scores, 2, 1, name="k"), "value", "update"),
            ["true_positive_at_2_class1", "false_negative_at_2_class1"],
        ),
        "a": (
            *(m.average_precision_at_k([[1]], scores, 1, name="a"), "value", "update"),
            ["total", "max"],
        ),
    }
    for scope, ((value, update), first, second, sums) in made.items():
        assert value.name == f"{scope}/{first}:0"
        assert update.name == f"{scope}/{second}:0" or not second
        found = hf.get_collection(hf.GraphKeys.METRIC_VARIABLES, f"{scope}/")
        assert [v.name for v in found] == [f"{scope}/{name}" for name in sums]


def test_reset_by_the_initializer() -> None:
    value, update = hf.metrics.mean([1.0, 3.0])
    reset = hf.local_variables_initializer()
    with hf.Session() as session:
        for _ in range(2):
            session.run(reset)
            assert session.run(value) == 0
            assert session.run([update, update]) == [2, 2]
            assert session.run(value) == 2


def test_what_does_not_fit() -> None:
    x = hf.placeholder(hf.float32, [None, 3])
    metrics = hf.metrics
    for make in (
        lambda: metrics.mean(x, hf.ones([2, 2])),
        lambda: metrics.accuracy(x, hf.ones([2, 4])),
        lambda: metrics.mean_tensor(x),
        lambda: metrics.mean_iou([0], [0], hf.placeholder(hf.int32, [])),
        lambda: metrics.auc([1], [0.5], curve="PRC"),
        lambda: metrics.auc([1], [0.5], num_thresholds=1),
        lambda: metrics.sensitivity_at_specificity([1], [0.5], 1.5),
        lambda: metrics.precision_at_k([[1]], x, 0),
        lambda: metrics.precision_at_k([[1]], x, "two"),
        lambda: metrics.precision_at_k([[1]], x, 1, class_id=0.5),
        lambda: metrics.specificity_at_sensitivity([1], [0.5], [0.5]),
        lambda: metrics.recall_at_thresholds([1], [0.5], 0.5),
        lambda: metrics.recall_at_thresholds([1], [0.5], ["high"]),
        lambda: metrics.mean_cosine_distance([[1.0]], [[1.0]], None),
        lambda: metrics.recall_at_k(hf.ones([2, 1, 1, 1], hf.int64), x, 1),
    ):
        with pytest.raises(ShapeError):
            make()
    p = hf.placeholder(hf.float32, [None])
    _, update = metrics.auc([True], p)
    with hf.Session() as session:
        session.run(hf.local_variables_initializer())
        with pytest.raises(AssertError, match=r"predictions must be in \[0, 1\]"):
            session.run(update, {p: [1.5]})


def counted(context: RankContext) -> Any:
    """Each replica adds another batch twice; what it reads between and after."""
    x, z = hf.placeholder(hf.float32, [None]), hf.placeholder(hf.int64, [None])
    mean, add_mean = hf.metrics.mean(x)
    iou, add_iou = hf.metrics.mean_iou(z, z, 4)
    reset = hf.local_variables_initializer()
    feeds = {x: np.arange(context.replica + 1, dtype="f4"), z: [context.replica]}
    found = []
    with hf.Session() as session:
        for _ in range(2):
            session.run(reset)
            context.barrier()
            for _ in range(2):
                session.run([add_mean.op, add_iou.op], feeds)
            context.barrier()
            found.append(session.run([mean, iou]))
            context.barrier()
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_replicas_count_together(ranks: int) -> None:
    joint = np.concatenate([np.arange(r + 1) for r in range(ranks)]).mean()
    for found in run_ranks(ranks, counted, seed=ranks):
        np.testing.assert_allclose(found, [[joint, 1.0]] * 2, rtol=1e-6)


@pytest.mark.mpi
def test_ranks_of_a_job_count_together() -> None:
    from hpcflow.comm import mpi_communicator

    joint = np.concatenate([np.arange(r + 1) for r in range(mpi_communicator.world().size)]).mean()
    np.testing.assert_allclose(run_here(counted), [[joint, 1.0]] * 2, rtol=1e-6)


@pytest.mark.parametrize("sync", ["async", "all"])
def test_workers_of_a_server_count_together(sync: str) -> None:
    joint = np.concatenate([np.arange(r + 1) for r in range(2)]).mean()
    for found in run_ranks(3, counted, ps=1, sync=sync, seed=1):
        np.testing.assert_allclose(found, [[joint, 1.0]] * 2, rtol=1e-6)


@pytest.mark.parametrize("ranks, ps", [(1, 0), (2, 0), (3, 1)])
@pytest.mark.parametrize("told", [False, True])
def test_in_a_monitored_session(ranks: int, ps: int, told: bool) -> None:
    """They begin at 0 also where the scaffold says how the other variables begin."""

    def body(context: RankContext) -> float:
        x, w = hf.placeholder(hf.float32, [None]), hf.Variable(1.0)
        count = hf.train.get_or_create_global_step()
        optimizer = hf.train.GradientDescentOptimizer(0.01)
        step = optimizer.minimize(hf.reduce_mean(hf.square(x * w)), global_step=count)
        mean, update = hf.metrics.mean(x)
        scaffold = hf.train.Scaffold(hf.global_variables_initializer()) if told else None
        last = hf.train.FinalOpsHook(mean)
        hooks = [hf.train.StopAtStepHook(last_step=3), last]
        with hf.train.MonitoredTrainingSession(scaffold=scaffold, hooks=hooks) as session:
            while not session.should_stop():
                session.run([step, update.op], {x: [1.0 + context.replica] * 2})
        return float(last.final_ops_values)

    workers = ranks - ps
    for found in run_ranks(ranks, body, ps=ps, sync="all" if ps else ""):
        assert found == (1 + workers) / 2
