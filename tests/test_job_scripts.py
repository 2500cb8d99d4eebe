"""The scripts of jobs/slurm and tests/slurm keep to their rules, as text."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
JOBS = sorted((ROOT / "jobs" / "slurm").glob("*.sbatch"))
PAPER = sorted((ROOT / "benchmarks" / "paper" / "slurm").glob("*.sh"))
SCRIPTS = [*JOBS, *PAPER, *sorted((ROOT / "tests" / "slurm").glob("*.sh")), ROOT / ".ci" / "run"]


def test_there_are_scripts() -> None:
    assert {job.stem for job in JOBS} == {"train", "ps", "hetero", "scaling"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("needs shellcheck")
    done = subprocess.run(
        ["shellcheck", "--external-sources", str(script)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("job", [*JOBS, *PAPER], ids=lambda path: path.stem)
def test_a_job_script_keeps_the_rules(job: Path) -> None:
    text = job.read_text()
    assert len(text.splitlines()) < 40
    assert "set -euo pipefail" in text and "export PYTHONUNBUFFERED=1" in text
    assert "$0" not in text  # SLURM runs a copy
    for step in re.findall(r"^srun (?:[^\\\n]|\\\n)*", text, re.MULTILINE):
        assert "--kill-on-bad-exit=1" in step
        assert step.count("--cpus-per-task=") == step.count("hpcflow run")
    assert text.count("# ---- your site") == 1
    site = text.split("# ----")[1]
    for words in ("--account=", "module load", "SLURM_MPI_TYPE=", ".venv/bin"):
        assert words in site
    options = text.index("set -euo")
    assert "\n#SBATCH" not in text[options:], "SLURM reads no options after the first command"


@pytest.mark.parametrize(
    "job", [job for job in JOBS if job.stem != "scaling"], ids=lambda p: p.stem
)
def test_a_long_job_comes_back(job: Path) -> None:
    text = job.read_text()
    assert "--requeue" in text and "--open-mode=append" in text
    assert re.search(r"#SBATCH --signal=USR1@\d+", text)
    assert "run=runs/${RUN:-$SLURM_JOB_ID} " in text
    (lead,) = set(re.findall(r"#SBATCH --signal=USR1@(\d+)", text))
    assert f"hpcflow check-job --signal-before-end {lead} --run-dir" in text
    assert "saves=default_checkpoints=$run/checkpoints " in text and '--set "$saves"' in text
    assert "--checkpoints" not in text  # the script's own option, if it has one


def test_the_container_takes_what_a_build_needs() -> None:
    text = (ROOT / "jobs" / "apptainer" / "hpcflow.def").read_text()
    taken = re.search(r"%files\n(.*?)\n\n", text, re.DOTALL)
    assert taken is not None
    files = {line.split()[0] for line in taken.group(1).splitlines()}
    assert files >= {"pyproject.toml", "README.md", "hpcflow"}  # the readme: pyproject names it
    assert all((ROOT / file).exists() for file in files)


def test_the_limits_of_ci_are_80_minutes_together() -> None:
    limits = re.findall(r"timeout --kill-after=10 (\d+) ", (ROOT / ".ci" / "run").read_text())
    assert len(limits) == 8 and sum(map(int, limits)) <= 80 * 60
