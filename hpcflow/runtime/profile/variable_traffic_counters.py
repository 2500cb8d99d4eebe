"""Variable traffic counters: bytes and messages of each variable, from the traffic of channels.

They are computed at the end of the job; steps have no overhead.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcflow.comm.communicator import Communicator, TrafficCounter
from hpcflow.errors import HpcflowError
from hpcflow.plan.ir.program import Plan, ServerMessage, VariableBytes
from hpcflow.platform.record_files import read_json_object
from hpcflow.runtime.dynamic_types import Json, Value
from hpcflow.settings import Settings

Rows = list[list[Value]]  # [server, way, variable, bytes, messages]
Measured = tuple[tuple[str, int, int], ...]  # (variable, bytes, messages) of a step


class MessageSender(NamedTuple):
    """The messages that one rank sends in the steps of one plan, and the layout of their tags."""

    tag: int
    channels: int
    instances: int
    sends: list[tuple[int, int, list[VariableBytes]]]  # (channel, rank, bytes of each variable)

    def moved(
        self, traffic: TrafficCounter, channel: int, dest: int, shares: Sequence[VariableBytes]
    ) -> tuple[int, int]:
        """Bytes and messages sent by a channel, without empty messages of cancelled steps."""
        tags = [self.tag + slot * self.channels + channel for slot in range(self.instances)]
        nbytes = sum(traffic.bytes[dest, tag] for tag in tags)
        count = sum(traffic.messages[dest, tag] for tag in tags)
        least = sum(share.nbytes for share in shares)  # bytes of a message that is not empty
        return nbytes, min(count, nbytes // least) if least else count

    def steps(self, traffic: TrafficCounter) -> int:
        """The number of steps of the plan."""
        return max((self.moved(traffic, *send)[1] for send in self.sends), default=0)


def messages_sent_by(plan: Plan, task: str, ranks: Mapping[str, int]) -> list[Value]:
    """The messages of a step that `task` sends, to servers or as a server: as plain data."""
    return [[m.channel, ranks[m.dest], m.shares] for m in plan.messages if m.source == task]


class VariableTrafficCounters:
    """Counts what this rank sends in the steps of training plans."""

    def __init__(self) -> None:
        self._senders: list[MessageSender] = []
        self._driven: list[tuple[MessageSender, Sequence[ServerMessage]]] = []
        self._is_logged = False

    def is_first_telling(self) -> bool:
        """Whether the predicted traffic has not been logged: the caller does it now."""
        was_logged, self._is_logged = self._is_logged, True
        return not was_logged

    def serve(self, facts: Json) -> None:
        """Count what this rank sends in the steps of a plan that was registered with `facts`."""
        sends = [
            (c, dest, [VariableBytes(*s) for s in shares]) for c, dest, shares in facts["sends"]
        ]
        if sends:
            self._senders.append(
                MessageSender(facts["tag"], facts["channels"], facts["instances"], sends)
            )

    def count_driven(self, plan: Plan, ranks: Mapping[str, int], tag: int, instances: int) -> None:
        """Count the steps of a plan that this rank drives, and what it sends in them."""
        sends = [
            (c, dest, list(shares))
            for c, dest, shares in messages_sent_by(plan, plan.driver, ranks)
        ]
        if sends:
            self._senders.append(MessageSender(tag, len(plan.edges), instances, sends))
            self._driven.append((self._senders[-1], plan.messages))

    def report(self, traffic: TrafficCounter | None) -> Json:
        """Of training steps: the number this rank drove, its traffic, the predicted traffic."""
        if traffic is None or not self._senders:
            return {}
        steps = [(sender.steps(traffic), messages) for sender, messages in self._driven]
        return {
            "trained": sum(count for count, _ in steps),
            "traffic": _sent_traffic(traffic, self._senders),
            "predicted": _predicted_bytes(steps),
        }


def _sent_traffic(traffic: TrafficCounter, senders: Iterable[MessageSender]) -> Rows:
    """The traffic of this rank by server, direction and variable."""
    totals: dict[tuple[Value, ...], list[float]] = collections.defaultdict(lambda: [0, 0.0])
    for sender in senders:
        for channel, dest, shares in sender.sends:
            nbytes, count = sender.moved(traffic, channel, dest, shares)
            for way in dict.fromkeys(s.direction for s in shares):
                group = [s for s in shares if s.direction == way]
                remainder = nbytes - count * sum(s.nbytes for s in group)  # of dynamic sizes
                for share in group:
                    row = totals[share.server, way, share.variable]
                    row[0] += count * share.nbytes + remainder
                    row[1] += count / len(group)
                    remainder = 0
    return [[*key, *row] for key, row in totals.items()]


def _predicted_bytes(steps: Sequence[tuple[int, Sequence[ServerMessage]]]) -> Rows:
    """The predicted bytes of a step: the mean over plans, weighted by their numbers of steps."""
    total = sum(count for count, _ in steps) or 1
    totals: dict[tuple[Value, ...], float] = collections.defaultdict(float)
    for count, messages in steps:
        for share in (s for message in messages for s in message.shares):
            totals[share.server, share.direction, share.variable] += share.nbytes * count / total
    return [[*key, nbytes] for key, nbytes in totals.items()]


def traffic_summary(reports: Sequence[Json], servers: int) -> Json | None:
    """Bytes per step of one worker, by server and by variable; None without servers or steps."""
    steps = sum(r.get("trained", 0) for r in reports)
    if not (servers and steps):
        return None
    measured = [row for r in reports for row in r.get("traffic", ())]
    foretold: Rows = next((r["predicted"] for r in reports if r.get("predicted")), [])

    def of(rows: Rows, server: int, direction: str, share: float) -> int:
        matching = (row[3] for row in rows if (row[0], row[1]) == (server, direction))
        return round(sum(matching) * share)

    variables: dict[str, list[float]] = {}
    for _, _, name, nbytes, messages in measured:
        row = variables.setdefault(name, [0, 0])
        row[0] += nbytes / steps
        row[1] += messages / steps
    return {
        "steps": steps,
        "servers": [
            {
                "task": f"/job:ps/task:{server}",
                "predicted": {way: of(foretold, server, way, 1) for way in ("received", "sent")},
                "measured": {
                    way: of(measured, server, way, 1 / steps) for way in ("received", "sent")
                },
            }
            for server in range(servers)
        ],
        "variables": {
            name: {"bytes": round(row[0]), "messages": round(row[1], 2)}
            for name, row in sorted(variables.items())
            if name
        },
    }


def measured_traffic(settings: Settings, world: Communicator | None) -> Measured:
    """The variable traffic of the run that the setting `placement` names; collective.

    Rank 0 reads the file and broadcasts it.
    Errors: HpcflowError on all ranks if the file cannot be read or has no variable traffic.
    """
    if not settings.placement or settings.automatic:
        return ()
    text = _read_rows(settings.placement) if world is None or world.rank == 0 else None
    if world is not None and world.size > 1:
        text = world.broadcast_text(text)
    decoded = json.loads(text or "")
    if isinstance(decoded, str):
        hint = "placement=FILE names the result.json of a run in parameter-server mode"
        raise HpcflowError(f"placement={settings.placement}: {decoded}", hint=hint)
    return tuple((name, nbytes, count) for name, nbytes, count in decoded)


def _read_rows(path: str) -> str:
    """Rows of a result.json as JSON; instead a JSON string with the error, if there is one."""
    try:
        report = read_json_object(Path(path), unique=True)
        if report is None:
            return json.dumps("there is no such file")
        variables = report["traffic"]["variables"]
        return json.dumps(
            sorted((n, int(v["bytes"]), round(v["messages"])) for n, v in variables.items())
        )
    except HpcflowError as error:
        return json.dumps(error.message)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return json.dumps("it does not say what variables moved")
