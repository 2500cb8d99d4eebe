"""The ranks that run the script, when they save or load together; and those that they speak for."""

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
from hpcflow.runtime.job.rank_context import Context
from hpcflow.runtime.state.state_store import Store

_KINDS = {
    e.__name__: e for e in (CheckpointCorruptError, CheckpointMismatchError, CheckpointStorageError)
}


class Team:
    """All ranks that run the script; each calls every method, in the same order.

    It begins when the save that is written behind training, if there is one, is over.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        if context.saving is not None:
            context.saving.finish()
        context.engine.with_baton(context.engine.settle, lambda: True)  # no update is half done
        drivers = context.drivers
        self._drivers = drivers if drivers is not None and drivers.size > 1 else None
        self.size = self._drivers.size if self._drivers else 1
        self.number = self._drivers.rank if self._drivers else 0

    def gather(self, mine: Any) -> list[Any] | None:
        """Everyone's plain data, on the chief; None elsewhere."""
        self.context.meet("saving or loading")  # also what one driver has begun is over then
        if self._drivers is None:
            return [mine]
        text, drivers = json.dumps(mine), self._drivers
        rows = self._calmly(lambda: drivers.gather_text(text))
        return None if rows is None else [json.loads(row) for row in rows]

    def say(self, value: Any = None) -> Any:
        """The chief's plain data, everywhere."""
        if self._drivers is None:
            return value
        text = json.dumps(value) if self.context.is_chief else None
        drivers = self._drivers
        return json.loads(self._calmly(lambda: drivers.broadcast_text(text)))

    def decide(self, mine: Any, chief: Callable[[list[Any]], Any]) -> Any:
        """What the chief makes of everyone's data; an error of anyone is everyone's.

        `mine` and what `chief` returns come from `attempt`, or are plain data without "error".
        """
        rows = self.gather(mine)
        if rows is None:
            answer = self.say()
        else:
            wrong = [row for row in rows if "error" in row]
            answer = self.say(wrong[0] if wrong else attempt(self.context, lambda: chief(rows)))
        if "error" in answer:
            raise failure(answer)
        return answer["value"]

    def _calmly(self, run: Callable[[], Any]) -> Any:
        """Call something that blocks while no other thread drives the engine."""
        box: list[Any] = []
        self.context.engine.with_baton(lambda: box.append(run()), lambda: True)
        return box[0]

    def call(
        self, requests: Mapping[int, Mapping[str, Any]], store: Store
    ) -> Callable[[], dict[int, Any]]:
        """Have served ranks do something with what they keep for the session that has `store`.

        What is returned waits for their answers.
        """
        if not requests:
            return dict
        assert self.context.control is not None
        about = {"service": "checkpoint", "store": [self.context.rank, store.number]}
        named = {rank: {**about, **r} for rank, r in requests.items()}
        return self.context.control.call(named)


def served_by(context: Context) -> list[int]:
    """Whom this rank speaks for: its replica's other tasks, and on the chief the servers."""
    ranks = context.roles.ranks_of(context.replica).values()
    return [
        rank
        for rank in ranks
        if rank != context.rank and (context.is_chief or rank not in context.roles.servers)
    ]


def attempt(context: Context, run: Callable[[], Any]) -> dict[str, Any]:
    """{"value": what `run()` returns}, or its error as plain data that `failure` makes one of."""
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


def failure(answer: Mapping[str, Any]) -> CheckpointError:
    """The error in an answer."""
    kind = _KINDS.get(answer["kind"], CheckpointError)
    return kind(answer["error"], op=answer["op"], rank=answer["rank"], hint=answer["hint"])
