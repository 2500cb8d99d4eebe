"""Server traffic text: a table of what each server holds and transfers in a step."""

from __future__ import annotations

from collections.abc import Sequence

from hpcflow.plan.cost.server_traffic import RECEIVED, SENT
from hpcflow.plan.ir.program import Plan
from hpcflow.plan.listing.plan_text import format_table
from hpcflow.platform.quantity_text import format_bytes


def server_traffic_text(plan: Plan, held_bytes: Sequence[int], by: str) -> str:
    """Return a table of what each server holds and transfers in one step of a worker.

    `held_bytes` are bytes by server, `by` says how variables were placed.
    """
    rows = []
    for server in range(plan.cluster.servers):
        shares = [s for m in plan.messages for s in m.shares if s.server == server]
        moved = {w: sum(s.nbytes for s in shares if s.direction == w) for w in (RECEIVED, SENT)}
        names = {s.variable for s in shares if s.variable}
        count = sum(any(s.server == server for s in m.shares) for m in plan.messages)
        cells = [format_bytes(held_bytes[server]), str(len(names)), str(count)]
        cells += [format_bytes(moved[RECEIVED]), format_bytes(moved[SENT])]
        rows.append((f"/job:ps/task:{server}", *cells))
    header = ("server", "holds", "variables used", "messages", "receives", "sends")
    note = f"a step of one worker moves, by its plan (rows of tables not counted), variables {by}"
    return f"{note}\n{format_table(header, rows)}"
