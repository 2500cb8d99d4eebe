"""Closing a session: frees its buffers, channels, variables and unused device memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcflow.errors import HpcflowError
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.job.message_headers import SessionClosed

if TYPE_CHECKING:
    from hpcflow.runtime.device.shared_arena import SharedArena
    from hpcflow.runtime.job.rank_context import RankContext
    from hpcflow.runtime.state.state_store import StateStore
    from hpcflow.runtime.step.planned_step import ExecutableStep

ENDING_S = 1.0  # limit for cancelled steps in flight to end


def release_session(
    context: RankContext, steps: Sequence[ExecutableStep], store: StateStore, arena: SharedArena
) -> None:
    """Free what `steps` hold, here and on other ranks, and the variables in `store`.

    If messages fail, as in a job that ends by an error, the rest is freed with the process.
    """
    executor, late = context.executor, time.monotonic() + ENDING_S

    def in_flight() -> bool:
        return any(step.in_flight for step in steps) and time.monotonic() < late

    def close() -> None:
        executor.finish_tiled()
        for step in steps:
            step.close()
        arena.close()
        store.close()
        roles, control = context.roles, context.control
        for peer in roles.ranks_of(context.replica).values():
            if control is not None and peer != context.rank and peer not in roles.servers:
                control.send(peer, SessionClosed(store.number))

    try:
        if any(step.in_flight for step in steps):
            executor.run_locked(lambda: None, lambda: not in_flight())
        executor.run_locked(close, lambda: True)
    except HpcflowError as error:
        logger.debug("the session was closed, but not all of it was given back: %s", error)
    for device in context.devices.values():
        device.trim()
