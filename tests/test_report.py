"""`hpcflow report`: runs are read from their directories, compared and drawn."""

from __future__ import annotations

import csv
import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcflow.cli import main as cli
from hpcflow.report import picture, runs, text


def write(folder: Path, ranks: int, batch: int, rate: float, **more: Any) -> str:
    """A run directory as training leaves it; `more` are `mode`, `rows`, `servers` and so on."""
    folder.mkdir(parents=True)
    servers = more.get("servers", 0)
    mode = more.get("mode", "collective" if ranks > 1 else "single")
    result = {"mode": mode, "ranks": ranks, "replicas": ranks - servers, "seconds": 12.5}
    result |= {"input_wait_seconds": more.get("waits", [0.5] * (ranks - servers))}
    result |= {"samples_per_second": rate, "steps": [100] * (ranks - servers)}
    manifest = {"script": "/home/u/digits.py", "batch": batch, "workers": ranks - servers}
    manifest |= {"nodes": {f"n{i}": [i] for i in range(ranks)}, "roles": ["x"] * ranks}
    manifest |= {"finished": more.get("finished", True)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    if manifest["finished"]:
        (folder / "result.json").write_text(json.dumps(result))
    names = ["time", "seconds", "step", "epoch", "samples", "samples_per_second", "loss"]
    with open(folder / "metrics.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for step in more.get("rows", range(1, 11)):
            writer.writerow([step, step / 10, step, 1, step * batch, rate, 1 / step])
    return str(folder)


def test_strong_and_weak_are_told_by_the_batch(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "s1", 1, 64, 1000.0),
        write(tmp_path / "s2", 2, 64, 1800.0),
        write(tmp_path / "s4", 4, 64, 2000.0),
        write(tmp_path / "w2", 2, 128, 1900.0),
        write(tmp_path / "w4", 4, 256, 3600.0),
    ]
    strong, weak = runs.scalings(runs.load(paths))
    assert (strong.kind, weak.kind) == ("strong", "weak")
    assert "batch 64" in strong.what and "batch 64 a worker" in weak.what
    assert [point.ranks for point in strong.points] == [1, 2, 4] == [p.ranks for p in weak.points]
    assert [point.efficiency for point in strong.points] == [1.0, 0.9, 0.5]
    assert [point.efficiency for point in weak.points] == [1.0, 0.95, 0.9]
    assert strong.points[2].speedup == 2.0


def test_waiting_and_slow_workers_are_told_apart(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "run", 4, 64, 1000.0))
    result = json.loads((path / "result.json").read_text())
    slow = [{"worker": 2, "rank": 3, "host": "nid42", "factor": 1.9}]
    (path / "result.json").write_text(
        json.dumps(result | {"wait_seconds": [4.0, 4.0, 0.0, 4.0], "stragglers": slow})
    )
    (run,) = runs.load([str(path)])
    assert (run.waited, run.input_wait, run.busy) == (3.0, 0.5, 9.0)
    told = text.as_text([run], [])
    assert "3 s (24%)" in told and "0.5 s (4%)" in told
    assert "worker 2 (rank 3 on nid42) was slow for long" in told and "1.9 times" in told
    # of a run that has not ended the manifest knows
    (path / "result.json").unlink()
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"stragglers": slow}))
    assert runs.load([str(path)])[0].stragglers == slow


def test_modes_are_not_mixed_and_begin_with_the_single_rank(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "one", 1, 64, 1000.0),
        write(tmp_path / "collective", 4, 64, 3000.0),
        write(tmp_path / "ps", 4, 64, 2000.0, mode="ps", servers=1),
    ]
    curves = [curve for curve in runs.scalings(runs.load(paths)) if curve.kind == "strong"]
    assert {curve.what.split(", ")[1]: curve.points[-1].efficiency for curve in curves} == {
        "collective": 0.75,
        "ps": 0.5,
    }


def test_a_folder_that_is_not_there_is_not_taken_for_the_one_above(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "run", 1, 8, 10.0)
    assert cli.main(["report", path + "/misspelt", "--out", str(tmp_path)]) == 1
    assert "no run in" in capsys.readouterr().err
    (run,) = runs.load([path + "/result.json"])
    assert run.ranks == 1


def test_waiting_for_input_is_told_apart(tmp_path: Path) -> None:
    (run,) = runs.load([write(tmp_path / "r", 2, 8, 10.0, waits=[2.0, 3.0])])
    assert (run.seconds, run.input_wait, run.busy) == (12.5, 2.5, 10.0)
    assert "2.5 s (20%)" in text.as_text([run], [])
    (none,) = runs.load([write(tmp_path / "old", 2, 8, 10.0, waits=[])])
    assert none.input_wait is None and "%" not in text.as_text([none], [])


def test_repeated_runs_are_one_point_at_their_median(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"a{i}", 1, 64, rate) for i, rate in enumerate((900, 1000, 5000))]
    paths.append(write(tmp_path / "b", 2, 64, 2000.0))
    (curve,) = runs.scalings(runs.load(paths))
    assert (curve.points[0].runs, curve.points[0].rate) == (3, 1000)
    assert curve.points[1].efficiency == 1.0


def test_steps_that_were_done_again_count_once(tmp_path: Path) -> None:
    path = write(tmp_path / "r", 1, 8, 10.0, rows=[1, 2, 3, 4, 3, 4, 5])
    (run,) = runs.load([path])
    assert run.curve("step", "loss")[0] == [1, 2, 3, 4, 5]


def test_a_last_row_that_follows_at_once_has_no_rate(tmp_path: Path) -> None:
    path = write(tmp_path / "r", 1, 8, 10.0)
    with open(Path(path) / "metrics.csv", "a") as file:
        file.write("11,1.001,11,1,88,99999,0.5\n")
    (run,) = runs.load([path])
    assert run.curve("step", "loss")[1][-1] == 0.5
    assert run.curve("seconds", "samples_per_second")[1] == [10.0] * 10


def test_a_run_that_was_killed_is_shown_as_far_as_it_came(tmp_path: Path) -> None:
    path = write(tmp_path / "r", 2, 8, 10.0, finished=False)
    with open(Path(path) / "metrics.csv", "a") as file:
        file.write("11,1.1,1")
    (run,) = runs.load([path])
    assert (run.ranks, run.workers, run.rate, run.steps) == (2, 2, 10.0, 10)
    assert "not finished" in text.as_text([run], [])


def test_the_command_writes_text_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [write(tmp_path / f"r{n}", n, 64, 900.0 * n) for n in (1, 2, 4)]
    assert cli.main(["report", *paths, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "strong scaling: digits.py, collective, batch 64" in said
    assert "1 -> 0.1" in said and "100%" in said
    assert (tmp_path / "out" / "report.txt").read_text() in said
    png = (tmp_path / "out" / "report.png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    wide, high = struct.unpack(">II", png[16:24])
    assert wide > 1000 and high > 1500  # five panels


def test_one_run_alone_has_a_picture(tmp_path: Path) -> None:
    found = runs.load([write(tmp_path / "r", 1, 8, 10.0, rows=range(1, 500))])
    picture.draw(found, [], tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 10_000


def test_without_matplotlib_the_extra_is_named_and_the_table_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = write(tmp_path / "r", 1, 8, 10.0)
    assert cli.main(["report", path, "--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "hpcflow-mpi[plot]" in said.err and "report.txt alone" in said.err
    assert "samples/s" in said.out and (tmp_path / "report.txt").exists()


def test_a_folder_without_a_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(tmp_path)]) == 1
    assert "--run-dir" in capsys.readouterr().err


def test_a_mean_that_forgets_has_no_bias_at_the_start() -> None:
    assert picture.smooth([2.0, 2.0, 2.0], 10) == pytest.approx([2.0, 2.0, 2.0])
    assert picture.smooth([0.0, 1.0], 1) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.71234, "0.712 s"), (99.9, "99.9 s"), (245, "4:05 min"), (12000, "3:20 h")],
)
def test_durations(seconds: float, told: str) -> None:
    assert text.duration(seconds) == told
