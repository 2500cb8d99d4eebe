"""Wait timestamps: the ledger entries of an executor's waits, and the start time of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hpcflow.comm.communicator import Request
from hpcflow.monitoring.wait_ledger import ANY, OWN, PATIENT, REQUEST
from hpcflow.runtime.dynamic_types import Value
from hpcflow.runtime.step.step_instance import StepInstance

WaitTarget = str | int | None  # of an instance is over: a segment, a wait by its name; None: a send
Waiting = tuple[Request, "StepInstance | None", WaitTarget]  # as in Executor.waits
Blamed = tuple[str, int] | None  # what patient waits are for, and the rank that can end them
MAX_SAMPLED_WAITS = 64  # most waits that are sampled in every pause
SAMPLE_INTERVAL_S = 0.5  # seconds between two samples of the waits of a busy rank


def wait_facts(
    request: Request, instance: StepInstance | None, target: WaitTarget
) -> tuple[int, str, int, str]:
    """Step, operation with the user's line, awaited rank and kind, in the order of
    `WaitLedger.enter`.

    `target` is None for a pending send.
    """
    if instance is None:
        return 0, str(target), getattr(request, "peer", ANY), REQUEST
    if target is None:
        return _send_facts(request, instance)
    node = instance.part.nodes.get(target) if isinstance(target, str) else None
    if node is None:
        return instance.step, str(target), ANY, "wait"
    peer = OWN if node.row.waits and not node.row.collective else ANY
    peer = instance.link.ranks.get(node.attrs.get("source"), peer)
    return instance.step, f"{node.name}\n{node.line}", peer, node.type


def _send_facts(request: Request, instance: StepInstance) -> tuple[int, str, int, str]:
    """The entry of a send.

    The node is known for persistent channels only, not for requests that are created anew in each
    step.
    """
    for channel, (dest, _), info in zip(
        instance.channels.sends, instance.channels.address, instance.code.sends_info, strict=True
    ):
        if channel is request:
            node = instance.part.nodes[info.node]
            return instance.step, f"{node.name}\n{node.line}", dest, "Send"
    return instance.step, "a message", ANY, "Send"


class WaitTimestamps:
    """Approximate start times of waits.

    Waits are sampled only now and then, so that a wait costs nothing: its start is its first
    sample.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], tuple[Request, float]] = {}
        self._looked = 0.0
        self._sampled_at = 0.0
        self._last: tuple[Waiting, int, float] | None = None  # the longest wait, step, start

    def entry(
        self, count: int, waits: Callable[[], list[Waiting]], blame: Callable[[], Blamed]
    ) -> tuple[Value, ...] | None:
        """The arguments of `WaitLedger.enter` for `count` waits; None: no entry.

        It is the longest wait. Patient waits are reported only if there are no others; the entry
        then names the rank from `blame`. With more than `MAX_SAMPLED_WAITS` waits, not every pause
        samples them: in between, the entry is the longest of the last sample, if its step is still
        in flight.
        """
        if not count:
            return self._is_patient([], blame())
        now = time.time()
        if count > MAX_SAMPLED_WAITS and now - self._sampled_at < SAMPLE_INTERVAL_S:
            return self._start_time()
        self._sampled_at, self._last = now, None
        pending = waits()
        hasty = [wait for wait in pending if wait[1] is None or not wait[1].patient]
        if not hasty:
            return self._is_patient(pending, blame())
        wait, since = self.oldest(hasty)
        self._last = wait, wait[1].step if wait[1] is not None else 0, since
        return *wait_facts(*wait), since

    def _start_time(self) -> tuple[Value, ...] | None:
        if self._last is None:
            return None
        wait, step, since = self._last
        instance = wait[1]
        if instance is None or instance.finished or instance.step != step:
            return None
        return *wait_facts(*wait), since

    def _is_patient(self, waits: Sequence[Waiting], blamed: Blamed) -> tuple[Value, ...] | None:
        if blamed is not None:
            step = next((wait[1].step for wait in waits if wait[1] is not None), 0)
            return step, *blamed, PATIENT
        return (*wait_facts(*waits[0])[:3], PATIENT) if waits else None

    def oldest(self, waits: Sequence[Waiting]) -> tuple[Waiting, float]:
        """The longest wait, and its start (wall clock); 0 if it has just started."""
        now = time.time()
        if now - self._looked >= SAMPLE_INTERVAL_S:
            self._looked = now
            requests = {_wait_key(wait): wait[0] for wait in waits}
            self._first = {
                key: self._first.get(key, (request, now)) for key, request in requests.items()
            }
        aged = [
            (self._first[key][1], wait) for wait in waits if (key := _wait_key(wait)) in self._first
        ]
        if not aged:
            return waits[0], 0.0
        since, wait = min(aged, key=lambda one: one[0])
        return wait, since if now - since > SAMPLE_INTERVAL_S else 0.0


def _wait_key(wait: Waiting) -> tuple[int, int]:
    """The key of a wait: the request's id and its step, because channels serve many steps.

    A known request is referenced, so its id is unique.
    """
    return id(wait[0]), wait[1].step if wait[1] is not None else 0
