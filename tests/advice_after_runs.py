"""What tests of the advice on settings share: the page of a run, and a run by the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcflow.cli import main as cli
from hpcflow.cli.run import advice_line

ROOT = Path(__file__).parents[1]


def check_page_shows_advice(run_dir: Path, tmp_path: Path) -> None:
    """The redacted page of a run has the advice, and not the folder of the run."""
    page = tmp_path / "page.html"
    assert cli.main(["report", str(run_dir), "--html", str(page), "--redact"]) == 0
    assert "was set by hand: the model predicts" in page.read_text()
    assert str(run_dir) not in page.read_text()


def check_spoilt_run_has_no_advice(
    run_dir: Path, spoil: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    """A run with advice has none, and no error, once `spoil` has changed its directory."""
    assert advice_line(str(run_dir))
    spoil(run_dir)
    assert advice_line(str(run_dir)) == ""
    cli.main(["report", str(run_dir)])
    told = capsys.readouterr()
    assert "was set by hand" not in told.out and "Traceback" not in told.err


def stderr_of_run(folder: Path, code: int, *words: str) -> str:
    """The stderr of `hpcflow run -n 2 WORDS` in a folder, which ends with exit code `code`."""
    command = [sys.executable, "-m", "hpcflow", "run", "-n", "2", *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False,
                          cwd=folder, env=env)  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr
