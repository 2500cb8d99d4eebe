"""Runs for other programs: a table of CSV, and what the libraries of trackers are given."""

from __future__ import annotations

import csv
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from hpcflow.cli import main as cli
from hpcflow.report import experiment_trackers
from tests.test_report import write

START, END = "2026-03-01T10:00:00+01:00", "2026-03-01T10:00:30+01:00"
START_S = 1772355600.0  # date -d 2026-03-01T09:00:00Z +%s
METRICS = """\
time,seconds,step,epoch,samples,samples_per_second,loss,val_loss
1772355601.5,1.0,1,1,64,10.0,0.5,
1772355602.5,2.0,2,1,128,12.0,0.25,
1772355603.0,2.5,2,1,128,,,0.75
1772355604.0,3.0,3,2,192,13.0,nan,
"""


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """A run that has finished, with hostile texts, and one that has died."""
    manifest = {
        "script": "/home/u/digits.py",
        "command": ["python", "-m", "hpcflow", "run", "digits.py", "--lr", "0.1", "--tag=a\nb"],
        "settings": {"comm": "auto", "run_dir": "r", "checkpoints": "=HYPERLINK(1)"},
        "versions": {"numpy": "2.0"},
        "git": {"commit": "0123456789abcdef", "changed": False},
        "start": START,
        "end": END,
    }
    said = {"accuracy": 0.9, "best": "-1+cmd|x", "seconds_to_first_step": 4.5, "classes": [1, 2]}
    one = write(tmp_path / "=one\u202e", 2, 64, 11.0, manifest=manifest, said=said)
    Path(one, "metrics.csv").write_text(METRICS)
    two = write(tmp_path / "two", 2, 64, 11.0, finished=False, manifest={"start": START})
    Path(two, "metrics.csv").write_text("time,seconds,step,a/b,a.b,..\n1.5,1.0,1,1,2,3\n")
    return [one, two]


def table(file: Path) -> dict[str, dict[tuple[str, str], str]]:
    """Run -> (step, metric) -> value; each is told once."""
    found: dict[str, dict[tuple[str, str], str]] = {}
    for row in csv.DictReader(file.read_text().splitlines()):
        values = found.setdefault(row["run"], {})
        assert (row["step"], row["metric"]) not in values
        values[row["step"], row["metric"]] = row["value"]
    return found


def test_csv_has_metrics_config_results_state_and_times(runs: list[str], tmp_path: Path) -> None:
    assert cli.main(["report", *runs, "--csv", str(tmp_path / "out.csv")]) == 0
    one, two = table(tmp_path / "out.csv").values()
    assert list(table(tmp_path / "out.csv")) == ["'=one\\u202e", "two"]
    assert {step: one.get((step, "loss")) for step in "123"} == {
        "1": "0.5",
        "2": "0.25",
        "3": "nan",
    }
    assert {k[0] for k in one if k[1] == "val_loss"} == {"2"} and one["2", "val_loss"] == "0.75"
    assert (one["2", "time"], one["2", "samples"], one["2", "samples_per_second"]) == (
        "1772355602.5",
        "128",
        "12.0",
    )
    whole = {name: value for (step, name), value in one.items() if step == ""}
    assert float(whole["start"]) == START_S and float(whole["end"]) == START_S + 30
    assert whole["state"] == "finished" and two["", "state"] == "died" and two["", "ended"]
    expected = {
        "config/script/--lr": "0.1",
        "config/script/--tag": "a\\nb",
        "config/settings/comm": "auto",
        "config/settings/checkpoints": "'=HYPERLINK(1)",
        "config/versions/numpy": "2.0",
        "config/git/commit": "0123456789abcdef",
        "result/accuracy": "0.9",
        "result/best": "'-1+cmd|x",
        "result/classes": "[1, 2]",
        "seconds_to_first_step": "4.5",
        "ranks": "2",
        "steps": "3",
        "batch": "64",
    }
    assert {name: whole.get(name) for name in expected} == expected


def test_a_folder_without_a_run_is_named(runs: list[str], tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "none").mkdir()
    target = tmp_path / "out.csv"
    assert cli.main(["report", runs[0], str(tmp_path / "none"), "--csv", str(target)]) == 1
    assert len(table(target)) == 1 and "no run in" in capsys.readouterr().err
    assert cli.main(["report", str(tmp_path / "none"), "--csv", str(tmp_path / "no.csv")]) == 1
    assert not (tmp_path / "no.csv").exists()
    assert cli.main(["report", runs[0], "--csv", str(target), "--redact"]) == 2


@pytest.mark.parametrize("package", ["wandb", "mlflow"])
def test_a_missing_package_is_named_with_its_command(
    package: str, runs: list[str], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert cli.main(["report", *runs, f"--{package}", str(tmp_path / "out")]) == 1
    assert f"pip install 'hpcflow-mpi[{package}]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_wandb_gets_the_steps_and_the_facts(
    runs: list[str], tmp_path: Path, monkeypatch: Any
) -> None:
    """A double of the library writes what it is given."""
    jobs: list[Any] = []

    class Job:
        def __init__(self, given: dict[str, Any]) -> None:
            self.given, self.logged, self.summary, self.code = given, [], {}, None
            self.dir = f"{given['dir']}/wandb/offline-run-{len(jobs)}/files"
            jobs.append(self)

        def log(self, row: dict[str, float], step: int) -> None:
            self.logged.append((step, row))

        def finish(self, exit_code: int) -> None:
            self.code = exit_code

    double = types.ModuleType("wandb")
    double.__dict__.update(
        Settings=lambda **given: given,
        init=lambda **given: Job(given),
        errors=types.SimpleNamespace(Error=RuntimeError),
    )
    monkeypatch.setitem(sys.modules, "wandb", double)
    assert cli.main(["report", *runs, "--wandb", str(tmp_path / "wb")]) == 0
    one, two = jobs
    assert (one.given["mode"], one.given["name"], one.given["dir"]) == (
        "offline",
        "=one\\u202e",
        str(tmp_path / "wb"),
    )
    assert one.given["config"]["script/--lr"] == "0.1" and one.given["config"]["settings/comm"]
    assert [step for step, _ in one.logged] == [1, 2, 3]
    row = one.logged[1][1]
    assert (row["loss"], row["val_loss"], row["_timestamp"]) == (0.25, 0.75, 1772355602.5)
    assert one.summary["run/state"] == "finished" and one.summary["run/result/accuracy"] == 0.9
    assert one.summary["run/start"] == START_S
    assert (one.code, two.code) == (0, 1)


def test_mlflow_gets_the_steps_and_the_facts(
    runs: list[str], tmp_path: Path, monkeypatch: Any
) -> None:
    calls: list[tuple[str, Any]] = []

    class Client:
        def __init__(self, tracking_uri: str) -> None:
            assert tracking_uri == (tmp_path / "ml").as_uri()

        def get_experiment_by_name(self, name: str) -> None:
            assert name == "hpcflow"

        def create_experiment(self, name: str) -> str:
            return "7"

        def create_run(self, experiment: str, start_time: int, run_name: str) -> Any:
            calls.append(("run", (experiment, start_time, run_name)))
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_name))

        def log_batch(self, run: str, **rows: Any) -> None:
            for kind, values in rows.items():
                assert 0 < len(values) <= {"metrics": 1000, "params": 100, "tags": 100}[kind]
                calls.extend((f"{run} {kind}", value) for value in values)

        def set_terminated(self, run: str, status: str, end_time: int) -> None:
            calls.append((f"{run} end", (status, end_time)))

    def module(name: str, **members: Any) -> None:
        double = types.ModuleType(name)
        double.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, double)

    module("mlflow")
    module("mlflow.exceptions", MlflowException=RuntimeError)
    module("mlflow.tracking", MlflowClient=Client)
    entities = dict.fromkeys(("Metric", "Param", "RunTag"), lambda *values: values)
    module("mlflow.entities", **entities)
    assert cli.main(["report", *runs, "--mlflow", str(tmp_path / "ml")]) == 0

    def given(kind: str) -> list[Any]:
        return [value for name, value in calls if name == kind]

    assert given("run")[0] == ("7", int(START_S * 1000), "=one\\u202e")
    metrics = given("=one\\u202e metrics")
    assert ("val_loss", 0.75, 1772355602500, 2) in metrics
    assert [m[3] for m in metrics if m[0] == "loss"] == [1, 2, 3]
    assert ("run.result.accuracy", 0.9, int((START_S + 30) * 1000), 0) in metrics
    params = dict(given("=one\\u202e params"))
    assert (params["script.--lr"], params["script.--tag"]) == ("0.1", "a\\nb")
    assert ("run.result.best", "-1+cmd|x") in given("=one\\u202e tags")
    assert given("=one\\u202e end") == [("FINISHED", int((START_S + 30) * 1000))]
    assert given("two end")[0][0] == "FAILED"
    assert {m[:2] for m in given("two metrics") if m[3] == 1} >= {("a.b", 1.0), ("a.b_2", 2.0)}


def test_names_for_mlflow_are_plain_files() -> None:
    names = ["a/b", "a.b", "../x", "/etc/passwd", "ä", "..", "", "x" * 999, "loss"]
    cleaned = experiment_trackers.clean(dict.fromkeys(names, 0))
    assert len(cleaned) == len(names) and "loss" in cleaned
    for name in cleaned:
        assert name.isascii() and "/" not in name and not name.startswith(".")
        assert 0 < len(name) <= 250


def test_a_validation_does_not_replace_its_step(runs: list[str], tmp_path: Path) -> None:
    """Nor does it in a report; the repeated steps of a resumed run do."""
    with open(Path(runs[0], "metrics.csv"), "a") as file:
        file.write("1772355700,1.0,2,1,128,12.0,0.125,\n")
    assert cli.main(["report", runs[0], "--json", str(tmp_path / "f.json")]) == 0
    last = json.loads((tmp_path / "f.json").read_text())["runs"][0]["last"]
    assert last == {"loss": 0.125}
