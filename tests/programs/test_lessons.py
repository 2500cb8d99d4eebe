"""The lessons learn as well as PyTorch's, in the mean of three seeds; and the same on three ranks.

tests/programs/torch.json holds what PyTorch reached from the same initial weights on the same
batches (twins.py beside it, which is run by hand).
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import light

ROOT = Path(__file__).parents[2]
TWINS = json.loads((ROOT / "tests" / "programs" / "torch.json").read_text())
OF_TEXT = ("word2vec", "lstm", "transformer")
WITHIN = 0.02  # of the mean of PyTorch's scores
CLOSE = 2e-3  # one rank and three draw the same, and differ by what rounding grows to


def corpus() -> str:
    """The digest of the text that the lessons learn from here."""
    code = "import hashlib, lesson; print(lesson.text())"
    folder = ROOT / "examples" / "learn"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    return hashlib.sha256(done.stdout.removesuffix("\n").encode()).hexdigest()[:16]


def learned(lesson: str, ranks: int, seeds: list[int], folder: Path) -> dict[str, Any]:
    """What a lesson prints of its scores; without a launcher on one rank."""
    start = ["-m", "hpcflow", "run", "-n", str(ranks), "--run-dir", str(folder)]
    first = light.path() if ranks > 1 else str(ROOT)
    path = os.pathsep.join([first, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    done = subprocess.run(
        [
            *(sys.executable, *(start if ranks > 1 else [])),
            *(str(ROOT / "examples" / "learn" / f"{lesson}.py"), "--seeds", *map(str, seeds)),
        ],
        env={**os.environ, "PYTHONPATH": path, "HPCFLOW_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert len(found["scores"]) == len(seeds)
    return found


@pytest.mark.slow
@pytest.mark.limit(800)
@pytest.mark.parametrize("lesson", TWINS["scores"])
def test_a_lesson_learns_as_well_as_its_twin(lesson: str, tmp_path: Path) -> None:
    if lesson in OF_TEXT and corpus() != TWINS["corpus"]:
        pytest.skip(f"PyTorch's figures are of the text of Python {TWINS['python']}")
    seeds, scores = TWINS["seeds"], TWINS["scores"][lesson]
    alone = learned(lesson, 1, seeds, tmp_path)
    theirs = sum(scores) / len(scores)
    assert abs(alone["mean"] - theirs) <= WITHIN * theirs, (alone, scores)
    together = learned(lesson, 3, seeds[:1], tmp_path)
    assert together["scores"] == pytest.approx(alone["scores"][:1], rel=CLOSE)
