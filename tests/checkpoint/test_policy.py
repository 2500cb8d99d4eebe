"""Policies of one's own: some variables, when the program likes, under the names it likes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.checkpoint import checkpoint_directory
from hpcflow.checkpoint.checkpoint_reader import SavedCheckpoint
from hpcflow.errors import HpcflowError, LonelyCollectiveError
from tests.runtime.nets import data, net
from tests.runtime.ranks import run_ranks

PLACES = {
    "alone": dict(ranks=1),
    "sums": dict(ranks=3),
    "tasks": dict(ranks=4, tasks_per_replica=2),
    "uneven workers": dict(ranks=4, ps=1),
    "pieces": dict(ranks=5, ps=2, shard_bytes=64),
}
SAMPLES, BATCH, EPOCHS = 26, 8, 3  # the last joined batch leaves some workers without samples


def train(context: Any, where: Any, every: int, keeps: bool) -> dict[str, Any]:
    features, labels = data(SAMPLES)
    x, y, loss, _, variables = net()
    count = hf.train.get_or_create_global_step()
    step = hf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=count)
    dataset = hf.data.Dataset({x: features, y: labels}, batch=BATCH, context=context)
    own = hf.train.Saver({"first": variables[0], "step": count}, max_to_keep=0, form="sharded")
    kept = {"checkpoints": where / "all", "save_every": 2, "max_to_keep": 0} if keeps else {}
    called = []
    with hf.train.TrainingSession(context=context, **kept) as session:
        session.every(every, lambda: own.save(session, where / "own", count))
        session.every(2 * every, lambda: called.append(session.steps))
        for batch in dataset.epochs(EPOCHS):
            session.step(step, batch)
        session.wait()
        return {"called": called, "first": session.run(variables[0]), "steps": session.steps}


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [False, True], ids=["alone", "beside checkpoints"])
@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
def test_some_variables_are_saved_every_so_many_steps(tmp_path, places, keeps):
    places = dict(places)
    done = run_ranks(places.pop("ranks"), lambda c: train(c, tmp_path, 3, keeps), **places)
    saved = [
        SavedCheckpoint(one.path, one.facts)
        for one in checkpoint_directory.find_checkpoints(tmp_path / "own")
    ]
    steps = sorted(one.facts["step"] for one in saved)
    assert len({len(one["called"]) for one in done}) == 1  # all together
    if "ps" in places:
        total = sum(one["steps"] for one in done)
        assert len(steps) >= total // 3 // len(done) and steps[-1] <= total
    else:
        assert steps == [3, 6, 9, 12] and done[0]["called"] == [6, 12]
    for one in saved:
        assert one.problems() == [] and set(one.arrays) == {"first", "step"}
        assert int(one.read("step")) == one.facts["step"]  # of asynchronous workers: at rest
    if "ps" not in places:  # the last step is a full round
        np.testing.assert_array_equal(saved[0].read("first"), done[0]["first"])
    assert (tmp_path / "all").is_dir() is keeps


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
def test_some_variables_are_restored_under_other_names(tmp_path, places):
    run_ranks(1, lambda c: train(c, tmp_path, 4, keeps=False))
    places = dict(places)

    def body(context):
        w = hf.Variable(np.zeros((6, 8), np.float32), name="encoder/w")
        other = hf.Variable(np.ones(2, np.float32), name="head")
        with hf.train.TrainingSession(context=context) as session:
            facts = hf.train.Saver({"first": w}).restore(session, tmp_path / "own")
            return facts["step"], session.run([w, other])

    (last, *_) = checkpoint_directory.find_checkpoints(tmp_path / "own")
    for step, (w, other) in run_ranks(places.pop("ranks"), body, **places):
        assert step == 12
        np.testing.assert_array_equal(w, SavedCheckpoint(last.path).read("first"))
        np.testing.assert_array_equal(other, [1, 1])


@pytest.mark.parametrize("every", [0, -1, 2.5, "10m"])
def test_every_takes_a_number_of_steps(every):
    def body(context):
        hf.Variable(0.0)
        hf.train.TrainingSession(context=context).every(every, lambda: None)

    with pytest.raises(HpcflowError, match="steps"):
        run_ranks(1, body)


def test_saving_on_the_chief_alone_is_told(tmp_path):
    def body(context):
        x, y, _, step, _ = net()
        features, labels = data(SAMPLES)
        session = hf.Session(context=context)
        session.run(hf.global_variables_initializer())
        saver = hf.train.Saver()
        for _ in range(3):
            session.run(step, {x: features, y: labels})
            if context.is_chief:
                saver.save(session, tmp_path, 1)

    with pytest.raises(LonelyCollectiveError, match="rank 0 came to saving or loading instead"):
        run_ranks(3, body)


def test_workers_that_save_at_their_own_steps_alone_are_told(tmp_path):
    def body(context):
        features, labels = data(SAMPLES)
        x, y, _, step, _ = net()
        dataset = hf.data.Dataset({x: features, y: labels}, batch=BATCH, context=context)
        saver = hf.train.Saver()
        with hf.train.TrainingSession(context=context) as session:
            for batch in dataset.epochs(2):
                session.step(step, batch)
                if session.steps % 2 == 0:
                    saver.save(session, tmp_path, session.steps)

    with pytest.raises(LonelyCollectiveError, match="saving or loading"):
        run_ranks(4, body, ps=1)
