"""The limited network itself: what single ports and an uplink carry."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from hosts import Hosts, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
MB = 1 << 20
READ = """
import socket, sys
with socket.create_server(("", 5000)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    while connection.recv(65536):
        pass
    connection.sendall(b"x")
"""
WRITE = f"""
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as connection:
    connection.sendall(bytes({MB}))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
"""


def seconds(hosts: Hosts, source: int, dest: int) -> float:
    """The time in which 1 MiB comes from one host to another."""
    inside = ["nsenter", f"--net=/run/netns/{hosts.names[dest]}", sys.executable, "-c", READ]
    with subprocess.Popen(inside, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None and reader.stdout.readline() == b"ready\n"
        writer = [hosts.agent, hosts.names[source], sys.executable, "-c", f"'{WRITE}'"]
        begin = time.perf_counter()
        subprocess.run([*writer, hosts._address(dest)], check=True, timeout=60)
        return time.perf_counter() - begin


def test_ports_and_the_uplink_limit_what_passes_them() -> None:
    with Hosts(4, "80mbit", {1: "16mbit"}, uplink="20mbit") as four:
        assert seconds(four, 2, 3) > 0.1 * 0.9  # 10 MB/s
        assert seconds(four, 0, 1) > 0.5 * 0.9  # the slow port: 2 MB/s
        assert seconds(four, 3, 0) > 0.4 * 0.9  # the uplink: 2.5 MB/s
