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
    done = subprocess.run(words, capture_output=True, text=True)
    said = done.stderr.strip() if done.returncode else "done"
    logger.info("%s is on Lustre: %s: %s", directory, " ".join(words), said)


def file_system(path: Path) -> str:
    """The type of the file system that contains `path`, which need not exist; "" if unknown."""
    real = os.path.realpath(path)
    best = ("", "")
    try:
        with open(MOUNTS) as file:
            rows = [line.split() for line in file]
    except OSError:
        return ""
    for _, where, kind, *_ in rows:
        inside = real == where or real.startswith(where.rstrip("/") + "/")
        if inside and len(where) >= len(best[0]):
            best = (where, kind)
    return best[1]
