"""A second thread that keeps messages moving while the first sits in a long kernel."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable

import numpy as np

POLL_S = 200e-6  # how often it polls; MPI moves large messages piece by piece, a piece a poll


class Helper:
    """Polls while the holder of the baton lends it: around kernels that run long without the GIL.

    Measured: a 100 MB send over TCP arrives only when the sender's 500 ms of kernels end, 40-78 ms
    after its start with a helper. Handing over costs about 30 us, so only long kernels lend.
    """

    def __init__(self, poll: Callable[[], bool]) -> None:
        self._poll = poll
        self._lock = threading.Lock()  # held by whoever may make MPI calls
        self._lock.acquire()
        self._lent = self._out = False  # may it poll; has the baton not been taken back
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
        self._lent = self._out = True
        self._lock.release()
        self._wake.set()

    def take(self) -> None:
        """The kernel has ended; raises what went wrong meanwhile."""
        self._lent = False
        self._lock.acquire()
        self._out = False
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def back(self) -> None:
        """A strand has failed: take the baton back if its kernel had lent it."""
        if self._out:
            self._error = None
            self.take()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._lent:
                with self._lock:
                    if self._lent:
                        self._once()
                time.sleep(POLL_S)

    def _once(self) -> None:
        try:
            self._context.run(self._poll)
        except Exception as error:  # the step's own thread raises it
            self._error = error
            self._lent = False
