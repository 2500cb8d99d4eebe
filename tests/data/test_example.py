"""The example on an HDF5 file it makes itself: as users run it, in every mode, and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_examples import run

MODES = {"single": (0, []), "collective": (3, []), "ps": (3, ["--ps", "1"])}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_job_makes_its_file_and_learns_from_it(mode: str, tmp_path: Path) -> None:
    ranks, options = MODES[mode]
    file = tmp_path / "data" / "digits.h5"
    result, text = run(
        *("hdf5_job.py", tmp_path, ranks, *options, "--data", str(file)),
        *("--samples", "20000", "--epochs", "2"),
    )
    assert result["accuracy"] > 0.9 and sum(result["samples"]) == 40_000
    assert len(result["input_wait_seconds"]) == result["replicas"]
    assert all(0 < waited < result["seconds"] for waited in result["input_wait_seconds"])
    assert "waits for input" in text


@pytest.mark.slow
def test_a_job_goes_on_in_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCFLOW_CACHE_DIR", str(tmp_path / "near"))
    command = ["--data", str(tmp_path / "digits.h5"), "--samples", "5000", "--cache"]
    command += ["--checkpoints", str(tmp_path / "saved"), "--resume"]
    first, _ = run("hdf5_job.py", tmp_path / "a", 2, *command, "--epochs", "1")
    second, text = run("hdf5_job.py", tmp_path / "b", 3, *command, "--epochs", "3")
    assert sum(first["samples"]) == 5000 and sum(second["samples"]) == 10_000
    assert list((tmp_path / "near").glob("digits-*.h5"))
    assert "resumed step=79 samples=5000" in text
