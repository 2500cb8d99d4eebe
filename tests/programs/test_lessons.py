"""The lessons learn as well as PyTorch's: on one rank and on three, mean of three seeds.

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

import pytest

ROOT = Path(__file__).parents[2]
TWINS = json.loads((ROOT / "tests" / "programs" / "torch.json").read_text())
OF_TEXT = ("word2vec", "lstm", "transformer")
WITHIN = 0.02


def corpus() -> str:
    """The digest of the text that the lessons learn from here."""
    code = "import hashlib, lesson; print(lesson.text())"
    folder = ROOT / "examples" / "learn"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    return hashlib.sha256(done.stdout.removesuffix("\n").encode()).hexdigest()[:16]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("lesson", TWINS["scores"])
def test_a_lesson_learns_as_well_as_its_twin(lesson: str, ranks: int, tmp_path: Path) -> None:
    if lesson in OF_TEXT and corpus() != TWINS["corpus"]:
        pytest.skip(f"PyTorch's figures are of the text of Python {TWINS['python']}")
    start = ["-m", "hpcflow", "run", "-n", str(ranks), "--run-dir", str(tmp_path)]
    seeds = [str(seed) for seed in TWINS["seeds"]]
    path = os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    done = subprocess.run(
        [
            *(sys.executable, *(start if ranks > 1 else [])),
            *(str(ROOT / "examples" / "learn" / f"{lesson}.py"), "--seeds", *seeds),
        ],
        env={**os.environ, "PYTHONPATH": path, "HPCFLOW_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    theirs = sum(TWINS["scores"][lesson]) / len(seeds)
    assert len(found["scores"]) == len(seeds)
    assert abs(found["mean"] - theirs) <= WITHIN * theirs, (found, TWINS["scores"][lesson])
