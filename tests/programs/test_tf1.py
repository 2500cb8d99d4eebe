"""Programs of TensorFlow 1, but for the name they import: they print what TensorFlow prints.

tests/programs/tf1.json holds what TensorFlow printed (of_tensorflow.py beside it).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpcflow as hf
from tests.programs.of_tensorflow import PROGRAMS, RESULTS, printed

TOLD: dict[str, list[str]] = json.loads(RESULTS.read_text())["printed"]
NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    hf.reset_default_graph()
    yield
    hf.reset_default_graph()


def test_each_program_has_its_results() -> None:
    assert TOLD.keys() == {program.stem for program in PROGRAMS} and all(TOLD.values())


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_program_prints_what_it_prints_in_tensorflow(program: Path) -> None:
    ours, theirs = printed(program), TOLD[program.stem]
    assert [NUMBER.sub("#", line) for line in ours] == [NUMBER.sub("#", line) for line in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        numbers = [float(n) for n in NUMBER.findall(mine)]
        expected = [float(n) for n in NUMBER.findall(other)]
        assert numbers == pytest.approx(expected, rel=1e-3, abs=2e-4), (mine, other)
