"""Files of the current folder that are called as modules of Python, beside a job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHADOWS = ("argparse", "queue", "random", "runpy", "subprocess", "threading")


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no option -P")
def test_ranks_import_pythons_modules_and_those_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the file of the user')\n")
    (tmp_path / "jobs" / "mine.py").write_text("word = 'beside the script'\n")
    script = (
        "import sys, hpcflow as hf, mine\nhf.Session(hf.Graph())\nprint(mine.word, sys.path[0])\n"
    )
    (tmp_path / "jobs" / "train.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH, "run", "-n", "2", "jobs/train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"beside the script {tmp_path / 'jobs'}") == 2


# as the installed command, whose folder and not the current one is first on the path
LAUNCH = "import sys; del sys.path[0]; from hpcflow.cli.main import main; sys.exit(main())"
