"""hf.device(requires=) in real steps: the task that has the memory holds and computes the layer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import PlacementError
from tests.runtime.ranks import run_ranks

ROOT = Path(__file__).parents[2]
VALUES = np.random.default_rng(0).normal(size=(4, 8)).astype("f")


def topology(folder, *gigabytes):
    """The file of a topology of nodes with one rank of so much memory each."""
    nodes = [{"memory_bytes": size * 1e9} for size in gigabytes]
    file = folder / "topology.json"
    file.write_text(json.dumps({"format": "hpcflow-topology-1", "racks": [{"nodes": nodes}]}))
    return str(file)


def training(requires):
    """A function that trains two layers, the second with `requires`, and returns the losses."""

    def body(context):
        x = hf.placeholder(hf.float32, [None, 8], name="x")
        first = hf.Variable(hf.ones([8, 8]) / 8, name="first")
        h = hf.tanh(hf.matmul(x, first))
        with hf.device(requires=requires) if requires else hf.device(""):
            second = hf.Variable(hf.ones([8, 4]) / 8, name="second")
            h = hf.matmul(h, second, name="product")
        loss = hf.reduce_mean(hf.square(h - 1.0))
        train = hf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        losses = [session.run([loss, train], {x: VALUES})[0] for _ in range(5)]
        return losses, session.run([first, second])

    return body


@pytest.mark.parametrize("placement", ["", "auto"])
def test_values_are_those_without_the_requirement(placement, tmp_path):
    file = topology(tmp_path, 8, 40)
    (plain,) = run_ranks(1, training(None))
    (found,) = run_ranks(
        2, training("20 GB"), tasks_per_replica=2, topology=file, placement=placement
    )
    np.testing.assert_array_equal(found[0], plain[0])
    for mine, theirs in zip(found[1], plain[1], strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("placement", ["", "auto"])
def test_replicas_and_servers_with_requirements(placement, tmp_path):
    (plain,) = run_ranks(1, training(None))
    options = {"tasks_per_replica": 2, "placement": placement}
    for found in run_ranks(
        4, training("20 GB"), topology=topology(tmp_path, 8, 40, 8, 40), **options
    ):
        np.testing.assert_allclose(found[0], plain[0], rtol=1e-5)
    file = topology(tmp_path, 8, 40, 40)
    (found,) = run_ranks(3, training("20 GB"), ps=1, topology=file, **options)
    np.testing.assert_allclose(found[0], plain[0], rtol=1e-5)


def growing(kind):
    """A function that adds a loop between two steps, to a variable near the second task."""

    def body(context):
        with hf.device(near="/job:worker/task:1"):
            v = hf.Variable(1.0, name="v")
        z = hf.Variable(1.0, name="z")

        def add(i):
            updates = [v.assign_add(1.0), *([z.assign_add(1.0)] if kind == "both" else [])]
            with hf.control_dependencies(updates):
                return i + 1

        session = hf.Session()
        session.run(hf.global_variables_initializer())
        session.run(v.assign_add(4.0))
        with hf.device(near="/job:worker/task:0"):
            loop = hf.while_loop(lambda i: i < 3, add, [0])
        session.run(loop)
        return float(session.run(v))

    return body


@pytest.mark.parametrize("placement", ["", "auto"])
def test_a_variable_keeps_its_task_when_the_graph_grows(placement):
    options = {"tasks_per_replica": 2, "placement": placement, "plan_cache": "none"}
    assert run_ranks(2, growing("one"), **options) == [8.0]


def test_a_loop_that_would_move_a_variable_is_refused():
    with pytest.raises(PlacementError, match="since an earlier step"):
        run_ranks(2, growing("both"), tasks_per_replica=2, plan_cache="none")


@pytest.mark.parametrize("placement", ["", "auto"])
def test_the_first_requirement_of_a_graph_moves_no_variable(placement, tmp_path):
    """The loop needs the second task, but steps have found the variable on the first."""

    def body(context):
        v = hf.Variable(1.0, name="v")

        def add(i):
            with hf.control_dependencies([v.assign_add(1.0)]):
                return i + 1

        session = hf.Session()
        session.run(hf.global_variables_initializer())
        session.run(v.assign_add(4.0))
        with hf.device(requires="20 GB"):
            loop = hf.while_loop(lambda i: i < 3, add, [0])
        session.run(loop)

    options = {"tasks_per_replica": 2, "placement": placement, "plan_cache": "none"}
    with pytest.raises(PlacementError, match="'v', which is on /job:worker/task:0 since an earl"):
        run_ranks(2, body, topology=topology(tmp_path, 8, 40), **options)


SCRIPT = """
import numpy as np
import hpcflow as hf

x = hf.placeholder(hf.float32, [2, 4])
first = hf.Variable(hf.ones([4, 1000]), name="first")
with hf.device(requires={requires!r}):
    second = hf.Variable(hf.ones([1000, 1000]), name="second")
    y = hf.matmul(hf.matmul(x, first), second, name="product")
with hf.Session() as session:
    session.run(hf.global_variables_initializer())
    print("sum", session.run(hf.reduce_sum(y), {{x: np.ones((2, 4), "f")}}))
"""


def hpcflow(*arguments, folder):
    return subprocess.run(
        [sys.executable, "-m", "hpcflow", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=220,
    )


def test_the_listing_of_a_plan_has_the_task_and_the_reason(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT.format(requires="20 GB"))
    options = "--set", "tasks_per_replica=2", "--set", f"topology={topology(tmp_path, 8, 40)}"
    done = hpcflow("plan", "--ranks", "2", *options, "train.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^3 +requires 20 GB; on the first task that has it$", done.stdout, re.M)
    variables = dict(re.findall(r"^(/job:worker/task:\d)  (\d+ \wB) ", done.stdout, re.M))
    assert variables == {"/job:worker/task:0": "16 kB", "/job:worker/task:1": "4 MB"}


def test_the_error_of_a_script_names_its_line(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT.format(requires="64 GB"))
    options = "--set", "tasks_per_replica=2", "--set", f"topology={topology(tmp_path, 8, 40)}"
    done = hpcflow("plan", "--ranks", "2", *options, "train.py", folder=tmp_path)
    assert done.returncode != 0
    assert "the most that a task has is 40 GB (/job:worker/task:1)" in done.stderr
    assert "train.py:8" in done.stderr and "sum" not in done.stdout
