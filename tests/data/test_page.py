"""The code in docs/data.md runs, on one rank and on several."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import h5py
import numpy as np
import pytest

import hpcflow as hf
from hpcflow import errors
from hpcflow.runtime.job.rank_context import RankContext
from tests.runtime.ranks import run_ranks

TEXT = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


@pytest.mark.parametrize("places", [dict(n=1), dict(n=3), dict(n=3, ps=1)])
def test_its_code_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: dict[str, int]
) -> None:
    monkeypatch.chdir(tmp_path)
    with h5py.File("train.h5", "w") as file:
        file["images"] = np.zeros((3000, 8, 8), np.float32)
        file["labels"] = np.arange(3000, dtype=np.int32)
    with h5py.File("weather.nc", "w") as file:
        file["time"] = np.arange(20.0)
        file["t2m"] = np.full((20, 4, 5), 280, np.float32)
        file["time"].make_scale("time")
        file["t2m"].dims[0].attach_scale(file["time"])
    code = "\n".join(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL))

    def body(context: RankContext) -> float:
        names: dict[str, object] = {}
        exec(compile(code, "docs/data.md", "exec"), names)
        return sum(float(batch.joined_size) for batch in names["data"].epoch(5))  # type: ignore[attr-defined]

    assert 3000 in run_ranks(body=body, **places)


def test_what_it_names_is_there() -> None:
    for name in re.findall(r"`(\w+Error)`", TEXT):
        assert issubclass(getattr(errors, name), errors.HpcflowError)
    for name in re.findall(r"hf\.data\.(\w+)", TEXT):
        assert hasattr(hf.data, name)
    options = set(inspect.signature(hf.data.Dataset).parameters)
    assert {"batch", "batch_per_rank", "shuffle", "seed", "map", "read_ahead", "readers"} < options
    default = int(re.search(r"`memory` \((\d+) MiB\)", TEXT).group(1))  # type: ignore[union-attr]
    assert inspect.signature(hf.data.Dataset).parameters["memory"].default == default << 20
