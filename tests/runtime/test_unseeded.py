"""Draws without a seed: other ones in each session, the same on all its ranks, told and restored.

With a seed of the graph or of the op all sessions draw what they always did.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.session.session import Session
from hpcflow.settings import Settings
from tests.runtime.ranks import run_ranks

Draw = Callable[..., Any]


def queued(seed: int | None = None, name: str = "q") -> tuple[Any, Any]:
    """What fills a random queue, and what takes all of it."""
    queue = hf.RandomShuffleQueue(20, 0, [hf.int32], [[]], seed=seed, name=name)
    return queue.enqueue_many([np.arange(16, dtype="i4")]), queue.dequeue_many(16)


def looped(seed: int | None = None) -> Any:
    def again(i: Any, x: Any) -> Any:
        return i + 1, x + hf.random_normal([3], seed=seed)

    return hf.while_loop(lambda i, x: i < 2, again, [0, hf.zeros([3])])[1]


DRAWS: dict[str, Draw] = {
    "uniform": lambda seed=None: hf.random_uniform([3], seed=seed),
    "whole": lambda seed=None: hf.random_uniform([3], 0, 1 << 30, hf.int32, seed=seed),
    "normal": lambda seed=None: hf.random_normal([3], seed=seed),
    "truncated": lambda seed=None: hf.truncated_normal([3], seed=seed),
    "gamma": lambda seed=None: hf.random_gamma([3], 2.0, seed=seed),
    "poisson": lambda seed=None: hf.random_poisson(1e6, [3], seed=seed),
    "multinomial": lambda seed=None: hf.multinomial(np.zeros((1, 64), "f4"), 9, seed=seed),
    "shuffle": lambda seed=None: hf.random_shuffle(np.arange(64), seed=seed),
    "crop": lambda seed=None: hf.random_crop(np.arange(1 << 14), [2], seed=seed),
    "dropout": lambda seed=None: hf.nn.dropout(np.ones(64, "f4"), 0.5, seed=seed),
    "candidates": lambda seed=None: hf.nn.uniform_candidate_sampler(
        np.zeros((1, 1), "i8"), 1, 9, True, 1 << 20, seed=seed
    )[0],
    "in a loop": looped,
    "in a branch": lambda seed=None: hf.cond(
        hf.placeholder_with_default(True, []),
        lambda: hf.random_normal([3], seed=seed),
        lambda: hf.zeros([3]),
    ),
    "initializer": lambda seed=None: hf.glorot_uniform_initializer(seed=seed)([4, 4]),
}


def sessions(fetch: Any, count: int = 3, first: Sequence[Any] = ()) -> list[np.ndarray]:
    found = []
    for _ in range(count):
        with hf.Session() as session:
            session.run(list(first))
            found.append(np.array(session.run(fetch)))
    return found


def are_equal(found: Sequence[np.ndarray]) -> bool:
    return all(np.array_equal(found[0], one) for one in found[1:])


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize(
    "seeds", ["none", "unset", "graph", "graph 0", "made with 0", "op", "op 0"]
)
def test_each_session_draws_anew_unless_there_is_a_seed(draw: Draw, seeds: str) -> None:
    found = []
    for _ in range(2):
        with hf.Graph(seed=0 if seeds == "made with 0" else None).as_default():
            if seeds.startswith(("graph", "unset")):
                hf.set_random_seed(0 if seeds == "graph 0" else 3)
            if seeds == "unset":
                hf.set_random_seed(None)
            of_op = {"op": 5, "op 0": 0}.get(seeds)
            found += sessions(draw() if of_op is None else draw(seed=of_op), 2)
    if seeds in ("none", "unset"):
        assert len({one.tobytes() for one in found}) == 4
    else:
        assert are_equal(found)


@pytest.mark.parametrize("seeds", ["none", "graph", "op"])
def test_random_queues_too(seeds: str) -> None:
    with hf.Graph().as_default():
        if seeds == "graph":
            hf.set_random_seed(3)
        fill, take = queued(5 if seeds == "op" else None)
        found = sessions(take, 3, [fill])
    assert all(sorted(one.tolist()) == list(range(16)) for one in found)
    assert are_equal(found) == (seeds != "none")


def test_numbers_with_a_seed_are_those_of_earlier_versions() -> None:
    """Literal numbers: programs that set a seed go on with the weights that they had."""
    with hf.Graph().as_default():
        by_op = hf.random_normal([2], seed=3)
        hf.set_random_seed(0)
        by_graph = hf.random_normal([2], name="q")
        hf.set_random_seed(7)
        queue = hf.RandomShuffleQueue(10, 0, [hf.int32], [[]])
        fill, take = queue.enqueue_many([np.arange(8, dtype="i4")]), queue.dequeue_many(8)
        with hf.Session() as session:
            drawn = session.run([by_op, by_graph])
            session.run(fill)
            assert session.run(take).tolist() == [4, 0, 1, 6, 3, 5, 7, 2]
            np.testing.assert_allclose(drawn[0], [0.04229744, 1.1105418], rtol=1e-6)
            np.testing.assert_allclose(drawn[1], [0.5030369, -0.8296052], rtol=1e-6)


def test_a_session_goes_on_in_its_series() -> None:
    with hf.Graph().as_default(), hf.Session() as session:
        x = hf.random_normal([3])
        found = [session.run(x) for _ in range(3)]
    assert len({one.tobytes() for one in found}) == 3


PLACES = [
    dict(n=1),
    dict(n=3),
    dict(n=4, tasks_per_replica=2),
    dict(n=3, ps=1, sync="all"),
    dict(n=4, ps=2, shard_bytes=16),
]


@pytest.mark.parametrize("places", PLACES, ids=str)
def test_all_ranks_of_a_job_draw_the_same_and_another_job_others(places: dict[str, int]) -> None:
    def body(context: RankContext) -> list[np.ndarray]:
        last = context.settings.tasks_per_replica - 1
        w = hf.Variable(hf.random_normal([8, 4]), name="w")
        with hf.device(f"/job:worker/task:{last}"):
            noise = hf.random_uniform([4])
        step = w.assign_add(hf.replica_sum(hf.zeros([8, 4])))
        with Session() as session:
            session.run(hf.global_variables_initializer())
            context.barrier()
            session.run(step)
            return [session.run(noise), session.run(w)]

    jobs = [run_ranks(body=body, random_seed=-1, **places) for _ in range(2)]
    for found in jobs:
        for one in found:
            assert are_equal([found[0][0], one[0]]) and are_equal([found[0][1], one[1]])
    assert not are_equal([jobs[0][0][0], jobs[1][0][0]])
    assert not are_equal([jobs[0][0][1], jobs[1][0][1]])


def test_replicas_agree_though_one_has_had_more_sessions() -> None:
    def body(context: RankContext) -> np.ndarray:
        noise = hf.random_normal([5])
        total = hf.replica_sum(noise)
        for _ in range(context.replica):
            Session().close()
        with Session() as session:
            session.run(total)
            return session.run(noise)

    assert are_equal(run_ranks(3, body))


def train(context: RankContext, folder: Path, steps: int, resume: bool) -> dict[str, Any]:
    with hf.Graph().as_default():
        w = hf.Variable(hf.zeros([4]), name="w")
        noise = hf.random_normal([4])
        step = w.assign_add(noise)
        with hf.train.TrainingSession(
            context=context, checkpoints=folder, save_every=99, resume=resume
        ) as session:
            for _ in range(steps):
                session.step(step, {})
            session.wait()
            found = {"w": session.run(w), "result": session.result()}
            session.save()
            return found


@pytest.mark.slow
@pytest.mark.parametrize("places", [dict(n=1), dict(n=2), dict(n=2, ps=1)], ids=str)
def test_the_seed_is_told_and_a_resume_draws_by_it(tmp_path: Path, places: dict[str, int]) -> None:
    def job(folder: str, steps: int, resume: bool, **settings: Any) -> Any:
        def body(context: RankContext) -> Any:
            return train(context, tmp_path / folder, steps, resume)

        settings = {"random_seed": -1, "run_dir": str(tmp_path / folder), **places, **settings}
        return run_ranks(body=body, **settings)[0]

    first = job("saved", 3, False)
    seed = first["result"]["random_seed"]
    written = json.loads((tmp_path / "saved" / "result.json").read_text())
    assert written["random_seed"] == seed and 0 <= seed < 1 << 62
    resumed = job("saved", 4, True)
    assert resumed["result"]["random_seed"] == seed
    whole = job("whole", 7, False, random_seed=seed)  # the setting makes a run again
    np.testing.assert_array_equal(resumed["w"], whole["w"])
    other = job("other", 7, False)
    assert other["result"]["random_seed"] != seed and not are_equal([other["w"], whole["w"]])


def test_a_seed_may_be_set_for_a_job() -> None:
    found = []
    for seed in (4, 4, 5):
        with (
            hf.Graph().as_default(),
            Session(context=RankContext(Settings(random_seed=seed))) as one,
        ):
            found.append(one.run(hf.random_normal([3])))
    assert are_equal(found[:2]) and not are_equal(found[1:])
