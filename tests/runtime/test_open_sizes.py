"""placement=auto where the graph leaves the size of the batch open: what it counts as."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

import hpcflow as hf
from hpcflow.cli import main as cli
from hpcflow.cli.plan import plans_of
from hpcflow.plan.ir.program import Plan
from hpcflow.settings import Settings

SCRIPT = """
import sys
import numpy as np
import hpcflow as hf
widths, batch = [int(word) for word in sys.argv[1].split(",")], int(sys.argv[2])
size = batch if "static" in sys.argv else None
x = hf.placeholder("float32", (size, widths[0]))
y = hf.placeholder("float32", (size, widths[-1]))
h = x
for number, width in enumerate(widths[1:]):
    h = hf.layers.dense(h, width, activation=hf.nn.relu, name=f"layer{number}")
train = hf.train.GradientDescentOptimizer(0.1).minimize(hf.reduce_mean(hf.square(h - y)))
rows = {t: np.zeros((batch, t.shape[1]), "float32") for t in (x, y)}
if "dataset" in sys.argv:
    of = {t: np.zeros((4 * batch, t.shape[1]), "float32") for t in (x, y)}
    data = hf.data.Dataset(of, batch)
with hf.Session() as session:
    session.run(hf.global_variables_initializer())
    session.run(train, rows)
"""
TIMES = re.compile(r"predicted step ([\d.]+) (\w+); ([\d.]+) (\w+) if all were on the driver")
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def planned(script: Path, words: Sequence[str], ranks: int, tasks: int) -> Plan:
    """The plan of the training step."""
    settings = Settings(tasks_per_replica=tasks, placement="auto", plan_cache="none",
                        cost_cache="none")  # fmt: skip
    with hf.Graph().as_default():
        plans, _, code = plans_of(str(script), list(words), ranks, settings)
    assert code == 0
    return plans[-1].plan


def step_seconds(plan: Plan) -> tuple[float, float]:
    """The predicted step, and that with all on the driver."""
    found = TIMES.search(plan.forecast)
    assert found is not None, plan.forecast
    return float(found[1]) * UNITS[found[2]], float(found[3]) * UNITS[found[4]]


@pytest.mark.parametrize(
    ("widths", "batch", "tasks"),
    [
        ("64,512,64", 8, 4),  # for 128 rows two tasks are faster, for 8 rows half as fast
        ("8,32,8,8,8,256,128", 1, 3),
        ("8,256,32,256,256", 16, 3),
        ("128,512,512,512", 1, 3),
    ],
)
def test_a_small_batch_is_not_placed_worse_than_by_default(widths, batch, tasks, script) -> None:
    plan = planned(script, [widths, str(batch)], tasks, tasks)
    seconds, default = step_seconds(plan)
    assert seconds <= default
    assert "for 128 rows, since the graph leaves the size of the batch open" in plan.forecast


def test_large_weights_are_spread_although_the_batch_is_open(script) -> None:
    """Their updates take longer than the messages of any batch."""
    plan = planned(script, ["1024,2048,2048", "16"], 2, 2)
    seconds, default = step_seconds(plan)
    assert seconds < 0.8 * default and len(plan.parts) == 2


@pytest.mark.parametrize("word", ["dataset", "static"])
def test_a_batch_that_is_known_is_used(word, script) -> None:
    widths = "256,256,256,256,256"
    seconds, default = step_seconds(planned(script, [widths, "512", word], 2, 2))
    assert seconds < 0.9 * default  # for one row it would be worse
    small = planned(script, [widths, "1", word], 2, 2)
    seconds, default = step_seconds(small)
    assert seconds <= default
    assert ("rows" in small.forecast) == (word == "dataset")


def test_the_share_of_a_replica_in_the_datasets_batch_is_said(script) -> None:
    plan = planned(script, ["8,16,8", "10", "dataset"], 8, 2)
    assert "for 3 rows, the share of a replica in the dataset's batch" in plan.forecast


@pytest.mark.parametrize("command", ["plan", "predict"])
def test_commands_say_what_was_assumed(command, script, capsys) -> None:
    words = ["--ranks", "2", "--set", "tasks_per_replica=2", "--set", "placement=auto"]
    with hf.Graph().as_default():
        assert cli.main([command, *words, str(script), "8,16,8", "4"]) == 0
    said = capsys.readouterr().out
    assert "tasks of variables: for 128 rows" in said and "make the Dataset" in said
