"""Plans of a script by other settings, without another run of it, beside those of another run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hpcflow as hf
from hpcflow.cli.plan import plans_of
from hpcflow.cli.script_plans import MOST_KEPT, ScriptPlans
from hpcflow.plan.ir.program import Plan
from hpcflow.plan.listing.plan_text import plan_data
from hpcflow.plan.serialization.graph_fingerprint import plan_digest
from hpcflow.settings import Settings

SCRIPT = """
import sys
import numpy as np
import hpcflow as hf

layers, width = 6, 128
x = hf.placeholder(hf.float32, [None, width], name="x")
ids = hf.placeholder(hf.int32, [None], name="ids")
table = hf.get_variable("table", [1000, width])
y = x + hf.gather(table, ids)
for i in range(layers):
    w = hf.Variable(np.ones((width, width), "f4"), name=f"w{i}")
    y = hf.nn.relu(hf.matmul(y, w))
loss = hf.reduce_mean(y)
if "grows" in sys.argv:
    hf.Session().run(hf.global_variables_initializer())
train = hf.train.AdamOptimizer(0.01).minimize(loss)
arrays = {x: np.ones((512, width), "f4"), ids: np.zeros(512, "i4")}
data = hf.data.Dataset(arrays, batch=96, seed=1)
print("the script runs")
with hf.train.TrainingSession() as session:
    for batch in data.epochs(2):
        session.step([loss, train], batch)
"""
COLLECTIVE = [
    {},
    {"bucket_bytes": 1},
    {"bucket_bytes": 1 << 18},
    {"overlap": False},
    {"bucket_bytes": 1 << 26},
]
SERVERS = [
    {},
    {"dense": "replicas"},
    {"shard_bytes": 1 << 15},
    {"shard_bytes": 1 << 15, "dense": "replicas", "bucket_bytes": 1 << 17},
    {"dense": "replicas", "overlap": False},
    {"shard_bytes": 1 << 18},
]


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Functions: the plans of the script, one plan of another run of it, the number of runs."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)

    def plans(*words: str) -> ScriptPlans:
        def run(ranks: int, settings: Settings) -> Any:
            with hf.Graph().as_default():
                return plans_of(str(path), list(words), ranks, settings)

        return ScriptPlans(run)

    def again(ranks: int, settings: Settings, *words: str) -> Plan:
        with hf.Graph().as_default():
            return plans_of(str(path), list(words), ranks, settings)[0][-1].plan

    def runs() -> int:
        return capsys.readouterr().err.count("the script runs")

    return plans, again, runs


def facts(plan: Plan) -> list[Any]:
    """What the ranks of a plan do: its digest, its listing, and all nodes in their order."""
    plans = [plan, *([plan.round] if plan.round else [])]
    parts = [part for each in plans for part in each.parts.values()]
    nodes = [
        (part.task, name, node.type, node.device, [str(ref) for ref in node.inputs], node.specs)
        for part in parts
        for name, node in part.nodes.items()
    ]
    return [plan_digest(plan), plan_data(plan), nodes]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "fixed", "changes"),
    [
        (4, {}, [*COLLECTIVE, {"threads": 2}]),
        (6, {"ps": 2, "sync": "all"}, [*SERVERS, {"threads": 2}]),
        (5, {"ps": 2}, [{}, {"shard_bytes": 1 << 15}, {"shard_bytes": 1 << 18}]),
        (4, {"tasks_per_replica": 2, "placement": "auto"}, COLLECTIVE),
    ],
)
def test_a_plan_without_another_run_is_that_of_another_run(script, ranks, fixed, changes):
    plans, again, runs = script
    kept = plans()
    made = [kept.planned(ranks, Settings(**fixed, **change)).plan for change in changes]
    assert (runs(), kept.runs) == (1, 1)
    digests = set()
    for plan, change in zip(made, changes, strict=True):
        assert plan is not None
        assert facts(plan) == facts(again(ranks, Settings(**fixed, **change))), change
        digests.add(plan_digest(plan))
    assert len(digests) > 1  # the settings do change the plan


@pytest.mark.slow
def test_what_depends_on_an_earlier_plan_of_a_growing_graph_runs_the_script_again(script):
    plans, again, runs = script
    kept, fixed = plans("grows"), {"ps": 2, "sync": "all"}
    sharded = Settings(**fixed, shard_bytes=1 << 15)
    kept.planned(6, Settings(**fixed))
    plan = kept.planned(6, sharded).plan
    assert runs() == kept.runs == 2
    assert plan is not None and facts(plan) == facts(again(6, sharded, "grows"))
    kept.planned(6, Settings(**fixed, shard_bytes=1 << 15, bucket_bytes=1))
    assert kept.runs == 2  # sums depend on no other plan
    spread = {"tasks_per_replica": 2, "placement": "auto", "ps": 2, "sync": "all"}
    placed = plans()
    placed.planned(6, Settings(**spread))
    placed.planned(6, Settings(**spread, dense="replicas"))
    assert placed.runs == 2  # tasks of variables were chosen with the other homes
    placed.planned(6, Settings(**spread, dense="replicas", threads=2))
    assert placed.runs == 3  # measured times, by which tasks are chosen, are those of the threads


@pytest.mark.slow
def test_other_settings_and_other_ranks_run_the_script_again(script):
    plans, _, _ = script
    kept = plans()
    for ranks in (2, 3, 2, 3):
        kept.planned(ranks, Settings())
    assert kept.runs == 2
    kept.planned(2, Settings(exact=True))
    assert kept.runs == 3
    for ranks in range(4, 4 + MOST_KEPT):  # the first graphs are given up
        kept.planned(ranks, Settings())
    before = kept.runs
    kept.planned(3 + MOST_KEPT, Settings(bucket_bytes=5))
    assert kept.runs == before
    kept.planned(2, Settings())
    assert kept.runs == before + 1


def test_planning_ends_at_a_step_whose_only_update_is_in_a_loop(tmp_path: Path) -> None:
    path = tmp_path / "loop.py"
    path.write_text(
        "import hpcflow as hf\n"
        "w = hf.Variable(1.0)\n"
        "def body(i):\n"
        "    with hf.control_dependencies([w.assign_sub(0.1 * w)]):\n"
        "        return i + 1\n"
        "end = hf.while_loop(lambda i: i < 5, body, [0])\n"
        "with hf.Session() as session:\n"
        "    session.run(w.initializer)\n"
        "    session.run(end)\n"
        "    raise SystemExit('the script goes on after its first training step')\n"
    )
    with hf.Graph().as_default():
        plans, _, code = plans_of(str(path), [], 1, Settings())
    assert (len(plans), code) == (2, 0)
