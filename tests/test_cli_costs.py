"""`hpcflow costs`: what runs, calibrations and doctors measure, and what it predicts."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcflow.cli import cost_calibration, thread_calibration
from hpcflow.cli.main import main
from hpcflow.doctor.measured_links import keep_links, link_profile
from hpcflow.doctor.rank_facts import JobFacts, MeasuredWait, NetworkLink, RankFacts
from hpcflow.kernels.machine_facts import machine_facts
from hpcflow.launch import launcher_detection
from hpcflow.platform import cpu_threads
from hpcflow.platform.machine_profile import MachineProfile, ProfileFile, profile_file
from hpcflow.platform.measured_costs import OperationCost, OperationKey, SampleSummary
from tests.runtime.test_gpu import gpus  # noqa: F401

ROOT = Path(__file__).parents[1]
EVIL = "\x1b[31mred\r"
TRAIN = """
import hpcflow as hf
import numpy as np
x = hf.placeholder(hf.float32, [32, 40], name="x")
w = hf.Variable(np.ones((40, 20), "f4"), name="w")
loss = hf.reduce_mean(hf.square(hf.tanh(hf.matmul(x, w, name="product"))))
train = hf.train.MomentumOptimizer(0.01, 0.9).minimize(loss)
with hf.train.TrainingSession() as sess:
    for _ in range(40):
        sess.step([train, loss], {x: np.ones((32, 40), "f4")})
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of machine profiles, which does not exist yet."""
    monkeypatch.setenv("HPCFLOW_COST_CACHE", str(tmp_path / "costs"))
    return tmp_path / "costs"


def here() -> ProfileFile:
    file = profile_file(machine_facts())
    assert file is not None
    return file


def asked(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main(["costs", *words]) == code
    return capsys.readouterr().out


def profiled(tmp_path: Path, *options: str, script: str = TRAIN) -> tuple[dict[str, Any], str]:
    """profile.json of a run of `script` in the folder `run`, and what the run logged."""
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, "-m", "hpcflow", "run", "--profile", *options]
    command += [f"--run-dir={tmp_path}/run", f"{tmp_path}/train.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HPCFLOW_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads((tmp_path / "run" / "profile.json").read_text()), done.stderr


@pytest.mark.slow
def test_a_profiled_run_fills_the_file_with_the_times_of_its_profile(tmp_path, folder, capsys):
    data, told = profiled(tmp_path)
    assert str(here().path) in told
    kept = {row.key: row.seconds for row in here().read().operations}
    (rank,) = data["ranks"]
    calls = [row for row in rank["ops"] if row["timings"]]
    assert {"MatMul", "ApplyMomentum"} <= {row["title"] for row in calls}
    by_key: dict[OperationKey, list[dict[str, Any]]] = {}
    for row in calls:
        (call,) = row["timings"]
        assert row["flops"] == row["calls"] * call["flops"]
        assert row["bytes"] == row["calls"] * call["nbytes"]
        key = OperationKey(row["title"], tuple(call["dtypes"]), row["provider"], rank["threads"],
                           "cpu", call["flops"], call["nbytes"])  # fmt: skip
        by_key.setdefault(key, []).append(row)
    assert kept.keys() == by_key.keys()
    for key, rows in by_key.items():
        total = sum(row["seconds"] for row in rows)
        assert kept[key].count == sum(row["calls"] for row in rows)
        assert kept[key].count * kept[key].mean == pytest.approx(total, rel=1e-6)
        assert kept[key].quantile(0.0) <= kept[key].median <= kept[key].quantile(1.0)
    product = next(row for row in calls if row["name"] == "product")
    assert product["timings"][0]["flops"] == 2 * 32 * 40 * 20

    found = json.loads(asked(capsys, str(tmp_path / "run"), "--json"))
    predicted = {row["name"]: row for row in found["operations"]}
    assert predicted["product"]["source"] == "measured"
    assert sum(row["measured_s"] for row in found["types"]) == pytest.approx(
        sum(row["seconds"] for row in calls)
    )
    text = asked(capsys, str(tmp_path / "run"))
    assert "most time mispredicted" in text and "ApplyMomentum" in text
    profiled(tmp_path)
    again = {row.key: row.seconds.count for row in here().read().operations}
    assert [again[key] for key in kept] == [2 * kept[key].count for key in kept]


@pytest.mark.slow
def test_an_operation_that_runs_on_two_shapes_has_two_rows(tmp_path, folder):
    """A last batch that is smaller than the others, in the profiled steps."""
    size = "hf.placeholder(hf.float32, [None, 40]", '((30 if _ % 3 else 6), 40), "f4"'
    script = TRAIN.replace("hf.placeholder(hf.float32, [32, 40]", size[0])
    data, _ = profiled(tmp_path, script=script.replace('(32, 40), "f4"', size[1]))
    product = next(row for row in data["ranks"][0]["ops"] if row["name"] == "product")
    flops = {2 * rows * 40 * 20: count for rows, count in ((30, 20), (6, 10))}
    found = {each["flops"]: each["seconds"]["count"] for each in product["timings"]}
    assert found == flops
    kept = {row.key.flops: row.seconds.count for row in here().read().operations
            if row.key.type == "MatMul"}  # fmt: skip
    # the product for the gradient of the weights has the same FLOPs and bytes
    assert kept == {size: 2 * count for size, count in flops.items()}


@pytest.mark.slow
def test_a_run_whose_home_cannot_be_written_ends_well_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("HPCFLOW_COST_CACHE", "/proc/hpcflow")
    data, told = profiled(tmp_path)
    assert data["ranks"] and told.count("are not kept in /proc/hpcflow") == 1


@pytest.mark.slow
@pytest.mark.skipif(
    launcher_detection.detect_launcher() is not None, reason="a job cannot start jobs"
)
def test_all_ranks_of_a_node_add_to_one_file(tmp_path, folder):
    data, _ = profiled(tmp_path, "-n", "2")
    rows = [row for rank in data["ranks"] for row in rank["ops"] if row["timings"]]
    assert len(data["ranks"]) == 2
    kept = here().read().operations
    assert sum(row.seconds.count for row in kept) == sum(row["calls"] for row in rows)
    assert list(folder.glob("*.json")) == [here().path]


@pytest.mark.slow
def test_a_calibration_measures_the_kernels_that_run(folder, capsys, monkeypatch):
    """Also without time there is a row; with time all cases run."""
    own = ["--calibrate", f"--threads={cpu_threads.chosen_threads().threads}"]
    asked(capsys, *own, "--seconds", "0.000001")
    assert len(here().read().operations) == 1
    asked(capsys, "--clear")
    monkeypatch.setattr(cost_calibration, "SCALES", (1,))
    monkeypatch.setattr(cost_calibration, "MOST_SAMPLES", 3)
    asked(capsys, *own, "--seconds", "3600")  # MOST_SAMPLES ends it, also after a long pause
    found = json.loads(asked(capsys, "--json"))
    types = {row["type"]: row for row in found["types"]}
    assert {"MatMul", "Transpose", "Gather", "Conv"} <= types.keys()
    assert {row["seconds"]["count"] for row in found["operations"]} <= {3, 6}
    for row in found["types"]:
        rows = [r for r in found["operations"] if r["type"] == row["type"]]
        assert row["calls"] == sum(r["seconds"]["count"] for r in rows) and row["rows"] == len(rows)
        assert row["seconds"] == pytest.approx(
            sum(r["seconds"]["count"] * r["seconds"]["mean"] for r in rows)
        )
    assert all(row["provider"] for row in found["operations"])
    products = {(r["flops"], r["nbytes"]) for r in found["operations"] if r["type"] == "MatMul"}
    assert products == {
        (2 * n * k * m, itemsize * (n * k + k * m + n * m))
        for n, k, m in ((16, 16, 16), (16, 256, 256))
        for itemsize in (4, 8)
    }
    lines = asked(capsys).splitlines()
    assert lines[1] == str(here().path) and any(line.startswith("MatMul ") for line in lines)


@pytest.mark.slow
def test_a_calibration_has_rows_for_each_number_of_threads(folder, capfd):
    numbers = sorted({1, min(2, cpu_threads.find_cores().mask)})
    text = asked(capfd, "--calibrate", "--seconds", "2", "--threads", ",".join(map(str, numbers)))
    rows = here().read().operations
    assert {row.key.threads for row in rows if row.key.type == "MatMul"} == set(numbers)
    assert {row.key.threads for row in rows} == set(numbers)
    at = next(i for i, line in enumerate(text.splitlines()) if line.startswith("threads of a rank"))
    shown = [line.split()[:3] for line in text.splitlines()[at + 1 :][: len(numbers)]]
    counts = [sum(row.key.threads == n for row in rows) for n in numbers]
    assert shown == [[str(n), "cpu", str(k)] for n, k in zip(numbers, counts, strict=True)]
    data = json.loads(asked(capfd, "--json"))["threads"]
    assert [one["rows"] for one in data] == counts


@pytest.mark.skipif(cpu_threads.find_cores().mask < 2, reason="one CPU has one number of threads")
def test_a_calibration_that_fails_with_other_threads_is_an_error(folder, capfd, monkeypatch):
    """The process of the other number cannot import hpcflow."""
    own = cpu_threads.chosen_threads().threads
    monkeypatch.setattr(thread_calibration.sys, "executable", "/bin/false")
    asked(capfd, "--calibrate", "--threads", str(1 if own > 1 else 2), code=1)
    assert here().read() == MachineProfile()


def test_numbers_of_threads_share_the_time_of_a_calibration(monkeypatch):
    """Each takes half as much again as it was given, and the others have what is left."""
    now, own, given = [0.0], cpu_threads.chosen_threads().threads, list[tuple[int, float]]()

    def measure(threads: int, seconds: float) -> bool:
        given.append((threads, seconds))
        now[0] += 1.5 * seconds
        return True

    monkeypatch.setattr(thread_calibration.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(thread_calibration, "_calibrate_in_process", measure)
    monkeypatch.setattr(thread_calibration, "_calibrate_here", lambda s, *_: measure(own, s))
    assert thread_calibration.calibrate_threads([own, 100, 101], 9.0, None, None)
    assert given == [(own, 3.0), (100, 2.25), (101, pytest.approx(1.125))]


def test_the_numbers_of_a_calibration_are_the_users_or_powers_up_to_the_cores(monkeypatch):
    cores = cpu_threads.CpuCores(12, 12, 24, siblings=2)
    for variable in (*cpu_threads.VARIABLES, "HPCFLOW_THREADS", cpu_threads.CHOSEN):
        monkeypatch.delenv(variable, raising=False)

    def numbers(**environ: str) -> list[int]:
        chosen = cpu_threads.set_up_threads(dict(environ), cores, 1)
        monkeypatch.setattr(cpu_threads, "chosen_threads", lambda: chosen)
        return thread_calibration.numbers_of(None)

    assert numbers() == [1, 2, 4, 6]
    assert numbers(OMP_NUM_THREADS="3") == [3]
    assert numbers(HPCFLOW_THREADS="6", OMP_NUM_THREADS="3") == [6]
    assert thread_calibration.numbers_of("4,1,4") == [1, 4]


def filled() -> None:
    """A profile of rows that follow a law, but for a few of one type."""
    rows = []
    for i, size in enumerate((10_000, 50_000, 200_000, 900_000, 5_000_000)):
        for type_, factor in (("MatMul", 1.0), (f"Fused: {EVIL}", 1.0 + 9.0 * (i % 2))):
            key = OperationKey(type_, ("float32",), "numpy", 1, "cpu", size, size)
            seconds = factor * (2e-6 + size / 1e9)
            rows.append(OperationCost(key, SampleSummary.of([seconds] * 3)))
    assert here().add(MachineProfile(tuple(rows)))


def test_the_errors_of_a_type_are_those_of_its_rows_predicted_by_the_others(folder, capsys):
    filled()
    found = {row["type"]: row for row in json.loads(asked(capsys, "--json"))["types"]}
    assert found["MatMul"]["error_90"] < 1 and found[f"Fused: {EVIL}"]["error_median"] > 50
    assert found["MatMul"]["calls"] == 15
    text = asked(capsys)
    assert "\x1b" not in text and "\r" not in text and "\\x1b[31mred" in text


def test_a_file_is_cleared(folder, capsys):
    filled()
    assert str(here().path) in asked(capsys, "--clear")
    assert here().read() == MachineProfile()
    assert "no operation was measured" in asked(capsys)


@pytest.mark.parametrize(
    "words",
    [
        ["--calibrate", "--seconds", "0"],
        ["--calibrate", "--seconds", "nan"],
        ["--seconds", "5"],
        ["--threads", "1"],
        ["--calibrate", "--threads", ""],
        ["--calibrate", "--threads", "0"],
        ["--calibrate", "--threads", "1,two"],
        ["--calibrate", "--threads", "1,999999"],
        ["run", "--clear"],
        ["run", "--calibrate"],
    ],
    ids=" ".join,
)
def test_wrong_arguments(folder, capsys, words):
    asked(capsys, *words, code=2)


def test_a_missing_run_directory_is_told_from_one_without_a_profile(folder, tmp_path, capsys):
    assert main(["costs", str(tmp_path / "nowhere")]) == 1
    assert f"there is no run directory {tmp_path / 'nowhere'}" in capsys.readouterr().err
    assert main(["costs", str(tmp_path)]) == 1
    assert f"there is no {tmp_path / 'profile.json'}" in capsys.readouterr().err


def test_what_cannot_be_read_is_an_error_in_one_line(folder, tmp_path, capsys):
    filled()
    for content in ("", "{}", '{"ranks": [1]}', '{"ranks": [{"ops": [{"name": "a"}]}]}',
                    '{"ranks": [{"ops": [{"timings": [{}], "name": 1}]}]}', None):  # fmt: skip
        file = tmp_path / "profile.json"
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_text(content)
        assert main(["costs", str(tmp_path)]) == 1
        told = capsys.readouterr().err
        assert str(file) in told and told.startswith("hpcflow costs: "), told
    here().path.write_text("{")
    assert main(["costs"]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_without_a_folder_nothing_is_kept(monkeypatch, capsys):
    monkeypatch.setenv("HPCFLOW_COST_CACHE", "none")
    asked(capsys, "--calibrate", code=1)


def test_links_are_kept_by_kind_and_sums_by_ranks(folder, capsys):
    pairs = [NetworkLink("a", "b", 2e-6, 1e10, 3e-4), NetworkLink("a", "c", 4e-6, 2e10, 5e-4)]
    local = [NetworkLink("a", "a", 5e-7, 8e9, 1e-4)]
    ranks = [RankFacts(rank=i, node=node) for i, node in enumerate("aabc")]
    waits = [MeasuredWait(node, "own core", 2000, [2e-5, 4e-5]) for node in "ab"]
    job = JobFacts(ranks, pairs, local, {"ring": 1.0, "allreduce": 7e-4}, waits)
    assert keep_links(job, 1 << 20, "") and here().read() == link_profile(job, 1 << 20)
    links = {link.key: link for link in here().read().links}
    assert links["other node"].latency_s.median == pytest.approx(3e-6)
    assert links["other node"].bytes_per_s.mean == pytest.approx(1.5e10)
    assert links["same node"].latency_s.count == 1
    sums = {(row.key.ranks, row.key.nodes): row for row in here().read().collectives}
    assert sums.keys() == {(2, 1), (2, 2), (4, 3)}
    assert sums[4, 3].seconds.mean == 7e-4 and sums[4, 3].key.nbytes == 1 << 20
    assert sums[2, 2].seconds.mean == pytest.approx(statistics.fmean([3e-4, 5e-4]))
    (wait,) = here().read().waits  # of two nodes
    assert tuple(wait.key) == ("own core", 2000) and wait.seconds.count == 4
    text = asked(capsys)
    assert "other node" in text and "15 GB/s" in text and "700 us" in text
    (line,) = (line for line in text.splitlines() if line.startswith("own core"))
    assert line.split()[2:] == ["2", "ms", "4", "30", "us", "40", "us"]
    assert not keep_links(JobFacts(ranks[:1]), 1 << 20, "")


@pytest.mark.slow
@pytest.mark.skipif(
    launcher_detection.detect_launcher() is not None, reason="a job cannot start jobs"
)
def test_the_doctor_keeps_what_it_measures(folder):
    command = [sys.executable, "-m", "hpcflow", "doctor", "-n", "2", "--json"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    (link,) = here().read().links
    (pair,) = told["local_links"]
    assert link.key == "same node" and link.latency_s.mean == pytest.approx(pair["latency_s"])
    (total,) = here().read().collectives
    assert total.key.ranks == 2 and total.seconds.count == 2
    late = {(row["policy"], row["waited_us"]): row["late_s"] for row in told["waits"]}
    kept = {tuple(row.key): row.seconds.count for row in here().read().waits}
    assert kept == {key: len(samples) for key, samples in late.items()}
    assert {us for policy, us in kept if policy == "shared cores"} == {200, 2000, 50_000}


@pytest.mark.slow
def test_a_calibration_measures_each_device(folder, capsys, monkeypatch, gpus):  # noqa: F811
    """A double of a GPU, which refuses arrays of the host; it has no convolutions."""
    few = [*itertools.islice(cost_calibration.all_cases(), 4)]
    monkeypatch.setattr(cost_calibration, "all_cases", lambda: few)
    monkeypatch.setattr(cost_calibration, "MOST_SAMPLES", 1)
    monkeypatch.setattr(cost_calibration, "device_names", lambda *_: ["gpu:0", "cpu:0"])
    threads = cpu_threads.chosen_threads().threads
    asked(capsys, "--calibrate", "--seconds", "100", f"--threads={threads}")
    kept = {(row.key.device, row.key.type, row.key.flops) for row in here().read().operations}
    assert {(kind, "MatMul", 2 * 16**3) for kind in ("cpu", "gpu")} <= kept
    assert {kind for kind, type_, _ in kept if type_ == "Fused: Add, Relu"} == {"cpu", "gpu"}
