"""One driver, several ranks in its graph: towers, and stages with several steps in flight."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from tests.runtime.nets import data
from tests.runtime.ranks import run_here, run_ranks

TASKS = [f"/job:worker/task:{k}" for k in range(3)]
STEPS, BATCH, MICROS = 6, 11, 4  # a batch is no multiple of the towers or the micro-batches
# 3 ranks, 4 ranks: variables on the driver, on a server, cut over two
WAYS = [(3, {}), (4, {"ps": 1}), (5, {"ps": 2, "shard_bytes": 64})]


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    features, labels = data(STEPS * BATCH)
    cuts = range(0, STEPS * BATCH, BATCH)
    return [(features[i : i + BATCH], labels[i : i + BATCH]) for i in cuts]


def initial() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(s).astype(np.float32) for s in [(6, 8), (8, 8), (8, 4)]]


def expected() -> list[np.ndarray]:
    """Momentum on whole batches, by NumPy in float64."""
    w = [v.astype(np.float64) for v in initial()]
    speed = [np.zeros_like(v) for v in w]
    for x, labels in batches():
        h = [x.astype(np.float64)]
        for k in range(2):
            h.append(np.maximum(h[k] @ w[k], 0))
        logits = h[2] @ w[2]
        p = np.exp(logits - logits.max(1, keepdims=True))
        back = (p / p.sum(1, keepdims=True) - np.eye(4)[labels]) / len(x)
        for k in (2, 1, 0):
            g = h[k].T @ back
            back = (back @ w[k].T) * (h[k] > 0)
            speed[k] = 0.9 * speed[k] + g
            w[k] = w[k] - 0.05 * speed[k]
    return w


def check(found: list[np.ndarray]) -> None:
    for mine, theirs in zip(found, expected(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def momentum() -> Any:
    return hf.train.MomentumOptimizer(0.05, 0.9)


def fed() -> tuple[hf.Tensor, hf.Tensor]:
    return hf.placeholder(hf.float32, [None, 6]), hf.placeholder(hf.int64, [None])


def entropy(labels: hf.Tensor, logits: hf.Tensor) -> hf.Tensor:
    return hf.reduce_sum(
        hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )


def towers(context: Any) -> tuple[list[np.ndarray], set[str]]:
    """The weights after towers on three ranks, and where their gradients were made."""
    x, y = fed()
    w = [hf.Variable(v, name=f"w{k}") for k, v in enumerate(initial())]
    losses = []
    for k, task in enumerate(TASKS):
        mine, labels = x[k::3], y[k::3]
        with hf.device(task):
            h = hf.nn.relu(hf.matmul(hf.nn.relu(hf.matmul(mine, w[0])), w[1]))
            losses.append(entropy(labels, hf.matmul(h, w[2])))
    train = momentum().minimize(hf.add_n(losses) / hf.cast(hf.size(y), hf.float32))
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    for features, labels in batches():
        session.run(train, {x: features, y: labels})
    plan = session.plan(train, {x: features, y: labels})
    worked = {task for task, part in plan.parts.items() if any("MatMul" in n for n in part.nodes)}
    return session.run(w), worked


def stages(x: hf.Tensor) -> tuple[list[hf.Variable], hf.Tensor]:
    """A layer on each of three ranks: the variables, and the logits."""
    w, h = [], x
    for k, (task, start) in enumerate(zip(TASKS, initial(), strict=True)):
        with hf.device(task):
            w.append(hf.Variable(start, name=f"w{k}"))
            h = hf.matmul(hf.nn.relu(h) if k else h, w[-1])
    return w, h


def micro_batches(context: Any) -> list[np.ndarray]:
    """The weights after updates by sums over micro-batches that threads have started."""
    x, y = fed()
    samples = hf.placeholder(hf.float32, [])
    w, logits = stages(x)
    with hf.device(TASKS[2]):
        loss = entropy(y, logits) / samples
    count = hf.train.get_or_create_global_step()
    added, sums = [], []
    for g, v in zip(hf.gradients(loss, w), w, strict=True):
        with hf.colocate_with(v.op):
            total = hf.ConditionalAccumulator(v.dtype, v.shape, reduction_type="SUM")
            added.append(total.apply_grad(g, local_step=count))
            sums.append(total.take_grad(MICROS))
    update = momentum().apply_gradients(zip(sums, w, strict=True), count)
    micro, session = hf.group(*added), hf.Session()
    session.run(hf.global_variables_initializer())
    with ThreadPoolExecutor(MICROS) as threads:
        for features, labels in batches():
            parts = zip(*(np.array_split(a, MICROS) for a in (features, labels)), strict=True)
            feeds = [{x: a, y: b, samples: len(features)} for a, b in parts]
            done = threads.map(lambda feed: session.run(micro, feed), feeds)
            session.run(update)  # it waits for the gradients, not for the threads
            list(done)
    return session.run(w)


def overlapping(context: Any) -> int:
    """Micro-batches each of which passes the last stage only when the next is in the first."""
    x, y = fed()
    with hf.device(TASKS[2]):
        gate = hf.FIFOQueue(20, [hf.int32], [[]], name="gate")
        done = hf.Variable(np.int32(0), trainable=False, name="done")
    number = hf.placeholder(hf.int32, [])
    with hf.device(TASKS[0]):
        entered = hf.identity(number) * 1  # the first stage, of any step
    told = gate.enqueue([entered])
    with hf.control_dependencies([told]):
        _, logits = stages(x)
    with hf.device(TASKS[2]), hf.control_dependencies([logits]):
        both = gate.dequeue_many(2)  # this one's and that of one behind it
        with hf.control_dependencies([gate.enqueue([both[1]]), done.assign_add(1)]):
            last = entropy(y, logits)
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    features, labels = data(BATCH)
    steps = 12

    def run(i: int) -> None:
        session.run(last, {x: features, y: labels, number: i})

    with ThreadPoolExecutor(3) as threads:
        runs = [threads.submit(run, i) for i in range(steps)]
        for ended, one in enumerate(as_completed(runs, 50), 1):
            one.result()
            if ended == steps - 1:  # behind the last one there is none
                session.run(gate.enqueue([np.int32(steps)]))
    return int(session.run(done))


def delayed(context: Any) -> tuple[list[int], int]:
    """Steps in flight as each of 30 begins, each with an update of its own; and the updates."""
    x, y = fed()
    with hf.device(TASKS[0]):
        begun = hf.Variable(np.int32(0), trainable=False, name="begun")
        ended = hf.Variable(np.int32(0), trainable=False, name="ended")
        with hf.control_dependencies([begun.assign_add(1)]):
            running = begun.read_value() - ended.read_value()
    with hf.control_dependencies([running]):
        w, logits = stages(hf.identity(x))
    with hf.device(TASKS[2]):
        loss = entropy(y, logits)
    train = hf.train.GradientDescentOptimizer(1e-3).minimize(loss, var_list=w)
    with hf.control_dependencies([train]):
        last = ended.assign_add(1)
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    features, labels = data(BATCH)
    with ThreadPoolExecutor(6) as threads:  # more than may be in flight
        runs = [
            threads.submit(session.run, [running, last], {x: features, y: labels})
            for _ in range(30)
        ]
        found = [int(one.result(50)[0]) for one in runs]
    return found, int(session.run(ended))


@pytest.mark.parametrize("n, settings", WAYS)
def test_towers_of_one_graph_train_as_one_process(n: int, settings: Any) -> None:
    ((found, worked),) = run_ranks(n, towers, seed=n, tasks_per_replica=3, **settings)
    check(found)
    assert worked == set(TASKS)


def test_two_replicas_of_towers_and_of_stages() -> None:
    """Each driver has half of the ranks; both feed the same batches here."""
    for found, _ in run_ranks(6, towers, seed=2, tasks_per_replica=3):
        check(found)


@pytest.mark.parametrize("n, settings", WAYS)
def test_micro_batches_in_flight_train_as_whole_batches(n: int, settings: Any) -> None:
    (found,) = run_ranks(n, micro_batches, seed=n, tasks_per_replica=3, **settings)
    check(found)


@pytest.mark.parametrize("n, settings", WAYS[:2])
def test_a_step_is_in_the_first_stage_while_another_is_in_the_last(n: int, settings: Any) -> None:
    """One step at a time would wait for ever."""
    assert run_ranks(n, overlapping, seed=n, tasks_per_replica=3, **settings) == [12]


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_no_more_steps_are_in_flight_than_may(limit: int) -> None:
    ((running, updates),) = run_ranks(
        3, delayed, seed=limit, tasks_per_replica=3, max_in_flight=limit
    )
    assert updates == 30 and min(running) >= 1 and max(running) <= limit


BODIES: list[Callable[[Any], Any]] = [towers, micro_batches, overlapping, delayed]


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_on_ranks_of_mpi(body: Callable[[Any], Any]) -> None:
    """On three ranks without a server, on four with one."""
    from hpcflow.comm import mpi_communicator

    found = run_here(body, tasks_per_replica=3, ps=mpi_communicator.world().size - 3)
    if found is None:
        return
    if body is overlapping:
        assert found == 12
    elif body is delayed:
        assert found[1] == 30 and max(found[0]) <= 4
    else:
        check(found[0] if body is towers else found)


def grown(size: int, task: str) -> tuple[Any, Any]:
    """A variable of one name and any size on a task, and what adds one to it."""
    with hf.device(task):
        v = hf.Variable(hf.zeros([size]), name="v")
        return v, v.assign_add(hf.ones([size]))


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("task", TASKS)
def test_graphs_of_one_job_have_their_own_variables_of_one_name(task: str, closes: bool) -> None:
    """On other tasks as on the driver's own: of any shape, also while both sessions are open."""

    def body(context: Any) -> list[list[float]]:
        found, sessions = [], []
        for size in (2, 3, 2):
            with hf.Graph().as_default():
                v, step = grown(size, task)
                session = hf.Session()
                session.run(v.initializer)
                for _ in range(size):
                    session.run(step)
                sessions.append((session, v))
                if closes:
                    found.append(session.run(v).tolist())
                    session.close()
        if not closes:
            found = [session.run(v).tolist() for session, v in sessions]
        return found

    assert run_ranks(3, body, tasks_per_replica=3) == [[[2.0] * 2, [3.0] * 3, [2.0] * 2]]


def test_two_sessions_of_one_graph_keep_variables_apart_on_all_tasks(tmp_path: Any) -> None:
    """Each saves and restores its own."""

    def body(context: Any) -> list[list[float]]:
        v, step = grown(2, TASKS[1])
        saver = hf.train.Saver([v])
        one, two = hf.Session(), hf.Session()
        for session, steps in ((one, 1), (two, 5)):
            session.run(v.initializer)
            for _ in range(steps):
                session.run(step)
        path = saver.save(one, tmp_path, 1)
        saver.save(two, tmp_path / "two", 1)
        two.run(step)
        before = [one.run(v).tolist(), two.run(v).tolist()]
        saver.restore(two, path)
        one.close()
        return [*before, two.run(v).tolist()]

    assert run_ranks(2, body, tasks_per_replica=2) == [[[1.0] * 2, [6.0] * 2, [1.0] * 2]]
