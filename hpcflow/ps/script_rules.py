"""Synchronization rules of the user's script, for processes that need one but do not run it.

`hpcflow run` checks the option `--sync` before the script runs, and a server never runs it. Both
import it as Python's multiprocessing does: under another name than `__main__`.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
from pathlib import Path

from hpcflow.errors import HpcflowError

MODULE = "__hpcflow_script__"
_scripts: list[str] = []  # not imported yet
_importing: list[str] = []


def look_in(script: str) -> None:
    """Have `load` look in this script, which registers its rules by `hf.register_sync_rule`."""
    _scripts[:] = [script]


def load(name: str, is_known: bool) -> None:
    """Import the script if it may register the rule `name`; `is_known`: it does.

    Errors: HpcflowError if the script has no `if __name__ == "__main__":`.
    """
    if not _scripts or _importing or not (is_known or _registers(_scripts[0], name)):
        return
    script = _scripts.pop()
    folder = os.path.dirname(os.path.abspath(script))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    _importing.append(script)
    try:
        runpy.run_path(script, run_name=MODULE)
    finally:
        _importing.clear()


def _registers(script: str, name: str) -> bool:
    """Whether the text of the script registers a rule of this name."""
    try:
        text = Path(script).read_text(errors="replace")
    except OSError:
        return False
    return bool(re.search(rf"register_sync_rule\(\s*['\"]{re.escape(name)}['\"]", text))


def check_not_importing() -> None:
    """Called to join the job. Errors: HpcflowError if a script does so while it is imported."""
    if _importing:
        raise HpcflowError(
            f"{_importing[0]} starts its work when it is imported for its synchronization rule",
            hint='begin the work under `if __name__ == "__main__":`',
        )
