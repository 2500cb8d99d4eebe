"""Records of what really ran: a test marked `verifies("mpio")` that passes writes one.

They are written only if HPCFLOW_RECORDS names a folder, as `make verified` does, and
tools/verified.py makes docs/verified.md of them.
"""

from __future__ import annotations

import datetime
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def write(back_end: str, ranks: int, versions: dict[str, str]) -> None:
    """Record that `back_end` worked; of one commit the run on the most ranks stays."""
    folder = os.environ.get("HPCFLOW_RECORDS")
    if not folder:
        return
    file = Path(folder) / (re.sub(r"\W+", "-", back_end.lower()).strip("-") + ".json")
    commit = commit_now()
    if file.exists():
        before = json.loads(file.read_text())
        if before["commit"] == commit and before["ranks"] > ranks:
            return
    facts = {
        "back_end": back_end,
        "ranks": ranks,
        "versions": versions or versions_now(),
        "commit": commit,
        "date": datetime.date.today().isoformat(),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(facts, indent=1) + "\n")


@functools.cache
def commit_now() -> str:
    """The commit of the tree, with a plus if the package differs from it."""
    head = _ask("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    changed = _ask("git", "-C", str(ROOT), "status", "--porcelain", "--", "hpcflow")
    return head + ("+" if changed else "") if head else "unknown"


def versions_now() -> dict[str, str]:
    """Versions of what this process has loaded."""
    found = {"Python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("numpy", "mpi4py", "h5py", "cupy"):
        if name in sys.modules:
            found[name] = sys.modules[name].__version__
    if "mpi4py.MPI" in sys.modules:
        words = sys.modules["mpi4py.MPI"].Get_library_version()
        found["MPI"] = " ".join(re.split(r"[,\n\0]", words)[0].split())
    return found


def mpi_name() -> str:
    """`Open MPI` or `MPICH`, of the library loaded here."""
    from hpcflow.launch import launcher_detection

    return launcher_detection.mpi_name(versions_now().get("MPI", ""))[0]


def _ask(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=100)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
