"""The ranks of a save or a load: all drivers, which run the script, and the ranks they serve."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from hpcflow.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointStorageError,
    HpcflowError,
)
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.state.state_store import StateStore

_KINDS = {
    e.__name__: e for e in (CheckpointCorruptError, CheckpointMismatchError, CheckpointStorageError)
}


class ParticipatingRanks:
    """All ranks that run the script (drivers); each calls every method, in the same order.

    The constructor waits for the end of an asynchronous save, if there is one.
    """

    def __init__(self, context: RankContext) -> None:
        self.context = context
        if context.saving is not None:
            context.saving.finish()
        context.executor.run_locked(
            context.executor.finish_tiled, lambda: True
        )  # finish updates in progress
        drivers = context.drivers
        self._drivers = drivers if drivers is not None and drivers.size > 1 else None
        self.size = self._drivers.size if self._drivers else 1
        self.number = self._drivers.rank if self._drivers else 0

    def gather(self, local_value: Any) -> list[Any] | None:
        """The data of all drivers (plain, JSON) on the chief; None elsewhere."""
        self.context.meet("saving or loading")  # steps that one driver has begun are over then
        if self._drivers is None:
            return [local_value]
        text, drivers = json.dumps(local_value), self._drivers
        rows = self._call_locked(lambda: drivers.gather_text(text))
        return None if rows is None else [json.loads(row) for row in rows]

    def broadcast(self, value: Any = None) -> Any:
        """The chief's data (plain, JSON), on all drivers."""
        if self._drivers is None:
            return value
        text = json.dumps(value) if self.context.is_chief else None
        drivers = self._drivers
        return json.loads(self._call_locked(lambda: drivers.broadcast_text(text)))

    def decide(self, local_value: Any, chief: Callable[[list[Any]], Any]) -> Any:
        """The result of `chief` for the data of all drivers; an error of one is raised on all.

        `local_value` and what `chief` returns are results of `attempt`, or plain data without
        "error".
        """
        rows = self.gather(local_value)
        if rows is None:
            answer = self.broadcast()
        else:
            wrong = [row for row in rows if "error" in row]
            answer = self.broadcast(
                wrong[0] if wrong else run_or_error(self.context, lambda: chief(rows))
            )
        if "error" in answer:
            raise error_from_answer(answer)
        return answer["value"]

    def _call_locked(self, run: Callable[[], Any]) -> Any:
        """Make a blocking call under the progress lock, so that no other thread makes progress."""
        box: list[Any] = []
        self.context.executor.run_locked(lambda: box.append(run()), lambda: True)
        return box[0]

    def call(
        self, requests: Mapping[int, Mapping[str, Any]], store: StateStore
    ) -> Callable[[], dict[int, Any]]:
        """Send requests to served ranks, about their state for the session that has `store`.

        The returned function waits for the answers.
        """
        if not requests:
            return dict
        assert self.context.control is not None
        about = {"service": "checkpoint", "store": [self.context.rank, store.number]}
        messages = {rank: {**about, **r} for rank, r in requests.items()}
        return self.context.control.call(messages)


def served_ranks(context: RankContext) -> list[int]:
    """The ranks served by this driver: its replica's other tasks; on the chief also the servers."""
    ranks = context.roles.ranks_of(context.replica).values()
    return [
        rank
        for rank in ranks
        if rank != context.rank and (context.is_chief or rank not in context.roles.servers)
    ]


def run_or_error(context: RankContext, run: Callable[[], Any]) -> dict[str, Any]:
    """{"value": `run()`}, or its error as plain data, which `failure` makes an exception."""
    try:
        return {"value": run()}
    except (HpcflowError, OSError) as error:
        message = error.message if isinstance(error, HpcflowError) else f"{error}"
        return {
            "error": message,
            "kind": type(error).__name__,
            "rank": context.rank,
            "op": getattr(error, "op", None),
            "hint": getattr(error, "hint", None),
        }


def error_from_answer(answer: Mapping[str, Any]) -> CheckpointError:
    """The exception for an answer with an error."""
    kind = _KINDS.get(answer["kind"], CheckpointError)
    return kind(answer["error"], op=answer["op"], rank=answer["rank"], hint=answer["hint"])
