"""The distribution is `hpcflow-mpi`: `hpcflow` on the package index is another project."""

from __future__ import annotations

import importlib.metadata
import pathlib
import re
import subprocess
import sys

import pytest

from hpcflow.platform.install_hints import DISTRIBUTION, install_hint

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLACES = ("benchmarks", "docs", "examples", "hpcflow", "jobs", "packaging", "tests", "tools")
# A tool that installs, then what it is given, to the end of the command.
INSTALLER = re.compile(
    r"\b(?:pip3?|pipx|uvx?|conda|mamba|micromamba|poetry|pdm|easy_install)\b"
    r"[^`#;&|]*?\b(?:install|download|wheel|add|create|run|inject)\b([^`#;&|]*)"
)
NAMED = re.compile(r"(?:-n|--name|-p|--prefix)[ =]\S+")  # conda's environments
EXTRAS = re.compile(r"(?<![\w/.{}-])hpcflow\[[a-z{]")  # a requirement wherever it stands
VERSIONED = re.compile(r"(?<![\w/.-])hpcflow ?(?:[=~<>!]=|<|>|@) ?['\"]?(?:\d|http|git)")
LISTED = re.compile(r"^\s*(?:- )?hpcflow\s*$")  # of a file of requirements or an environment


def texts() -> list[pathlib.Path]:
    """All files of text that the repository has, without this one."""
    git = ["git", "-C", str(ROOT), "ls-files", "-z"]
    done = subprocess.run(git, capture_output=True, text=True)
    if done.returncode == 0:
        names = [ROOT / name for name in done.stdout.split("\0") if name]
    else:  # a source distribution
        names = [*ROOT.glob("*.*"), ROOT / "Makefile"]
        names += [path for place in PLACES for path in (ROOT / place).rglob("*")]
    return [path for path in names if path.is_file() and path != pathlib.Path(__file__).resolve()]


def others(name: str, text: str) -> list[str]:
    """The lines that would install the other project."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        given = " ".join(NAMED.sub(" ", rest) for rest in INSTALLER.findall(line))
        words = [word for word in re.split(r"[\s'\"(),]+", given) if word]
        listed = re.search(r"require|constraint|environment", name) and LISTED.match(line)
        if "hpcflow" in words or listed or EXTRAS.search(line) or VERSIONED.search(line):
            found.append(f"{name}: {line.strip()}")
    return found


@pytest.mark.slow
def test_no_line_installs_the_other_project() -> None:
    found, read = [], 0
    for path in texts():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        read += 1
        found += others(str(path.relative_to(ROOT)), text)
    assert read > 500 and found == []


@pytest.mark.parametrize(
    "line",
    [
        "pip install hpcflow",
        "run `python -m pip install --no-deps hpcflow` there",
        "    ~/envs/hpcflow/bin/pip install 'hpcflow[openmpi]'   # or [mpich]",
        "pip install numpy \\\n    hpcflow",
        "uv pip install hpcflow",
        "pipx install hpcflow",
        "conda activate hpcflow && pip install hpcflow",
        "conda create -n hpcflow -c conda-forge hpcflow",
        'subprocess.run([*PYTHON, "-m", "pip", "install", "hpcflow"])',
        'dev = ["hpcflow[test]", "pre-commit>=3.5"]',
        "hpcflow==0.1.0",
        "hpcflow @ git+https://example.org/x",
        "fix = f\"pip install 'hpcflow[{extra}]'\"",
    ],
)
def test_such_a_line_is_found(line: str) -> None:
    assert len(others("page.md", line)) == 1


@pytest.mark.parametrize(
    "line",
    [
        "pip install 'hpcflow-mpi[openmpi]'",
        "conda create -n hpcflow -c conda-forge python=3.11 numpy",
        "$SCRATCH/envs/hpcflow/bin/pip install hpcflow-mpi   # for hpcflow",
        'pip install --no-cache-dir "/opt/hpcflow[{{ EXTRAS }}]"',
        "git clone ... hpcflow && cd hpcflow",
        "`pip install '.[plot]'` is what hpcflow needs",
    ],
)
def test_other_lines_are_left_alone(line: str) -> None:
    assert others("page.md", line) == []


def test_a_requirement_in_a_list_of_them_is_found() -> None:
    assert others("requirements.txt", "numpy\nhpcflow\n") and not others("a.md", "numpy\nhpcflow\n")


def test_hints_name_extras_that_there_are() -> None:
    assert install_hint("cuda12", "cuda13") == "pip install 'hpcflow-mpi[cuda12]' or [cuda13]"
    table = (ROOT / "pyproject.toml").read_text()
    assert f'name = "{DISTRIBUTION}"' in table
    named = set()
    for path in (ROOT / "hpcflow").rglob("*.py"):
        for given in re.findall(r"install_hint\(([^)]*)\)", path.read_text()):
            named |= set(re.findall(r"[\"'](\w+)[\"']", given))
    assert named >= {"openmpi", "cuda12", "cuda13", "fast", "onnx", "plot", "tensorboard"}
    assert all(re.search(rf"^{extra} = \[", table, re.M) for extra in named)


def test_the_command_tells_the_version_of_this_distribution() -> None:
    done = subprocess.run([sys.executable, "-m", "hpcflow", "--version"], capture_output=True)
    assert done.stdout.decode().split() == ["hpcflow", importlib.metadata.version(DISTRIBUTION)]
