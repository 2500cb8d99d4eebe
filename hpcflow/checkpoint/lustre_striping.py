"""Striping on Lustre: a folder is striped before the first checkpoint is written into it."""

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
    """If `directory` is new and on Lustre, spread its files over all targets, and say so once.

    A folder that has files keeps the layout that its owner gave it.
    """
    if file_system(directory) != "lustre" or (directory.is_dir() and any(directory.iterdir())):
        return
    lfs = shutil.which("lfs")
    if lfs is None:
        logger.warning("%s is on Lustre, but there is no lfs here to stripe it", directory)
        return
    directory.mkdir(parents=True, exist_ok=True)
    words = [lfs, "setstripe", "-c", "-1", "-S", STRIPE, str(directory)]
    done = subprocess.run(words, capture_output=True, text=True)
    said = done.stderr.strip() if done.returncode else "done"
    logger.info("%s is on Lustre: %s: %s", directory, " ".join(words), said)


def file_system(path: Path) -> str:
    """The kind of file system that `path` is, or will be, on."""
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
