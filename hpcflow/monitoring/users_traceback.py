"""The traceback of an error for its user: frames of the user's files, and the message."""

from __future__ import annotations

import sys
import traceback
from types import TracebackType

from hpcflow.errors import HpcflowError
from hpcflow.monitoring.stack_dump import is_library_file
from hpcflow.platform.exception_translation import is_package_file
from hpcflow.settings import Settings

NOTE = (
    "  (frames of libraries are left out; --set full_traceback=1, or HPCFLOW_FULL_TRACEBACK=1 for "
    "`python SCRIPT`, shows them)\n"
)


def users_traceback(error: BaseException, trace: TracebackType | None) -> str:
    """The traceback without frames of hpcflow, of installed libraries and of generated code.

    An error that has no other frames, raised inside a library, is printed in full. A cause or
    context that has none is left out, since the error that followed from it says what happened.
    """
    printed = traceback.TracebackException(type(error), error, trace)
    if printed.stack and all(is_library_file(frame.filename) for frame in printed.stack):
        return "".join(printed.format())
    hidden = _keep_users_frames(printed)
    lines, message = list(printed.format()), list(printed.format_exception_only())
    if hidden and lines[-len(message) :] == message:  # otherwise a group, whose lines are indented
        lines.insert(len(lines) - len(message), NOTE)
    return "".join(lines)


def _keep_users_frames(printed: traceback.TracebackException) -> bool:
    """Remove the frames of libraries from an error and its causes; whether there were any."""
    kept = [frame for frame in printed.stack if not is_library_file(frame.filename)]
    hidden = len(kept) < len(printed.stack)
    printed.stack[:] = kept
    if printed.__cause__ is not None:
        hidden = _keep_users_frames(printed.__cause__) or hidden
        printed.__cause__ = printed.__cause__ if printed.__cause__.stack else None
    if printed.__context__ is not None:
        hidden = _keep_users_frames(printed.__context__) or hidden
        printed.__context__ = printed.__context__ if printed.__context__.stack else None
    for member in getattr(printed, "exceptions", None) or ():
        hidden = _keep_users_frames(member) or hidden
    return hidden


def print_error(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an error that ends a program before it has joined its job, as `sys.excepthook`.

    One that was raised in hpcflow is printed without frames of libraries, all others as Python
    prints them.
    """
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(trace)]
    is_ours = isinstance(error, Exception) and any(map(is_package_file, frames))
    if is_ours and not _prints_all_frames():
        sys.stderr.write(users_traceback(error, trace))
    else:
        sys.__excepthook__(kind, error, trace)


def _prints_all_frames() -> bool:
    """Whether the environment has the setting `full_traceback`."""
    try:
        return Settings.from_environ().full_traceback
    except HpcflowError:  # the error to print comes first; a session will name the setting
        return False
