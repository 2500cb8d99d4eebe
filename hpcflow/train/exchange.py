"""Workers tell each other their pace, seldom and without waiting for it."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from hpcflow.comm.base import Request
from hpcflow.logs import logger
from hpcflow.runtime.context import Context
from hpcflow.runtime.headers import PACE, header
from hpcflow.train.pace import Pace, Row

LEAST_STEPS, MOST_STEPS = 5, 1000  # between two exchanges,
TOGETHER_S, APART_S = 0.25, 1.0  # and about so long, of synchronous and of asynchronous workers
MOST_NAMED = 16  # shares in a line
Rows = list[tuple[int, Row]]  # of workers


class Together:
    """Synchronous workers tell at the end of one step and read after the next one.

    By then all have ended the step before, so nobody waits. The steps between two exchanges follow
    from numbers that all workers have, so all exchange after the same step.

    Ranks: all drivers; `step` after each of their steps.
    """

    def __init__(self, context: Context) -> None:
        assert context.drivers is not None
        self._context, self._drivers = context, context.drivers
        self._rows = np.zeros((self._drivers.size, len(Row._fields)))
        self._request: Request | None = None
        self._left = 1  # steps until the next exchange; the first one, which makes plans, is none
        self._is_first = True
        self._balance: Any = None  # of the steps that are told of
        self._said: weakref.WeakSet[Any] = weakref.WeakSet()  # balances that have dealt anew

    def step(self, pace: Pace) -> Rows:
        """After a step: the rows of all workers, if they were told after the last one."""
        rows = self.finish()
        self._left -= 1
        if self._left <= 0:
            if self._is_first:
                self._is_first, self._left = False, LEAST_STEPS
            else:
                self._tell(pace)
            pace.window.clear()
        return rows

    def _tell(self, pace: Pace) -> None:
        self._balance, mine = pace.window.balance, np.array([pace.window.row()])
        self._left = MOST_STEPS  # until the rows have come

        def start() -> None:
            counts = [1] * self._drivers.size
            self._request = self._drivers.all_gather(mine, self._rows, counts)

        self._context.engine.with_baton(start, lambda: True)

    def finish(self) -> Rows:
        """The rows of all workers, if they were told; deals anew by them."""
        request, self._request = self._request, None
        if request is None:
            return []
        self._context.engine.finish(request, "the pace of all workers")
        rows = [Row(*row) for row in self._rows.tolist()]
        longest = max(row.work + row.wait for row in rows)
        self._left = min(max(int(TOGETHER_S / max(longest, 1e-9)), LEAST_STEPS), MOST_STEPS)
        if self._balance is not None and all(row.samples for row in rows):
            speeds = [row.samples / max(row.work, 1e-9) for row in rows]
            changed = self._balance.redeal(speeds, int(max(row.taken for row in rows)))
            if changed and self._context.is_chief:
                self._say(self._balance)
        return list(enumerate(rows))

    def _say(self, balance: Any) -> None:
        if balance in self._said:
            return
        self._said.add(balance)
        shares = balance.shares
        told = ", ".join(map(str, shares)) if len(shares) <= MOST_NAMED else ""
        logger.info(
            "balance: of a batch of %d samples the workers get %s by their speed, and others when "
            "it changes",
            *(balance.batch, told or f"{min(shares)} to {max(shares)}"),
        )


class Apart:
    """Asynchronous workers tell the chief, each in its own time; nobody waits for anybody."""

    def __init__(self, context: Context) -> None:
        assert context.control is not None
        self._context, self._control = context, context.control
        self._chief = context.roles.drivers[0]
        self._told = 0.0

    def step(self, pace: Pace) -> Rows:
        """After a step: on the chief what workers have told since the last one."""
        rows: Rows = []
        if pace.ended - self._told >= APART_S and pace.window.steps >= LEAST_STEPS:
            if self._told:
                rows.append((self._context.replica, pace.window.row()))
            self._told = pace.ended
            pace.window.clear()
        if not self._context.is_chief:
            for _, row in rows:
                self._tell(row)
            return []
        while self._control.paces:
            rank, steps, work, wait = self._control.paces.popleft()
            worker = self._context.roles.task_of(rank)[1]
            rows.append((worker, Row(steps, work / 1e9, wait / 1e9, 0.0, 0.0)))
        return rows

    def _tell(self, row: Row) -> None:
        message = header(PACE, int(row.steps), int(row.work * 1e9), int(row.wait * 1e9))
        self._context.engine.with_baton(
            lambda: self._control.tell(self._chief, message), lambda: True
        )

    def finish(self) -> Rows:
        """Nothing is under way."""
        return []
