"""What stands before larger packages on the path of jobs that tests start."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]


def path() -> str:
    """PYTHONPATH of a job of several ranks: hpcflow, and scikit-learn's digits without the rest."""
    return os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
