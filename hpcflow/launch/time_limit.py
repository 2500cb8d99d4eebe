"""Time limit of a job: from the setting `time_limit`, else from SLURM."""

from __future__ import annotations

import functools
import math
import os
import re
import time

from hpcflow.errors import HpcflowError
from hpcflow.launch import slurm_requeue
from hpcflow.settings import Settings

LAUNCH_TIME = "HPCFLOW_LAUNCH_TIME"  # set by `hpcflow run -n`: its start, in seconds since 1970
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_left(settings: Settings) -> float:
    """Seconds until this job is ended; infinite if unknown."""
    if settings.time_limit:
        return seconds(settings.time_limit) - seconds_running()
    ends = slurm_requeue.job_end_time()
    return math.inf if ends is None else ends - time.time()


def seconds_running() -> float:
    """Seconds since this process started, including the start of MPI."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


@functools.cache
def launch_time() -> float:
    """When this job was launched, in seconds since 1970: by `hpcflow run -n`, or this process.

    It takes the variable LAUNCH_TIME out of the environment: it is not that of child processes.
    """
    now, text = time.time(), os.environ.pop(LAUNCH_TIME, "")
    own = now - seconds_running()
    launched = float(text) if re.fullmatch(r"\d{1,12}(\.\d+)?", text, re.ASCII) else own
    return launched if launched <= now else own  # the clock of the launcher's host is ahead


def seconds(text: str) -> float:
    """Seconds of a time limit: `5400`, "90m", "2h", "1d", "1:30:00" or "2-12:00:00".

    Errors: HpcflowError for anything else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    clock = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", text.strip())
    if match is not None:
        return float(match[1]) * _UNITS[match[2]]
    if clock is None:
        raise HpcflowError(
            f"setting time_limit={text!r} is no time",
            hint="give seconds, or as 90m, 2h, 1:30:00, 2-12:00:00",
        )
    days, hours, minutes, secs = (int(part or 0) for part in clock.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + secs)
