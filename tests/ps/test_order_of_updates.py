"""Reads and updates around the sum of gradients: what one process gives line by line.

With `sync=all` the servers make the updates behind the sum by themselves. Values that they read,
and effects of the workers, keep their order with them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import AssertError, GraphError
from tests.runtime.ranks import run_ranks

JOBS: dict[str, tuple[int, dict[str, Any]]] = {
    "one process": (1, {}),
    "async": (2, {"ps": 1}),
    "all": (2, {"ps": 1, "sync": "all"}),
    "all, two servers": (3, {"ps": 2, "sync": "all", "shard_bytes": 4}),
    "all, prefetch": (2, {"ps": 1, "sync": "all", "prefetch": True}),
    "stale": (2, {"ps": 1, "sync": "stale:0"}),
    "two workers": (3, {"ps": 1, "sync": "all"}),
    "tables only": (2, {"ps": 1, "sync": "all", "dense": "replicas"}),
}
ONE_WORKER = [name for name in JOBS if name != "two workers"]
SERVERS_UPDATE = ["all", "all, two servers", "all, prefetch"]


def on(job: str, body: Any) -> list[Any]:
    """What the workers of a job return."""
    ranks, settings = JOBS[job]
    return run_ranks(ranks, body, seed=1, plan_cache="none", verify_passes=True, **settings)


class Model:
    """A variable whose gradient is 1: each step subtracts the learning rate."""

    def __init__(self, rate: Any = 1.0) -> None:
        self.w = hf.Variable(np.zeros(2, "f4"), name="w")
        self.x = hf.placeholder(hf.float32, [None, 2])
        loss = hf.reduce_mean(hf.reduce_sum(self.w * self.x, 1))
        self.optimizer = hf.train.GradientDescentOptimizer(rate)
        self.gradients = self.optimizer.compute_gradients(loss, [self.w])

    def trained(self) -> Any:
        return self.optimizer.apply_gradients(self.gradients)

    def started(self) -> hf.Session:
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        return session

    def fed(self, value: float = 1.0) -> dict[Any, Any]:
        return {self.x: np.full((2, 2), value, "f4")}


@pytest.mark.parametrize("job", JOBS)
def test_a_step_uses_the_learning_rate_that_was_assigned_before_it(job):
    """The servers read it as soon as the last update was over: one step late."""

    def body(context):
        rate, new = hf.Variable(1.0, trainable=False), hf.placeholder(hf.float32, [])
        model, change = Model(rate * 1.0), rate.assign(new)
        train, session = model.trained(), model.started()
        found = []
        for step in range(4):
            session.run(change, {new: 10.0**step})
            context.meet("a rate for all")
            session.run(train, model.fed())
            context.meet("a step")
            found.append(float(session.run(model.w)[0]))
            context.meet("read")
        return found

    for found in on(job, body):
        assert found == [-1.0, -11.0, -111.0, -1111.0]


@pytest.mark.parametrize("first", ["read", "update"])
@pytest.mark.parametrize("job", ONE_WORKER)
def test_a_step_that_updates_its_learning_rate_keeps_the_order(job, first):
    def body(context):
        rate = hf.Variable(1.0, trainable=False)
        update = rate.assign_add(1.0) if first == "update" else None
        with hf.control_dependencies([update] if update is not None else []):
            read = rate.read_value() * 1.0
        if update is None:
            with hf.control_dependencies([read]):
                update = rate.assign_add(1.0)
        model = Model(read)
        both, session = hf.group(model.trained(), update), model.started()
        found = []
        for _ in range(3):
            session.run(both, model.fed())
            found.append(float(session.run(model.w)[0]))
            session.run(rate.assign(10.0))
        return found

    (found,) = on(job, body)
    assert found == ([-1.0, -11.0, -21.0] if first == "read" else [-2.0, -13.0, -24.0])


@pytest.mark.parametrize("between", ["variable of the worker", "function", "print"])
@pytest.mark.parametrize("job", ONE_WORKER)
def test_an_update_behind_an_effect_of_the_worker_is_made_once_in_a_step(job, between, capfd):
    """It was made once more, before the first step."""
    calls: list[float] = []

    def call(x):
        calls.append(float(x[0]))
        return x

    def body(context):
        model, count = Model(), hf.Variable(0.0, trainable=False)
        with hf.device("/job:worker/task:0"):
            here = hf.Variable(0.0, trainable=False)
        with hf.control_dependencies([model.trained()]):
            if between == "function":
                effect = hf.py_func(call, [model.w.read_value()], hf.float32)
            elif between == "print":
                effect = hf.Print(hf.constant(1.0), [model.w.read_value()], "w is")
            else:
                effect = here.assign_add(1.0)
        with hf.control_dependencies([effect]):
            step = count.assign_add(1.0).op
        session, found = model.started(), []
        for _ in range(3):
            session.run(step, model.fed())
            found.append([float(x) for x in session.run([model.w[0], count, here])])
        return found

    (found,) = on(job, body)
    made = between == "variable of the worker"
    assert found == [[-n, n, n if made else 0.0] for n in (1.0, 2.0, 3.0)]
    assert calls == ([-1.0, -2.0, -3.0] if between == "function" else [])
    if between == "print":
        assert capfd.readouterr().err.split() == "w is[-1 -1] w is[-2 -2] w is[-3 -3]".split()


@pytest.mark.parametrize("through", ["itself", "group"])
@pytest.mark.parametrize("job", ONE_WORKER)
def test_no_update_is_made_if_a_check_before_it_fails(job, through):
    """Gradients counted before the check was done."""

    def body(context):
        model = Model()
        check = hf.Assert(hf.reduce_sum(model.x) < 10.0, [model.x])
        with hf.control_dependencies([check if through == "itself" else hf.group(check)]):
            train = model.trained()
        session, found = model.started(), []
        for step in range(4):
            if step % 2:
                with pytest.raises(AssertError):
                    session.run(train, model.fed(100.0))
            else:
                session.run(train, model.fed())
            found.append(float(session.run(model.w)[0]))
        return found

    (found,) = on(job, body)
    assert found == [-1.0, -1.0, -2.0, -2.0]


def read_between(context):
    """A read behind the training, and an assignment behind the read."""
    model = Model()
    with hf.control_dependencies([model.trained()]):
        read = model.w.read_value() * 1.0
    with hf.control_dependencies([read]):
        assign = model.w.assign([100.0, 100.0])
    session = model.started()
    return [float(session.run([read, assign.op], model.fed())[0][0]) for _ in range(2)]


@pytest.mark.parametrize("job", ["one process", "async", "stale", "tables only"])
def test_a_value_between_two_updates_of_a_step(job):
    (found,) = on(job, read_between)
    assert found == [-1.0, 99.0]


@pytest.mark.parametrize("job", SERVERS_UPDATE)
def test_a_value_between_two_updates_of_the_servers_is_an_error(job):
    """The worker read what the second one had assigned."""
    with pytest.raises(GraphError, match=r"reads 'w.*' behind the sum of the gradients and before"):
        on(job, read_between)


@pytest.mark.parametrize("kind", ["update", "read"])
def test_an_update_of_the_servers_cannot_use_what_a_worker_makes_behind_the_sum(kind):
    def body(context):
        model, total = Model(), hf.Variable(0.0, trainable=False)
        with hf.device("/job:worker/task:0"):
            here = hf.Variable(0.0, trainable=False)
        with hf.control_dependencies([model.trained()]):
            value = here.assign_add(1.0) if kind == "update" else here.read_value()
        model.started().run(total.assign_add(value * 2.0).op, model.fed())

    with pytest.raises(GraphError, match="which workers run behind the sum"):
        on("all", body)
