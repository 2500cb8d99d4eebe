"""Cause of a stop: the signal that `hpcflow run -n` got and turned into SIGUSR1 for the ranks.

`hpcflow run -n N` makes a folder and passes its path to mpirun's ranks, of which those of its host
can read it. There it leaves the name of the signal, and the ranks say that one.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping

FOLDER = "HPCFLOW_SUMMARY_FOLDER"  # environment variable
_NAME = "signal"
MOST_BYTES = 64  # of the file


def leave_signal(number: int, environ: Mapping[str, str]) -> None:
    """Leave the signal for the ranks that have the variables `environ`."""
    folder = environ.get(FOLDER)
    if folder:
        with contextlib.suppress(OSError), open(os.path.join(folder, _NAME), "w") as file:
            file.write(signal.Signals(number).name)


def first_signal(number: int) -> str:
    """The name of the signal that `hpcflow run -n` got, if `number` is what it made of it."""
    folder = os.environ.get(FOLDER)
    if number == signal.SIGUSR1 and folder:
        with contextlib.suppress(OSError), open(os.path.join(folder, _NAME), "rb") as file:
            name = file.read(MOST_BYTES).decode("ascii", "replace")
            if name in signal.Signals.__members__:
                return name
    return signal.Signals(number).name
