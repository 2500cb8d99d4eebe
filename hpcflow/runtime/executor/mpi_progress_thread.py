"""MPI progress thread: it polls messages while the main thread runs a long kernel."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable

import numpy as np

POLL_S = 200e-6  # polling interval; MPI moves large messages in pieces, one a poll


class ProgressThread:
    """Polls while it holds the progress lock on loan, around long kernels that release the GIL.

    Measured: a 100 MB send over TCP arrives only after the sender's 500 ms of kernels without a
    helper, and 40-78 ms after its start with one. Lending costs about 30 us, so only long kernels
    lend.
    """

    def __init__(self, poll: Callable[[], bool]) -> None:
        self._poll = poll
        self._lock = threading.Lock()  # held by the thread that may make MPI calls
        self._lock.acquire()
        self._is_lent = self._is_polling = (
            False  # whether it may poll; whether the lock is still lent
        )
        self._wake = threading.Event()
        self._error: Exception | None = None
        self._context = contextvars.copy_context()
        self._context.run(np.seterr, all="ignore")
        self._thread: threading.Thread | None = None

    def lend(self) -> None:
        """A long kernel begins: the helper may poll."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hpcflow-helper", daemon=True)
            self._thread.start()
        self._is_lent = self._is_polling = True
        self._lock.release()
        self._wake.set()

    def take(self) -> None:
        """The kernel has ended; raises the error that the helper met meanwhile."""
        self._is_lent = False
        self._lock.acquire()
        self._is_polling = False
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def reclaim_lock(self) -> None:
        """A segment has failed: take the progress lock back if the segment had lent it."""
        if self._is_polling:
            self._error = None
            self.take()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._is_lent:
                with self._lock:
                    if self._is_lent:
                        self._poll_once()
                time.sleep(POLL_S)

    def _poll_once(self) -> None:
        try:
            self._context.run(self._poll)
        except Exception as error:  # raised in the thread of the step
            self._error = error
            self._is_lent = False
