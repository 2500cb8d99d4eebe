"""Checkpoints of many small arrays: work on them grows with their number, and no faster."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.checkpoint import checkpoint_directory
from hpcflow.checkpoint.verify_checkpoint import verify_checkpoint

FEW, MANY = 40, 160


def saved(path: Path, count: int, form: str) -> Path:
    """A checkpoint of `count` arrays."""
    with hf.Graph().as_default(), hf.Session() as session:
        made = [hf.Variable(np.full((2, 3), i, np.float32), name=f"v{i}") for i in range(count)]
        session.run(hf.global_variables_initializer())
        return Path(hf.train.Saver(made, form=form).save(session, path / f"{count}-{form}", 1))


def check(path: Path) -> None:
    assert not verify_checkpoint(checkpoint_directory.read_entry(path)).faults


def read_all(path: Path) -> None:
    reader = hf.train.load_checkpoint(path)
    for name in reader.get_variable_to_shape_map():
        assert reader.get_tensor(name)[1, 2] == int(name.removeprefix("v"))


def calls(work: Callable[[Any], object], path: Path) -> int:
    """How many functions it calls, steps of generators among them."""
    profile = cProfile.Profile()
    profile.runcall(work, path)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["sharded", "parallel"])
@pytest.mark.parametrize("work", [check, read_all])
def test_four_times_the_arrays_are_four_times_the_work(
    tmp_path: Path, work: Callable[[Path], None], form: str
) -> None:
    few, many = (saved(tmp_path, count, form) for count in (FEW, MANY))
    work(few)  # what is done once in a process
    assert calls(work, many) < 5 * calls(work, few)
