"""Workers of servers over several tasks with placement=auto: every update counts once.

Each worker feeds whole numbers in a column of its own, and the gradient of a variable is the mean
of what is fed. So the values of variables are sums that can be told for each worker.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import pytest

import hpcflow as hf
from tests.runtime.ranks import run_ranks

WIDTH, ROWS, STEPS = 4, 12, 8


class Net(NamedTuple):
    """A model whose gradients are its inputs, with updates in a loop, in a branch, and by rows."""

    x: Any
    ids: Any
    count: Any
    variables: dict[str, hf.Variable]
    train: Any
    fetches: dict[str, Any]


def far(x: Any, rng: random.Random) -> Any:
    """`x` after some operations that do not change it, so that it has a way over the tasks."""
    for _ in range(rng.randint(1, 3)):
        same = (
            lambda t: hf.matmul(t, hf.eye(WIDTH)),
            lambda t: hf.reverse(hf.reverse(t, [1]), [1]),
        )
        x = rng.choice(same)(x)
    return x


def net(seed: int) -> Net:
    """Build the model; `seed` chooses the operations between its variables."""
    rng = random.Random(seed)
    x = hf.placeholder(hf.float32, [None, WIDTH])
    ids, count = hf.placeholder(hf.int32, [None]), hf.placeholder(hf.int32, [])
    shapes = {"dense": [WIDTH], "table": [ROWS, WIDTH], "rows": [ROWS, WIDTH]}
    shapes |= {"loop": [], "low": [], "high": []}
    made = {
        name: hf.Variable(np.zeros(shape, "float32"), name=name) for name, shape in shapes.items()
    }
    before = far(hf.reshape(made["dense"] * 1.0, [1, WIDTH]), rng)
    loss = hf.reduce_sum(hf.reduce_mean(far(x, rng), 0) * made["dense"])
    looked_up = hf.nn.embedding_lookup(made["table"], ids)
    loss += hf.reduce_mean(hf.reduce_sum(looked_up * far(x, rng), 1))
    optimizer = hf.train.GradientDescentOptimizer(1.0)
    with hf.control_dependencies([before]):
        train = optimizer.minimize(loss, var_list=[made["dense"], made["table"]])
    with hf.control_dependencies([train]):
        after = far(hf.reshape(made["dense"].read_value(), [1, WIDTH]), rng)

    def body(i: Any, total: Any) -> Any:
        with hf.control_dependencies([total]):
            add = made["loop"].assign_add(1.0)
        with hf.control_dependencies([add]):
            return i + 1, total + made["loop"].read_value()

    _, total = hf.while_loop(lambda i, total: i < count, body, [0, 0.0])
    side = hf.cond(
        count < 2, lambda: made["low"].assign_add(1.0), lambda: made["high"].assign_add(1.0)
    )
    rows = hf.scatter_add(made["rows"], ids, far(x, rng))
    fetches = {"own": [before, after], "loop": total, "side": side, "rows": rows.op}
    return Net(x, ids, count, made, train, fetches)


class Done(NamedTuple):
    """What a worker did: its sums, how often it trained, and the variables at the end."""

    sums: dict[str, np.ndarray]
    values: dict[str, np.ndarray]


def work(context: Any, seed: int, sync: str) -> Done:
    """Make random steps; assert that reads see this worker's own updates and no later ones."""
    made, rng = net(seed), np.random.default_rng([seed, context.replica])
    sums = {v.op.name: np.zeros(v.shape.as_list(), "float32") for v in made.variables.values()}
    mine, workers = context.replica, context.roles.replicas if sync == "all" else 1
    with hf.train.TrainingSession() as session:
        for _ in range(STEPS):
            x = np.zeros((2, WIDTH), "float32")
            x[:, mine] = rng.integers(1, 4)
            ids, count = rng.integers(ROWS, size=2), rng.integers(4)
            chosen = [name for name in made.fetches if name == "own" or rng.random() < 0.6]
            fetches = {name: made.fetches[name] for name in chosen}
            feeds = {made.x: x, made.ids: ids, made.count: count}
            found, _ = session.step([fetches, made.train], feeds)
            first = sums["dense"][mine]
            sums["dense"] -= x.mean(0) / workers
            np.add.at(sums["table"], ids, -x / 2 / workers)
            assert found["own"][0][0, mine] == first
            assert found["own"][1][0, mine] == sums["dense"][mine]
            if "rows" in chosen:
                np.add.at(sums["rows"], ids, x)
            if "side" in chosen:
                sums["low" if count < 2 else "high"] += 1
            if "loop" in chosen:
                sums["loop"] += count
        session.wait()
        values = session.run(made.variables)
        session.wait()
    return Done(sums, values)


def check(seed: int, sync: str, workers: int, tasks: int, **settings: Any) -> None:
    """All updates of all workers, and no others, are in the variables that each worker sees."""
    done = run_ranks(
        workers * tasks + 1,
        lambda context: work(context, seed, sync),
        seed=seed,
        ps=1,
        sync=sync,
        tasks_per_replica=tasks,
        placement="auto",
        shard_bytes=64,
        plan_cache="none",
        kernels="plain",
        **settings,
    )
    assert len(done) == workers
    for name in done[0].sums:
        total = sum(worker.sums[name] for worker in done)
        for worker in done:
            np.testing.assert_array_equal(worker.values[name], total, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sync", ["async", "stale:0", "stale:2", "all"])
@pytest.mark.parametrize("tasks", [2, 3])
def test_random_programs_of_workers_over_tasks(seed: int, sync: str, tasks: int) -> None:
    """Two workers of two or three tasks each, half of them with prefetched steps."""
    check(seed, sync, 2, tasks, prefetch=seed % 2 == 1, verify_passes=seed % 3 == 0)
