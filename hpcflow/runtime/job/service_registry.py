"""Service registry: lazy import, by name, of services and state types of higher packages.

The runtime imports no package that depends on it, and a served rank runs no script that would
import one. The name in a call, or the type of a state, is looked up here and its module
imported on demand. Calls with other names fail.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from hpcflow.errors import MALFORMED, CommError, HpcflowError
from hpcflow.runtime.dynamic_types import Json

Reply = Callable[[Json], None]
SERVICES = {  # modules with answer(context, request, reply)
    "checkpoint": "hpcflow.checkpoint.checkpoint_service",
    "losses": "hpcflow.runtime.failure.data_progress",
    "note": "hpcflow.runtime.job.note_service",
    "rounds": "hpcflow.ps.worker_leaves_service",
    "shares": "hpcflow.runtime.job.note_service",
    "speeds": "hpcflow.runtime.job.note_service",
    "trace": "hpcflow.runtime.profile.job_trace",
}
STATES = {  # modules that define a type of state and its waiting ops
    "Iterator": "hpcflow.data.dataset_iterator",
    "Rounds": "hpcflow.ps.sync_op_execution",
}


def answer_service(context: Any, request: Json, reply: Reply) -> None:
    """Call the service that `request` names; it calls `reply` with its answer, plain data.

    Errors: CommError for an unknown service or a malformed request.
    """
    name = request.get("service", "") if isinstance(request, dict) else ""
    if not isinstance(name, str) or name not in SERVICES:
        raise CommError(f"there is no service {name!r}", rank=context.rank)
    try:
        importlib.import_module(SERVICES[name]).answer(context, request, reply)
    except HpcflowError:
        raise
    except MALFORMED as error:
        raise CommError(
            f"a call of the service {name!r} failed: {error!r}",
            rank=context.rank,
            hint="install the same hpcflow on every rank; see the traceback above",
        ) from error


def load_state_type(type: str) -> None:
    """Import the module that defines a type of state, if it is listed here."""
    if type in STATES:
        importlib.import_module(STATES[type])
