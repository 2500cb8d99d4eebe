"""`hpcflow plan` with placement=auto and topology=FILE: where the work goes, and errors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
TOWERS = """
import numpy as np
import hpcflow as hf

W = 256
x = hf.placeholder(hf.float32, [None, W], name="x")
ends = []
for tower in ("left", "right"):
    h = x
    for k in range(3):
        w = hf.Variable(hf.random_normal([W, W], stddev=W**-0.5), name=f"{tower}/dense_{k}/w")
        with hf.name_scope(f"{tower}/dense_{k}/"):
            h = hf.nn.relu(hf.matmul(h, w))
    ends.append(hf.reduce_sum(h, axis=1))
loss = hf.reduce_mean(hf.square(ends[0] - ends[1] - 1))
train = hf.train.AdamOptimizer(0.001).minimize(loss)
with hf.Session() as session:
    session.run(hf.global_variables_initializer())
    session.run([train, loss], {x: np.ones((100, W), "f4")})
"""


def topology(*nodes: dict[str, Any]) -> str:
    return json.dumps({"format": "hpcflow-topology-1", "racks": [{"nodes": nodes}]})


def plan(
    folder: Path, text: str | None, *words: str, ranks: int = 3, tasks: int = 3
) -> subprocess.CompletedProcess[str]:
    """`hpcflow plan` of the two towers with this text as the topology; None: no such file."""
    script, file = folder / "towers.py", folder / "topology.json"
    script.write_text(TOWERS)
    if text is not None:
        file.write_text(text)
    sets = [f"tasks_per_replica={tasks}", "placement=auto", f"topology={file}"]
    command = [sys.executable, "-m", "hpcflow", "plan", "--ranks", str(ranks)]
    command += [word for one in sets for word in ("--set", one)] + [*words, str(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=ROOT)


def products(folder: Path, text: str, ranks: int = 3, tasks: int = 3) -> dict[int, int]:
    """The number of matrix products on each task that has any."""
    done = plan(folder, text, "--json", ranks=ranks, tasks=tasks)
    assert done.returncode == 0, done.stderr
    found: Counter[int] = Counter()
    for row in json.loads(done.stdout)["tasks"]:
        for types in row["devices"].values():
            found[int(row["task"].rpartition(":")[2])] += types.get("MatMul", 0)
    return {task: count for task, count in found.items() if count}


FAST = {"speed": 10.0, "bytes_per_s": 1e10}
PLAIN = {"bytes_per_s": 1e10}
SLOW_PORT = {"bytes_per_s": 1e6}


@pytest.mark.slow
def test_a_fast_rank_has_all_the_work(tmp_path):
    assert products(tmp_path, topology(PLAIN, PLAIN, FAST)) == {2: 16}
    assert products(tmp_path, topology(PLAIN, FAST, PLAIN)) == {1: 16}


@pytest.mark.slow
def test_a_rank_behind_a_slow_port_has_none(tmp_path):
    """Equal ranks share the work; a slow port of the driver leaves it alone with all of it."""
    assert len(products(tmp_path, topology(PLAIN, PLAIN, PLAIN))) == 3
    assert products(tmp_path, topology(PLAIN, SLOW_PORT, PLAIN)) == {0: 8, 2: 8}
    assert products(tmp_path, topology(SLOW_PORT, PLAIN, PLAIN)) == {0: 16}


@pytest.mark.slow
def test_replicas_have_one_plan_by_the_slower_of_their_ranks(tmp_path):
    """Ranks 2 and 3 are tasks 0 and 1 of the second replica."""
    assert products(tmp_path, topology(*[PLAIN] * 4), 4, 2) == {0: 8, 1: 8}
    slow = {"bytes_per_s": 1e10, "speed": 0.01}
    assert products(tmp_path, topology(PLAIN, PLAIN, PLAIN, slow), 4, 2) == {0: 16}
    assert products(tmp_path, topology(PLAIN, PLAIN, slow, PLAIN), 4, 2) == {1: 16}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (topology(PLAIN), "describes 1 ranks, but the job has 3"),
        (topology({"ranks": 3, "speed": 0}), "racks[0].nodes[0].speed is 0"),
        ('{"format": ', "it is no JSON"),
        ("[1]", "topology.json"),
        (None, "there is no file of a topology at"),
    ],
)
def test_a_wrong_file_is_one_error_that_names_it(tmp_path, text, told):
    done = plan(tmp_path, text)
    assert done.returncode == 2 and not done.stdout
    first, *more = done.stderr.splitlines()
    assert first.startswith("hpcflow: DataError: setting topology: ")
    assert str(tmp_path / "topology.json") in first and told in first
    assert len(more) == 1 and more[0].startswith("  next ")
