"""mpirun as a child of `hpcflow run`: on a stop signal all ranks save; a death is reported.

mpirun handles SIGTERM and Ctrl-C by killing the ranks. Therefore it runs in its own process group,
which a terminal does not signal. This process turns the first such signal into SIGUSR1, which
mpirun forwards: all ranks save, stop, and name the first signal (stop_cause.py). The second Ctrl-C
ends them at once. A signal before the ranks have joined the job also ends them at once, as there is
nothing to save. SIGUSR1 is forwarded, and again when the ranks have joined. If this process is
killed, the kernel sends SIGTERM to mpirun.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from hpcflow.launch.launcher_detection import StartCommand
from hpcflow.launch.stop_cause import leave_signal

STOPPING = ("SIGTERM", "SIGINT", "SIGHUP")  # sent by users, batch systems and terminals
FORWARDED = ("SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGCONT")
LET_MPIRUN_END_S = 5.0  # time for mpirun to end the ranks before it is killed
LOOK_S = 0.5  # interval of checks for the foreground and of waits
READ_BYTES = 1 << 16  # bytes read at once
PR_SET_PDEATHSIG = 1  # Linux, <sys/prctl.h>


class MpirunProcess:
    """The running launcher of `start`; from its creation this process handles signals for it.

    `joined()` says whether the ranks have joined the job.
    """

    def __init__(
        self, start: StartCommand, joined: Callable[[], bool] = lambda: True, **pipes: Any
    ) -> None:
        self._start, self._joined = start, joined
        self.stopping = 0  # the first stop signal
        self._at_once = 0  # exit code if the ranks were ended without a save
        numbers = {getattr(signal, name) for name in (*STOPPING, *FORWARDED)}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)  # until handlers are installed
        libc = ctypes.CDLL(None)

        def in_child() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            start.sweep(os.getpid())
            os.setpgid(0, 0)
            if hasattr(libc, "prctl"):
                libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

        by_hand = sys.stdin is not None and sys.stdin.isatty()  # a background group cannot read
        if by_hand:
            pipes["stdin"] = subprocess.PIPE
        self.process = subprocess.Popen(start.argv, env=start.env, preexec_fn=in_child, **pipes)
        if by_hand:
            threading.Thread(target=self._type, daemon=True).start()
        for name in STOPPING:
            number = getattr(signal, name)
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, self._stop)
        for name in FORWARDED:
            signal.signal(getattr(signal, name), self._forward)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def wait(self) -> int:
        """Wait until it has ended; its exit code as a shell reports it."""
        code = self.process.wait()
        self._start.sweep(self.process.pid)
        if self._at_once:
            return self._at_once
        if code < 0:
            _print_line(f"mpirun was killed by {signal.Signals(-code).name}: its ranks end")
        code = code if code >= 0 else 128 - code
        if self.stopping and code == 128 + signal.SIGUSR1:
            _print_line(
                "the ranks have ended at once, unsaved: no step was made, or training was over"
            )
            return 128 + self.stopping
        return code

    def _stop(self, number: int, frame: object) -> None:
        name = signal.Signals(number).name
        if not self.stopping:
            self.stopping = number
            if not self._joined():
                self.end_at_once(128 + number, f"{name}: the ranks, which still start, end at once")
                return
            _print_line(
                f"{name}: all ranks save and stop after this step; Ctrl-C ends them at once"
            )
            leave_signal(number, self._start.env)
            self._send(signal.SIGUSR1)
        elif number == signal.SIGINT:
            self.end_at_once(128 + number, "SIGINT again: all ranks end at once, unsaved")

    def end_at_once(self, code: int, reason: str) -> None:
        """End the ranks without a save; the exit code is `code`."""
        self._at_once = code
        _print_line(reason)
        self._send(signal.SIGTERM)
        timer = threading.Timer(LET_MPIRUN_END_S, self.process.kill)
        timer.daemon = True
        timer.start()

    def _forward(self, number: int, frame: object) -> None:
        if number == signal.SIGUSR1:
            self.stopping = self.stopping or number
            if not self._joined():  # mpirun drops signals for ranks that are starting
                threading.Thread(target=self._send_when_joined, args=(number,), daemon=True).start()
        self._send(number)
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)

    def _send_when_joined(self, number: int) -> None:
        while self.process.poll() is None and not self._joined():
            time.sleep(LOOK_S)
        self._send(number)

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def _type(self) -> None:
        """Forward terminal input while this process is in the foreground."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            while self.process.poll() is None:
                readable = select.select([0], [], [], LOOK_S)[0]
                if not readable or os.tcgetpgrp(0) != os.getpgrp():
                    threading.Event().wait(LOOK_S if readable else 0)
                    continue
                data = os.read(0, READ_BYTES)
                if not data:
                    break
                self.process.stdin.write(data)
                self.process.stdin.flush()
            self.process.stdin.close()


def _print_line(text: str) -> None:
    os.write(2, f"hpcflow: {text}\n".encode())
