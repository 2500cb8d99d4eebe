"""No public name, parameter, option, setting, variable or exit code changes unnoticed."""

from __future__ import annotations

import difflib
import subprocess
import sys

import pytest

from tools.public_surface import RECORD, ROOT


@pytest.mark.slow
def test_the_public_surface_is_the_recorded_one() -> None:
    words = [sys.executable, str(ROOT / "tools" / "public_surface.py")]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True)
    before, now = RECORD.read_text().splitlines(), done.stdout.splitlines()
    change = "\n".join(difflib.unified_diff(before, now, "recorded", "now", lineterm="", n=0))
    assert not change, f"if meant: python tools/public_surface.py --record\n{change}"
