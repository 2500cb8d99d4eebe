"""The site's own MPIs under srun: none is a wheel, and one comes by `module load` alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cluster import ROOT, Cluster, Job, Place
from conftest import DIGITS, result

from tests import records

pytestmark = pytest.mark.limit(400)
PYTHON = ROOT / ".venv-site" / "bin" / "python"
MODULES = {
    "openmpi": "prepend-path PATH {bin}\nsetenv MPI4PY_LIBMPI libmpi.so.40\n",
    # Debian gives the library another name than MPICH does
    "mpich": "prepend-path LD_LIBRARY_PATH {lib}\nsetenv MPI4PY_LIBMPI libmpi.so.12\n"
    "setenv SLURM_MPI_TYPE pmi2\n",
}
NAMES = {"openmpi": "Open MPI", "mpich": "MPICH"}
LIBRARY = {"openmpi": r"Open MPI v4\.", "mpich": r"MPICH.* 4\.0"}


@pytest.fixture
def site(slurm: Cluster, tmp_path: Path) -> Place:
    """A clone at a site: an environment without an MPI, module files, libraries out of the way."""
    if not PYTHON.exists():
        pytest.skip(f"needs {PYTHON}, which `make test-slurm` makes")
    assert not list(PYTHON.parent.parent.glob("lib/libmpi*")), "a wheel would win over the site's"
    place = Place(tmp_path, str(PYTHON))
    (tmp_path / "lib").mkdir()
    library = next(Path("/usr/lib").glob("*/libmpich.so.12"))  # came with the cluster
    (tmp_path / "lib" / "libmpi.so.12").symlink_to(library)
    for name, text in MODULES.items():
        file = tmp_path / "modules" / name / "site"
        file.parent.mkdir(parents=True)
        file.write_text("#%Module\n" + text.format(bin=tmp_path / "bin", lib=tmp_path / "lib"))
    return place


def script(place: Place, module: str, plug_in: str = "") -> str:
    """train.sbatch as its user edits it: the line of the modules, and maybe srun's plug-in."""
    text = (ROOT / "jobs" / "slurm" / "train.sbatch").read_text()
    lines = {r"^# module load .*$": f"module load {module}/site"}
    if plug_in:
        lines[r"^export SLURM_MPI_TYPE=.*$"] = f"export SLURM_MPI_TYPE={plug_in}"
    for pattern, line in lines.items():
        text, count = re.subn(pattern, line, text, flags=re.MULTILINE)
        assert count == 1, pattern
    (place.folder / "mine.sbatch").write_text(text)
    return "mine.sbatch"


def log_in_and_submit(slurm: Cluster, place: Place, *words: str) -> Job:
    """`sbatch` in a login shell, whose profile brings the command `module`."""
    line = 'module use "$PWD/modules" && sbatch --parsable "$@"'
    done = slurm.run("bash", "-lc", line, "bash", *words, cwd=place.folder)
    assert done.returncode == 0, done.stderr
    return Job(slurm, place.folder, done.stdout.strip())


def trained_on_two_nodes(job: Job, module: str) -> None:
    """It was one world of four ranks, of the MPI that was meant, and learnt something."""
    assert job.wait() == ["COMPLETED"], job.output
    found = result(job)
    assert (found["mode"], found["ranks"]) == ("collective", 4)
    assert found["hosts"] == ["node1", "node1", "node2", "node2"]
    assert found["accuracy"] > 0.85
    versions = {**found["versions"], "SLURM": job.cluster.ask("srun", "--version").split()[-1]}
    assert re.search(LIBRARY[module], versions["MPI"])
    records.write(f"srun, a site's {NAMES[module]}", found["ranks"], versions)


def test_the_systems_open_mpi(slurm: Cluster, site: Place) -> None:
    """It is found where the loader looks, with nothing set."""
    job = slurm.sbatch(site, "jobs/slurm/train.sbatch", *DIGITS)
    trained_on_two_nodes(job, "openmpi")


@pytest.mark.parametrize("module", MODULES)
def test_an_mpi_by_module_load(slurm: Cluster, site: Place, module: str) -> None:
    """What the module sets decides which MPI is loaded, and which plug-in of srun goes with it."""
    job = log_in_and_submit(slurm, site, script(site, module), *DIGITS)
    trained_on_two_nodes(job, module)


@pytest.mark.parametrize(
    ("module", "wrong", "told"),
    [
        ("openmpi", "pmi2", "OMPI was not built with SLURM's PMI support"),  # its own words
        ("mpich", "pmix", "start it by: srun --mpi=pmi2 -n 4"),
    ],
)
def test_a_sites_mpi_with_the_wrong_plug_in(
    slurm: Cluster, site: Place, module: str, wrong: str, told: str
) -> None:
    job = log_in_and_submit(slurm, site, script(site, module, wrong), *DIGITS)
    assert job.wait() == ["FAILED"], job.output
    assert told in " ".join(job.output.split())
