"""ssh relay: mpirun of Open MPI calls it instead of ssh, so that a job survives the loss of a host.

    python ssh_relay.py HOST COMMAND...

PRRTE, Open MPI's launcher, ends the job when its connection to the daemon of a host breaks, or when
the ssh that has started the daemon fails. So the daemon gets a port of this process as mpirun's,
and this process forwards the traffic between them. When the connection to the host breaks, the one
to mpirun stays open: mpirun sees a silent daemon. One relay runs on mpirun's host for each other
host; it uses only the standard library.
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
SILENCE_S = 30  # a host that acknowledges nothing for this long is lost
LOOK_S = 0.2
CALL_S = 10  # timeout of the supervisor's answer
READ_BYTES = 1 << 16  # bytes forwarded at once
HOLD = b"h"  # the supervisor's answer: the job continues


def watch_relay(connection: socket.socket) -> socket.socket:
    """The same connection, which now breaks after SILENCE_S without an acknowledgement."""
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


def call(endpoint: str, line: str) -> socket.socket | None:
    """A connection to the supervisor at `endpoint`, which has received `line`; None on failure."""
    addresses, port, token = endpoint.split(":")
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


class SshRelay:
    """Forwards traffic between mpirun, at address `mpirun`, and the daemon of one host."""

    def __init__(self, mpirun: tuple[str, int]) -> None:
        self._mpirun = mpirun
        self._listener = socket.create_server(("0.0.0.0", 0))
        self.port = self._listener.getsockname()[1]
        self._peers: dict[socket.socket, socket.socket] = {}  # socket -> peer, both ways
        self._orphans: set[socket.socket] = set()  # mpirun's sockets whose host socket is closed
        self._ups: set[socket.socket] = set()  # mpirun's sockets
        self.has_come = False  # whether the daemon has connected

    def forward_pending(self) -> tuple[bool, socket.socket | None]:
        """Forward pending data; whether mpirun is connected, and a socket closed by the host."""
        ready, _, _ = select.select([self._listener, *self._orphans, *self._peers], [], [], LOOK_S)
        for sock in ready:
            if sock is self._listener:
                self._accept()
            elif not self._pass_on(sock):
                if sock in self._ups:
                    return False, None
                return True, sock
        return True, None

    def close(self) -> None:
        """Close all sockets."""
        for sock in (self._listener, *self._orphans, *self._peers):
            sock.close()

    def hold(self, down: socket.socket) -> None:
        """The connection to the host is closed; keep the one to mpirun open."""
        up = self._peers.pop(down)
        del self._peers[up]
        self._orphans.add(up)
        down.close()

    def _accept(self) -> None:
        down = watch_relay(self._listener.accept()[0])
        up = socket.create_connection(self._mpirun)
        self._peers[down], self._peers[up] = up, down
        self._ups.add(up)
        self.has_come = True

    def _pass_on(self, sock: socket.socket) -> bool:
        """Forward data from one socket to its peer; False if the socket is closed."""
        try:
            data = sock.recv(READ_BYTES)
        except OSError:
            data = b""
        if data and sock not in self._orphans:
            try:
                self._peers[sock].sendall(data)
            except OSError:
                return sock in self._ups  # a lost host is detected by its own socket
        return bool(data)


def mpirun_of(words: Sequence[str]) -> tuple[str, int]:
    """mpirun's address and port, from the command line that starts a daemon.

    Errors: ValueError if there is none.
    """
    match = re.search(r"prte_hnp_uri[^;]*;tcp://([0-9.]+)[^:]*:(\d+)", " ".join(words))
    if match is None:
        raise ValueError(f"mpirun tells no address of its own: {' '.join(words)}")
    return match[1], int(match[2])


def relay_command(port: int, words: Sequence[str]) -> list[str]:
    """The command line that starts a daemon, with the relay's `port` in place of mpirun's."""
    old = mpirun_of(words)[1]
    only_ipv4 = [re.sub(r";tcp6://[^;\"]*", "", word) for word in words]
    return [re.sub(rf"(;tcp://[^:\"]*):{old}\b", rf"\1:{port}", word) for word in only_ipv4]


def target_host(words: Sequence[str]) -> str:
    """The host: the word before the command, which begins with settings or is prted."""
    at = next(i for i, word in enumerate(words) if ";" in word or "prted" in word)
    return words[at - 1]


def main(words: Sequence[str]) -> int:
    """Start the daemon of a host, and relay between it and mpirun until one of them ends."""
    import subprocess

    relay = SshRelay(mpirun_of(words))
    agent = shlex.split(os.environ.get(AGENT, "ssh"))
    child = subprocess.Popen([*agent, *relay_command(relay.port, words)])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        return _start_relay(relay, target_host(words), child)
    finally:
        relay.close()
        child.terminate()


def _start_relay(relay: SshRelay, host: str, child: subprocess.Popen[bytes]) -> int:
    """Relay until mpirun has ended, or the host, unless the job survives it."""
    is_there, closed = True, None
    while is_there:
        code = child.poll()
        if code is not None and not relay.has_come:
            return code if code >= 0 else 1
        is_there, closed = relay.forward_pending()
        if closed is not None:
            supervisor = call(os.environ.get(SUPERVISOR, "::"), f"gone {host}")
            if supervisor is None or supervisor.recv(len(HOLD)) != HOLD:
                return 0
            relay.hold(closed)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
