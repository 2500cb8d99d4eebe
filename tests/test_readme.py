"""What the README shows works: its script, its settings, the files it names."""

from __future__ import annotations

import dataclasses
import json
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from tests.runtime.ranks import run_ranks

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()
RUNNING = (ROOT / "docs" / "running.md").read_text()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (found,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    path = tmp_path / "circle.py"
    path.write_text(found)
    return path


def test_its_script_trains_and_writes_what_it_says(script: Path) -> None:
    with (
        use_context(RankContext(Settings(run_dir=str(script.parent), random_seed=1))),
        hf.Graph().as_default(),
    ):
        names = runpy.run_path(str(script))
    result = json.loads((script.parent / "result.json").read_text())
    assert result["steps"] == [400] and result["samples"] == [20_000]
    assert names["cost"] < 0.25
    (table,) = re.findall(r"\| Field .*?\n\n", RUNNING, re.DOTALL)
    rows = [line.split("|")[1] for line in table.strip().splitlines()]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(result)


@pytest.mark.slow
@pytest.mark.parametrize("servers", [0, 1])
def test_its_script_runs_on_ranks(script: Path, servers: int) -> None:
    code = compile(script.read_text(), script, "exec")

    def body(context: RankContext) -> float:
        names: dict[str, Any] = {}
        exec(code, names)  # runpy changes sys.argv, which all ranks have
        return float(names["cost"])

    costs = run_ranks(4, body, ps=servers, run_dir=str(script.parent), random_seed=1)
    assert len(costs) == 4 - servers and np.mean(costs) < 0.3


def test_files_and_settings_it_names_exist() -> None:
    for name in set(re.findall(r"\b(?:docs|examples|hpcflow)/[\w./-]+\w", TEXT)):
        assert (ROOT / name).exists(), name
    fields = {field.name: field.default for field in dataclasses.fields(Settings)}
    assert {name.lower() for name in re.findall(r"HPCFLOW_(\w+)", TEXT)} <= set(fields)
    assert set(re.findall(r"--set (\w+)", TEXT)) <= set(fields)
    for name, value in re.findall(r"`(stall\w+)` \((\d+)\)", TEXT):
        assert fields[name] == float(value)
