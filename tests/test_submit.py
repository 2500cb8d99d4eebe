"""Submitting job scripts, by an `sbatch` that answers as SLURM's does."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcflow.cli.main import main

ANSWERS = {
    "account": (
        "Batch job submission failed: Invalid account or account/partition combination specified",
        ("write `#SBATCH --account=PROJECT`", "yours: chem, physics"),
    ),
    "plugin": ("You must specify an account (-A)", ("write `#SBATCH --account=PROJECT`",)),
    "partition": (
        "invalid partition specified: gpu\nsbatch: error: Batch job submission failed: "
        "Invalid partition name specified",
        ("write `#SBATCH --partition=NAME`", "sinfo"),
    ),
    "time": ("Requested time limit is invalid (missing or exceeds some limit)", ("ask for less",)),
    "other": ("Batch job submission failed: Socket timed out", ("options by --sbatch",)),
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a job script; `sbatch` writes down its words and answers by the file `says`."""
    tools = {
        "sbatch": f'#!/bin/sh\ncd {tmp_path}\necho "$@" > called\n'
        'if [ -e says ]; then echo "sbatch: error: $(cat says)" >&2; exit 1; fi\n'
        "echo Submitted batch job 7\n",
        "sacctmgr": "#!/bin/sh\nprintf 'physics\\nchem\\nphysics\\n'\n",
    }
    (tmp_path / "bin").mkdir()
    for name, text in tools.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    Path("train.sbatch").write_text("#!/bin/bash\n##SBATCH --account=PROJECT\n")
    return tmp_path


def test_words_reach_sbatch(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["submit", "--sbatch=--account=a --nodes=8", "train.sbatch", "x.py", "--epochs", "3"]
    assert main(words) == 0
    assert capsys.readouterr().out == "Submitted batch job 7\n"
    called = (site / "called").read_text()
    assert called == "--account=a --nodes=8 train.sbatch x.py --epochs 3\n"


@pytest.mark.parametrize("name", ANSWERS)
def test_a_refusal_says_what_to_do(
    site: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said, cures = ANSWERS[name]
    (site / "says").write_text(said)
    assert main(["submit", "train.sbatch", "x.py"]) == 1
    text = capsys.readouterr().err
    assert said.splitlines()[0] in text and "train.sbatch" in text
    for cure in cures:
        assert cure in text.partition("next")[2]


def test_what_is_not_there_is_told(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["submit", "absent.sbatch"]) == 1
    assert "no job script absent.sbatch" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(site))
    assert main(["submit", "train.sbatch"]) == 1
    assert "no sbatch here" in capsys.readouterr().err
