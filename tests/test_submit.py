"""Submitting job scripts, by an `sbatch` that answers as SLURM's does."""

from __future__ import annotations

import subprocess
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
    assert "sbatch is not available here" in capsys.readouterr().err


HOSTILE = (
    *(
        "a b",
        "$(touch evil)",
        "`touch evil`",
        "x; touch evil",
        "x && touch evil",
        "'",
        '"',
        "*",
        "~",
    ),
    *("--wrap=touch evil", "--", "-n", "", "line\nbreak; touch evil", "ü", "\\", "${HOME}", "!!"),
)
ECHO = '#!/bin/sh\nfor word in "$@"; do printf \'%s\\0\' "$word"; done >> {}/words\n'


def words_in(folder: Path) -> list[str]:
    return (folder / "words").read_bytes().decode().split("\0")[:-1]


def test_any_words_reach_sbatch_as_they_are(site: Path) -> None:
    """No shell stands between: what would be commands are arguments."""
    (site / "bin" / "sbatch").write_text(ECHO.format(site))
    assert main(["submit", "train.sbatch", "--", *HOSTILE]) == 0
    assert words_in(site) == ["train.sbatch", *HOSTILE]
    assert not (site / "evil").exists()


@pytest.mark.parametrize("name", ["--wrap=touch evil", "a b; touch evil", "$(touch evil)"])
def test_a_script_of_any_name_is_a_script(site: Path, name: str) -> None:
    (site / "bin" / "sbatch").write_text(ECHO.format(site))
    Path(name).write_text("#!/bin/bash\n")
    assert main(["submit", "--", name, "x.py"]) == 0
    script, argument = words_in(site)
    assert argument == "x.py" and Path(script) == Path(name) and not script.startswith("-")
    assert not (site / "evil").exists()


@pytest.mark.parametrize("job", ["train", "ps", "hetero"])
def test_job_scripts_give_hostile_words_on_as_they_are(
    tmp_path: Path, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the folder's own name is hostile; `srun` here writes down what it was given."""
    folder = tmp_path / "dir $(touch evil); touch evil 'x"
    (folder / "bin").mkdir(parents=True)
    for tool in ("srun", "hpcflow", "scontrol"):
        text = ECHO.format('"$WORDS"') if tool == "srun" else "#!/bin/sh\nexit 0\n"
        (folder / "bin" / tool).write_text(text)
        (folder / "bin" / tool).chmod(0o755)
    script = Path(__file__).parent.parent / "jobs" / "slurm" / f"{job}.sbatch"
    environ = {
        "PATH": f"{folder}/bin:/usr/bin:/bin",
        "SLURM_SUBMIT_DIR": str(folder),
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "4",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_CPUS_PER_TASK": "1",
        "WORDS": str(folder),
        "HOME": str(folder),
    }
    done = subprocess.run(
        ["bash", str(script), "x.py", *HOSTILE],
        **{"env": environ, "cwd": folder, "capture_output": True, "text": True},
    )
    assert done.returncode == 0, done.stderr
    found = words_in(folder)
    at = found.index("x.py")
    assert found[at + 1 : at + 1 + len(HOSTILE)] == list(HOSTILE)
    assert found[at + 1 + len(HOSTILE) :][:1] in ([], [":"])  # nothing is added to the script's
    assert not list(tmp_path.rglob("evil"))
