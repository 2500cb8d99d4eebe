"""`hpcflow predict` tells which tasks need more memory than their ranks have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hpcflow as hf
from hpcflow.cli import main as cli
from hpcflow.cli.memory_excess import Excess, memory_excess
from hpcflow.placement.network import Network
from hpcflow.placement.rank_mapping import RankMapping
from hpcflow.placement.topology import topology_of

SCRIPT = """
import numpy as np
import hpcflow as hf

x = hf.placeholder(hf.float32, [None, 512], name="x")
w = hf.Variable(np.ones((512, 512), "f4"), name="w")
loss = hf.reduce_mean(hf.matmul(x, w))
train = hf.train.GradientDescentOptimizer(0.01).minimize(loss)
with hf.Session() as session:
    session.run([loss, train], {x: np.zeros((32, 512), "f4")})
"""
MB = 10**6


def test_the_smallest_rank_of_a_task_and_the_limit_count() -> None:
    nodes = [{"ranks": 1, "memory_bytes": size * MB} for size in (8, 4, 8, 2)] + [{"ranks": 1}]
    topology = topology_of({"format": "hpcflow-topology-1", "racks": [{"nodes": nodes}]})
    server, worker = "/job:ps/task:0", "/job:worker/task:0"
    mapping = RankMapping(topology, ((0,), (1,), (2,)), {server: 3, "/job:ps/task:1": 4})
    needs = {worker: 5 * MB, server: 9 * MB, "/job:ps/task:1": 9 * MB}
    found = [Excess(server, 9 * MB, 2 * MB), Excess(worker, 5 * MB, 4 * MB)]
    assert memory_excess(needs, mapping, 0) == found
    assert memory_excess(needs, mapping, 3 * MB)[-1] == Excess(worker, 5 * MB, 3 * MB)
    assert memory_excess(needs, Network(), 6 * MB) == [
        Excess(server, 9 * MB, 6 * MB),
        Excess("/job:ps/task:1", 9 * MB, 6 * MB),
    ]
    assert memory_excess(needs, Network(), 0) == []


@pytest.mark.parametrize("way", ["topology", "memory_limit"])
def test_a_prediction_names_the_task_the_bytes_and_the_limit(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, file = tmp_path / "train.py", tmp_path / "cluster.json"
    path.write_text(SCRIPT)
    nodes = [{"count": 2, "memory_bytes": MB}]
    file.write_text(json.dumps({"format": "hpcflow-topology-1", "racks": [{"nodes": nodes}]}))
    limited: list[Any] = ["--topology", file]
    if way == "memory_limit":
        limited = ["--ranks", 2, "--set", "memory_limit=1MB"]

    def predict(*words: Any) -> str:
        with hf.Graph().as_default():
            assert cli.main(["predict", *map(str, words), str(path)]) == 0
        return capsys.readouterr().out

    data = json.loads(predict(*limited, "--json"))
    task = "/job:worker/task:0"
    needs = data["memory"][task]
    assert needs > 512 * 512 * 4 > MB
    assert data["exceeds_memory"] == [{"task": task, "needs": needs, "has": MB}]
    text = predict(*limited)
    told = f"does not fit: {task} needs {needs:,} bytes"
    assert told in text and f"of {MB:,} that" in text and f"{needs - MB:,} are missing" in text
    assert "--search" in text
    assert json.loads(predict("--ranks", 2, "--json"))["exceeds_memory"] == []
