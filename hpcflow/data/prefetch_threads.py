"""Prefetch threads: compute results ahead of their consumer, in order and within a bound."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from hpcflow.monitoring.wait_ledger import INSIDE, WaitLedger

PATIENCE_S = 1.0  # a longer wait for input is entered in the wait ledger
LEAVE_S = 1.0  # time that `close` waits for threads that are still reading
Task = TypeVar("Task")
Result = TypeVar("Result")
_all: weakref.WeakSet[PrefetchThreads[Any, Any]] = weakref.WeakSet()


class PrefetchThreads(Generic[Task, Result]):
    """The results of `run(task)` for each task in order, at most `prefetch_depth` in advance.

    `threads` threads compute them. An exception of a task is raised by the `take` of its result.
    The threads end then, or after `close`. A thread that hangs in a read does not block `close`.
    """

    def __init__(
        self,
        tasks: Iterator[Task],
        run: Callable[[Task], Result],
        prefetch_depth: int,
        threads: int = 1,
    ) -> None:
        self._tasks, self._run, self._prefetch_depth = tasks, run, prefetch_depth
        self._changed = threading.Condition()
        self._results: dict[int, Result | BaseException] = {}
        self._issued = self._consumed = 0  # tasks issued, results used
        self._is_over = False  # no further task is started
        names = [f"hpcflow-reader-{n}" for n in range(threads)]
        self._threads = [threading.Thread(target=self._work, name=n, daemon=True) for n in names]
        for thread in self._threads:
            thread.start()
        _all.add(self)

    def take(self, ledger: WaitLedger | None = None, label: str = "input") -> Result | None:
        """The next result; None after the last. A long wait is entered in the ledger."""
        with self._changed:
            if not self._changed.wait_for(self._is_ready, PATIENCE_S):
                with _in_ledger(ledger, label):
                    self._changed.wait_for(self._is_ready)
            if self._consumed not in self._results:
                return None
            result = self._results.pop(self._consumed)
            self._consumed += 1
            self._changed.notify_all()
        if isinstance(result, BaseException):
            self.close()
            raise result
        return result

    def _is_ready(self) -> bool:
        return self._consumed in self._results or (self._is_over and self._consumed >= self._issued)

    def close(self, patience: float = LEAVE_S) -> None:
        """End the threads; those still reading after `patience` seconds are left running."""
        with self._changed:
            self._is_over = True
            self._issued = self._consumed
            self._results.clear()
            self._changed.notify_all()
        until = time.monotonic() + patience
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    # -- in the threads

    def _work(self) -> None:
        while (begun := self._begin()) is not None:
            number, task = begun
            try:
                result: Result | BaseException = self._run(task)
            except BaseException as error:
                result = error
            del task, begun
            with self._changed:
                if number < self._issued:  # False if `close` was called during the task
                    self._results[number] = result
                    self._is_over |= isinstance(result, BaseException)
                self._changed.notify_all()
            del result  # so that only the consumer holds a reference

    def _begin(self) -> tuple[int, Task] | None:
        """The next task and its number, once its result has space; None at the end."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_over or self._issued - self._consumed < self._prefetch_depth
            )
            if self._is_over:
                return None
            number = self._issued
            try:
                task = next(self._tasks)
            except StopIteration:
                self._is_over = True
                self._changed.notify_all()
                return None
            except BaseException as error:
                self._results[number], self._is_over = error, True
                self._issued += 1
                self._changed.notify_all()
                return None
            self._issued += 1
            return number, task


def results_ahead() -> int:
    """How many results of all threads of this process wait for their consumer."""
    return sum(len(ahead._results) for ahead in list(_all))


@contextlib.contextmanager
def _in_ledger(ledger: WaitLedger | None, label: str) -> Iterator[None]:
    """Enter the wait for input in the ledger, for other ranks that may wait for this one."""
    if ledger is None:
        yield
        return
    ledger.enter(-1, label, kind=INSIDE)
    try:
        yield
    finally:
        ledger.leave()


@atexit.register
def _close_all() -> None:
    for ahead in list(_all):
        ahead.close(0.2)
