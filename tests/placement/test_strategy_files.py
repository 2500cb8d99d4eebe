"""benchmarks/training_times.py: files of measured steps in, predictions or figures out."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hpcflow.placement.parallel_strategy import TrainingSetup

from . import strategy_machine

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import training_rows
import training_times

SETUPS = strategy_machine.setups()
MEASURED = strategy_machine.noisy(SETUPS, seed=2)
HEAD = [*training_rows.COLUMNS, training_rows.MEASURED]


def cells(setup: TrainingSetup) -> list[int]:
    model, strategy = setup.model, setup.strategy
    return [
        *(strategy.devices, strategy.global_batch, strategy.micro_batch, model.hidden),
        *(model.heads, model.layers, model.sequence),
        *(strategy.tensor, strategy.data, strategy.pipeline),
    ]


def write(file: Path, rows: Sequence[int], measured: bool = True) -> Path:
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(HEAD if measured else HEAD[:-1])
        for row in rows:
            times = [f"{1e3 * MEASURED[row]:.6f}"] if measured else []
            writer.writerow([*cells(SETUPS[row]), *times])
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Tables, rows to fit to and rows to predict."""
    for ranks, (sizes, times) in strategy_machine.tables().by_ranks.items():
        rows = [f"{size:.0f},{1e9 * time:.0f}" for size, time in zip(sizes, times, strict=True)]
        text = "\n".join(["size(B),time(ns)", *rows])
        (tmp_path / f"AR_GPU{ranks}_made").write_text(text + "\n")
    drawn = np.random.default_rng(3).choice(len(SETUPS), 20, replace=False)
    write(tmp_path / "fit.csv", drawn)
    write(tmp_path / "rows.csv", range(60, 160), measured=False)
    return tmp_path


def call(monkeypatch: pytest.MonkeyPatch, folder: Path, *options: object) -> int:
    """The exit status of the benchmark."""
    words = ["training_times.py", "--allreduce", folder, "--vocabulary", "30720", *options]
    monkeypatch.setattr(sys, "argv", [str(word) for word in words])
    try:
        training_times.main()
    except SystemExit as end:
        assert isinstance(end.code, int)
        return end.code
    return 0


def predict(monkeypatch: pytest.MonkeyPatch, folder: Path) -> int:
    files = folder / "fit.csv", folder / "rows.csv", folder / "out.csv"
    named = zip(("--fit", "--predict", "--out"), files, strict=True)
    return call(monkeypatch, folder, *(word for pair in named for word in pair))


def test_rows_come_back_in_order_with_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert predict(monkeypatch, folder) == 0
    with (folder / "rows.csv").open() as before, (folder / "out.csv").open() as after:
        given, found = list(csv.reader(before)), list(csv.reader(after))
    assert [row[:-1] for row in found] == given
    assert found[0][-1] == "predicted time (ms)"
    times = np.array([float(row[-1]) for row in found[1:]])
    assert np.abs(times / (1e3 * MEASURED[60:160]) - 1).mean() < 0.08


def test_columns_may_be_in_any_order_among_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert predict(monkeypatch, folder) == 0
    first = (folder / "out.csv").read_text().splitlines()
    with (folder / "rows.csv").open() as file:
        rows = [["note", *reversed(row)] for row in csv.reader(file)]
    with (folder / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    assert predict(monkeypatch, folder) == 0
    second = (folder / "out.csv").read_text().splitlines()
    last = [[line.rpartition(",")[2] for line in lines] for lines in (first, second)]
    assert last[0] == last[1] and second[1].startswith("note,")


DAMAGE = {
    "empty": ("fit.csv", lambda text: "", "fit.csv: the file is empty"),
    "head alone": ("rows.csv", lambda text: text.splitlines()[0], "rows.csv: there are no rows"),
    "few rows": (
        *("fit.csv", lambda text: "\n".join(text.splitlines()[:6])),
        "fit.csv, line 6: 5 rows, but a fit needs 8",
    ),
    "no column": (
        *("rows.csv", lambda text: text.replace("hidden size", "hidden")),
        "rows.csv, line 1: the column 'hidden size' is missing",
    ),
    "no time": (
        *("fit.csv", lambda text: text.replace("iteration time (ms)", "time")),
        "fit.csv, line 1: the column 'iteration time (ms)' is missing",
    ),
    "no number": (
        *("rows.csv", lambda text: changed(text, 5, 2, "many")),
        "rows.csv, line 5: micro batch: 'many' is not a positive number",
    ),
    "nan": (
        *("fit.csv", lambda text: changed(text, 3, 10, "nan")),
        "fit.csv, line 3: iteration time (ms): 'nan' is not a positive number",
    ),
    "half a head": (
        *("rows.csv", lambda text: changed(text, 4, 4, "7.5")),
        "rows.csv, line 4: attention heads: '7.5' is not a count",
    ),
    "degrees": (
        *("rows.csv", lambda text: changed(text, 7, 0, "3")),
        "rows.csv, line 7: the degrees",
    ),
    "batch": (
        *("rows.csv", lambda text: changed(text, 2, 1, "1000003")),
        "rows.csv, line 2: a global batch of 1000003 cannot be split",
    ),
    "layers": (
        *("rows.csv", lambda text: changed(changed(text, 2, 9, "64"), 2, 0, "64")),
        "rows.csv, line 2: ",
    ),
    "cells": ("rows.csv", lambda text: text + "1,2\n", "rows.csv, line 102: 2 cells"),
    "bytes": ("rows.csv", lambda text: text + "\udcff", "rows.csv: "),
    "table": (
        *("AR_GPU4_made", lambda text: changed(text, 3, 1, "-5")),
        "AR_GPU4_made, line 3: time(ns): '-5' is not a positive number",
    ),
    "table order": (
        *("AR_GPU4_made", lambda text: changed(text, 4, 0, "1")),
        "AR_GPU4_made, line 4: sizes do not ascend",
    ),
    "escape": (
        *("rows.csv", lambda text: changed(text, 2, 3, "\x1b[31m")),
        "rows.csv, line 2: hidden size: '\\x1b[31m' is not",
    ),
}


def changed(text: str, line: int, column: int, cell: str) -> str:
    """The text with another cell; lines count from 1, columns from 0."""
    lines = [row.split(",") for row in text.splitlines()]
    lines[line - 1][column] = cell
    return "".join(",".join(row) + "\n" for row in lines)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_cannot_be_used_is_named_with_its_line(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    damage: str,
) -> None:
    name, change, message = DAMAGE[damage]
    file = folder / name
    file.write_text(change(file.read_text()), errors="surrogateescape")
    assert predict(monkeypatch, folder) == 2
    said = capsys.readouterr().err
    assert message in said and "\x1b" not in said
    assert not (folder / "out.csv").exists()


def test_what_is_not_there_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "AR_GPU4_made").unlink()
    assert predict(monkeypatch, folder) == 2
    assert "no all-reduce table of 4 GPUs" in capsys.readouterr().err
    (folder / "rows.csv").unlink()
    assert predict(monkeypatch, folder) == 2
    assert "rows.csv: No such file" in capsys.readouterr().err
    for file in folder.glob("AR_GPU*"):
        file.unlink()
    assert predict(monkeypatch, folder) == 2
    assert "no file AR_GPU{n}_*" in capsys.readouterr().err


def test_the_options_that_belong_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ((), ("--fit", "a.csv"), ("--protocol", "a.csv", "--predict", "b.csv")):
        assert call(monkeypatch, folder, *options) == 2


def test_the_protocol_writes_errors_and_choices(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "all.csv", range(len(SETUPS)))
    result = folder / "result.json"
    assert call(monkeypatch, folder, "--protocol", folder / "all.csv", "--out", result) == 0
    record = json.loads(result.read_text())
    error, mean, tail, worst = (row["value"] for row in record["checks"])
    assert 0 < error < 6 and 0 <= mean < 1 and mean <= tail <= worst
    assert [row["samples"] for row in record["rows"]] == [5, 5, 1, 5, 5]


def test_the_figures_of_a_draw_are_those_of_its_definition(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a predictor that is 10 % too slow, but takes tensor parallelism for free."""
    write(folder / "all.csv", range(len(SETUPS)))
    rows = training_rows.read_rows(folder / "all.csv", 30720, measured=True)

    class Fixed:
        def seconds(self, setups: Sequence[TrainingSetup]) -> np.ndarray:
            free = np.array([1e-6 if s.strategy.tensor > 2 else 1.1 for s in setups])
            return free * np.array(rows.seconds)

    monkeypatch.setattr(training_times, "fit_predictor", lambda *_: Fixed())
    error, slower = training_times.draw(rows, strategy_machine.tables(), 0)
    drawn = np.random.default_rng(0).choice(len(SETUPS), 20, replace=False)
    wide = np.array([s.strategy.tensor > 2 for s in SETUPS])
    kept = np.delete(wide, drawn)
    assert error == pytest.approx(np.where(kept, 1 - 1e-6, 0.1).mean(), rel=1e-3)
    expected = []
    for group in strategy_machine.by_group(SETUPS):
        free = [i for i in group if wide[i]]
        times = MEASURED[group]
        expected.append(min(MEASURED[free or group]) / times.min() - 1)
    assert sorted(slower) == pytest.approx(sorted(expected), abs=1e-5)


def test_published_tables_have_two_times_in_a_row(tmp_path: Path) -> None:
    """Out of place, then in place: the first counts."""
    table = "size(B),count,type,time(ns),busbw(GB/s),time(ns),busbw(GB/s)\n"
    table += "1024,256,float,5000,1,7000,1\n2048,512,float,6000,1,8000,1\n"
    (tmp_path / "AR_GPU2_1M_1024M_LUT").write_text(table)
    tables = training_rows.read_tables(tmp_path)
    assert tables.seconds(np.array([2, 2]), np.array([1024, 2048])) == pytest.approx([5e-6, 6e-6])
