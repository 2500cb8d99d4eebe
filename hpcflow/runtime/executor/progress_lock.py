"""The progress lock (`baton`): one thread at a time makes MPI calls and runs segments of a rank.

A thread that finds the lock taken puts its step into the inbox and waits until the step is over or
the lock is free. A thread that waits only for actions of other threads releases the lock and
sleeps.
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

SHELL = "<hpcflow shell>"  # file name of the generated runners of small steps
LOOK_S = 0.02  # polling interval of a thread that waits for the lock, besides notifications
REST_S = 0.05  # polling interval of a resting thread


class Baton:
    """The progress lock of an executor, which implements `drive`."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.baton = threading.Lock()
        self.wake = threading.Event()  # ends the backoff sleep of the lock holder
        self.freed = threading.Condition()
        self.inbox: collections.deque[Callable[[], None]] = collections.deque()
        self.waiters = 0  # threads that wait for the lock, or for its holder
        self.served = 0  # number of ended waits for state of this rank
        # NumPy's error state is a context variable: in this context, infinities follow IEEE 754;
        # the user's setting outside is unchanged
        self.context = contextvars.copy_context()
        self.context.run(np.seterr, all="ignore")

    def drive(self, finished: Callable[[], bool], rests: bool = False) -> None:
        """Make progress until `finished()`; the caller holds the progress lock.

        With `rests`, return as soon as only other threads of this rank can cause progress.
        """
        raise NotImplementedError

    def with_baton(
        self,
        begin: Callable[[], None],
        finished: Callable[[], bool],
        rests: bool = False,
        late: Callable[[], bool] | None = None,
    ) -> None:
        """Run `begin` under the progress lock and make progress until `finished()`; any thread.

        With `rests` the thread releases the lock and sleeps while only other threads can cause
        progress. If `late()` is true before the holder of the lock has run `begin`, `begin` never
        runs.

        Errors: CommError if this thread already holds the lock, as in a signal handler.
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
        """Sleep until `served` differs from `seen`, then make progress again; the new `served`."""
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
        """Hand the step to the holder of the progress lock; take the lock when it is free."""
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
        except BaseException:  # Ctrl-C: no thread waits for the step any more
            begun.drop()
            raise
        begun.check()

    def _kept_waiting(self, begun: _Handed, finished: Callable[[], bool]) -> bool:
        """Wait for a notification; False once the step is over."""
        with self.freed:
            if begun.ended(finished):
                return False
            if self.baton.locked():
                self.freed.wait(LOOK_S)
        return not begun.ended(finished)

    def hand_over(self, call: Callable[[], None]) -> None:
        """Have the holder of the progress lock call `call` between segments; from any thread.

        If no thread holds the lock, `call` stays in the inbox until one does.
        """
        self.inbox.append(call)
        self.wake.set()

    def _empty_inbox(self) -> None:
        """Call everything in the inbox; a call left there would wait for the next lock holder."""
        inbox = self.inbox
        while inbox:
            inbox.popleft()()
            if self.waiters:
                self.tell_waiters()

    def tell_waiters(self) -> None:
        """A step is over, or the progress lock is free: wake the waiting threads."""
        if self.waiters:
            with self.freed:
                self.freed.notify_all()

    def sees_an_end(self, seconds: float) -> bool:
        """Whether a step of this rank ends within `seconds`; for a thread that runs no steps.

        It is notified like a thread that waits for the lock, so steps need no counter.
        """
        self.waiters += 1
        try:
            with self.freed:
                return self.freed.wait(seconds)
        finally:
            self.waiters -= 1

    def serve(self) -> None:
        """State that steps of this rank wait for has changed: wake the resting threads."""
        self.served += 1
        with self.freed:
            self.freed.notify_all()


class _Handed:
    """The `begin` function of a step, run by any thread; its error is stored for the caller."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin, self._over = begin, False
        self._error: BaseException | None = None
        self._claim = threading.Lock()  # taken by the thread that begins it, or drops it

    def drop(self) -> bool:
        """Prevent the step from beginning; False if it has begun."""
        return self._claim.acquire(blocking=False)

    def __call__(self) -> None:
        try:
            if self._claim.acquire(blocking=False):
                self._begin()
        except Exception as error:  # raised in the calling thread
            self._error = error
        except BaseException as error:  # Ctrl-C interrupted the lock holder
            self._error = error
            raise
        finally:
            self._over = True

    def ended(self, finished: Callable[[], bool]) -> bool:
        """True once the step has begun and is finished, or has failed to begin."""
        return self._error is not None or (self._over and finished())

    def check(self) -> None:
        """Raise the error of `begin` in the calling thread."""
        if self._error is not None:
            raise self._error


def _already_inside() -> bool:
    """Whether this thread already holds the progress lock: a signal handler may run a step."""
    runs, frame = 0, cast("FrameType | None", sys._getframe(3))
    while frame is not None:
        code = frame.f_code
        if runs and (code.co_filename == SHELL or code.co_name in ("_call", "_lead")):
            return True
        runs += code.co_name == "run" and code.co_filename.endswith("session.py")
        frame = frame.f_back
    return False
