"""Calibration with several numbers of threads, each in a process of its own.

BLAS and OpenMP size their pools when they load, so a process measures with one number. The others
are measured by `hpcflow costs --calibrate` with HPCFLOW_THREADS, which adds its rows to the file.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence

from hpcflow.cli.cost_calibration import calibrate
from hpcflow.cli.run import path_options
from hpcflow.cli.terminal_output import err
from hpcflow.errors import HpcflowError
from hpcflow.platform import cpu_threads
from hpcflow.platform.machine_profile import MachineProfile, ProfileFile
from hpcflow.settings import Settings

LEAST_S = 1e-6  # of a calibration that has no time left: it measures one case


def wrong_numbers(text: str) -> str:
    """What is wrong with the numbers of threads that are asked for; "" if nothing is."""
    most = cpu_threads.find_cores().mask
    is_list = re.fullmatch(r"[0-9]{1,6}(,[0-9]{1,6})*", text) is not None
    if is_list and all(1 <= number <= most for number in _numbers(text)):
        return ""
    return f"--threads takes numbers from 1 to {most}, the CPUs of this process, as in 1,2,4"


def numbers_of(text: str | None) -> list[int]:
    """The numbers of threads to measure with, by the option.

    Without it: the number that the user has set, else the powers of two up to the cores of this
    process, and the cores.
    """
    chosen = cpu_threads.chosen_threads()
    if text is not None:
        return _numbers(text)
    if chosen.is_given:
        return [chosen.threads]
    return powers_up_to(chosen.cores)


def powers_up_to(cores: int) -> list[int]:
    """The powers of two up to a number of cores, and the number itself."""
    return sorted({1 << k for k in range(cores.bit_length())} | {cores})


def calibrate_threads(
    numbers: Sequence[int], seconds: float, file: ProfileFile, settings: Settings
) -> bool:
    """Measure with each number of threads for about `seconds` in all, and add the rows to the file.

    Returns False, with a warning, if the file cannot be written.
    Errors: HpcflowError if the process of another number of threads fails.
    """
    until = time.monotonic() + seconds
    for index, number in enumerate(numbers):
        share = (until - time.monotonic()) / (len(numbers) - index)
        if number != cpu_threads.chosen_threads().threads:
            _calibrate_in_process(number, max(share, LEAST_S))
        elif not _calibrate_here(max(share, LEAST_S), file, settings):
            return False
    return True


def _calibrate_here(seconds: float, file: ProfileFile, settings: Settings) -> bool:
    """Measure with the threads of this process; whether the rows are kept."""
    found, threads = calibrate(seconds, settings), cpu_threads.chosen_threads().threads
    err(
        f"measured {len(found.rows)} operations with {threads} "
        f"thread{'' if threads == 1 else 's'}: {found.ran} of {found.cases} cases"
    )
    return file.add(MachineProfile(operations=tuple(found.rows)))


def _calibrate_in_process(threads: int, seconds: float) -> None:
    """Measure in a process with this number of threads, which adds its rows to the same file."""
    command = [sys.executable, *path_options(), "-m", "hpcflow", "costs", "--calibrate"]
    command += ["--threads", str(threads), "--seconds", f"{seconds:.6f}"]
    environ = {**os.environ, "HPCFLOW_THREADS": str(threads)}
    code = subprocess.run(command, env=environ, stdout=subprocess.DEVNULL).returncode
    if code:
        raise HpcflowError(
            f"the calibration with {threads} threads failed: exit code {code}",
            hint="its own message is above",
        )


def _numbers(text: str) -> list[int]:
    return sorted({int(number) for number in text.split(",")})
