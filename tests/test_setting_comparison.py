"""`hpcflow predict --compare`: the table of other values of settings."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hpcflow as hf
from hpcflow.cli import main as cli
from hpcflow.cli.setting_comparison import Candidate, ComparedValue, Comparison
from hpcflow.placement.network import Network

SCRIPT = """
import pathlib
import sys
import numpy as np
import hpcflow as hf

layers, width = map(int, sys.argv[1:3])
x = hf.placeholder(hf.float32, [None, width], name="x")
y = x
for i in range(layers):
    with hf.device("/job:ps/task:1" if "second" in sys.argv else ""):
        w = hf.Variable(np.ones((width, width), "f4"), name=f"w{i}")
    y = hf.nn.relu(hf.matmul(y, w))
loss = hf.reduce_mean(y)
train = hf.train.GradientDescentOptimizer(0.01).minimize(loss)
runs = pathlib.Path(__file__ + ".runs")
runs.write_text((runs.read_text() if runs.exists() else "") + "+")
with hf.Session() as session:
    session.run(hf.global_variables_initializer())
    print("the script runs")
    session.run([loss, train], {x: np.zeros((32, width), "f4")})
"""


@pytest.fixture
def predict(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A function that predicts the script in this process and returns its JSON."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)

    def run(*words: Any, script: tuple[Any, ...] = (6, 64), text: bool = False) -> Any:
        given = ["predict", *([] if text else ["--json"]), "--noise", "0", *words, path, *script]
        with hf.Graph().as_default():
            assert cli.main([str(word) for word in given]) == 0
        told = capsys.readouterr()
        assert told.err.count("the script runs") == 1
        return told.out if text else json.loads(told.out)

    return run


def rows(data: dict[str, Any], setting: str) -> dict[str, Any]:
    return {one["value"]: one for one in data["comparison"]["values"] if one["setting"] == setting}


@pytest.mark.slow
def test_smaller_buckets_win_by_what_a_prediction_of_them_says(predict):
    network = ["--ranks", 4, "--latency", "1us", "--bandwidth", "1GB/s"]
    data = predict("--compare", "--set", "bucket_bytes=20000000", *network, script=(8, 512))
    found = rows(data, "bucket_bytes")
    alone = predict(*network, "--set", "bucket_bytes=1048576", script=(8, 512))["step_seconds"]
    assert found["1048576"]["step_seconds"] == alone
    gain = found["1048576"]["gain"]
    assert gain["median"] == pytest.approx(1 - alone["median"] / data["step_seconds"]["median"])
    assert 0.1 < gain["low"] <= gain["median"] <= gain["high"] < 1
    assert not found["1048576"]["equal"]
    order = [one["setting"] for one in data["comparison"]["values"]]
    assert order[0] == "bucket_bytes"


@pytest.mark.slow
def test_on_a_network_of_latency_many_buckets_wait_for_the_latencies_of_one(predict):
    """Six buckets or one: 2 log2(8) messages of a millisecond, which overlap."""
    network = ["--ranks", 8, "--latency", "1ms", "--bandwidth", "10GB/s"]
    one = predict(*network, "--set", "bucket_bytes=1048576")["step_seconds"]["median"]
    data = predict("--compare", "--set", "bucket_bytes=1", *network)
    assert 6e-3 < one < 9e-3
    assert data["step_seconds"]["median"] == pytest.approx(one, abs=0.5e-3)
    small = predict("--compare", *network, "--set", "bucket_bytes=20000000")
    assert rows(small, "bucket_bytes")["262144"]["equal"]  # 98 kB of gradients are one bucket


@pytest.mark.slow
def test_without_overlap_a_step_waits_for_the_whole_transfer(predict):
    words = ["--compare", "--ranks", 4, "--bandwidth", "2.5GB/s", "--latency", "1us"]
    data = predict(*words, "--set", "overlap=0", script=(8, 512))
    found = rows(data, "overlap")["1"]
    assert found["gain"]["median"] > 0.1 and not found["equal"]
    assert "bucket_bytes" in data["comparison"]["left_out"]
    with_overlap = predict(*words, script=(8, 512))
    assert rows(with_overlap, "overlap")["0"]["gain"]["median"] < -0.1
    assert found["step_seconds"] == with_overlap["step_seconds"]
    assert rows(with_overlap, "bucket_bytes")["67108864"]["gain"]["median"] < -0.1


@pytest.mark.slow
def test_servers_are_more_ranks_at_the_same_number_of_workers(predict, tmp_path):
    words = ["--compare", "--ranks", 10, "--ps", 2, "--sync", "all", "--bandwidth", "1GB/s"]
    data = predict(*words, script=(8, 256))
    assert len((tmp_path / "train.py.runs").read_text()) == 1 + 3 + 2  # as given, ps, tasks
    found = rows(data, "ps")
    assert sorted(found) == ["1", "3", "4"]
    assert [found[n]["ranks"] for n in ("1", "3", "4")] == [9, 11, 12]
    steps = [found[n]["step_seconds"]["median"] for n in ("1", "3", "4")]
    assert steps[0] > data["step_seconds"]["median"] > steps[2]
    assert found["1"]["gain"]["median"] < 0 < found["4"]["gain"]["median"]
    assert found["4"]["rank_seconds"] == pytest.approx(12 * steps[2])
    tasks = {"/job:worker/task:0", *(f"/job:ps/task:{i}" for i in range(4))}
    assert set(found["4"]["memory"]) == tasks
    assert "replicas" in rows(data, "dense")
    assert rows(data, "shard_bytes")["67108864"]["equal"]  # no variable is that large
    assert "bucket_bytes, overlap" in data["comparison"]["left_out"]


@pytest.mark.slow
def test_what_cannot_be_compared_is_named_with_the_reason(predict):
    data = predict("--compare", "--ranks", 4, "--ps", 2, script=(4, 32, "second"))
    left_out = data["comparison"]["left_out"]
    assert sorted(rows(data, "ps")) == ["3", "4"]  # the script names the second server
    assert "ps=1" in left_out
    assert left_out["dense"].startswith("it changes results")
    assert "the replay does not see" in left_out["prefetch"]
    text = predict("--compare", "--ranks", 2, script=(2, 32), text=True)
    lines = text.splitlines()
    at = lines.index("settings that do not change results, each alone, best first")
    assert lines[at + 1].split()[:4] == ["setting", "value", "step", "gain"]
    assert lines[at + 2].startswith("as given")
    assert any(line.startswith("not compared: ps, shard_bytes, dense: ") for line in lines)
    assert any("equal" in line for line in lines if line.startswith("bucket_bytes"))
    assert "comparison" not in predict("--ranks", 2, script=(2, 32))


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ((0.25, 0.2, 0.3), "75% (70% to 80%)"),
        ((1.5, 1.4, 1.6), "-50% (-60% to -40%)"),
        ((90.0, 80.0, 100.0), "90 times as long (80 to 100)"),
        ((1.001, 0.99, 1.1), "equal"),
    ],
)
def test_a_gain_is_a_share_or_how_many_times_as_long_a_step_takes(step, told) -> None:
    given, other = (
        SimpleNamespace(median=m, low=low, high=high, memory={}, network=Network(), ranks=2)
        for m, low, high in ((1.0, 1.0, 1.0), step)
    )
    value = ComparedValue(Candidate("ps", "1", {}, 2), other, given)
    assert f"  {told}  " in Comparison(given, [value], {}).as_text().splitlines()[-1]


def test_a_value_that_does_not_fit_the_memory_says_so() -> None:
    given, other = (
        SimpleNamespace(
            median=m,
            p90=m,
            low=m,
            high=m,
            memory={"/job:ps/task:0": size},
            network=Network(),
            ranks=2,
        )
        for m, size in ((2.0, 5), (1.0, 20))
    )
    value = ComparedValue(Candidate("ps", "1", {}, 2), other, given, limit=10)
    text = Comparison(given, [value], {}).as_text()
    assert "does not fit: /job:ps/task:0 lacks memory" in text.splitlines()[-1]
    assert value.as_data()["exceeds_memory"] == [{"task": "/job:ps/task:0", "needs": 20, "has": 10}]
