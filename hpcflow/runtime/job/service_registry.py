"""What ranks need of the rooms above the runtime, by name.

The runtime knows no room that stands on it. A served rank runs no script that would import one, so
the name in a call, or the type of a state, is looked up here and its module imported then; other
names are refused.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from hpcflow.errors import MALFORMED, CommError, HpcflowError

Reply = Callable[[dict[str, Any]], None]
SERVICES = {  # modules with answer(context, request, reply)
    "checkpoint": "hpcflow.checkpoint.checkpoint_service",
    "losses": "hpcflow.runtime.failure.data_progress",
    "note": "hpcflow.runtime.job.note_service",
    "rounds": "hpcflow.ps.worker_leaves_service",
    "shares": "hpcflow.runtime.job.note_service",
}
KERNELS = {
    "ReadCheckpoint": "hpcflow.checkpoint.read_checkpoint_kernels"
}  # modules with the kernel of an op
STATES = {  # modules that say what state of a type is, and its waits
    "Iterator": "hpcflow.data.dataset_iterator",
    "Rounds": "hpcflow.ps.sync_op_execution",
}


def answer(context: Any, request: dict[str, Any], reply: Reply) -> None:
    """Have the service that `request` names call `reply` with its answer, in plain data."""
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
            hint="have all ranks the same hpcflow? the traceback above tells where",
        ) from error


def load(type: str) -> None:
    """Import what says what state of a type is."""
    if type in STATES:
        importlib.import_module(STATES[type])


def load_kernel(type: str) -> None:
    """Import the kernel of an op that is not of the room of kernels."""
    if type in KERNELS:
        importlib.import_module(KERNELS[type])
