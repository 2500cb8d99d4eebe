"""These tests start a SLURM of their own: only `pytest tests/slurm`, as in `make test-slurm`, does.

Where that cannot be, they are skipped, and the last lines of the run say so.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE))

from cluster import ROOT, Cluster, Job, Place, missing  # noqa: E402

PYTHONS = {"Open MPI": sys.executable, "MPICH": str(ROOT / ".venv-mpich" / "bin" / "python")}
PLUGINS = {"Open MPI": "pmix", "MPICH": "pmi2"}
# What a site's block of a job script would set. MPICH's netmod is the default of its wheel, UCX:
# over libfabric's TCP six ranks on three nodes were seen to hang in MPI_Init.
SITES: dict[str, dict[str, str]] = {"Open MPI": {}, "MPICH": {"SLURM_MPI_TYPE": "pmi2"}}
DIGITS = ("examples/digits.py", "--epochs", "3")


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    named = [pathlib.Path(word.split("::")[0]).resolve() for word in config.args]
    asked = any(HERE == path or HERE in path.parents for path in named)
    return None if asked else True


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """Four nodes, for all tests."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(params=PYTHONS)
def mpi(request: pytest.FixtureRequest) -> str:
    """The name of an MPI whose environment is there."""
    if not pathlib.Path(PYTHONS[request.param]).exists():
        pytest.skip(f"needs {PYTHONS[request.param]}, which `make test-slurm` makes")
    return request.param


@pytest.fixture(autouse=True)
def cleared(slurm: Cluster) -> Iterator[None]:
    """Each test finds and leaves a SLURM without jobs."""
    yield
    slurm.clear()


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Place:
    """A folder to submit jobs from, with the Python of these tests."""
    return Place(tmp_path)


@pytest.fixture
def steps(place: Place) -> Place:
    """A place with the script steps.py."""
    (place.folder / "steps.py").symlink_to(HERE / "steps.py")
    return place


def result(job: Job) -> dict[str, Any]:
    """What a job of a job script wrote of itself when it ended well."""
    file = job.folder / "runs" / job.number / "result.json"
    assert file.exists(), job.output
    return json.loads(file.read_text())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reason = missing()
    if reason:
        terminalreporter.section("SLURM WAS NOT TESTED", red=True, bold=True)
        terminalreporter.write_line(reason)
