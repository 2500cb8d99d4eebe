"""Coordinator: stops a group of threads together; `join` raises the first error."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpcflow.errors import HpcflowError, OutOfRangeError


class Coordinator:
    """Coordinates the stop of several threads.

    Any thread may request a stop, with an exception or without; the others poll `should_stop`.
    `join` waits for them and raises the first exception reported, unless it is one of
    `clean_stop_exception_types` (default: OutOfRangeError, the end of the data).
    """

    def __init__(self, clean_stop_exception_types: Sequence[type[BaseException]] = ()) -> None:
        self._clean = tuple(clean_stop_exception_types) or (OutOfRangeError,)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._threads: set[threading.Thread] = set()
        self._joined = False

    def request_stop(self, ex: Any = None) -> None:
        """Request all threads to stop; `ex` is the reason, an exception or `sys.exc_info()`.

        Only the first request counts; exceptions of later ones are ignored.
        """
        error = ex[1] if isinstance(ex, tuple) else ex
        with self._lock:
            if self._joined and isinstance(error, BaseException):
                raise error  # `join` would never report it
            if self._stop.is_set():
                return
            if isinstance(error, BaseException) and not isinstance(error, self._clean):
                self._error = error
            self._stop.set()

    def clear_stop(self) -> None:
        """Withdraw the stop request."""
        with self._lock:
            self._joined, self._error = False, None
            self._stop.clear()

    def should_stop(self) -> bool:
        """True after a stop request."""
        return self._stop.is_set()

    @contextlib.contextmanager
    def stop_on_exception(self) -> Iterator[None]:
        """A context manager that turns an exception into a stop request."""
        try:
            yield
        except Exception as error:
            self.request_stop(error)

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Wait for a stop request; False if there is none within `timeout` seconds."""
        return self._stop.wait(timeout)

    def register_thread(self, thread: threading.Thread) -> None:
        """Add `thread` to the threads that `join` waits for."""
        with self._lock:
            self._threads.add(thread)

    def join(
        self,
        threads: Iterable[threading.Thread] | None = None,
        stop_grace_period_secs: float = 120,
        ignore_live_threads: bool = False,
    ) -> None:
        """Wait for the end of all registered threads and of `threads`.

        Errors: the first one reported. HpcflowError naming threads that still run
        `stop_grace_period_secs` after the stop request, unless `ignore_live_threads`.
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
                f"{len(alive)} threads are still running {stop_grace_period_secs:g} s after the "
                f"request to stop: {', '.join(alive)}",
                hint="close the queues they wait in with cancel_pending_enqueues=True",
            )

    @property
    def joined(self) -> bool:
        """True after `join` has returned or raised."""
        return self._joined

    def raise_requested_exception(self) -> None:
        """Raise the exception of the stop request, if any."""
        with self._lock:
            error = self._error
        if error is not None:
            raise error


class LooperThread(threading.Thread):
    """A thread that calls `target` in a loop until `coord` requests a stop.

    Calls begin `timer_interval_secs` apart; with None they follow each other directly. An exception
    requests all threads of `coord` to stop.
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
        """Create and start a LooperThread."""
        looper = LooperThread(coord, timer_interval_secs, target, args, kwargs)
        looper.start()
        return looper

    def run(self) -> None:
        """Run the loop."""
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
        """Hook of subclasses: called once before the first call."""

    def stop_loop(self) -> None:
        """Hook of subclasses: called once after the last call."""

    def run_loop(self) -> None:
        """Call the target once."""
        if self._call is not None:
            self._call(*self._args, **self._kwargs)
