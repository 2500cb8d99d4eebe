"""The default session of each thread, used by `Tensor.eval` and `Operation.run`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from hpcflow.errors import FetchError
from hpcflow.platform.exception_translation import value_text

_local = threading.local()


def _stack() -> list[Any]:
    if not hasattr(_local, "sessions"):
        _local.sessions = []
    return _local.sessions


def get_default_session() -> Any:
    """The innermost default session of this thread, None if there is none."""
    stack = _stack()
    return stack[-1] if stack else None


@contextlib.contextmanager
def as_default(session: Any) -> Iterator[Any]:
    """Make `session` this thread's default; it may exit before sessions entered later."""
    stack = _stack()
    stack.append(session)
    try:
        yield session
    finally:
        remove_last(stack, session)


def remove_last(stack: list[Any], item: Any) -> None:
    """Remove the topmost `item` from a stack; it is not in the stack of another thread."""
    for i in reversed(range(len(stack))):
        if stack[i] is item:
            del stack[i]
            return


def session_or_default(session: Any, graph: object, label: str) -> Any:
    """`session`, or the default one, to compute `label` of `graph`.

    Errors: FetchError if there is none, or it is a session of another graph.
    """
    session_used = get_default_session() if session is None else session
    if session_used is None:
        raise FetchError(
            f"{label} needs a session, and none is the default",
            hint="use it within `with hf.Session():`, or give session=",
        )
    if not hasattr(session_used, "run"):
        raise FetchError(f"{value_text(session_used)} is not a session", hint="give an hf.Session")
    if session_used.graph is not graph:
        raise FetchError(
            f"{label} does not belong to the graph of the {'default ' * (session is None)}session",
            hint="make the session with hf.Session(graph)",
        )
    return session_used
