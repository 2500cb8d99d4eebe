"""Several hosts with a slow network on one machine: network namespaces joined by a limited bridge.

    python tests/network/hosts.py 2 80mbit PROGRAM ARGS...    # PROGRAM on one rank of each host

Each host has its own name, addresses and port; each port is limited in both directions by `tc tbf`.
Between them runs real TCP. Needs root and iproute2.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT))

MTU = 9000  # as in clusters; smaller packets would cost the cores more
BURST = "16kb"  # what a port that was idle may send at once

# What mpirun calls in place of ssh: AGENT HOST COMMAND...
AGENT = """#!/bin/bash
host=$1; shift
exec nsenter --net=/run/netns/$host unshare --uts --mount \\
  sh -c "hostname $host; mount --bind '{hosts}' /etc/hosts; exec sh -c \\"\\$0\\"" "$*"
"""


def missing() -> str:
    """Why this machine cannot have such hosts; empty if it can."""
    tools = [tool for tool in ("ip", "tc", "nsenter", "unshare") if not shutil.which(tool)]
    if os.geteuid() != 0 or tools:
        return "needs network namespaces: root, and ip, tc, nsenter, unshare"
    return ""


class Hosts:
    """`n` hosts while the `with` block lasts; `names` are theirs, each port limited to `rate`.

    `rates` has the ports with other limits, by the index of their host. With an `uplink`, the
    second half of the hosts has a switch of its own, and this rate joins the two switches.
    """

    def __init__(
        self, n: int, rate: str, rates: Mapping[int, str] | None = None, uplink: str = ""
    ) -> None:
        stem = f"hf{os.getpid() % 100000:05d}"
        self.rates = [(rates or {}).get(i, rate) for i in range(n)]
        self.switches = [f"{stem}s"] + ([f"{stem}t"] if uplink else [])
        self.uplink = uplink
        self.names = [f"{stem}h{i}" for i in range(1, n + 1)]
        self._folder = tempfile.TemporaryDirectory(prefix="hpcflow-hosts-")
        self.agent = os.path.join(self._folder.name, "agent.sh")

    def __enter__(self) -> Hosts:
        try:
            self._write_files()
            self._up()
        except BaseException:
            self._down()
            raise
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for index in range(len(self.names)):
            self.kill(index)
        self._down()

    def _write_files(self) -> None:
        hosts = pathlib.Path(self._folder.name, "hosts")
        lines = [f"{self._address(i)} {name}" for i, name in enumerate(self.names)]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")
        agent = pathlib.Path(self.agent)
        agent.write_text(AGENT.format(hosts=hosts))
        agent.chmod(0o755)

    def _address(self, index: int) -> str:
        return f"10.78.0.{index + 1}"

    def _switch_of(self, index: int) -> str:
        return self.switches[index * len(self.switches) // len(self.names)]

    def _up(self) -> None:
        for switch in self.switches:
            _run(f"ip netns add {switch}")
            _run(f"ip -n {switch} link set lo up")
            _run(f"ip -n {switch} link add br0 type bridge")
            _run(f"ip -n {switch} link set br0 up")
        if self.uplink:
            first, second = self.switches
            _run(f"ip link add up0 netns {first} type veth peer name up0 netns {second}")
            for switch in self.switches:
                _run(f"ip -n {switch} link set up0 mtu {MTU}")
                _run(f"ip -n {switch} link set up0 master br0 up")
                _limit(switch, "up0", self.uplink)
        for i, host in enumerate(self.names):
            port, switch = f"port{i}", self._switch_of(i)
            _run(f"ip netns add {host}")
            _run(f"ip -n {host} link set lo up")
            _run(f"ip link add {port} netns {switch} type veth peer name eth0 netns {host}")
            _run(f"ip -n {switch} link set {port} mtu {MTU}")
            _run(f"ip -n {host} link set eth0 mtu {MTU}")
            _run(f"ip -n {switch} link set {port} master br0 up")
            _run(f"ip -n {host} addr add {self._address(i)}/24 dev eth0")
            _run(f"ip -n {host} link set eth0 up")
            for space, device in ((host, "eth0"), (switch, port)):
                _limit(space, device, self.rates[i])

    def _down(self) -> None:
        for name in (*self.names, *self.switches):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        self._folder.cleanup()

    def dropped(self) -> int:
        """Packets that the ports have dropped because their queues were full."""
        spaces = (*self.switches, *self.names)
        told = "".join(_run(f"tc -n {space} -s qdisc show") for space in spaces)
        return sum(int(n) for n in re.findall(r"\(dropped (\d+)", told))

    def hostfile(self, slots: int) -> str:
        """A file that names all hosts, with `slots` ranks each."""
        file = pathlib.Path(self._folder.name, f"hosts-{slots}")
        file.write_text("".join(f"{name} slots={slots}\n" for name in self.names))
        return str(file)

    def start(
        self, program: Sequence[str], environ: dict[str, str], cwd: pathlib.Path, log: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        """Start `program` on the first host alone; an mpirun in it reaches the others."""
        return subprocess.Popen(
            [self.agent, self.names[0], shlex.join(program)],
            env={**os.environ, **environ, "PRTE_MCA_plm_ssh_agent": self.agent},
            **{"cwd": cwd, "stdout": log, "stderr": log, "start_new_session": True},
        )

    def kill(self, index: int) -> None:
        """End all processes of a host at once, as far as a signal is at once."""
        for _ in range(2):  # those too that were being made
            for pid in _run(f"ip netns pids {self.names[index]}").split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    def silence(self, index: int) -> None:
        """Take the cable out of a host's port."""
        _run(f"ip -n {self._switch_of(index)} link set port{index} down")

    def command(self, program: Sequence[str], ranks: int | None = None, each: int = 1) -> list[str]:
        """The command line that runs `program` on `each` ranks of each of the first hosts.

        All of them unless `ranks` says how many hosts; Open MPI only.
        """
        from hpcflow.launch import launcher_detection

        names = self.names[:ranks]
        start = launcher_detection.start_command(len(names) * each, program)
        at = start.argv.index("-n")
        slots = ",".join(f"{name}:{each}" for name in names)
        where = ["--host", slots, "--map-by", f"ppr:{each}:node:oversubscribe"]
        reach = ["--prtemca", "plm_ssh_agent", self.agent]
        inside = [*start.argv[:at], *reach, *where, *start.argv[at:]]
        return [self.agent, self.names[0], shlex.join(inside)]

    def run(
        self,
        program: Sequence[str],
        environ: dict[str, str] | None = None,
        timeout: float = 300,
        ranks: int | None = None,
        each: int = 1,
    ) -> subprocess.CompletedProcess[str]:
        """Run `program` as `command` says, `environ` added to every rank's environment."""
        from hpcflow.launch import launcher_detection

        given = dict(environ or {})
        base = launcher_detection.start_command(len(self.names[:ranks]) * each, program).env | given
        exported = [f"{name}={value}" for name, value in given.items()]
        return run_job(self.command(["env", *exported, *program], ranks, each), base, timeout)


def run_job(
    command: Sequence[str], env: dict[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a launcher; if that ends early, by a limit or a signal, its ranks end with it."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    job = subprocess.Popen(command, env=env, text=True, start_new_session=True, **pipes)
    try:
        told, errors = job.communicate(timeout=timeout)
    except BaseException:
        os.killpg(job.pid, signal.SIGTERM)  # launchers pass it on
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.communicate(timeout=10)
        raise
    return subprocess.CompletedProcess(command, job.returncode, told, errors)


def _limit(space: str, device: str, rate: str) -> None:
    """Limit what a device of a network namespace sends."""
    limit = f"tbf rate {rate} burst {BURST} latency 50ms"
    _run(f"tc -n {space} qdisc add dev {device} root {limit}")


def _run(command: str) -> str:
    done = subprocess.run(command.split(), capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{command}: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    with Hosts(int(sys.argv[1]), sys.argv[2]) as up:
        done = up.run(sys.argv[3:])
        sys.stdout.write(done.stdout)
        sys.stderr.write(done.stderr)
    sys.exit(done.returncode)
