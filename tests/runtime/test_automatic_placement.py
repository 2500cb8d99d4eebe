"""placement=auto in real steps: the values of the default placement, over tasks and with limits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import OutOfMemoryError, PlacementError
from hpcflow.plan.distribution import step_problem_builder
from tests.runtime.nets import plain, trained
from tests.runtime.ranks import run_ranks

WIDTH = 256
WEIGHTS = 4 * WIDTH * WIDTH


@pytest.fixture
def fast_messages(monkeypatch):
    """Messages that cost next to nothing, so that the operations of small nets are moved."""
    monkeypatch.setattr(step_problem_builder, "MESSAGE_S", 1e-9)


@pytest.mark.parametrize("ranks", [2, 3])
def test_training_over_the_tasks_of_one_replica_is_that_of_one_rank(ranks, fast_messages):
    (found,) = run_ranks(
        ranks, lambda context: trained(), tasks_per_replica=ranks, placement="auto"
    )
    for mine, theirs in zip(found, plain(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("options", [{}, {"ps": 1}, {"ps": 1, "sync": "all"}])
def test_replicas_and_servers(options, fast_messages):
    ranks = 4 + options.get("ps", 0)
    more = {"tasks_per_replica": 2, **options}
    if options == {"ps": 1}:  # asynchronous updates: one replica, so that the result is determined
        ranks = 3
    found = run_ranks(ranks, lambda context: trained(), placement="auto", **more)
    for values in found:
        for mine, theirs in zip(values, plain(), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)


def test_random_draws_go_on_when_the_shape_of_a_feed_changes(fast_messages):
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(16, 12, 8)).astype("f"), rng.integers(0, 4, 16)

    def body(context):
        hf.set_random_seed(1)
        x = hf.placeholder(hf.float32, [None, 12, 8], name="x")
        y = hf.placeholder(hf.int32, [None], name="y")
        h = hf.layers.dense(hf.reshape(x, [-1, 96]), 32)
        h = hf.nn.relu(hf.layers.batch_normalization(h, training=True))
        h = hf.layers.dense(hf.layers.dropout(h, 0.3, training=True), 4)
        losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=h)
        loss = hf.reduce_mean(losses)
        train = hf.train.AdamOptimizer(0.01).minimize(loss)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        feeds = ({x: features[:n], y: labels[:n].astype("i4")} for n in (16, 16, 7))
        return [session.run([loss, train], each)[0] for each in feeds]

    (expected,) = run_ranks(2, body, tasks_per_replica=2)
    (found,) = run_ranks(2, body, tasks_per_replica=2, placement="auto")
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def wide(layers=4):
    """Layers of momentum that run one after the other; (x, train, variables)."""
    h = x = hf.placeholder(hf.float32, [2, WIDTH], name="x")
    for k in range(layers):
        w = hf.Variable(hf.ones([WIDTH, WIDTH]) / WIDTH, name=f"dense_{k}/w")
        with hf.name_scope(f"dense_{k}/"):
            h = hf.tanh(hf.matmul(h, w))
    train = hf.train.MomentumOptimizer(0.1, 0.9).minimize(hf.reduce_sum(h))
    return x, train, hf.trainable_variables()


def steps(context):
    x, train, variables = wide()
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    for _ in range(3):
        session.run(train, {x: np.ones((2, WIDTH), np.float32)})
    return session.run(variables)


def test_a_model_larger_than_the_memory_of_a_task_trains_when_it_is_split():
    limit = {"memory_limit": str(10 * WEIGHTS), "tasks_per_replica": 2}
    with pytest.raises(OutOfMemoryError):
        run_ranks(2, steps, **limit)
    (found,) = run_ranks(2, steps, placement="auto", **limit)
    (whole,) = run_ranks(1, steps)
    for mine, theirs in zip(found, whole, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_model_that_fits_no_split_is_refused_before_it_runs():
    with pytest.raises(PlacementError, match="do not fit 2 tasks"):
        run_ranks(2, steps, placement="auto", memory_limit=str(3 * WEIGHTS), tasks_per_replica=2)


SCRIPT = """
import json
import numpy as np
import hpcflow as hf

hf.set_random_seed(3)
W = 256
x = hf.placeholder(hf.float32, [None, W], name="x")
ends = []
for tower in ("left", "right"):
    h = x
    for k in range(3):
        w = hf.Variable(hf.random_normal([W, W], stddev=W**-0.5), name=f"{tower}/dense_{k}/w")
        with hf.name_scope(f"{tower}/dense_{k}/"):
            h = hf.nn.dropout(hf.nn.relu(hf.matmul(h, w)), 0.8)
    ends.append(hf.reduce_sum(h, axis=1))
loss = hf.reduce_mean(hf.square(ends[0] - ends[1] - 1))
train = hf.train.AdamOptimizer(0.001).minimize(loss)
rng = np.random.default_rng(0)
losses = []
with hf.train.TrainingSession(checkpoints="saved", resume=True) as session:
    for _ in range(4):
        batch = {x: rng.normal(size=(100, W)).astype("float32")}
        losses.append(float(session.step([train, loss], batch)[1]))
    sums = [float(np.abs(session.run(v)).sum()) for v in hf.trainable_variables()]
print("FOUND", json.dumps([losses, sums]))
"""


def run_script(folder: Path, ranks: int, *options: str) -> tuple[list, str]:
    """What the script prints of losses and variables, and all its output."""
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(SCRIPT)
    sets = [word for option in options for word in ("--set", option)]
    words = [sys.executable, "-m", "hpcflow", "run", "-n", str(ranks), *sets, "script.py"]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        words, cwd=folder, env=environ, capture_output=True, text=True, timeout=220
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "FOUND" in line]
    return json.loads(line.partition("FOUND")[2]), done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_processes_train_as_with_the_default_placement(ranks, tmp_path):
    """On 2 ranks, a second run of the command goes on from the checkpoint of the first."""
    tasks = f"tasks_per_replica={ranks}"
    for _ in range(4 - ranks):
        expected, _ = run_script(tmp_path / "default", ranks, tasks)
        found, output = run_script(tmp_path / "auto", ranks, tasks, "placement=auto")
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5)
        assert "placement=auto: predicted step" in output
