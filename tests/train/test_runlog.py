"""The run directory: what is written there, by whom, and what a full disk or a resumed run does."""

from __future__ import annotations

import gc
import json
import os
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import HpcflowError, MissingPackageError
from hpcflow.platform.git_state import git_state
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from hpcflow.train import run_records
from tests.runtime.ranks import run_ranks

from .reference import OPTIMIZERS, data, net


def train(context: RankContext) -> None:
    features, labels = data(10)
    x, y, loss, step, _ = net(OPTIMIZERS["adam"][0]())
    dataset = hf.data.Dataset({x: features, y: labels}, batch=4)
    with hf.train.TrainingSession() as session, hf.train.Progress(dataset, 2) as progress:
        for dealt in dataset.epochs(2):
            cost = session.run(loss, dealt)
            session.step(step, dealt)
            progress.update(dealt, loss=np.float32(1.5) if cost is None else cost.mean())
        session.wait()
        session.result()


def open_files() -> set[Path]:
    return {path.resolve() for path in Path("/proc/self/fd").iterdir()}


def log_of(folder: Path, **settings: Any) -> run_records.RunLog:
    log = run_records.run_log_of(RankContext(Settings(run_dir=str(folder), **settings)))
    assert log is not None
    return log


def test_the_chief_writes_manifest_and_metrics(tmp_path: Path) -> None:
    run_ranks(4, train, run_dir=str(tmp_path))
    slow = {run_records.PACES, run_records.EVENTS}  # if the steps took long
    written = {p.name for p in tmp_path.iterdir()} - slow
    assert written == {"manifest.json", "metrics.csv", "result.json"}
    told = json.loads((tmp_path / "manifest.json").read_text())
    assert told["finished"] is True and told["start"] <= told["end"]
    assert told["command"] == sys.orig_argv and told["mode"] == "collective"
    assert told["roles"] == [f"/job:worker/task:{k}" for k in range(4)]
    assert sum(len(ranks) for ranks in told["nodes"].values()) == 4
    assert (told["batch"], told["workers"]) == (4, 4)
    assert told["versions"]["numpy"] == np.__version__
    rows = run_records.read_rows(tmp_path / "metrics.csv")
    assert tuple(rows[0])[:6] == run_records.COLUMNS and "loss" in rows[0]
    last = rows[-1]
    assert (last["step"], last["epoch"], last["samples"]) == ("6", "2", "20")
    assert float(last["samples_per_second"]) > 0


def test_without_a_run_directory_nothing_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_records.run_log_of(RankContext(Settings())) is None
    run_ranks(2, train)
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_rank_that_is_not_the_chief_writes_nothing(tmp_path: Path) -> None:
    context: Any = SimpleNamespace(is_chief=False, settings=Settings(run_dir=str(tmp_path)))
    assert run_records.run_log_of(context) is None


def test_a_run_that_goes_on_appends_and_remembers_its_starts(tmp_path: Path) -> None:
    for step in (1, 2):
        log = log_of(tmp_path)
        log.add(step, 1, 8, {"loss": 0.5 / step}, ends="run")
        log.end(finished=step == 2)
    rows = run_records.read_rows(tmp_path / "metrics.csv")
    assert [row["step"] for row in rows] == ["1", "2"]
    told = json.loads((tmp_path / "manifest.json").read_text())
    assert told["finished"] is True and [start["finished"] for start in told["earlier"]] == [False]


def test_the_second_training_of_a_run_is_recorded_like_the_first(tmp_path: Path) -> None:
    """It is unfinished until its result; warnings and rates are recorded; files are closed."""
    x, y = np.ones((12, 3), np.float32), np.ones((12, 1), np.float32)
    during: list[Any] = []

    def look(epoch: int, logs: Any) -> None:
        told = json.loads((tmp_path / "manifest.json").read_text())
        during.append((told["finished"], told["end"]))
        logger.warning("warning of training %d", len(during))

    def body(context: RankContext) -> None:
        model = hf.Sequential([hf.layers.Dense(1)])
        model.compile("sgd", "mse")
        calls = [hf.callbacks.LambdaCallback(on_epoch_begin=look)] if context.is_chief else []
        for _ in range(2):
            model.fit(x, y, 12, 1, 0, callbacks=calls)
        model.close()
        if context.is_chief:  # another rank may end before the chief has closed its files
            assert tmp_path / "metrics.csv" not in open_files()

    run_ranks(2, body, run_dir=str(tmp_path))
    assert during == [(False, None)] * 2
    told = json.loads((tmp_path / "manifest.json").read_text())
    assert told["finished"] is True and told["end"]
    rows = run_records.read_rows(tmp_path / "metrics.csv")
    assert [row["samples"] for row in rows if row["loss"]] == ["12", "12"]
    assert all(float(row["samples_per_second"]) > 0 for row in rows if row["loss"])
    events = run_records.read_rows(tmp_path / "events.csv")
    assert {f"warning of training {k}" for k in (1, 2)} <= {row["text"] for row in events}


def test_files_are_closed_with_a_log_that_got_rows_after_its_end(tmp_path: Path) -> None:
    context = RankContext(Settings(run_dir=str(tmp_path)))
    log = run_records.run_log_of(context)
    assert log is not None
    log.end(finished=True)
    log.add(9, 1, 9, {"loss": 0.5}, "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del log, context
        gc.collect()
    assert tmp_path / "metrics.csv" not in open_files()


def test_a_new_value_becomes_a_column(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    log.add(1, 1, 8, {"loss": 0.5}, ends="run")
    log.add(2, 1, 16, {"loss": 0.25, "accuracy": 0.75}, ends="run")
    log.add(3, 1, 24, {"loss": 0.125}, ends="run")
    log.end()
    rows = run_records.read_rows(tmp_path / "metrics.csv")
    assert [row["loss"] for row in rows] == ["0.5", "0.25", "0.125"]
    assert [row["accuracy"] for row in rows] == ["", "0.75", ""]


def test_steps_in_quick_succession_share_a_row(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    for step in range(1000):
        log.add(step, 1, 8 * step, {"loss": 0.5})
    log.add(1000, 1, 8000, {"loss": 0.5}, ends="run")
    log.end()
    assert len(run_records.read_rows(tmp_path / "metrics.csv")) < 20


def test_a_full_disk_is_told_once_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, said = log_of(tmp_path), []
    (tmp_path / "metrics.csv").symlink_to("/dev/full")
    monkeypatch.setattr(log._rows, "_names", [*run_records.COLUMNS])
    monkeypatch.setattr(run_records.logger, "warning", lambda words, *a: said.append(words % a))
    for step in (1, 2, 3):
        log.add(step, 1, 8, {}, ends="run")
    assert len(said) == 1 and "No space left" in said[0]


def test_a_run_directory_that_cannot_be_made_ends_the_run_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HpcflowError, match="cannot be written") as caught:
        log_of(tmp_path / "file" / "run")
    assert "--run-dir" in str(caught.value)


def test_events_for_tensorboard_are_a_librarys(tmp_path: Path) -> None:
    log = log_of(tmp_path, tensorboard=True)
    log.add(1, 1, 8, {"loss": 0.5}, ends="run")
    log.end()
    (events,) = tmp_path.glob("events.out.tfevents.*")
    assert b"loss" in events.read_bytes() and b"samples_per_second" in events.read_bytes()


def test_without_that_library_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tensorboardX", "tensorboard", "tensorboard.summary"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError, match="tensorboardX") as caught:
        log_of(tmp_path, tensorboard=True)
    assert "hpcflow-mpi[tensorboard]" in str(caught.value)


def test_secrets_stay_out_of_the_manifest() -> None:
    given = {"SLURM_JOB_ID": "7", "SLURM_JWT": "x", "OMP_NUM_THREADS": "2", "HOME": "/home/u"}
    assert run_records.environment(given) == {"OMP_NUM_THREADS": "2", "SLURM_JOB_ID": "7"}


def test_what_decides_which_libraries_are_loaded_is_in_the_manifest() -> None:
    given = {"LD_LIBRARY_PATH": "/opt/mpi/lib", "MPI4PY_LIBMPI": "/opt/mpi/lib/libmpi.so"}
    given |= {"PATH": "/opt/mpi/bin", "PYTHONPATH": "/pack", "LD_PRELOAD": "libx.so"}
    assert run_records.environment({**given, "EDITOR": "vi"}) == given


def test_modules_are_those_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADEDMODULES", "gcc/13.2:openmpi/5.0.3")
    told = run_records.manifest(RankContext(Settings(run_dir=str(tmp_path))))
    assert told["modules"] == ["gcc/13.2", "openmpi/5.0.3"]


def test_the_commit_and_changed_files_of_the_scripts_folder(tmp_path: Path) -> None:
    assert git_state(str(tmp_path)) is None
    git = f"git -C {tmp_path} -c user.name=u -c user.email=u@h"
    (tmp_path / "model.py").write_text("1\n")
    assert os.system(f"{git} init -q && {git} add . && {git} commit -q -m one") == 0
    (tmp_path / "model.py").write_text("2\n")
    state = git_state(str(tmp_path))
    assert state is not None
    assert len(state["commit"]) == 40 and state["changed"] == ["model.py"]
