"""Banners of mpirun are left out, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcflow.launch.mpirun_banner import BannerFilter

RULE = b"-" * 74 + b"\n"
ABORT = (
    RULE + b"MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n"
    b"  Proc: [[20315,1],1]\n  Errorcode: 86\n\n"
    b"NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.\n"
    b"You may or may not see output from other processes, depending on\n"
    b"exactly when Open MPI kills them.\n" + RULE
)
EXITED = (
    RULE + b"prterun has exited due to process rank 1 with PID 0 on node vm calling\n"
    b'"abort". This may have caused other processes in the application to be\n'
    b"terminated by signals sent by prterun (as reported here).\n" + RULE
)
STATUS = (
    RULE + b"prterun detected that one or more processes exited with non-zero status,\n"
    b"thus causing the job to be terminated. The first process to do so was:\n\n"
    b"   Process name: [prterun-vm-8342@1,1]\n   Exit code:    1\n" + RULE
)
OWN = [
    b"a table\n" + RULE + b"a row\n" + RULE,
    RULE + RULE + b"twice\n",
    b"10 %\r20 %\r30 %\n--- x\n-\n",
    b"no end",
    RULE + b"There are not enough slots available in the system\n\n" + RULE,
]


@pytest.mark.parametrize("size", [1, 7, 80, 10_000])
@pytest.mark.parametrize("own", OWN)
def test_lines_of_others_stay_whatever_the_pieces_are(own: bytes, size: int) -> None:
    for text in (own, ABORT + own, STATUS + EXITED + own):
        kept = BannerFilter()
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        assert b"".join([*map(kept.feed, pieces), kept.end()]) == own


def test_the_line_about_a_rank_that_has_ended_is_left_out() -> None:
    gone = b"[vm:32258] PMIX ERROR: PMIX_ERR_UNREACH in file /x/pmix_server.c at line 3146\n"
    assert BannerFilter().feed(b"saved\n" + gone + RULE + b"a table\n") == b"saved\n" + RULE + (
        b"a table\n"
    )
    other = gone.replace(b"UNREACH", b"NOMEM")
    assert BannerFilter().feed(other) == other


def test_a_line_of_a_rank_within_a_banner_stays() -> None:
    lines = ABORT.splitlines(keepends=True)
    text = b"".join([*lines[:3], b"[rank 0 on vm] KeyError: 'x'\n", *lines[3:], b"after\n"])
    assert BannerFilter().feed(text) == b"[rank 0 on vm] KeyError: 'x'\nafter\n"


def test_what_is_no_banner_passes_at_once() -> None:
    kept = BannerFilter()
    assert kept.feed(b"10 %\r") == b"10 %\r"
    assert kept.feed(b"20 %") == b"20 %"
    assert kept.feed(b"\n" + RULE) == b"\n" and kept.feed(b"x\n") == RULE + b"x\n"


@pytest.mark.slow
@pytest.mark.parametrize("full", ["0", "1"])
def test_the_output_of_a_job_that_aborts(full: str, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("import hpcflow as hf\nhf.Session(hf.Graph())\n{}['x']\n")
    words = [sys.executable, "-m", "hpcflow", "run", "-n", "2", "--set", f"full_traceback={full}"]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(
        [*words, "fails.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 86 and "KeyError: 'x'" in done.stderr
    assert ("MPI_ABORT" in done.stderr) == (full == "1")
    assert "hpcflow: the job failed on rank" in done.stderr.splitlines()[-1]
