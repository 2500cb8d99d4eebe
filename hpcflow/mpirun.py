"""mpirun as a child of `hpcflow run`: a signal to stop lets all ranks save, a death is named.

mpirun answers SIGTERM and Ctrl-C by killing the ranks. Therefore it runs in a process group of its
own, which a terminal does not signal. This process turns the first such signal into SIGUSR1, which
mpirun passes on: all ranks save and stop. The second Ctrl-C ends them at once. If this process is
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
from typing import Any

from hpcflow.launch import Start

STOPPING = ("SIGTERM", "SIGINT", "SIGHUP")  # what people, batch systems and terminals send
FORWARDED = ("SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGCONT")
LET_MPIRUN_END_S = 5.0  # the ranks, before it is killed itself
LOOK_S = 0.5  # whether this process is in the foreground, and may read the terminal
MOST = 1 << 16  # bytes read at once
PR_SET_PDEATHSIG = 1  # Linux, <sys/prctl.h>


class Mpirun:
    """The running launcher of `start`; from now on this process acts on signals for it."""

    def __init__(self, start: Start, **pipes: Any) -> None:
        self._start, self.stopping = start, False
        libc = ctypes.CDLL(None)

        def in_child() -> None:
            start.sweep(os.getpid())
            os.setpgid(0, 0)
            if hasattr(libc, "prctl"):
                libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

        by_hand = sys.stdin is not None and sys.stdin.isatty()  # a background group cannot read it
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

    def wait(self) -> int:
        """Until it has ended; its exit code as a shell tells it."""
        code = self.process.wait()
        self._start.sweep(self.process.pid)
        return code if code >= 0 else 128 - code

    def _stop(self, number: int, frame: object) -> None:
        name = signal.Signals(number).name
        if not self.stopping:
            self.stopping = True
            _say(f"{name}: all ranks save and stop after this step; Ctrl-C ends them at once")
            self._send(signal.SIGUSR1)
        elif number == signal.SIGINT:
            _say("SIGINT again: all ranks end at once, unsaved")
            self._send(signal.SIGTERM)
            timer = threading.Timer(LET_MPIRUN_END_S, self.process.kill)
            timer.daemon = True
            timer.start()

    def _forward(self, number: int, frame: object) -> None:
        self._send(number)
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def _type(self) -> None:
        """Pass on what is typed, as long as this process is in the foreground."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            while self.process.poll() is None:
                readable = select.select([0], [], [], LOOK_S)[0]
                if not readable or os.tcgetpgrp(0) != os.getpgrp():
                    threading.Event().wait(LOOK_S if readable else 0)
                    continue
                data = os.read(0, MOST)
                if not data:
                    break
                self.process.stdin.write(data)
                self.process.stdin.flush()
            self.process.stdin.close()


def _say(text: str) -> None:
    os.write(2, f"hpcflow: {text}\n".encode())
