"""Coordinator: threads that work together end together, and the first error reaches who joins."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpcflow.errors import HpcflowError, OutOfRangeError


class Coordinator:
    """Tells threads when to stop.

    Any thread may ask all to stop, with an exception or without; the others look at `should_stop`.
    `join` waits for them and raises the first exception reported, unless it is one of
    `clean_stop_exception_types` (OutOfRangeError: the data is at its end).
    """

    def __init__(self, clean_stop_exception_types: Sequence[type[BaseException]] = ()) -> None:
        self._clean = tuple(clean_stop_exception_types) or (OutOfRangeError,)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._threads: set[threading.Thread] = set()
        self._joined = False

    def request_stop(self, ex: Any = None) -> None:
        """Ask all threads to stop; `ex` says why, as an exception or `sys.exc_info()`.

        Of several exceptions the first counts, and none once a stop was asked for.
        """
        error = ex[1] if isinstance(ex, tuple) else ex
        with self._lock:
            if self._joined and isinstance(error, BaseException):
                raise error  # nobody would hear of it
            if self._stop.is_set():
                return
            if isinstance(error, BaseException) and not isinstance(error, self._clean):
                self._error = error
            self._stop.set()

    def clear_stop(self) -> None:
        """Begin anew: nobody has asked for a stop."""
        with self._lock:
            self._joined, self._error = False, None
            self._stop.clear()

    def should_stop(self) -> bool:
        """True once a stop was asked for."""
        return self._stop.is_set()

    @contextlib.contextmanager
    def stop_on_exception(self) -> Iterator[None]:
        """Inside, an exception asks all to stop and goes no further."""
        try:
            yield
        except Exception as error:
            self.request_stop(error)

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Wait until a stop is asked for; False after `timeout` seconds without."""
        return self._stop.wait(timeout)

    def register_thread(self, thread: threading.Thread) -> None:
        """Let `join` wait for `thread`."""
        with self._lock:
            self._threads.add(thread)

    def join(
        self,
        threads: Iterable[threading.Thread] | None = None,
        stop_grace_period_secs: float = 120,
        ignore_live_threads: bool = False,
    ) -> None:
        """Wait until all registered threads, and `threads`, have ended.

        Errors: the first that was reported; HpcflowError naming threads that still run so many
        seconds after a stop was asked for, unless `ignore_live_threads`.
        """
        with self._lock:
            waited = self._threads | set(threads or ())
        while any(t.is_alive() for t in waited) and not self._stop.wait(1.0):
            pass
        late = time.monotonic() + stop_grace_period_secs
        for thread in waited:
            thread.join(max(0.0, late - time.monotonic()))
        alive = sorted(t.name for t in waited if t.is_alive())
        with self._lock:
            self._joined, self._threads = True, set()
        self.raise_requested_exception()
        if alive and not ignore_live_threads:
            raise HpcflowError(
                f"{len(alive)} threads still run {stop_grace_period_secs:g} s after they were "
                f"asked to stop: {', '.join(alive)}",
                hint="close the queues they wait in with cancel_pending_enqueues=True",
            )

    @property
    def joined(self) -> bool:
        """True once `join` has returned or raised."""
        return self._joined

    def raise_requested_exception(self) -> None:
        """Raise the exception that a stop was asked for with, if there was one."""
        with self._lock:
            error = self._error
        if error is not None:
            raise error


class LooperThread(threading.Thread):
    """A thread that calls `target` again and again until `coord` says stop.

    `timer_interval_secs` after each other, measured from their beginnings; None: without a break.
    An exception asks all threads of `coord` to stop.
    """

    def __init__(
        self,
        coord: Coordinator,
        timer_interval_secs: float | None,
        target: Callable[..., Any] | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(daemon=True)
        self._coord, self._interval = coord, timer_interval_secs
        self._call, self._args, self._kwargs = target, tuple(args), dict(kwargs or {})
        coord.register_thread(self)

    @staticmethod
    def loop(
        coord: Coordinator,
        timer_interval_secs: float | None,
        target: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> LooperThread:
        """A started LooperThread."""
        looper = LooperThread(coord, timer_interval_secs, target, args, kwargs)
        looper.start()
        return looper

    def run(self) -> None:
        """The loop."""
        with self._coord.stop_on_exception():
            self.start_loop()
            following = time.monotonic()
            while not self._coord.should_stop():
                self.run_loop()
                if self._interval is not None:
                    following += self._interval
                    self._coord.wait_for_stop(max(0.0, following - time.monotonic()))
            self.stop_loop()

    def start_loop(self) -> None:
        """Called once before the first call; for subclasses."""

    def stop_loop(self) -> None:
        """Called once after the last call; for subclasses."""

    def run_loop(self) -> None:
        """One call of the target."""
        if self._call is not None:
            self._call(*self._args, **self._kwargs)
