"""`hpcflow predict`, and `hpcflow report --predicted`: predictions of plans and of runs."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcflow.cli import main as cli
from hpcflow.cli.measured_run import MOST_LATENCY_S, MeasuredRun, _latency_of
from hpcflow.cli.prediction_options import _bandwidth, _latency, with_lateness
from hpcflow.errors import DataError, LaunchError
from hpcflow.kernels.machine_facts import machine_facts
from hpcflow.placement.network import Network
from hpcflow.platform.machine_profile import MachineProfile, profile_file
from hpcflow.platform.measured_costs import SampleSummary
from hpcflow.platform.measured_waits import OWN_CORE, SHARED_CORES, TYPICAL_US, WaitCost, WaitKey
from hpcflow.report import run_prediction
from hpcflow.report.measured_steps import measured_steps
from tests.test_report import write

ROOT = Path(__file__).parents[1]
SCRIPT = """
import argparse
import numpy as np
import hpcflow as hf

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--epochs", type=int, default=5)
args = parser.parse_args()
x = hf.placeholder(hf.float32, [None, args.width], name="x")
y = hf.placeholder(hf.int32, [None], name="y")
h = hf.layers.dense(x, args.width, activation=hf.nn.relu)
logits = hf.layers.dense(h, 10)
losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
loss = hf.reduce_mean(losses)
train = hf.train.GradientDescentOptimizer(0.01).minimize(loss)
data = hf.data.Dataset(
    {x: np.zeros((512, args.width), "f4"), y: np.zeros(512, "i4")}, batch=64, seed=1
)
with hf.train.TrainingSession() as session:
    for batch in data.epochs(args.epochs):
        session.step([loss, train], batch)
    session.result()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def hpcflow(*words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command; checks its exit code."""
    command = [sys.executable, "-m", "hpcflow", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done


def topology_file(folder: Path, *racks: dict[str, Any]) -> str:
    """A topology of racks of 4 nodes with 2 ranks each."""
    nodes = {"count": 4, "ranks": 2, "bytes_per_s": 1e9}
    rows = [{"nodes": [nodes], **rack} for rack in racks]
    (folder / "topology.json").write_text(
        json.dumps({"format": "hpcflow-topology-1", "racks": rows})
    )
    return str(folder / "topology.json")


NUMBERS = ["steps_per_second", "samples_per_second", "one_rank_step_seconds", "efficiency"]


@pytest.mark.slow
def test_the_json_has_all_figures_and_the_file_is_the_same(script: Path, tmp_path: Path) -> None:
    words = ["--ranks", 520, "--ps", 8, "--sync", "backup:2", "--ranks-per-node", 8, "--json"]
    words += ["--bandwidth", "25GB/s", "--latency", "5us", "--out", tmp_path / "p.json"]
    data = json.loads(hpcflow("predict", *words, script, "--width", 32).stdout)
    assert data == json.loads((tmp_path / "p.json").read_text())
    assert data["format"] == run_prediction.FORMAT
    assert (data["mode"], data["sync"], data["ranks"]) == ("ps", "backup:2", 520)
    assert (data["servers"], data["replicas"]) == (8, 512)
    assert data["arguments"] == ["--width", "32"] and data["script"] == str(script)
    assert data["network"]["bandwidth"] == 25e9 and data["network"]["latency"] == 5e-6
    assert data["network"]["ranks_per_node"] == 8
    assert data["replay"]["seed"] == 0 and data["replay"]["groups"] == 64
    times = data["step_seconds"]
    assert 0 < times["low"] <= times["median"] <= times["high"]
    assert times["median"] <= times["p90"]
    assert all(data[name] > 0 for name in NUMBERS)
    assert data["samples_per_second"] == data["samples_per_step"] * data["steps_per_second"]
    assert data["busy"][data["limit"]] == max(data["busy"].values()) <= 1.0 + 1e-9
    assert data["memory"]["/job:worker/task:0"] > 0 and data["memory"]["/job:ps/task:0"] > 0
    assert len(data["plan"]) == 32 and data["times"].startswith("cost model")
    assert data["versions"]["hpcflow"] and "commit" in data


@pytest.mark.slow
def test_operations_that_were_measured_on_this_machine_are_predicted_from_them(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile with ten times the times gives ten times the step of one rank."""
    folder = tmp_path / "costs"
    monkeypatch.setenv("HPCFLOW_COST_CACHE", str(folder))
    monkeypatch.setenv("HPCFLOW_THREADS", "1")
    hpcflow("costs", "--calibrate", "--seconds", 10)
    (file,) = folder.rglob("*.json")
    words = ["predict", "--json", script, "--width", 512]
    before = json.loads(hpcflow(*words).stdout)
    assert "operations measured on this machine, 1 thread a rank" in before["times"]
    data = json.loads(file.read_text())
    for row in data["operations"]:
        for name in ("mean", "variance"):
            row["seconds"][name] *= {"mean": 10, "variance": 100}[name]
        row["seconds"]["points"] = [[10 * x, n] for x, n in row["seconds"]["points"]]
    file.write_text(json.dumps(data))
    after = json.loads(hpcflow(*words).stdout)
    ratio = after["one_rank_step_seconds"] / before["one_rank_step_seconds"]
    assert ratio == pytest.approx(10, rel=0.2)
    file.write_text("{")
    done = hpcflow(*words)
    assert "the times are those of the cost model" in done.stderr
    assert json.loads(done.stdout)["times"].startswith("cost model")


WAITS = [
    WaitCost(WaitKey(OWN_CORE, TYPICAL_US), SampleSummary.of([2e-3])),
    WaitCost(WaitKey(SHARED_CORES, TYPICAL_US), SampleSummary.of([4e-3, 5e-3, 6e-3])),
    WaitCost(WaitKey(SHARED_CORES, 50_000), SampleSummary.of([9.0])),  # no typical wait
]


@pytest.mark.parametrize(
    ("cores", "latency", "expected"),
    [(0, None, (2e-3 + 5e-6, 2e-3)), (4, None, (2e-3 + 5e-6, 2e-3)),
     (2, None, (5e-3 + 5e-6, 5e-3)), (2, "5us", (5e-6, 5e-3))],
)  # fmt: skip
def test_messages_take_the_measured_lateness_of_a_waiting_rank(cores, latency, expected) -> None:
    network = Network(ranks_per_node=4, cores=cores)
    args = argparse.Namespace(latency=latency)
    changed, told = with_lateness(args, network, WAITS)
    assert (changed.latency, changed.memory_latency) == pytest.approx(expected)
    assert "a rank that waits has a message after" in told
    assert with_lateness(args, network, WAITS[2:]) == (network, "")


@pytest.mark.slow
def test_a_step_with_a_server_waits_as_long_as_was_measured(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values come, and the token that ends the step: two messages, each to a waiting rank."""
    monkeypatch.setenv("HPCFLOW_COST_CACHE", str(tmp_path / "costs"))
    words = ["predict", "--json", "--ranks", 2, "--ranks-per-node", 2, "--ps", 1, script]
    before = json.loads(hpcflow(*words).stdout)
    file = profile_file(machine_facts(), str(tmp_path / "costs"))
    assert file is not None and file.add(MachineProfile(waits=tuple(WAITS)))
    after = json.loads(hpcflow(*words).stdout)
    added = after["step_seconds"]["median"] - before["step_seconds"]["median"]
    assert 2 * 2e-3 < added < 5 * 2e-3
    assert "a rank that waits has a message after 2 ms to" in after["times"]


@pytest.mark.slow
def test_a_run_leaves_its_steps_and_the_next_prediction_is_corrected_by_them(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row has the plan and the operations of the prediction, and the times of paces.csv."""
    folder, run = tmp_path / "costs", tmp_path / "run"
    monkeypatch.setenv("HPCFLOW_COST_CACHE", str(folder))
    monkeypatch.setenv("HPCFLOW_THREADS", "1")
    predict = ["predict", "--json", script, "--width", 512]
    before = json.loads(hpcflow(*predict).stdout)
    hpcflow("run", "--run-dir", run, script, "--width", 512, "--epochs", 80)
    (file,) = folder.glob("*.json")
    (row,) = json.loads(file.read_text())["steps"]
    rows = (run / "paces.csv").read_text().splitlines()[2:]
    work = [float(line.split(",")[4]) - float(line.split(",")[6]) for line in rows]
    assert row["work"]["count"] == len(rows) and row["script"] == "train.py"
    assert row["work"]["mean"] == pytest.approx(statistics.fmean(work))
    products = [each for each in row["operations"] if each[0] == "product"]
    assert {64 * 512 * 512 * 2, 64 * 512 * 10 * 2} <= {each[5] for each in products}
    assert row["fed_bytes"] == 64 * 512 * 4 + 64 * 4 and row["fetched_bytes"] == 4

    after = json.loads(hpcflow(*predict).stdout)
    assert after["plan"] == before["plan"] == row["plan"]
    assert "corrected by 1 run of 1 program on this machine" in after["times"]
    measured = statistics.median(work)
    errors = [abs(math.log(d["step_seconds"]["median"] / measured)) for d in (before, after)]
    assert errors[1] < max(errors[0], 0.1)
    bare = json.loads(hpcflow("predict", "--no-correction", *predict[1:]).stdout)
    assert bare["step_seconds"] == before["step_seconds"] and bare["times"] == before["times"]
    told = hpcflow("costs").stdout
    assert "train.py" in told and "corrected by the other programs" in told

    hpcflow("run", "--profile", "--run-dir", tmp_path / "profiled", script, "--epochs", 80)
    assert len(json.loads(file.read_text())["steps"]) == 1, "steps of a profiled run are longer"


@pytest.mark.slow
def test_a_slower_network_takes_longer_and_the_text_says_what_limits(script: Path) -> None:
    words = ["--ranks", 16, "--latency", "1us", script, "--width", 256]
    times = {}
    for rate in ("10MB/s", "100GB/s"):
        text = hpcflow("predict", "--bandwidth", rate, *words).stdout
        rows = dict(line.split("  ", 1) for line in text.splitlines()[2:])
        times[rate] = rows
    slow, fast = times["10MB/s"], times["100GB/s"]
    assert "collectives" in slow["limited by"]
    assert "/job:worker/task:0/cpu:0" in fast["limited by"]
    assert float(slow["efficiency of a rank"].split("%")[0]) < 5
    assert "memory of /job:worker/task:0" in slow


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "limit"),
    [
        ([], "collectives, by the uplink of rack 1"),
        (["--ps", 4], "uplink of rack 1 (out)"),
        (["--ps", 4, "--sync", "all"], "uplink of rack 1 (out)"),
        (["--storage", "1kB/s"], "storage"),
    ],
)
def test_the_limit_of_a_topology_is_named(script, tmp_path, words, limit) -> None:
    """4 ranks of 5 work behind the narrow uplink, and half of the servers are not there."""
    racks = [{"uplink_bytes_per_s": 1e9}, {"uplink_bytes_per_s": 1e5}]
    file = topology_file(tmp_path, *racks)
    data = json.loads(hpcflow("predict", "--topology", file, "--json", *words, script).stdout)
    assert data["limit"] == limit or data["limit"].replace("out", "in") == limit.replace(
        "out", "in"
    )
    assert data["ranks"] == 16 and data["network"]["topology"] == file
    assert data["network"]["nodes"] == 8 and data["network"]["racks"] == 2
    assert (data["storage"] is None) == ("--storage" not in words)


@pytest.mark.slow
def test_saves_make_the_rate_lower(script: Path) -> None:
    words = ["predict", "--json", "--storage", "1MB/s", script, "--width", 512]
    rates = [
        json.loads(hpcflow(*words[:2], *more, *words[2:]).stdout)
        for more in ([], ["--save-every", 1000], ["--save-every", 1])
    ]
    never, seldom, often = (one["steps_per_second"] for one in rates)
    assert never > seldom > often
    nbytes = (512 * 512 + 512 + 512 * 10 + 10) * 4
    assert 1 / often == pytest.approx((nbytes + 64 * 513 * 4) / 1e6, rel=0.05)
    assert rates[2]["storage"] == {"bandwidth": 1e6, "save_every": 1}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bandwidth", "fast", "SCRIPT"], "--bandwidth fast: this is no bandwidth"),
        (["--bandwidth", "0GB/s", "SCRIPT"], "--bandwidth 0GB/s: this is no bandwidth"),
        (["--memory-bandwidth", "-1", "SCRIPT"], "--memory-bandwidth -1: this is no"),
        (["--latency", "5", "SCRIPT"], "--latency 5: this is no time"),
        (["--ranks", "4", "--ps", "4", "SCRIPT"], "--ranks 4 with 4 servers leaves no worker"),
        (["--ranks", "0", "SCRIPT"], "--ranks 0 with 0 servers"),
        (["--ranks", "2", "nowhere.py"], "there is no script or run 'nowhere.py'"),
        (["--classes", "0", "SCRIPT"], "--classes 0: give 1 to 1024"),
        (["--classes", "1025", "SCRIPT"], "--classes 1025"),
        (["--repeat", "0", "SCRIPT"], "--repeat"),
        (["--noise", "-1", "SCRIPT"], "--noise -1"),
        (["--noise", "nan", "SCRIPT"], "--noise nan"),
        (["--ranks-per-node", "0", "SCRIPT"], "--ranks-per-node"),
        (["--set", "nonsense=1", "SCRIPT"], "there is no such setting"),
        (
            ["--topology", "TOPOLOGY", "--latency", "1us", "--cores", "2", "SCRIPT"],
            "--latency, --cores both describe the network",
        ),
        (["--topology", "TOPOLOGY", "--ranks", "5", "SCRIPT"], "describes 8 ranks"),
        (["--topology", "nowhere.json", "SCRIPT"], "no file of a topology at nowhere.json"),
        (["--topology", "TOPOLOGY", "--ps", "8", "SCRIPT"], "leaves no worker"),
        (["--storage", "much", "SCRIPT"], "--storage much: this is no bandwidth"),
        (["--save-every", "5", "SCRIPT"], "--save-every 5 without the file system"),
        (["--save-every", "-1", "--storage", "1GB/s", "SCRIPT"], "--save-every -1"),
        (["--ranks", "9" * 20, "SCRIPT"], "--ranks 99999999999999999999: give 1 to 1,048,576"),
        (["--bandwidth", "", "SCRIPT"], "--bandwidth : this is no bandwidth"),
        (["--bandwidth", "25", "SCRIPT"], "--bandwidth 25 is 25 bytes per second"),
        (["--bandwidth", "100G", "SCRIPT"], "--bandwidth 100G: this is no bandwidth"),
        (["--bandwidth", "1e-300B/s", "SCRIPT"], "1e-300 bytes per second, less than 1000"),
        (["--memory-bandwidth", "", "SCRIPT"], "--memory-bandwidth : this is no bandwidth"),
        (["--latency", "", "SCRIPT"], "--latency : this is no time"),
        (["--topology", "", "SCRIPT"], "--topology: the name of the file is empty"),
        (["--out", "", "SCRIPT"], "--out: the name of the file is empty"),
        (["--cores", "0", "SCRIPT"], "--cores are numbers from 1 on"),
        (["--run-bandwidth", "1GB/s", "SCRIPT"], "--run-bandwidth 1GB/s is that of a run"),
        (["--bandwidth", "1e20B/s", "SCRIPT"], "1e+20 bytes per second, more than 1e+15"),
        (["--latency", "3600s", "SCRIPT"], "--latency 3600s is more than 10 s"),
        (["--cores", "2", "RUN"], "--cores 2 is for scripts"),
        (["--cores", "9" * 20, "SCRIPT"], "numbers from 1 on, at most 1,048,576"),
        (["--repeat", "100000000", "SCRIPT"], "--repeat is a number from 1 to 10,000"),
        (["--search", "--max-ranks", "9" * 11, "SCRIPT"], "give at most 1,048,576"),
        (["FOLDER"], "manifest.json does not name a script"),
        (["FOLDER", "--width", "2"], "is a run, whose script has its arguments"),
    ],
)
def test_wrong_arguments_are_named(words, message, script, tmp_path, capsys) -> None:
    (tmp_path / "empty").mkdir()
    topology = topology_file(tmp_path, {"uplink_bytes_per_s": 1e9})
    places = {"SCRIPT": str(script), "FOLDER": str(tmp_path / "empty"), "TOPOLOGY": topology}
    places["RUN"] = str(run_folder(tmp_path / "run"))
    assert cli.main(["predict", *(places.get(word, word) for word in words)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "value"),
    [("25GB/s", 25e9), ("200Gb/s", 25e9), ("100Gbit/s", 12.5e9), ("2e9", 2e9), ("1.5 MB/s", 1.5e6),
     ("3GiB/s", 3 * 2**30), ("8Kib/s", 1024.0), ("1kB/s", 1e3)],
)  # fmt: skip
def test_bandwidths_are_bytes_unless_bits_are_said(text: str, value: float) -> None:
    assert _bandwidth("--bandwidth", text) == value
    assert _latency("2.5us") == pytest.approx(2.5e-6)


def test_a_script_without_a_step_has_no_prediction(tmp_path: Path) -> None:
    path = tmp_path / "none.py"
    path.write_text("import hpcflow\n")
    assert "ran no step" in hpcflow("predict", path, code=1).stderr


UNTRAINED = """
import hpcflow as hf
with hf.Session() as session:
    x = hf.placeholder(hf.float32, [4])
    print("fetched", session.run(hf.exp(x), {x: [1.0] * 4}))
"""


@pytest.mark.parametrize("command", ["predict", "plan"])
@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        ("raise SystemExit('no data')", 1, ["no data", "ended with exit code 1 before its first"]),
        ("raise SystemExit(3)", 3, ["{path} ended with exit code 3 before its first training"]),
        (UNTRAINED, 0, ["fetched", "{path} ran no training step; the plan is that of its last"]),
    ],
)
def test_a_script_that_does_not_train_is_told(command, text, code, told, tmp_path) -> None:
    path = tmp_path / "script.py"
    path.write_text(text)
    done = hpcflow(command, path, code=code)
    assert all(words.format(path=path) in done.stderr for words in told)
    assert ("1 ranks" in done.stdout) == (code == 0)


def test_a_step_that_computes_nothing_has_no_prediction(tmp_path: Path) -> None:
    path = tmp_path / "constant.py"
    path.write_text("import hpcflow as hf\nwith hf.Session() as s:\n    s.run(hf.constant(2.0))\n")
    told = hpcflow("predict", path, code=2).stderr
    assert "ran no step that computes something" in told and "Traceback" not in told


def test_a_script_that_trains_is_told_nothing(script: Path) -> None:
    assert hpcflow("plan", script).stderr == ""


@pytest.mark.parametrize(
    ("ranks", "message"),
    [("0", "--ranks 0: give 1 to"), ("-1", "--ranks -1: give 1 to"), ("9" * 20, "give 1 to")],
)
def test_a_plan_needs_a_number_of_ranks(ranks, message, script, capsys) -> None:
    assert cli.main(["plan", "--ranks", ranks, str(script)]) == 2
    assert message in capsys.readouterr().err


def test_a_setting_given_as_an_option_is_named(script, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["plan", "--bucket-bytes", "5", str(script)])
    assert end.value.code == 2
    assert "use --set bucket_bytes=VALUE" in capsys.readouterr().err


def test_placement_by_a_file_needs_servers(script, capsys) -> None:
    assert cli.main(["plan", "--ranks", "4", "--set", "placement=Auto", str(script)]) == 2
    assert "placement='Auto' is a file by which servers" in capsys.readouterr().err


def test_an_interrupted_command_ends_with_one_line(script, capsys, monkeypatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("hpcflow.cli.plan.run_script", interrupted)
    assert cli.main(["plan", str(script)]) == 130
    assert capsys.readouterr().err == "hpcflow plan: interrupted\n"


@pytest.mark.parametrize(
    ("target", "told"),
    [("> /dev/full", "stdout cannot be written: No space left"), (">&-", "stdout is closed")],
)
def test_results_that_cannot_be_written_are_told(target: str, told: str) -> None:
    done = subprocess.run(
        f"{sys.executable} -m hpcflow help prediction {target}",
        shell=True, capture_output=True, text=True, timeout=200, check=False, cwd=ROOT,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (1, 1) and told in done.stderr


# -- runs


def run_folder(folder: Path, **more: Any) -> Path:
    """A run on 2 ranks of one node, 30 steps of 2 ms of work and 1 ms of waiting."""
    manifest = {"plan": "a" * 32, "folder": str(folder.parent), **more.pop("manifest", {})}
    manifest.setdefault("command", ["hpcflow", "run", "digits.py", "--", "--x", "1"])
    write(folder, 2, 64, 20_000.0, manifest=manifest, **more)
    rows = ["seconds,step,worker,steps,work,wait,samples"]
    rows += [f"{i},{i},{w},4,{0.5 if i == 0 else 0.002 * (1 + w)},0.001,32"
             for i in range(10) for w in (0, 1)]  # fmt: skip
    (folder / "paces.csv").write_text("\n".join(rows) + "\n")
    return folder


def prediction_file(path: Path, **more: Any) -> Path:
    data = {"format": run_prediction.FORMAT, "plan": "a" * 32, "ranks": 2}
    data |= {"step_seconds": {"median": 0.004, "p90": 0.005, "low": 0.002, "high": 0.006}}
    data |= {"samples_per_second": 16_000.0, **more}
    path.write_text(json.dumps(data))
    return path


def test_the_report_shows_predicted_beside_measured(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run, file = run_folder(tmp_path / "run"), prediction_file(tmp_path / "p.json")
    words = ["report", str(run), "--out", "o"]
    assert cli.main(words) == 0 and "predicted" not in capsys.readouterr().out
    assert cli.main([*words, "--predicted", str(file)]) == 0
    told = capsys.readouterr().out
    rows = {line.split("  ")[0]: line.split()[-4:] for line in told.splitlines() if line}
    assert "0.004" not in told and "4 ms" in told and "2 ms to 6 ms" in told
    assert rows["time of a step"][-1] == "1.00"  # the median of 3 and 5 ms is 4 ms
    assert rows["samples/s"][-1] == "1.25"
    assert "the measured median lies inside the interval" in told
    assert told.rstrip().splitlines()[-3] in (tmp_path / "o" / "report.txt").read_text()


def test_a_prediction_in_the_folder_of_a_run_is_scored(tmp_path, capsys) -> None:
    run = run_folder(tmp_path / "run")
    times = {"median": 0.001, "p90": 0.001, "low": 0.0005, "high": 0.002}
    prediction_file(run / run_prediction.NAME, step_seconds=times)
    assert cli.main(["report", str(run), "--out", str(tmp_path)]) == 0
    assert "the measured median lies outside the interval" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ranks": 4}, "predicts 4 ranks, and"),
        ({"plan": "b" * 32}, "predicts another plan than"),
        ({"format": "hpcflow-plan-1"}, "is no prediction of this version"),
        ({"step_seconds": {"median": 1.0}}, "is not what a run writes there|is no prediction"),
    ],
)
def test_a_file_of_another_plan_or_size_is_refused(tmp_path, capsys, changes, message) -> None:
    run, file = run_folder(tmp_path / "run"), prediction_file(tmp_path / "p.json", **changes)
    assert cli.main(["report", str(run), "--predicted", str(file), "--out", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert any(part in told for part in message.split("|"))
    assert not (tmp_path / "report.txt").exists()


def test_files_that_are_missing_are_named(tmp_path, capsys) -> None:
    run = run_folder(tmp_path / "run")
    words = ["report", str(run), "--out", str(tmp_path), "--predicted", str(tmp_path / "none.json")]
    assert cli.main(words) == 1
    assert "there is no file" in capsys.readouterr().err
    assert cli.main([*words, "--html", str(tmp_path / "x.html")]) == 2
    old = run_folder(tmp_path / "old", manifest={"plan": None})
    file = prediction_file(tmp_path / "p.json")
    assert cli.main(["report", str(old), "--out", str(tmp_path), "--predicted", str(file)]) == 1
    assert "has no digest of a plan" in capsys.readouterr().err


def test_the_times_of_a_run_are_its_paces_without_the_first(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    found = measured_steps(run)
    assert found.work == {0: [0.002] * 9, 1: [0.004] * 9}
    assert found.median == pytest.approx(0.004) and set(found.counts) == {4.0}
    (run / "paces.csv").unlink()
    with pytest.raises(DataError, match="no times of steps"):
        measured_steps(run)
    result = json.loads((run / "result.json").read_text())
    result |= {"work_seconds": [0.2, 0.4], "wait_seconds": [0.1, 0.1]}  # of 100 steps
    (run / "result.json").write_text(json.dumps(result))
    assert measured_steps(run).steps == pytest.approx([0.003, 0.005])


def test_a_run_has_the_speeds_of_its_workers_and_its_script_with_arguments(tmp_path: Path) -> None:
    run = MeasuredRun(run_folder(tmp_path / "run"))
    assert (run.script, run.script_args) == ("/home/u/digits.py", ["--x", "1"])
    assert (run.ranks, run.servers, run.ranks_per_node) == (2, 0, 1)
    for replicas, counts in ((2, [1, 1]), (64, [32, 32]), (1, [1])):
        classes = run.classes(replicas)
        assert [one.count for one in classes] == counts
    assert [one.factor for one in run.classes(2)] == pytest.approx([2 / 3, 4 / 3])
    assert run.sigma == 0.0  # all rows of a worker are equal
    with pytest.raises(LaunchError, match="not there any more"):
        run.planned(2, {})
    damaged = run_folder(tmp_path / "damaged", manifest={"nodes": {"n0": 7}, "settings": []})
    assert MeasuredRun(damaged).ranks_per_node == 1


def test_the_noise_is_pooled_over_workers_with_few_rows(tmp_path: Path) -> None:
    """Deviations 0.1, 0, 0.1 of three rows, times sqrt(3 / 2), by a normal quartile; sqrt(4)."""
    folder = run_folder(tmp_path / "run")
    rows = ["seconds,step,worker,steps,work,wait,samples"]
    rows += [f"{i},{i},{w},4,{work},0.001,32"
             for i, work in enumerate((9.0, 0.9, 1.0, 1.1)) for w in (0, 1)]  # fmt: skip
    (folder / "paces.csv").write_text("\n".join(rows) + "\n")
    expected = 0.1 * math.sqrt(3 / 2) / 0.6745 * math.sqrt(4)
    assert MeasuredRun(folder).sigma == pytest.approx(expected)


def test_the_shares_of_servers_are_their_work_without_the_first_row(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    rows = (folder / "paces.csv").read_text().splitlines()
    rows = [rows[0] + ",server", *(f"{row}," for row in rows[1:])]
    rows += [f"{20 + i},9,,,{work},{wait},,0" for i, (work, wait) in enumerate(
        [(5, 1), (0.1, 0.4), (0.2, 0.3)])]  # fmt: skip
    (folder / "paces.csv").write_text("\n".join(rows) + "\n")
    found = run_prediction.measured_steps(folder)
    assert found.server_shares == {0: pytest.approx(0.3)}
    assert found.work == {0: [0.002] * 9, 1: [0.004] * 9}


def test_the_latency_is_that_at_which_a_replay_takes_the_measured_time() -> None:
    """Four messages one after the other beside 0.1 s of work."""
    assert _latency_of(lambda latency: 0.1 + 4 * latency, 0.12) == pytest.approx(5e-3, abs=1e-5)
    assert _latency_of(lambda latency: 0.1 + 4 * latency, 0.09) == 0.0
    assert _latency_of(lambda latency: 0.1, 0.2) == pytest.approx(MOST_LATENCY_S, abs=1e-5)


def test_a_prediction_from_a_run_tells_how_wrong_its_replay_is(script, tmp_path) -> None:
    """No latency explains the waiting between ranks of a node: the interval is wide, not negative.

    The run took 0.503 and 0.506 s for a step, nearly all of it waiting.
    """
    manifest = {"script": str(script), "command": ["hpcflow", "run", str(script), "--"]}
    manifest |= {"nodes": {"n0": [0, 1]}}
    folder = run_folder(tmp_path / "run", manifest=manifest)
    text = (folder / "paces.csv").read_text()
    (folder / "paces.csv").write_text(text.replace(",0.001,32", ",0.5,32"))
    data = json.loads(hpcflow("predict", folder, "--json").stdout)
    times = data["step_seconds"]
    assert data["network"]["latency"] == 5e-6  # the default: nothing of the run depends on it
    assert 0 < times["low"] < times["median"] < 0.02 < 0.5 < times["high"]
    assert times["low"] * times["high"] == pytest.approx(times["median"] ** 2)
    found = re.search(r"; its own step: 503 ms measured, ([0-9.]+) ms replayed", data["times"])
    assert found is not None and float(found.group(1)) < 20


@pytest.mark.slow
@pytest.mark.parametrize("mode", [[], ["--ps", "1"], ["--ps", "1", "--sync", "all"]])
def test_a_run_on_two_workers_is_predicted_and_scored(script, tmp_path, mode) -> None:
    """The digest of a run is that of its plan, and its prediction has the size of what it took."""
    run, ranks = tmp_path / "run", 3 if mode else 2
    arguments = ["--width", 1024]
    common = ["--ranks", ranks, *mode, "--ranks-per-node", ranks]
    hpcflow("predict", *common, "--out", tmp_path / "p.json", script, *arguments)
    hpcflow("run", "-n", ranks, *mode, "--run-dir", run, script, *arguments)
    told = hpcflow("report", run, "--predicted", tmp_path / "p.json", "--out", tmp_path).stdout
    assert "the measured median lies" in told
    data = json.loads(hpcflow("predict", run, "--json").stdout)
    manifest = json.loads((run / "manifest.json").read_text())
    script_data = json.loads((tmp_path / "p.json").read_text())
    assert data["plan"] == manifest["plan"] == script_data["plan"]
    assert data["ranks"] == ranks and data["replicas"] == 2
    assert data["times"].startswith("measured in ")
    measured = measured_steps(run).median
    assert abs(math.log(data["step_seconds"]["median"] / measured)) < math.log(20)
    more = json.loads(hpcflow("predict", run, "--ranks", 2 * ranks, "--json").stdout)
    assert more["ranks"] == 2 * ranks and more["plan"] != data["plan"]
