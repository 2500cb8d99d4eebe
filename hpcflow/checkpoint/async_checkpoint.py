"""Asynchronous save: all ranks pin their rows at one step and write them while training continues.

No rank waits for the save. Each writer reports to the chief by a message, which the chief receives
while it runs steps. After all reports, a thread of the chief publishes the checkpoint, and the
chief sends the outcome to the other drivers.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from hpcflow.checkpoint.background_writer import Answer, run_in_thread, write_result
from hpcflow.checkpoint.checkpoint_service import begin_write
from hpcflow.checkpoint.participating_ranks import ParticipatingRanks
from hpcflow.checkpoint.save_checkpoint import SaveRequest, discard_draft, finish_save, make_plan
from hpcflow.checkpoint.save_plan import SavePlan
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.state.state_store import StateStore


class AsyncSave:
    """An asynchronous save, as a driver (a rank that runs the script) sees it.

    `ended` is called with the outcome, under the progress lock. On success the outcome is the facts
    of the published checkpoint: "path", and the seconds from the pinning of the versions until
    "durable", "verified" and "published". On failure it is the error of any rank, and the draft is
    removed. `waits` says whether training waits for the save; it is the same on all ranks.

    Ranks: every rank that runs the script.
    """

    def __init__(
        self, context: RankContext, ended: Callable[[Answer], None], waits: bool = False
    ) -> None:
        self.context, self._ended, self._waits = context, ended, waits
        self.outcome: Answer | None = None
        self.step = 0
        self._since = 0.0
        self._writers: set[int] = set()
        self._rows: dict[int, Answer] = {}  # on the chief: the writers' reports, by rank
        self._all_reported = threading.Event()

    def begin(self, store: StateStore, ask: SaveRequest, local_facts: Any, keep: int) -> None:
        """Agree on which rank writes which rows, and pin the values of these rows.

        Returns when all ranks with variables that the next steps may change have pinned them.

        Ranks:  every rank that runs the script, between steps.
        Errors: CheckpointError on all of them; no save has begun then.
        """
        team = ParticipatingRanks(self.context)
        with self.context.begins_saving(self):
            self._begin(team, store, ask, local_facts, keep)

    def _begin(
        self,
        team: ParticipatingRanks,
        store: StateStore,
        ask: SaveRequest,
        local_facts: Any,
        keep: int,
    ) -> None:
        context = self.context
        duties, plan = make_plan(team, store, ask, local_facts)
        plan = dataclasses.replace(plan, waits=self._waits)
        self.step, self._writers = plan.step, set(plan.writers)
        self._since = time.perf_counter()
        duty = duties.pop(context.rank, [])
        answers = team.call(
            {r: {"do": "begin", **plan.as_message(), "duty": slabs} for r, slabs in duties.items()},
            store,
        )
        if context.rank in self._writers:

            def begin_here() -> None:
                context.executor.finish_tiled()
                begin_write(context, store, plan, duty)

            context.executor.run_locked(begin_here, lambda: True)
        answers()
        if context.is_chief:
            run_in_thread(lambda: self._publish(plan, ask, keep))
            self._check_writers()
        if context.roles.servers:  # no driver continues before all drivers' ranks have pinned
            team.decide({"value": 0}, lambda rows: 0)

    # -- on the chief

    def _check_writers(self) -> None:
        """Set `_all_reported` once every writer has reported; a dead writer counts as an error."""
        world = self.context.world
        for rank in self._writers.intersection(world.lost if world is not None else ()):
            self._rows.setdefault(rank, _writer_death_error(rank))
        if self._writers and self._writers <= self._rows.keys():
            self._all_reported.set()

    def _publish(self, plan: SavePlan, ask: SaveRequest, keep: int) -> None:
        """In a thread: wait for all writers, then write the index and publish the checkpoint."""
        self._all_reported.wait()
        rows = list(self._rows.values())
        wrong = [row for row in rows if "error" in row]
        parts = [row["value"] for row in rows if "value" in row]

        def publish() -> dict[str, Any]:
            path = finish_save(plan, ask, keep, [part["record"] for part in parts], checks=True)
            return {
                "path": str(path),
                "durable": max(part["durable"] for part in parts),
                "verified": max(part["verified"] for part in parts),
                "published": time.perf_counter() - self._since,
            }

        outcome = (
            wrong[0] if wrong else write_result(self.context, f"publishing {plan.draft}", publish)
        )
        if "error" in outcome:
            discard_draft(plan)
        self.context.executor.call_in_holder(lambda: self._send_outcome(outcome))

    def _send_outcome(self, outcome: Answer) -> None:
        context, control = self.context, self.context.control
        message = {"service": "checkpoint", "do": "ended", "outcome": outcome}
        for rank in context.roles.drivers[1:]:
            assert control is not None and context.world is not None
            if rank not in context.world.lost:
                control.post(rank, message)
        self._end(outcome)

    # -- on all drivers

    def handle_message(self, message: dict[str, Any]) -> None:
        """Handle a message: a writer's report to the chief, or the outcome from the chief."""
        if message["do"] == "ended":
            self._end(message["outcome"])
        else:
            self._rows[message["rank"]] = message["answer"]
            self._check_writers()

    def _end(self, outcome: Answer) -> None:
        self.outcome = outcome
        self._ended(outcome)

    def poll(self) -> None:
        """Between two steps: receive messages, since a step without waits does not poll."""
        self.context.executor.poll_if_free()
        self._check_writers()

    def finish(self, late: float = math.inf) -> bool:
        """Wait for the outcome while making progress; False once the clock is past `late`."""
        behind = self

        class Outcome:
            def test(self) -> bool:
                if behind.outcome is None:
                    behind._check_writers()
                return behind.outcome is not None or time.perf_counter() > late

        chief = -1 if self.context.is_chief else self.context.roles.drivers[0]
        self.context.executor.finish(Outcome(), f"the checkpoint of step {self.step}", chief)
        return self.outcome is not None


def _writer_death_error(rank: int) -> Answer:
    return {
        "error": f"rank {rank} has died while it wrote its part",
        "kind": "CheckpointError",
        "rank": rank,
        "op": None,
        "hint": "the next save leaves it out",
    }
