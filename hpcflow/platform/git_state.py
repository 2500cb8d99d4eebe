"""Git state of a run: the commit of the script's repository, and changed files."""

from __future__ import annotations

import shutil
from typing import Any

MOST_FILES = 50  # limit of listed changed files


def git_state(folder: str) -> dict[str, Any] | None:
    """Commit, branch and changed files of the repository around `folder`; None if there is none.

    git runs as a child that shares nothing with MPI: Python starts it by vfork and exec.
    """
    if shutil.which("git") is None:
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = (_git(folder, "status", "--porcelain", "--untracked-files=no") or "").splitlines()
    state: dict[str, Any] = {"commit": commit, "branch": _git(folder, "branch", "--show-current")}
    return {**state, "changed": [line[3:] for line in changed[:MOST_FILES]]}


def _git(folder: str, *words: str) -> str | None:
    import subprocess

    command = ["git", "-C", folder, "--no-optional-locks", *words]
    try:
        completed = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return completed.stdout.strip("\n") if completed.returncode == 0 else None
