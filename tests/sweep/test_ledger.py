"""The ledger of a sweep: states, the snapshot of the code, and processes that were killed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hpcflow.cli import main as cli
from hpcflow.errors import HpcflowError
from hpcflow.monitoring import run_directory_lock
from hpcflow.sweep import code_snapshot, ledger_run, run_ledger, run_metric
from hpcflow.sweep.run_ledger import Ledger, LedgerRun, RunState
from tests.sweep.made_sweeps import Made, made_sweep


def ledger(folder: Path, runs: int = 1) -> Ledger:
    script = folder / "code" / "train.py"
    script.parent.mkdir(parents=True)
    script.write_text("print(1)\n")
    files = code_snapshot.code_files(script)
    made = Ledger.create(folder / "sweep", {"metric": "loss"}, script, files)
    made.add([LedgerRun(f"{n}", 1, {}, [], {"n": str(n)}) for n in range(runs)])
    return made


def test_a_ledger_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = ledger(tmp_path, 2)
    made.record("1", RunState(run_ledger.DONE, attempts=2, exit_code=0, value=0.5))
    again = Ledger.open(made.folder)
    assert again is not None and again.runs == made.runs and again.id == made.id
    assert again.state("0").state == run_ledger.PENDING
    assert again.state("1") == RunState(run_ledger.DONE, attempts=2, exit_code=0, value=0.5)


def test_a_running_state_without_a_process_is_preempted_and_the_third_has_failed(
    tmp_path: Path,
) -> None:
    made = ledger(tmp_path)
    for lost in range(run_ledger.MOST_LOST):
        before = made.recorded("0")
        assert before.lost == lost
        made.record("0", RunState(run_ledger.RUNNING, attempts=lost + 1, lost=lost))
        made.settle()
    assert made.recorded("0").state == run_ledger.FAILED
    assert "was killed, or its node failed, 3 times" in made.recorded("0").reason


def test_a_killed_process_whose_run_has_finished_is_not_repeated(tmp_path: Path) -> None:
    made = ledger(tmp_path)
    folder = made.run_folder("0")
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text('{"finished": true}')
    (folder / "result.json").write_text('{"loss": 0.25}')
    made.record("0", RunState(run_ledger.RUNNING, attempts=1))
    assert ledger_run.main([str(made.folder), "0"]) == 0
    found = made.recorded("0")
    assert (found.state, found.attempts, found.value) == (run_ledger.DONE, 1, 0.25)


def test_a_run_that_another_process_holds_is_running(tmp_path: Path) -> None:
    made = ledger(tmp_path)
    lock = made.lock_folder("0")
    lock.mkdir(parents=True)
    holder = {**run_directory_lock.this_job(), "pid": os.getppid(), "begun": None}
    (lock / run_directory_lock.NAME).write_text(json.dumps(holder))
    made.record("0", RunState(run_ledger.RUNNING, attempts=1))
    made.settle()
    assert made.state("0").state == run_ledger.RUNNING
    assert ledger_run.main([str(made.folder), "0"]) == 0  # it does not run it a second time
    assert made.recorded("0") == RunState(run_ledger.RUNNING, attempts=1)


@pytest.mark.parametrize("state", run_ledger.ENDED)
def test_a_run_that_has_ended_is_not_run_again(tmp_path: Path, state: str) -> None:
    made = ledger(tmp_path)
    made.record("0", RunState(state, attempts=1))
    assert ledger_run.main([str(made.folder), "0"]) == 0
    assert made.recorded("0") == RunState(state, attempts=1)


def test_runs_that_another_command_has_just_added_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of SLURM may add a rung between the first look at a folder and its lock."""
    made = ledger(tmp_path)
    path = made.folder / "sweep.json"
    spec = {"search": "grid", "metric": "", "mode": ""}
    path.write_text(json.dumps({**json.loads(path.read_text()), "spec": spec}))
    made.record("0", RunState(run_ledger.DONE))
    claim = run_directory_lock.claim_directory

    def claims(folder: Path, label: str) -> None:
        other = Ledger.open(made.folder)
        if other is not None and len(other.runs) == 1:
            other.record("1", RunState(run_ledger.DONE))
            other.add([LedgerRun("1", 1, {}, [], {}, group=1)])
        claim(folder, label)

    monkeypatch.setattr(run_directory_lock, "claim_directory", claims)
    assert cli.main(["sweep", str(made.folder)]) == 0
    for name in ("sweep.json", "results.json"):
        assert len(json.loads((made.folder / name).read_text())["runs"]) == 2, name


def test_an_error_of_the_process_is_the_reason_and_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_run.signal, "signal", lambda number, handler: None)
    made = ledger(tmp_path)
    data = json.loads((made.folder / "sweep.json").read_text())
    (made.folder / "sweep.json").write_text(json.dumps({**data, "cwd": str(tmp_path / "gone")}))
    assert ledger_run.main([str(made.folder), "0"]) == 1
    found = made.recorded("0")
    assert found.state == run_ledger.FAILED and "FileNotFoundError" in found.reason


def test_failures_are_forgotten_and_what_is_done_stays(tmp_path: Path) -> None:
    made = ledger(tmp_path, 4)
    states = (run_ledger.DONE, run_ledger.FAILED, run_ledger.TIMEOUT, run_ledger.PREEMPTED)
    for name, state in enumerate(states):
        made.record(str(name), RunState(state, attempts=1))
    made.forget_failures()
    found = [made.recorded(str(name)).state for name in range(4)]
    assert found == ["done", "pending", "pending", "preempted"]
    made.record("1", RunState(run_ledger.FAILED))
    made.add([LedgerRun("4", 1, {}, [], {}, group=1)])  # the next rung is decided by the first
    made.forget_failures()
    assert made.recorded("1").state == run_ledger.FAILED


@pytest.mark.parametrize(
    "text",
    [
        *('{"state": "gone"}', "[]", "{"),
        '{"state": "done", "value": "abc"}',
        '{"state": "done", "value": NaN}',
        '{"state": "done", "cores": ["a"]}',
        '{"state": "running", "pid": -1}',
    ],
)
def test_a_damaged_state_is_an_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    made = ledger(tmp_path)
    made.record("0", RunState(run_ledger.DONE))
    (made.lock_folder("0") / "state.json").write_text(text)
    with pytest.raises(HpcflowError, match=r"state\.json"):
        made.state("0")


@pytest.mark.parametrize(
    "change",
    [
        *({"runs": []}, {"runs": [{"name": "0"}]}, {"spec": []}, {"cwd": 3}, {"format": "other"}),
        {"runs": None},
    ],
)
def test_a_damaged_list_of_runs_is_an_error_that_names_the_file(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    made = ledger(tmp_path)
    path = made.folder / "sweep.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(HpcflowError, match=r"sweep\.json is not what hpcflow writes there"):
        Ledger.open(made.folder)


def test_a_folder_of_other_runs_or_other_code_is_refused(tmp_path: Path) -> None:
    made = ledger(tmp_path)
    files = code_snapshot.code_files(tmp_path / "code" / "train.py")
    made.check_same({"metric": "loss"}, files)
    with pytest.raises(HpcflowError, match="they differ in metric"):
        made.check_same({"metric": "accuracy"}, files)
    with pytest.raises(HpcflowError, match="differ in the arguments of the script, the numbers of"):
        made.check_same({"metric": "loss", "words": ["--fast"], "ranks": [1, 2]}, files, "scale")
    with pytest.raises(HpcflowError, match=r"train\.py has changed"):
        made.check_same({"metric": "loss"}, {"train.py": b"print(2)\n"})


def test_a_folder_of_the_user_is_never_replaced(tmp_path: Path) -> None:
    script = tmp_path / "work" / "train.py"
    (tmp_path / "out" / "code").mkdir(parents=True)
    (tmp_path / "out" / "code" / "thesis.tex").write_text("precious")
    script.parent.mkdir()
    script.write_text("")
    files = code_snapshot.code_files(script)
    with pytest.raises(HpcflowError, match="no copy of code that hpcflow has made"):
        Ledger.create(tmp_path / "out", {}, script, files)
    assert (tmp_path / "out" / "code" / "thesis.tex").read_text() == "precious"
    for place in (tmp_path / "work", tmp_path):
        with pytest.raises(HpcflowError, match="holds the script"):
            code_snapshot.check_place(script, place)
    with pytest.raises(HpcflowError, match="is no folder"):
        code_snapshot.check_place(tmp_path / "other" / "x.py", script)


def test_what_a_killed_first_command_leaves_is_no_code(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("a")
    files = code_snapshot.code_files(tmp_path / "train.py")
    code_snapshot.write_snapshot(files, tmp_path / "sweeps" / "t" / "code")
    assert code_snapshot.code_files(tmp_path / "train.py") == files
    Ledger.create(tmp_path / "sweeps" / "t", {}, tmp_path / "train.py", files)  # and it is replaced


def test_the_snapshot_has_the_code_and_neither_data_nor_runs(tmp_path: Path) -> None:
    files = {
        "train.py": "a",
        "net/model.py": "b",
        "conf.yaml": "c",
        "data.bin": "d",
        "big.json": "e" * (code_snapshot.LARGEST_FILE + 1),
        ".git/x.py": "f",
        "runs/1/manifest.json": "{}",
        "runs/1/x.py": "g",
        "env/pyvenv.cfg": "",
        "env/lib/x.py": "h",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = code_snapshot.code_files(tmp_path / "train.py")
    assert set(found) == {"train.py", "net/model.py", "conf.yaml"}
    code_snapshot.write_snapshot(found, tmp_path / "copy")
    assert code_snapshot.changes(found, tmp_path / "copy") == []
    other = {**found, "net/model.py": b"B", "new.py": b"", "conf.yaml": b"of a run"}
    assert code_snapshot.changes(other, tmp_path / "copy") == ["net/model.py"]
    del other["train.py"]
    assert code_snapshot.changes(other, tmp_path / "copy") == ["net/model.py", "train.py"]
    assert code_snapshot.digest(found) != code_snapshot.digest({**found, "train.py": b"x"})


def test_too_much_code_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_snapshot, "MOST_FILES", 3)
    for name in "abcd":
        (tmp_path / f"{name}.py").write_text("")
    with pytest.raises(HpcflowError, match="a folder of its own"):
        code_snapshot.code_files(tmp_path / "a.py")


def test_the_metric_is_that_of_the_result_else_the_last_of_the_rows(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(
        "step,epoch,seconds,time,samples_per_second,loss\n1,1,1,1,8,3.0\n2,1,2,2,8,2.5\n"
    )
    assert run_metric.metric_of(tmp_path, "loss") == (2.5, "")
    large = "1" + "0" * 400
    (tmp_path / "result.json").write_text(
        f'{{"loss": 0.25, "accuracy": NaN, "good": true, "large": {large}}}'
    )
    assert run_metric.metric_of(tmp_path, "loss") == (0.25, "")
    for name in ("accuracy", "good", "large"):
        value, reason = run_metric.metric_of(tmp_path, name)
        assert value is None and "is no finite number" in reason
    value, reason = run_metric.metric_of(tmp_path, "auc")
    assert run_metric.metric_of(tmp_path, "best:loss", "min") == (2.5, "")
    assert run_metric.metric_of(tmp_path, "best:loss", "max") == (3.0, "")
    assert "there is no metric auc; it has loss" in run_metric.metric_of(tmp_path, "best:auc")[1]
    assert value is None and "there is no metric auc; it has loss, accuracy, good, large" in reason


def test_a_run_gets_its_settings_and_a_folder_for_checkpoints(tmp_path: Path) -> None:
    made = ledger(tmp_path)
    run = LedgerRun("7", 4, {"sync": "all"}, ["--rate=1"], {})
    command = ledger_run.command_of(made, run)
    folder = made.folder / "runs" / "7"
    assert command[command.index("run") :] == [
        *("run", "-n", "4", f"--set=run_dir={folder}", "--set=sync=all"),
        f"--set=default_checkpoints={folder}/checkpoints",
        *(str(made.folder / "code" / "train.py"), "--", "--rate=1"),
    ]
    own = LedgerRun("7", 1, {"checkpoints": "here"}, [], {})
    assert not any("default_checkpoints" in word for word in ledger_run.command_of(made, own))


def test_the_metric_of_a_sweep_that_is_over_can_change(tmp_path: Path, capsys: Any) -> None:
    """The rates of the runs are 900, 901 and 902 samples/s; their losses fall."""
    runs = [Made({"rate": k}, None, reason="there is no metric los") for k in range(3)]
    folder = made_sweep(tmp_path / "s", runs)
    words = ["sweep", str(folder), "--metric", "samples_per_second"]
    assert cli.main([*words, "--mode", "max"]) == 0
    printed = capsys.readouterr()
    assert "best: 0002, samples_per_second 902: rate=2" in printed.out
    assert "there is no metric" not in printed.out
    data = json.loads((folder / "results.json").read_text())
    assert [run["metric"] for run in data["runs"]] == [900.0, 901.0, 902.0]
    assert (data["metric"], data["mode"]) == ("samples_per_second", "max")
    assert cli.main([*words, "--mode", "min"]) == 0
    assert "best: 0000, samples_per_second 900" in capsys.readouterr().out


def test_a_metric_that_no_run_has_is_said_with_the_command_that_changes_it(
    tmp_path: Path, capsys: Any
) -> None:
    folder = made_sweep(tmp_path / "s", [Made({"rate": 1}, 0.5)])
    assert cli.main(["sweep", str(folder), "--metric", "val_los"]) == 1
    assert f"next  hpcflow sweep {folder} --metric NAME" in capsys.readouterr().err


def test_the_metric_of_later_rungs_and_of_runs_that_go_on_stays(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    runs = [Made({"rate": k}, 1.0 + k) for k in range(3)] + [Made({"rate": 0}, 0.5, rung=1)]
    folder = made_sweep(tmp_path / "h", runs, "halving", budget="epochs")
    before = (folder / "sweep.json").read_bytes()
    words = ["--metric", "samples_per_second", "--mode", "max"]
    assert cli.main(["sweep", str(folder), *words]) == 2
    assert "were chosen by loss (min)" in capsys.readouterr().err
    assert (folder / "sweep.json").read_bytes() == before
    grid = made_sweep(tmp_path / "g", [Made({"rate": 0}, 1.0)])
    monkeypatch.setattr(Ledger, "is_held", lambda self, name: True)
    assert cli.main(["sweep", str(grid), *words]) == 2
    assert "the run 0000 goes on" in capsys.readouterr().err
