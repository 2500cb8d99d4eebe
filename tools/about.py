"""Of what a tool tells: the date, the commit and the versions."""

from __future__ import annotations

import platform
import subprocess
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent


def about() -> dict[str, str]:
    """The date, the commit of this checkout ("" if it is none), and the versions used."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = ""
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}"
    return {"date": time.strftime("%Y-%m-%d"), "commit": commit, "versions": versions}
