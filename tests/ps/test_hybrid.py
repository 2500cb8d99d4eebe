"""Tables on servers and dense variables on the workers, in one step: the same as either alone."""

import contextlib

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import LonelyCollectiveError, PlacementError
from hpcflow.runtime.job.job_membership import current_context, use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from tests.runtime.ranks import run_here, run_ranks

WORDS, SIZE, BATCH, STEPS = 20, 6, 8, 8


def skip_gram(own_scope=None):
    """Predict a word from another: rows of a table, a dense layer, clipping by the global norm."""
    rng = np.random.default_rng(0)
    start = [rng.normal(size=shape).astype("f4") for shape in ((WORDS, SIZE), (SIZE, WORDS))]
    table = hf.Variable(start[0], name="embeddings")
    with hf.device(own_scope) if own_scope else contextlib.nullcontext():
        weights = hf.Variable(start[1], name="softmax/weights")
        bias = hf.Variable(np.zeros(WORDS, "f4"), name="softmax/bias")
    words = hf.placeholder(hf.int64, [None], name="words")
    near = hf.placeholder(hf.int64, [None], name="near")
    hidden = hf.tanh(hf.nn.embedding_lookup(table, words))
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=near, logits=hf.matmul(hidden, weights) + bias
    )
    loss = hf.reduce_mean(losses)
    optimizer = hf.train.AdamOptimizer(0.05)
    pairs = optimizer.compute_gradients(loss)
    clipped, norm = hf.clip_by_global_norm([g for g, _ in pairs], 0.5)
    count = hf.train.get_or_create_global_step()
    train = optimizer.apply_gradients(
        zip(clipped, [v for _, v in pairs], strict=True), global_step=count
    )
    return words, near, loss, norm, train, [table, weights, bias, count]


def batches():
    rng = np.random.default_rng(1)
    return rng.integers(0, WORDS, (STEPS, BATCH)), rng.integers(0, WORDS, (STEPS, BATCH))


def trained(context, own_scope=None):
    words, near, loss, norm, train, variables = skip_gram(own_scope)
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    n, r = context.roles.replicas, context.replica
    mine = slice(BATCH // n * r, BATCH // n * (r + 1))
    norms = []
    for w, c in zip(*batches(), strict=True):
        norms.append(session.run([loss, norm, train], {words: w[mine], near: c[mine]})[1])
    return [*session.run(variables), np.array(norms)], session.context.report()["updates"]


def alone():
    with use_context(RankContext(Settings())), hf.Graph().as_default():
        return trained(current_context())[0]


def check(found, expected):
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"ps": 1, "dense": "replicas"},
        {"ps": 2, "dense": "replicas", "shard_bytes": 64},
        {"ps": 1},
        {},
    ],
    ids=["both", "both, the table cut", "servers alone", "replicas alone"],
)
@pytest.mark.parametrize("workers", [2, 4])
def test_both_at_once_equals_either_alone(settings, workers):
    servers = settings.get("ps", 0)
    results = run_ranks(
        workers + servers, trained, sync="all" if servers else "", seed=workers, **settings
    )
    for found, updates in results:
        check(found, alone())
        here = {name.partition("/Adam")[0] for name in updates}
        if servers == 0:
            assert "embeddings" in here and "softmax/weights" in here
        elif settings.get("dense"):
            assert here == {"softmax/weights", "softmax/bias", "global_step"}
        else:
            assert not here


def test_variables_choose_one_by_one():
    def body(context):
        return trained(context, own_scope="/job:worker")

    for found, updates in run_ranks(3, body, ps=1, sync="all", dense="servers", seed=3):
        check(found, alone())
        assert {"softmax/weights", "softmax/bias"} <= set(updates) and "global_step" not in updates


def test_own_variables_need_all_workers_in_each_step():
    with pytest.raises(PlacementError, match="--sync all") as caught:
        run_ranks(3, trained, ps=1, dense="replicas")
    assert "softmax" in str(caught.value)


def test_a_replica_that_trains_alone_is_told_so():
    def body(context):
        words, near, _, _, train, _ = skip_gram()
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        for _ in range(1 + context.replica):
            session.run(train, {words: [1], near: [2]})

    with pytest.raises(LonelyCollectiveError):
        run_ranks(3, body, ps=1, sync="all", dense="replicas")


def test_a_checkpoint_of_both_goes_on_where_it_was(tmp_path):
    def body(context, steps, resume):
        words, near, _, _, train, variables = skip_gram()
        session = hf.train.TrainingSession(checkpoints=tmp_path / "saved", resume=resume)
        n, r = context.roles.replicas, context.replica
        mine = slice(BATCH // n * r, BATCH // n * (r + 1))
        with session as sess:
            for w, c in list(zip(*batches(), strict=True))[steps]:
                sess.step(train, {words: w[mine], near: c[mine]})
            sess.wait()
            return sess.run(variables)

    for steps, resume in ((slice(0, 3), False), (slice(3, None), True)):
        settings = {"ps": 1, "sync": "all", "dense": "replicas", "run_dir": str(tmp_path)}
        results = run_ranks(3, lambda c, s=steps, go=resume: body(c, s, go), **settings)
    for found in results:
        check(found, alone()[:4])


@pytest.mark.mpi(min_size=2)
def test_both_at_once_over_mpi():
    from mpi4py import MPI

    servers = max(1, MPI.COMM_WORLD.size - 2)
    found = run_here(trained, ps=servers, sync="all", dense="replicas")
    if found is not None:
        check(found[0], alone())
