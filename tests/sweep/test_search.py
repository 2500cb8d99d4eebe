"""Searches of `hpcflow sweep`: which configurations they make, and which input they refuse."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from hpcflow.cli import main as cli
from hpcflow.sweep import search_space, sweep_specification
from hpcflow.sweep.search_space import ARGUMENT, SETTING, Axis, Budget, range_axis


def test_a_grid_has_all_combinations_in_the_order_of_nested_loops() -> None:
    axes = [Axis(ARGUMENT, "rate", ("0.1", "0.2")), Axis(SETTING, "sync", ("all", "async"))]
    found = [(c.arguments["rate"], c.settings["sync"]) for c in search_space.grid(axes)]
    assert found == [("0.1", "all"), ("0.1", "async"), ("0.2", "all"), ("0.2", "async")]
    assert [c.values for c in search_space.grid([])] == [{}]  # one run of a script without axes


def test_random_configurations_are_different_in_bounds_and_repeatable() -> None:
    axes = [
        range_axis(ARGUMENT, "rate", 1e-4, 1e-1, "log"),
        range_axis(ARGUMENT, "width", 1, 4, "int"),
        range_axis(ARGUMENT, "drop", 0, 0.5),
    ]
    found = search_space.drawn(axes, 200, seed=3)
    assert len({tuple(c.arguments.values()) for c in found}) == 200
    assert found == search_space.drawn(axes, 200, seed=3) != search_space.drawn(axes, 200, seed=4)
    rates = sorted(math.log10(float(c.arguments["rate"])) for c in found)
    assert -4 <= rates[0] and rates[-1] <= -1
    assert -2.8 < rates[100] < -2.2  # the median in the middle of the exponents
    assert {c.arguments["width"] for c in found} == {"1", "2", "3", "4"}
    assert all(0 <= float(c.arguments["drop"]) <= 0.5 for c in found)


def test_a_small_space_has_no_more_random_configurations_than_points() -> None:
    axes = [Axis(ARGUMENT, "a", ("1", "2")), Axis(ARGUMENT, "b", (True, False))]
    assert len(search_space.drawn(axes, 50, seed=0)) == 4


@pytest.mark.parametrize(
    ("budget", "rungs"),
    [
        (Budget("epochs", 1, 27, 3), [1, 3, 9, 27]),
        (Budget("epochs", 2, 30, 3), [2, 6, 18, 30]),
        (Budget("epochs", 1, 2, 10), [1, 2]),
    ],
)
def test_budgets_grow_by_the_factor_up_to_the_largest(budget: Budget, rungs: list[int]) -> None:
    assert budget.rungs == rungs


def test_runs_without_a_finite_value_are_never_among_the_best() -> None:
    values = {0: 3.0, 1: math.nan, 2: None, 3: 1.0, 4: math.inf, 5: 1.0}
    assert search_space.best(values, "min", 9) == [3, 5, 0]
    assert search_space.best(values, "max", 1) == [0]


def test_arguments_become_words_and_booleans_flags() -> None:
    words = search_space.words_of({"rate": "0.1", "fast": True, "slow": False})
    assert words == ["--rate=0.1", "--fast"]


SCRIPT = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--threads')\n"


def test_names_are_settings_unless_the_script_has_them(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    axes, remarks = sweep_specification.axes_of_options(
        ["sync=all", "sync=async", "rate=1,2", "--threads=2"], ["ranks=1:4:int"], script
    )
    assert axes[:3] == [
        Axis(SETTING, "sync", ("all", "async")),
        Axis(ARGUMENT, "rate", ("1,2",)),
        Axis(ARGUMENT, "threads", ("2",)),
    ]
    assert (axes[3].kind, axes[3].name) == (SETTING, "ranks")
    assert remarks == [
        "rate has the one value 1,2; for several values write --grid rate=... once for each"
    ]


TOML = """
script = "train.py"
search = "halving"
runs = 9
metric = "loss"
mode = "min"
budget = "epochs=1:9"
args = ["data.h5"]
[settings]
ranks = 2
sync = ["all", "async"]
ps = 1
[arguments]
rate = { low = 1e-4, high = 0.1, scale = "log" }
fast = true
"""


def test_a_file_says_what_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    path = tmp_path / "sweep.toml"
    path.write_text(TOML)
    spec = sweep_specification.of_file(path)
    points = spec.configurations()
    run = spec.ledger_run(7, points[0])
    assert len(points) == 9 and spec.search == "halving"
    assert (run.name, run.ranks) == ("0007", 2)
    assert run.settings == {"ps": "1", "sync": points[0].settings["sync"]}
    rate = points[0].arguments["rate"]
    assert run.words == ["data.h5", "--fast", f"--rate={rate}", "--epochs=1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--grid", "rate"], "--grid NAME=VALUE"),
        (["--grid", "sync=nonsense"], "sync='nonsense' is no rule"),
        (["--grid", "threads=2"], "the script has an option --threads"),
        (["--grid", "rate=1", "--metric", "loss"], "needs a direction"),
        (["--random", "rate=1:2"], "give --runs 20"),
        (["--random", "rate=2:1", "--runs", "3"], "2 is not below 1"),
        (["--random", "rate=0:1:log", "--runs", "3"], "begins above 0"),
        (["--random", "rate=1:2:cubic", "--runs", "3"], "linear, log, int"),
        (["--random", "rate=a:b", "--runs", "3"], "no numbers"),
        (["--random", "n=1.5:3:int", "--runs", "3"], "whole numbers"),
        (["--random", "rate", "--runs", "3"], "NAME=LOW:HIGH"),
        (["--search", "grid", "--random", "rate=1:2"], "a grid cannot enumerate"),
        (["--search", "halving", "--grid", "rate=1"], "needs a metric"),
        (["--grid", "rate=1", "--budget", "epochs=1:9"], "for successive halving"),
        (["--budget", "epochs=9:1"], "grows from above 0"),
        (["--budget", "epochs"], "NAME=LEAST:MOST"),
        (["--grid", "rate=1", "--runs", "3"], "as many runs as combinations"),
        (["--grid", "ranks=0"], "from 1 on"),
        (["--grid", "rate=1", "--run-dir", "x"], "give --out"),
        (["--grid", "rate=1", "--at-once", "0"], "give 1 or more"),
        (["--grid", "rate=1", "--limit", "soon"], "is no time"),
        (["--grid", "rate=1", "--set", "nonsense=1"], "no such setting"),
        (["--grid", "rate=1", "--grid=--rate=2"], "rate is given twice"),
        (["--grid", "rate=1", "--grid", "rate=1"], "a value twice"),
        (["--grid", "a b=1"], "no name of an option"),
        (["--grid", "ranks=\u00b2"], "from 1 on"),
        (["--grid", "ps=1"], "leave no worker"),
        (["--grid", "rate=1\udcff"], "is no UTF-8"),
        (["--grid", "rate=1", "--mode", "min"], "none is given"),
        (["--grid", "rate=1", "--limit", "0"], "no run ends"),
        (["--grid", "rate=1", "--sbatch=--comment='x"], "No closing quotation"),
        (["--grid", "rate=1", "--out", "."], "holds the script"),
        (["--grid", "rate=1", "--out", "train.py"], "is no folder"),
        (["--runs", "0", "--grid", "rate=1"], "give 1 or more"),
        (["--random", "rate=0:1", "--runs", "1000000"], "more than 10,000"),
        ([w for n in "abcdefg" for v in "1234" for w in ("--grid", f"{n}={v}")], "more than"),
        (
            [
                *("--search", "halving", "--metric", "l", "--mode", "min"),
                "--grid",
                "epochs=1",
                "--budget",
                "epochs=1:4",
            ],
            "epochs is given twice",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments(
    words: list[str], said: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    assert cli.main(["sweep", *words, "train.py"]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "script is missing"),
        ("script = ", "is no TOML"),
        ("rate = 1", "'rate' is unknown"),
        ("[arguments]\nrate = 1", "script is missing"),
        ('script = "none.py"', "there is no script"),
        ('script = "train.py"\nruns = "3"', "is no int"),
        ('script = "train.py"\n[settings]\nnonsense = 1', "no setting nonsense"),
        ('script = "train.py"\n[arguments]\nrate = []', "has no values"),
        ('script = "train.py"\n[arguments]\nrate = {low = 1, top = 2}', "'top' is unknown"),
        ('script = "train.py"\n[arguments]\nrate = {low = 1}', "no numbers"),
        ('script = "train.py"\nsearch = "bayes"', "give grid, random or halving"),
        ('script = "train.py"\n[arguments]\n"-z" = 1', "give a name"),
        ('script = "train.py"\n[arguments]\na = [{x = 1}]', "give a name and a number"),
        ('script = "train.py"\n[arguments]\na = 1e400', "is no number"),
        ('script = "train.py"\n[arguments]\na = "x\\u0000"', "a zero byte"),
        (
            'script = "train.py"\nsearch = "random"\nruns = 2\n[settings]\n'
            "ranks = {low = 1, high = 3}",
            "give a whole number",
        ),
        (
            'script = "train.py"\nsearch = "random"\nruns = 2\n[settings]\n'
            "sync = {low = 1, high = 3}",
            "is no rule",
        ),
    ],
)
def test_wrong_files(text: str, said: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "sweep.toml").write_text(text)
    assert cli.main(["sweep", "sweep.toml"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "sweeps").exists()


def test_options_beside_a_file_or_a_folder_are_refused(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "sweep.toml").write_text('script = "train.py"')
    assert cli.main(["sweep", "sweep.toml", "--grid", "rate=1"]) == 2
    assert "put --grid into it" in capsys.readouterr().err
    assert cli.main(["sweep", str(tmp_path)]) == 2
    assert "no folder of a sweep" in capsys.readouterr().err
    assert cli.main(["sweep", "none.toml"]) == 2
    assert "there is no file none.toml" in capsys.readouterr().err


def test_a_dry_run_shows_the_runs_and_writes_nothing(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["--grid", "rate=1", "--grid", "rate=2", "-n", "2", "--arg=--epochs=3", "--dry-run"]
    assert cli.main(["sweep", "train.py", *words]) == 0
    shown = capsys.readouterr().out
    assert "0001: hpcflow run -n 2 train.py -- --epochs=3 --rate=2\n2 runs" in shown
    assert not (tmp_path / "sweeps").exists()
