"""`hpcflow predict --search`: the best combination of settings, beside all combinations."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hpcflow as hf
from hpcflow.cli import main as cli
from hpcflow.cli import predict as predict_command
from hpcflow.cli.job_predictor import JobPredictor
from hpcflow.cli.setting_comparison import BUCKETS, SHARDS
from hpcflow.cli.setting_search import EQUAL

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
train = hf.train.AdamOptimizer(0.01).minimize(loss)
data = hf.data.Dataset({x: np.ones((960, width), "f4")}, batch=480, seed=1)
runs = pathlib.Path(__file__ + ".runs")
runs.write_text((runs.read_text() if runs.exists() else "") + "+")
sync = "async" if "own" in sys.argv else None
with hf.train.TrainingSession(sync=sync) as session:
    for batch in data.epochs(1):
        session.step([loss, train], batch)
"""
SLOW_NETWORK = ["--bandwidth", "1GB/s", "--latency", "20us"]


@pytest.fixture
def predict(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A function that predicts the script in this process: its JSON, its text, or its error."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)

    def run(
        *words: Any, script: tuple[Any, ...] = (6, 128), text: bool = False, code: int = 0
    ) -> Any:
        given = ["predict", *([] if text or code else ["--json"]), "--noise", "0", *words]
        with hf.Graph().as_default():
            try:
                found = cli.main([str(word) for word in [*given, path, *script]])
            except SystemExit as end:
                found = end.code
        told = capsys.readouterr()
        assert found == code, told.err
        return told.err if code else told.out if text else json.loads(told.out)

    return run


def arguments(script: Path, *words: Any, of_script: tuple[Any, ...] = (6, 128)) -> Any:
    """The parsed options of `hpcflow predict`."""
    parser = argparse.ArgumentParser()
    predict_command.add_arguments(parser)
    args = parser.parse_args([str(word) for word in words])
    args.script, args.script_args = str(script), [str(word) for word in of_script]
    return args


def every_combination(workers: int, most_ranks: int) -> Iterator[tuple[int, list[str]]]:
    """Ranks and settings of synchronous jobs of `workers` workers."""
    fine = [(1, size) for size in BUCKETS] + [(0, 0)]
    for overlap, size in fine:
        yield workers, [f"overlap={overlap}", f"bucket_bytes={size}", "ps=0", "sync="]
    for ps, shard in itertools.product(range(1, most_ranks - workers + 1), SHARDS):
        on_servers = [f"ps={ps}", "sync=all", f"shard_bytes={shard}"]
        yield workers + ps, [*on_servers, "dense=servers"]
        for overlap, size in fine:
            sums = [f"overlap={overlap}", f"bucket_bytes={size}"]
            yield workers + ps, [*on_servers, *sums, "dense=replicas"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "layers"),
    [
        ([*SLOW_NETWORK, "--set", "bucket_bytes=20000000"], (4, 512)),
        ([*SLOW_NETWORK, "--ps", 1, "--sync", "all"], (4, 512)),
        ([*SLOW_NETWORK, "--ps", 1, "--sync", "all", "--set", "dense=replicas",
          "--set", "overlap=0"], (4, 512)),
    ],
)  # fmt: skip
def test_no_combination_is_faster_than_the_chosen_one(predict, tmp_path, words, layers):
    ranks = ["--ranks", 4 + ("--ps" in words)]
    data = predict("--search", "--max-ranks", 6, *ranks, *words, script=layers)
    found = data["search"]
    assert found["ranks"] <= 6 and found["best"]["replicas"] == 4
    best = found["step_seconds"]["median"]
    assert best <= data["step_seconds"]["median"]  # never worse than the given settings
    all_words = ["--noise", "0", *words]
    predictor = JobPredictor(str(tmp_path / "train.py"), [str(word) for word in layers])
    times = []
    for count, settings in every_combination(4, 6):
        chosen = itertools.chain(*(["--set", text] for text in settings))
        args = arguments(tmp_path, "--ranks", count, *all_words, *chosen, of_script=layers)
        prediction = predictor.predict(args, is_quick=True).prediction
        assert prediction is not None
        times.append(prediction.median)
    assert min(times) < 0.9 * data["step_seconds"]["median"]  # there is something to find
    assert best <= min(times) * (1 + EQUAL) + 1e-12


@pytest.mark.slow
def test_the_command_that_it_prints_is_the_job_that_it_predicted(predict, tmp_path):
    words = ["--ranks", 6, "--ps", 1, "--sync", "all", *SLOW_NETWORK]
    data = predict("--search", "--max-ranks", 8, *words, script=(4, 512))
    found, command = data["search"], data["search"]["run"]
    script_runs = len((tmp_path / "train.py.runs").read_text())
    assert found["script_runs"] == script_runs < found["predicted"]
    assert command[:3] == ["hpcflow", "run", "-n"] and command[-2:] == ["4", "512"]
    assert command[3] == str(found["ranks"])
    options = command[4:-3]
    again = predict("--ranks", command[3], *SLOW_NETWORK, *options, script=(4, 512))
    assert again["plan"] == found["plan"]
    assert again["step_seconds"] == found["step_seconds"]
    assert again["memory"] == found["memory"]
    one = next(row for row in found["changes"] if row["setting"] == "ps")
    assert one["saves_seconds"] > 0 and one["limit_without"] in one["reason"]
    assert " busy " in one["reason"] and "saves" in one["reason"]
    assert found == predict("--search", "--max-ranks", 8, *words, script=(4, 512))["search"]


@pytest.mark.slow
def test_memory_is_a_limit_and_an_error_names_what_would_fit(predict):
    words = ["--ranks", 3, "--ps", 1, *SLOW_NETWORK]  # asynchronous: all variables on servers
    given = predict(*words, script=(8, 256))
    server = given["memory"]["/job:ps/task:0"]
    limit = ["--set", f"memory_limit={int(0.8 * server)}"]
    found = predict("--search", "--max-ranks", 4, *words, *limit, script=(8, 256))["search"]
    assert max(found["memory"].values()) <= 0.8 * server
    assert found["best"]["ps"] == 2 and found["best"]["dense"] == "servers"
    (change,) = found["changes"]
    assert change["exceeds_memory_without"]["needs"] == server
    error = predict("--search", *words, *limit, script=(8, 256), code=2)
    assert "PlacementError: no combination of settings on 3 ranks fits the memory" in error
    assert "start 4 ranks: ps=2" in error and f"{server:,} in all (memory_limit)" in error
    predict("--search", *words, "--set", f"memory_limit={server}", script=(8, 256))
    tiny = predict("--search", *words, "--set", "memory_limit=1kB", script=(8, 256), code=2)
    assert "bytes more" in tiny and "start " not in tiny


@pytest.mark.slow
def test_a_setting_may_be_chosen_only_because_it_fits_the_memory(predict):
    words = ["--ranks", 4, "--ps", 2]  # asynchronous, and all of one variable is on a server
    server = max(predict(*words, script=(1, 1024))["memory"].values())
    limit = ["--set", f"memory_limit={int(0.9 * server)}"]
    found = predict("--search", *words, *limit, script=(1, 1024))["search"]
    assert max(found["memory"].values()) <= 0.9 * server
    (change,) = found["changes"]
    assert change["setting"] == "shard_bytes" and "fits the memory" in change["reason"]


@pytest.mark.slow
def test_all_ranks_of_a_topology_are_used_within_their_memory(predict, tmp_path):
    node = {"count": 6, "bytes_per_s": 1e9, "memory_bytes": 1.9e6}
    file = tmp_path / "topology.json"
    racks = [{"nodes": [node]}]
    file.write_text(json.dumps({"format": "hpcflow-topology-1", "racks": racks}))
    words = ["--topology", file, "--ps", 1, "--sync", "all", "--may-change", "workers"]
    data = predict("--search", *words, script=(4, 128))
    assert data["memory"]["/job:ps/task:0"] > 1.9e6
    found = data["search"]
    assert found["ranks"] == 6 and max(found["memory"].values()) <= 1.9e6
    assert f"topology={file}" in found["run"]


@pytest.mark.slow
def test_workers_keep_their_number_unless_they_may_change(predict):
    words = ["--ranks", 8, "--ps", 1, "--sync", "all", "--bandwidth", "1GB/s"]
    kept = predict("--search", *words, script=(4, 512))["search"]
    assert kept["best"]["replicas"] == 7 and kept["ranks"] <= 8
    assert kept["left_out"]["workers"].startswith("their number changes results")
    data = predict("--search", "--may-change", "workers", *words, script=(4, 512))
    found = data["search"]
    best = found["best"]
    assert best["replicas"] * best["tasks_per_replica"] + best["ps"] == found["ranks"] <= 8
    assert found["samples_per_second"] >= data["samples_per_second"]
    rate = data["samples_per_second"] / found["samples_per_second"]
    assert found["seconds_of_given_samples"] == pytest.approx(
        rate * data["step_seconds"]["median"], rel=0.02
    )
    assert "workers" not in found["left_out"]


@pytest.mark.slow
def test_what_would_change_results_is_left_out_with_its_reason(predict):
    found = predict("--search", "--ranks", 4, "--ps", 2, script=(4, 64, "second"))["search"]
    assert found["best"]["ps"] == 2 and found["best"]["dense"] == "servers"
    assert "has other results" in found["left_out"]["ps=0"]
    assert any("ps=1" in name for name in found["left_out"])  # the script names server 1
    words = ["--ranks", 3, "--max-ranks", 5]
    found = predict("--search", *words, script=(4, 64, "own"))["search"]
    assert found["best"]["ps"] == 0  # the script asks for asynchronous servers
    assert "the script chooses sync=async" in " ".join(found["left_out"].values())
    survivors = ["--ps", 1, "--sync", "all", "--set", "survive=1"]
    found = predict("--search", "--ranks", 4, *survivors)["search"]
    assert found["best"]["dense"] == "servers" and found["best"]["tasks_per_replica"] == 1
    assert "CompressedOptimizer" in " ".join(found["left_out"].values())


@pytest.mark.slow
def test_the_text_says_what_each_value_is_good_for(predict):
    words = ["--ranks", 4, *SLOW_NETWORK, "--set", "bucket_bytes=20000000"]
    text = predict("--search", *words, text=True, script=(4, 512))
    lines = text.splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.startswith("search: ")]
    assert "combinations predicted; the script ran" in lines[at]
    assert " instead of " in lines[at + 1] and "less for the same samples" in lines[at + 1]
    (reason,) = [line for line in lines if line.startswith(("  bucket_bytes=", "  overlap="))]
    assert "saves" in reason and " busy " in reason
    (run,) = [line for line in lines if line.startswith("run it: hpcflow run -n 4 ")]
    assert "--set bucket_bytes=" in run or "--set overlap=0" in run
    text = predict("--search", "--ranks", 1, text=True)
    assert "the given settings are the best" in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--max-ranks", 4], "--max-ranks is for --search"),
        (["--may-change", "workers"], "--may-change is for --search"),
        (["--search", "--may-change", "sync"], "invalid choice"),
        (["--search", "--max-ranks", 2, "--ranks", 4], "the given job has 4 ranks"),
        (["--search", "--max-ranks", 0], "the given job has 1 ranks"),
        (["--search", "--max-ranks", 4, "--topology", "t.json"], "both tell the number of ranks"),
        (["--search", "--set", "memory_limit=much"], "is not a size"),
    ],
)
def test_wrong_options_are_errors(predict, words, told):
    assert told in predict(*words, code=2)
