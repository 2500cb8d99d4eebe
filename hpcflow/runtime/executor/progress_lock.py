"""The baton: one thread at a time makes all MPI calls of a rank and runs its strands.

Who finds it taken leaves its step in the inbox and waits until the step is over, or the baton free.
Who waits only for what other threads do gives it back and rests.
"""

from __future__ import annotations

import collections
import contextvars
import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import cast

import numpy as np

from hpcflow.errors import CommError

SHELL = "<hpcflow shell>"  # the file of the generated shells of small steps
LOOK_S = 0.02  # a thread whose step another one drives looks this often, if it is not told
REST_S = 0.05  # a thread that rests looks this often


class Baton:
    """Who drives the engine; `drive` makes progress."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.baton = threading.Lock()
        self.wake = threading.Event()  # ends the sleep of who has the baton
        self.freed = threading.Condition()
        self.inbox: collections.deque[Callable[[], None]] = collections.deque()
        self.waiters = 0  # threads that wait for the baton, or for who has it
        self.served = 0  # waits for state of this rank that have come to their end
        # NumPy's error state lives in the context: inside ours, infinities come as IEEE says, and
        # the user's own setting outside is not touched
        self.context = contextvars.copy_context()
        self.context.run(np.seterr, all="ignore")

    def drive(self, finished: Callable[[], bool], rests: bool = False) -> None:
        """Make progress until `finished()`; the caller holds the baton.

        With `rests` only until nothing but what other threads begin can move anything.
        """
        raise NotImplementedError

    def with_baton(
        self,
        begin: Callable[[], None],
        finished: Callable[[], bool],
        rests: bool = False,
        late: Callable[[], bool] | None = None,
    ) -> None:
        """Run `begin` under the baton and make progress until `finished()`, from any thread.

        With `rests` the thread gives up the baton and sleeps while only others can move anything.
        If it is `late()` before the thread that drives has come to `begin`, that never runs.
        """
        seen = self.served
        if self.baton.acquire(blocking=False):
            self._lead(begin, finished, rests)
        else:
            self.waiters += 1
            try:
                self._follow(begin, finished, rests, late)
            finally:
                self.waiters -= 1
        while rests and not finished():
            seen = self._rest(seen, finished)

    def _lead(
        self, begin: Callable[[], None] | None, finished: Callable[[], bool], rests: bool = False
    ) -> None:
        try:
            if begin is not None:
                self.context.run(begin)
            if not finished():
                self.drive(finished, rests)
        finally:
            self.baton.release()
            self.tell_waiters()

    def _rest(self, seen: int, finished: Callable[[], bool]) -> int:
        """Sleep while no more than `seen` was served, then lead again; what had been served."""
        with self.freed:
            self.freed.wait_for(lambda: self.served != seen or finished(), REST_S)
        seen = self.served
        self.waiters += 1
        try:
            while not finished():
                if self.baton.acquire(blocking=False):
                    self._lead(None, finished, rests=True)
                    break
                with self.freed:
                    if self.baton.locked() and not finished():
                        self.freed.wait(LOOK_S)
        finally:
            self.waiters -= 1
        return seen

    def _follow(
        self,
        begin: Callable[[], None],
        finished: Callable[[], bool],
        rests: bool,
        late: Callable[[], bool] | None,
    ) -> None:
        """Hand the step to the holder of the baton; take the baton when it is free."""
        if _already_inside():
            raise CommError(
                "Session.run was called inside another run of the same thread",
                rank=self.rank,
                hint="in a signal handler set a flag only, and run between the steps",
            )
        begun = _Handed(begin)
        self.inbox.append(begun)
        self.wake.set()
        try:
            while self._kept_waiting(begun, finished):
                if late is not None and late() and begun.drop():
                    return
                if self.baton.acquire(blocking=False):
                    ended = functools.partial(begun.ended, finished)
                    self._lead(self._empty_inbox, ended, rests)
                    break
        except BaseException:  # Ctrl-C: nobody waits for what has not begun
            begun.drop()
            raise
        begun.check()

    def _kept_waiting(self, begun: _Handed, finished: Callable[[], bool]) -> bool:
        """Wait until there is something to see; False once the step is over."""
        with self.freed:
            if begun.ended(finished):
                return False
            if self.baton.locked():
                self.freed.wait(LOOK_S)
        return not begun.ended(finished)

    def hand_over(self, call: Callable[[], None]) -> None:
        """Have `call` made under the baton by whoever drives, between strands; from any thread."""
        self.inbox.append(call)
        self.wake.set()

    def _empty_inbox(self) -> None:
        """Begin all that was handed over; what stays there would never leave if nobody drove."""
        inbox = self.inbox
        while inbox:
            inbox.popleft()()
            if self.waiters:
                self.tell_waiters()

    def tell_waiters(self) -> None:
        """A step is over, or the baton is free: threads that wait for either look again."""
        if self.waiters:
            with self.freed:
                self.freed.notify_all()

    def sees_an_end(self, seconds: float) -> bool:
        """Whether a step of this rank ends within so long; for a thread that runs none.

        It is told as one that waits for the baton, so that steps need not be counted.
        """
        self.waiters += 1
        try:
            with self.freed:
                return self.freed.wait(seconds)
        finally:
            self.waiters -= 1

    def serve(self) -> None:
        """Something that steps of this rank wait for has come: whoever rests looks again."""
        self.served += 1
        with self.freed:
            self.freed.notify_all()


class _Handed:
    """The beginning of a step that another thread may run; keeps its error for who asked."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin, self._over = begin, False
        self._error: BaseException | None = None
        self._claim = threading.Lock()  # taken by who begins it, or drops it

    def drop(self) -> bool:
        """Nobody waits for it any more: it never begins; False if it has begun."""
        return self._claim.acquire(blocking=False)

    def __call__(self) -> None:
        try:
            if self._claim.acquire(blocking=False):
                self._begin()
        except Exception as error:  # belongs to the thread that asked
            self._error = error
        except BaseException as error:  # Ctrl-C met whoever drives
            self._error = error
            raise
        finally:
            self._over = True

    def ended(self, finished: Callable[[], bool]) -> bool:
        """True once the step has begun and is finished, or could not begin."""
        return self._error is not None or (self._over and finished())

    def check(self) -> None:
        """Raise the error of the beginning in the thread that asked."""
        if self._error is not None:
            raise self._error


def _already_inside() -> bool:
    """Whether this thread holds the baton already, as in a signal handler that runs a step."""
    runs, frame = 0, cast("FrameType | None", sys._getframe(3))
    while frame is not None:
        code = frame.f_code
        if runs and (code.co_filename == SHELL or code.co_name in ("_call", "_lead")):
            return True
        runs += code.co_name == "run" and code.co_filename.endswith("session.py")
        frame = frame.f_back
    return False
