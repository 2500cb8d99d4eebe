"""Freed memory stays with the process, so that the next step touches no fresh pages."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np
import hpcflow as hf

hf.Session()

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept = [np.ones(1 << 18, "u1") for _ in range(64)]
    del kept
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
print(faults())
"""
PAGES = 64 * (1 << 18) // 4096


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
@pytest.mark.parametrize("own", [False, True], ids=["ours", "the user's"])
def test_arrays_of_the_second_round_are_in_the_pages_of_the_first(own: bool) -> None:
    """Limits that the user has set stay."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    environ.pop("GLIBC_TUNABLES", None)
    if own:
        environ["MALLOC_TRIM_THRESHOLD_"] = "65536"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    count = int(done.stdout)
    assert count > PAGES / 2 if own else count < PAGES / 20
