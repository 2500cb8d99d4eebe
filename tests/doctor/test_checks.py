"""The checks on made-up facts: what is wrong is named with its node and a line that fixes it."""

from __future__ import annotations

import copy
import dataclasses
import json

import pytest

from hpcflow.doctor import check_table, findings_report, node_checks
from hpcflow.doctor.rank_facts import (
    ERROR,
    OK,
    WARN,
    Finding,
    FolderFacts,
    JobFacts,
    KernelAgreement,
    MeasuredWait,
    NetworkLink,
    RankFacts,
)
from hpcflow.doctor.rank_inspection import check_folder, mapped_libmpi

OURS = "/env/lib/libmpi.so.40"
SITES = "/opt/site/lib/libmpi.so.12"
GB = 1 << 30


def rank(number: int, node: str) -> RankFacts:
    return RankFacts(
        rank=number,
        node=node,
        python="3.11.7",
        executable="/env/bin/python",
        versions={"numpy": "2.4", "mpi4py": "4.1", "h5py": "3.16"},
        launcher="srun",
        launcher_size=4,
        world_size=4,
        library="Open MPI v5.0.11, package: x",
        thread_level="serialized",
        libmpi={"mpi4py": [OURS], "h5py": [OURS]},
        hdf5="1.14.6",
        cpus=[0, 1, 2, 3],
        node_cpus=4,
        threads=4,
        threads_why="all CPUs",
        gemm=400e9,
        copies=20e9,
        places=[
            FolderFacts("run directory", "/scratch", 900 * GB),
            FolderFacts("TMPDIR", "/tmp", 90 * GB),
            FolderFacts("HOME", "/home/u", 9 * GB),
            FolderFacts("shared memory", "/dev/shm", 60 * GB),
        ],
    )


def four_nodes() -> JobFacts:
    names = [f"n{i}" for i in range(1, 5)]
    links = [
        NetworkLink(a, b, 5e-6, 1e9, 1e-3) for i, a in enumerate(names) for b in names[i + 1 :]
    ]
    return JobFacts([rank(i, name) for i, name in enumerate(names)], links)


def odd(job: JobFacts) -> list[Finding]:
    """Findings that are not ok."""
    return [row for row in check_table.run_checks(job) if row.level != OK]


def test_a_sound_job_has_nothing_but_ok() -> None:
    job = four_nodes()
    assert odd(job) == []
    text = findings_report.as_text(job, check_table.run_checks(job))
    assert text.startswith("hpcflow doctor: 4 ranks on 4 nodes")
    assert text.endswith("nothing is wrong: a job would run\n")
    assert findings_report.exit_code(check_table.run_checks(job)) == 0


def test_a_second_libmpi_is_an_error_of_its_node() -> None:
    job = four_nodes()
    job.ranks[2].libmpi["h5py"] = [OURS, SITES]
    (row,) = odd(job)
    assert (row.level, row.node) == (ERROR, "n3")
    assert "rank 2" in row.what and OURS in row.what and SITES in row.what and "h5py" in row.what
    assert f"MPI4PY_LIBMPI={SITES}" in row.fix
    assert findings_report.exit_code([row]) == 1
    assert "1 error on n3: a job would not run" in findings_report.as_text(job, [row])


def test_libraries_are_read_from_the_map_of_memory() -> None:
    maps = f"""\
7f00-7f01 r--p 00000000 08:01 12  {OURS}
7f01-7f02 r-xp 00001000 08:01 12  {OURS}
7f02-7f03 r-xp 00000000 08:01 13  /usr/lib/libmpi_cxx.so.40
7f03-7f04 r-xp 00000000 08:01 14  /usr/lib/x86_64-linux-gnu/libmpich.so.12.1.8
7f04-7f05 r-xp 00000000 08:01 15  /usr/lib/libmpi_mpifh.so.40
7f05-7f06 r-xp 00000000 08:01 16  /opt/cray/pe/lib64/libmpi_gnu_123.so.12
"""
    assert mapped_libmpi(maps) == [
        OURS,
        "/usr/lib/x86_64-linux-gnu/libmpich.so.12.1.8",
        "/opt/cray/pe/lib64/libmpi_gnu_123.so.12",
    ]


def test_a_one_core_mask_is_named_with_the_launchers_option() -> None:
    job = four_nodes()
    job.ranks[1].cpus, job.ranks[1].threads = [0], 1
    (row,) = odd(job)
    assert (row.level, row.node, row.check) == (WARN, "n2", "cores")
    assert "rank 1 may use 1 of the node's 4 CPUs" in row.what
    assert "srun --cpus-per-task=4" in row.fix
    job.ranks[1].launcher = "mpirun of Open MPI"
    assert "--bind-to none" in odd(job)[0].fix


def test_a_blas_with_more_threads_than_were_chosen_is_named() -> None:
    job = four_nodes()
    for one in job.ranks:
        one.blas, one.blas_threads = "openblas 0.3", 4
    assert odd(job) == []
    job.ranks[2].blas_threads = 64
    (row,) = odd(job)
    assert (row.level, row.node, row.check) == (WARN, "n3", "BLAS")
    assert "rank 2: BLAS has 64 threads, not 4" in row.what
    assert row.fix.startswith("export OMP_NUM_THREADS=4")
    job.ranks[2].blas_threads, job.ranks[2].threads = 64, 128  # as many as it was built for
    assert [row.what for row in odd(job)] == ["1 rank with 128 threads share 4 CPUs"]


def test_a_slow_node_is_named_with_what_the_others_do() -> None:
    job = four_nodes()
    (row,) = [row for row in check_table.run_checks(job) if row.check == "speed"]
    assert row.what == "float32 products 400 GFLOP/s, copies in memory 20 GB/s a rank"
    job.ranks[1].gemm, job.ranks[3].copies = 150e9, 9e9
    slow, narrow = odd(job)
    assert (slow.level, slow.node, slow.check) == (WARN, "n2", "speed")
    assert "150 GFLOP/s" in slow.what and "400" in slow.what and slow.fix
    assert narrow.node == "n4" and "9 GB/s" in narrow.what


def test_the_kernels_row_says_what_is_missing_and_what_that_costs() -> None:
    job = four_nodes()
    (row,) = [row for row in check_table.run_checks(job) if row.check == "kernels"]
    assert "no llvmlite: elementwise operations run one by one; no oneDNN" in row.what
    assert row.fix == "pip install 'hpcflow-mpi[fast]'"


def test_another_project_in_the_same_folder_is_told() -> None:
    job = four_nodes()
    job.ranks[1].other_project = "0.3.0"
    (row,) = odd(job)
    assert row.level == WARN and row.node == "n2" and "hpcflow 0.3.0" in row.what
    assert row.fix.startswith("pip uninstall hpcflow;") and row.fix.endswith(" hpcflow-mpi")


def test_a_full_tmpdir_ends_a_job_and_a_home_that_is_read_only_does_not() -> None:
    job = four_nodes()
    job.ranks[3].places[1].problem = "no space left on device"
    job.ranks[0].places[2].problem = "read-only file system"
    (row,) = odd(job)
    assert (row.level, row.node) == (ERROR, "n4")
    assert "TMPDIR /tmp: no space left" in row.what and "export TMPDIR=" in row.fix
    said = [row.what for row in check_table.run_checks(job) if row.node == "n1"]
    assert said == ["HOME /home/u: read-only file system; hpcflow writes nothing there"]


def test_little_shared_memory_is_told_with_the_containers_option() -> None:
    job = four_nodes()
    job.ranks[0].places[3].free = 64 << 10
    (row,) = odd(job)
    assert row.node == "n1" and "--shm-size" in row.fix


def test_a_node_with_a_slow_port_is_named_against_the_median() -> None:
    job = four_nodes()
    for link in job.links:
        if "n3" in (link.a, link.b):
            link.bytes_per_s = 1e8
    (row,) = odd(job)
    assert (row.level, row.node) == (WARN, "n3")
    assert "100 MB/s" in row.what and "1 GB/s" in row.what and "--exclude=n3" in row.fix


def test_one_slow_pair_of_sound_nodes_is_named() -> None:
    job = four_nodes()
    job.links[0].bytes_per_s = 1e8
    (row,) = odd(job)
    assert row.node == "n1" and "100 MB/s to n2" in row.what


def test_a_late_node_and_a_clock_that_is_off_are_named() -> None:
    job = four_nodes()
    for link in job.links:
        if "n2" in (link.a, link.b):
            link.latency_s = 1e-3
    job.ranks[3].clock_s = -61.0
    late, clock = sorted(odd(job), key=lambda row: row.node)
    assert late.node == "n2" and "1 ms" in late.what
    assert clock.node == "n4" and "61 s behind n1" in clock.what


def test_ranks_that_would_share_a_gpu() -> None:
    job = four_nodes()
    job.ranks = [rank(0, "n1"), rank(1, "n1")]
    job.links = []
    for one in job.ranks:
        one.threads, one.gpus, one.gpu = 2, ["H200 ab12"], "H200 ab12"
    (row,) = odd(job)
    assert row.level == ERROR and "rank 0, rank 1 would share H200 ab12" in row.what


def test_kernels_of_gpus_that_disagree_are_an_error_of_their_node() -> None:
    job = four_nodes()
    for one in job.ranks:
        one.agreements = [
            KernelAgreement("cublaslt", 16),
            KernelAgreement("cudnn", 0, {}, {"Conv": "lost"}),
        ]
    right, lost = [row for row in check_table.run_checks(job) if row.check == "GPU kernels"]
    assert (right.level, right.what) == (OK, "cublaslt: 16 of 16 compute what plain kernels do")
    assert (lost.level, lost.what) == (WARN, "cudnn serves nothing, CuPy does: lost")
    wrong, refused = {"MatMul of float32": "0.3 off"}, {"MatMulBias of float16, relu": "NaN"}
    job.ranks[1].agreements[0] = KernelAgreement("cublaslt", 15, wrong, refused)
    (row,) = [row for row in odd(job) if row.level == ERROR]
    assert (row.node, row.what) == ("n2", "cublaslt: MatMul of float32: 0.3 off")
    assert "kernels=plain" in row.fix
    told = [row.what for row in check_table.run_checks(job) if row.check == "GPU kernels"]
    assert (
        "cublaslt: 14 of 15 compute what plain kernels do; "
        "not MatMulBias of float16, relu: NaN" in told
    )
    data = json.loads(json.dumps(dataclasses.asdict(job.ranks[1])))
    assert RankFacts.from_data(data) == job.ranks[1]


def test_a_gpu_that_nothing_can_use() -> None:
    job = four_nodes()
    job.ranks[0].gpu_files = 4
    (row,) = odd(job)
    assert row.node == "n1" and "hpcflow-mpi[cuda12]" in row.fix


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("python", "3.9.1", "runs 3.9.1"),
        ("library", "MPICH Version: 4.3", "runs MPICH"),
        ("thread_level", "funneled", "needs serialized"),
        ("hdf5_mpi", True, "parallel"),
        ("versions", {"numpy": "1.26", "mpi4py": "4.1"}, "numpy 1.26 (others 2.4)"),
        ("broken", {"h5py": "libhdf5.so: cannot open"}, "cannot open"),
    ],
)
def test_a_node_that_differs_is_named(field: str, value: object, words: str) -> None:
    job = four_nodes()
    setattr(job.ranks[2], field, value)
    (row,) = odd(job)
    assert row.node == "n3" and words in row.what and row.fix


def test_a_launcher_of_another_mpi_is_answered_with_the_line_that_works() -> None:
    job = JobFacts([rank(0, "n1")])
    job.first.launch_error = "srun started 4 ranks, but Open MPI sees a world of 1"
    job.first.launch_fix = "start it by: srun --mpi=pmix -n 4 hpcflow doctor"
    text = findings_report.as_text(job, check_table.run_checks(job))
    assert "fix: start it by: srun --mpi=pmix" in text
    assert findings_report.exit_code(check_table.run_checks(job)) == 1


def test_equal_findings_are_one_row_for_many_nodes() -> None:
    job = JobFacts([rank(i, f"n{i}") for i in range(1000)])
    for one in job.ranks:
        one.places[1].problem = "permission denied"
    text = findings_report.as_text(job, check_table.run_checks(job))
    assert text.count("permission denied") == 1 and "n0, n1, n2, n3 and 996 more" in text
    assert len(text.splitlines()) < 30


def test_json_holds_findings_and_facts() -> None:
    job = four_nodes()
    told = json.loads(findings_report.as_json(job, check_table.run_checks(job)))
    assert told["ok"] is True and told["format"] == 1
    again = JobFacts(
        [RankFacts.from_data(data) for data in copy.deepcopy(told["ranks"])], job.links
    )
    assert again == job


def test_no_check_fails_where_nothing_is_known() -> None:
    rows = check_table.run_checks(
        JobFacts([RankFacts(node="n1", broken={"mpi4py": "MPI does not start: x"})])
    )
    assert findings_report.exit_code(rows) == 1


def test_a_folder_that_takes_nothing(tmp_path) -> None:
    def full(path: str) -> None:
        raise OSError(28, "No space left on device")

    assert check_folder("TMPDIR", str(tmp_path), full).problem == "no space left on device"
    sound = check_folder("TMPDIR", str(tmp_path))
    assert not sound.problem and sound.free > 0 and not list(tmp_path.iterdir())
    assert check_folder("TMPDIR", str(tmp_path / "none")).problem == "no such file or directory"


@pytest.mark.parametrize(("own", "shared", "warned"), [(18e-3, 2e-3, True), (9e-4, 8e-4, False),
                                                       (3e-4, 1e-5, False)])  # fmt: skip
def test_cores_that_other_programs_use_are_told_by_the_waiting_of_their_node(own, shared, warned):
    late = {"n1": {"own core": own, "shared cores": shared}, "n2": {"shared cores": 1e-3}}
    job = JobFacts([rank(i, name) for i, name in enumerate(["n1", "n2"])])
    job.waits = [
        MeasuredWait(node, policy, 2000, [seconds] * 3)
        for node, rows in late.items()
        for policy, seconds in rows.items()
    ]
    (row,) = node_checks.waiting(job)
    assert (row.level, row.node) == (("warn", "n1") if warned else ("ok", ""))
    assert ("--set crowded=1" in row.fix) == warned
    assert "18 ms after a message, and 2 ms if it yields" in row.what or not warned
    job.waits.clear()
    assert node_checks.waiting(job) == []
