"""Lustre striping: stripes a folder before its first checkpoint is written."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

from hpcflow.platform.rank_logging import logger

MOUNTS = "/proc/self/mounts"
STRIPE = "4m"


@functools.cache
def stripe(directory: Path) -> None:
    """If `directory` is new or empty and on Lustre, stripe it over all targets, and log it once.

    A folder with files keeps its layout.
    """
    if file_system(directory) != "lustre" or (directory.is_dir() and any(directory.iterdir())):
        return
    lfs = shutil.which("lfs")
    if lfs is None:
        logger.warning("%s is on Lustre, but is not striped: the command lfs is missing", directory)
        return
    directory.mkdir(parents=True, exist_ok=True)
    words = [lfs, "setstripe", "-c", "-1", "-S", STRIPE, str(directory)]
    completed = subprocess.run(words, capture_output=True, text=True)
    outcome = completed.stderr.strip() if completed.returncode else "done"
    logger.info("%s is on Lustre: %s: %s", directory, " ".join(words), outcome)


def file_system(path: Path) -> str:
    """The type of the file system that contains `path`, which need not exist; "" if unknown."""
    real = os.path.realpath(path)
    best = ("", "")
    try:
        with open(MOUNTS) as file:
            rows = [line.split() for line in file]
    except OSError:
        return ""
    for _, mount, kind, *_ in rows:
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]
