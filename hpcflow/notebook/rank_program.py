"""Rank program of `hpcflow.notebook.run`: calls the function of a cell and writes its result.

`hpcflow run` runs it as a script on each rank, with the folder of the call as its argument.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from hpcflow.errors import MissingPackageError
from hpcflow.launch.launcher_detection import detect_launcher
from hpcflow.monitoring.stack_dump import raised_at
from hpcflow.monitoring.users_traceback import users_traceback
from hpcflow.platform.install_hints import install_hint
from hpcflow.settings import Settings

CALL = "call.pickle"


def outcome_file(folder: Path, rank: int) -> Path:
    """The file that a rank writes."""
    return folder / f"outcome-{rank}.pickle"


def cloudpickle_module() -> ModuleType:
    """The library that pickles functions of a notebook.

    Errors: MissingPackageError if it cannot be imported.
    """
    try:
        import cloudpickle
    except ImportError as error:
        raise MissingPackageError(
            "hpcflow.notebook needs cloudpickle, which sends functions of a notebook to the ranks",
            hint=install_hint("notebook"),
        ) from error
    library: ModuleType = cloudpickle
    return library


def main(folder: Path) -> None:
    """Call the function; write its result or its exception, which is then raised."""
    library, place = cloudpickle_module(), detect_launcher()
    file = outcome_file(folder, place.rank if place is not None else 0)
    try:
        function, args, kwargs = pickle.loads((folder / CALL).read_bytes())
        outcome = ("result", sent(library, function(*args, **kwargs)))
    except Exception as error:
        first = "".join(traceback.format_exception_only(error)).rstrip()
        shown = first, raised_at(error), shown_traceback(error)
        write(file, ("error", time.time(), *shown, pickled(library, error)))
        raise
    write(file, outcome)


def shown_traceback(error: Exception) -> str:
    """The traceback of an error in the function, with frames of libraries only if they are asked
    for."""
    if Settings.from_environ().full_traceback:
        return "".join(traceback.format_exception(error))
    return users_traceback(error, error.__traceback__)


def sent(library: ModuleType, value: Any) -> bytes:
    """What the function returned, as bytes. Errors: TypeError for what cannot leave its rank."""
    try:
        data: bytes = library.dumps(value)
    except Exception as error:
        raise TypeError(
            f"the function returned a {type(value).__name__}, which cannot be sent from its rank "
            f"({error}): return numbers, arrays, lists and dicts, such as history.history"
        ) from error
    return data


def pickled(library: ModuleType, error: Exception) -> bytes | None:
    """An exception as bytes; None if it holds what cannot be pickled."""
    try:
        data: bytes = library.dumps(error)
    except Exception:
        return None
    return data


def write(file: Path, outcome: tuple[Any, ...]) -> None:
    """Write what became of the call; the rank may be killed meanwhile."""
    draft = file.with_suffix(".draft")
    draft.write_bytes(pickle.dumps(outcome))
    draft.replace(file)


if __name__ == "__main__":
    sys.path[0] = os.getcwd()  # modules beside the notebook, not those beside this file
    main(Path(sys.argv[1]))
