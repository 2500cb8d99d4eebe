"""What mpirun of Open MPI calls in place of ssh when a job is to survive the loss of a host.

    python ssh_relay.py HOST COMMAND...

PRRTE, Open MPI's launcher, ends the job when its connection to the daemon of a host breaks, or the
ssh that has started it fails. So the daemon is told a port of this process as mpirun's, and what
both say passes through here. When the host's end breaks, mpirun's is held: mpirun sees a daemon
that is silent. Runs on mpirun's host, one for each other host, by the standard library alone.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

SUPERVISOR, AGENT = "HPCFLOW_SUPERVISOR", "HPCFLOW_AGENT"  # addresses:port:token; ssh
SILENCE_S = 30  # after which a host that confirms nothing is lost
LOOK_S = 0.2
CALL_S = 10  # for the supervisor's answer
MOST = 1 << 16  # bytes passed on at once
HOLD = b"h"  # the supervisor's answer: the job goes on


def watched(connection: socket.socket) -> socket.socket:
    """The same connection; it breaks when the other host has confirmed nothing for SILENCE_S."""
    third = SILENCE_S // 3
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, third),
        (socket.TCP_KEEPINTVL, third),
        (socket.TCP_KEEPCNT, 2),
        (socket.TCP_USER_TIMEOUT, 1000 * SILENCE_S),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    return connection


def call(where: str, line: str) -> socket.socket | None:
    """A connection to the supervisor at `where`, which has heard `line`; None if none answers."""
    addresses, port, token = where.split(":")
    for address in addresses.split(","):
        try:
            connection = socket.create_connection((address, int(port)), timeout=CALL_S)
        except OSError:
            continue
        try:
            connection.sendall(f"{token} {line}\n".encode())
            if connection.recv(1):
                connection.settimeout(None)
                return connection
        except OSError:
            pass
        connection.close()
    return None


class Relay:
    """Between mpirun, at `mpirun`, and the daemon of one host."""

    def __init__(self, mpirun: tuple[str, int]) -> None:
        self._mpirun = mpirun
        self._listener = socket.create_server(("0.0.0.0", 0))
        self.port = self._listener.getsockname()[1]
        self._other: dict[socket.socket, socket.socket] = {}  # both ways
        self._held: set[socket.socket] = set()  # mpirun's ends, of which the host's are gone
        self._ups: set[socket.socket] = set()  # mpirun's ends
        self.has_come = False  # the daemon, once

    def turn(self) -> tuple[bool, socket.socket | None]:
        """Pass on what has come; whether mpirun is still there, and an end that the host left."""
        ready, _, _ = select.select([self._listener, *self._held, *self._other], [], [], LOOK_S)
        for one in ready:
            if one is self._listener:
                self._accept()
            elif not self._pass_on(one):
                if one in self._ups:
                    return False, None
                return True, one
        return True, None

    def close(self) -> None:
        """Let go of all ends."""
        for one in (self._listener, *self._held, *self._other):
            one.close()

    def hold(self, down: socket.socket) -> None:
        """The host's end is gone; mpirun is not to know."""
        up = self._other.pop(down)
        del self._other[up]
        self._held.add(up)
        down.close()

    def _accept(self) -> None:
        down = watched(self._listener.accept()[0])
        up = socket.create_connection(self._mpirun)
        self._other[down], self._other[up] = up, down
        self._ups.add(up)
        self.has_come = True

    def _pass_on(self, one: socket.socket) -> bool:
        """From one end to the other; False if it has ended."""
        try:
            data = one.recv(MOST)
        except OSError:
            data = b""
        if data and one not in self._held:
            try:
                self._other[one].sendall(data)
            except OSError:
                return one in self._ups  # the host does not hear: its own end will say so
        return bool(data)


def mpirun_of(words: Sequence[str]) -> tuple[str, int]:
    """mpirun's address and port in the command line that starts a daemon.

    Errors: ValueError if there is none.
    """
    found = re.search(r"prte_hnp_uri[^;]*;tcp://([0-9.]+)[^:]*:(\d+)", " ".join(words))
    if found is None:
        raise ValueError(f"mpirun tells no address of its own: {' '.join(words)}")
    return found[1], int(found[2])


def through(port: int, words: Sequence[str]) -> list[str]:
    """The command line that starts a daemon, with a relay's `port` as mpirun's."""
    old = mpirun_of(words)[1]
    only_ipv4 = [re.sub(r";tcp6://[^;\"]*", "", word) for word in words]
    return [re.sub(rf"(;tcp://[^:\"]*):{old}\b", rf"\1:{port}", word) for word in only_ipv4]


def host_of(words: Sequence[str]) -> str:
    """The word before the command, which begins with settings or is the daemon."""
    at = next(i for i, word in enumerate(words) if ";" in word or "prted" in word)
    return words[at - 1]


def main(words: Sequence[str]) -> int:
    """Start the daemon of a host, and stand between it and mpirun until one of them ends."""
    import subprocess

    relay = Relay(mpirun_of(words))
    agent = shlex.split(os.environ.get(AGENT, "ssh"))
    child = subprocess.Popen([*agent, *through(relay.port, words)])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        return _stand(relay, host_of(words), child)
    finally:
        relay.close()
        child.terminate()


def _stand(relay: Relay, host: str, child: subprocess.Popen[bytes]) -> int:
    """Until mpirun or, unless it is to be survived, the host has ended."""
    is_there, left = True, None
    while is_there:
        code = child.poll()
        if code is not None and not relay.has_come:
            return code if code >= 0 else 1
        is_there, left = relay.turn()
        if left is not None:
            supervisor = call(os.environ.get(SUPERVISOR, "::"), f"gone {host}")
            if supervisor is None or supervisor.recv(len(HOLD)) != HOLD:
                return 0
            relay.hold(left)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
