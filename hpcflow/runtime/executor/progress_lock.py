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
LOCK_POLL_S = 0.02  # polling interval of a thread that waits for the lock, besides notifications
SLEEP_POLL_S = 0.05  # polling interval of a resting thread


class ProgressLock:
    """The progress lock of an executor, which implements `drive`."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.lock = threading.Lock()
        self.wake = threading.Event()  # ends the backoff sleep of the lock holder
        self.lock_freed = threading.Condition()
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

    def run_locked(
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
        changes_seen = self.served
        if self.lock.acquire(blocking=False):
            self._run_as_holder(begin, finished, rests)
        else:
            self.waiters += 1
            try:
                self._hand_to_holder(begin, finished, rests, late)
            finally:
                self.waiters -= 1
        while rests and not finished():
            changes_seen = self._sleep_until_changed(changes_seen, finished)

    def _run_as_holder(
        self, begin: Callable[[], None] | None, finished: Callable[[], bool], rests: bool = False
    ) -> None:
        try:
            if begin is not None:
                self.context.run(begin)
            if not finished():
                self.drive(finished, rests)
        finally:
            self.lock.release()
            self.notify_waiters()

    def _sleep_until_changed(self, changes_seen: int, finished: Callable[[], bool]) -> int:
        """Sleep until `served` differs from `changes_seen`, then make progress again; the new
        `served`.
        """
        with self.lock_freed:
            self.lock_freed.wait_for(
                lambda: self.served != changes_seen or finished(), SLEEP_POLL_S
            )
        changes_seen = self.served
        self.waiters += 1
        try:
            while not finished():
                if self.lock.acquire(blocking=False):
                    self._run_as_holder(None, finished, rests=True)
                    break
                with self.lock_freed:
                    if self.lock.locked() and not finished():
                        self.lock_freed.wait(LOCK_POLL_S)
        finally:
            self.waiters -= 1
        return changes_seen

    def _hand_to_holder(
        self,
        begin: Callable[[], None],
        finished: Callable[[], bool],
        rests: bool,
        late: Callable[[], bool] | None,
    ) -> None:
        """Hand the step to the holder of the progress lock; take the lock when it is free."""
        if _thread_holds_lock():
            raise CommError(
                "Session.run was called inside another run of the same thread",
                rank=self.rank,
                hint="in a signal handler set a flag only, and run between the steps",
            )
        begun = _HandedOverStep(begin)
        self.inbox.append(begun)
        self.wake.set()
        try:
            while self._wait_for_holder(begun, finished):
                if late is not None and late() and begun.prevent():
                    return
                if self.lock.acquire(blocking=False):
                    ended = functools.partial(begun.ended, finished)
                    self._run_as_holder(self._empty_inbox, ended, rests)
                    break
        except BaseException:  # Ctrl-C: no thread waits for the step any more
            begun.prevent()
            raise
        begun.check()

    def _wait_for_holder(self, begun: _HandedOverStep, finished: Callable[[], bool]) -> bool:
        """Wait for a notification; False once the step is over."""
        with self.lock_freed:
            if begun.ended(finished):
                return False
            if self.lock.locked():
                self.lock_freed.wait(LOCK_POLL_S)
        return not begun.ended(finished)

    def call_in_holder(self, call: Callable[[], None]) -> None:
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
                self.notify_waiters()

    def notify_waiters(self) -> None:
        """A step is over, or the progress lock is free: wake the waiting threads."""
        if self.waiters:
            with self.lock_freed:
                self.lock_freed.notify_all()

    def wait_for_step_end(self, seconds: float) -> bool:
        """Whether a step of this rank ends within `seconds`; for a thread that runs no steps.

        It is notified like a thread that waits for the lock, so steps need no counter.
        """
        self.waiters += 1
        try:
            with self.lock_freed:
                return self.lock_freed.wait(seconds)
        finally:
            self.waiters -= 1

    def serve(self) -> None:
        """State that steps of this rank wait for has changed: wake the resting threads."""
        self.served += 1
        with self.lock_freed:
            self.lock_freed.notify_all()


class _HandedOverStep:
    """The `begin` function of a step, run by any thread; its error is stored for the caller."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin, self._over = begin, False
        self._error: BaseException | None = None
        self._claim_lock = threading.Lock()  # taken by the thread that begins it, or drops it

    def prevent(self) -> bool:
        """Prevent the step from beginning; False if it has begun."""
        return self._claim_lock.acquire(blocking=False)

    def __call__(self) -> None:
        try:
            if self._claim_lock.acquire(blocking=False):
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


def _thread_holds_lock() -> bool:
    """Whether this thread already holds the progress lock: a signal handler may run a step."""
    runs, frame = 0, cast("FrameType | None", sys._getframe(3))
    while frame is not None:
        code = frame.f_code
        if runs and (code.co_filename == SHELL or code.co_name in ("_call", "_lead")):
            return True
        runs += code.co_name == "run" and code.co_filename.endswith("session.py")
        frame = frame.f_back
    return False
