"""What the benchmarks share: contenders that take turns, ratios of medians, results as JSON.

A contender is one child process or several. It sets itself up, says so, and from then on runs one
repeat whenever it is told which; between repeats it sleeps. Repeats of all contenders alternate, so
that a slow minute of the machine hits all of them. What is not installed is reported as absent.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # a checkout that is not installed will do
ENVIRON = dict(os.environ)  # as it was: importing hpcflow sets numbers of threads
MARK = "@@ "  # lines of the protocol; launchers and libraries print others
THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)
ONE_THREAD = dict.fromkeys(THREADS, "1")
QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
    "JAX_PLATFORMS": "cpu",
    "PYTHONPATH": str(ROOT),
}
Repeat = Callable[[], float]  # runs one repeat; its figure


# -- in a contender's process


def serve(cases: Mapping[str, Repeat], packages: Iterable[str] = (), crew: Crew | None = None):
    """Be a contender: run the cases asked for until there is no one to ask.

    With a crew of ranks all call this, rank 0 hears what is asked, the largest figure counts.
    """
    crew = crew or Crew()
    crew.say({"ready": sorted(cases), "versions": versions(packages)})
    while (case := crew.hear()) is not None:
        crew.barrier()
        figure = cases[case]() if case in cases else None
        crew.say({"figure": crew.largest(figure)})


class Crew:
    """The ranks of one contender; `comm` is an mpi4py communicator of theirs, None for one."""

    def __init__(self, comm: Any = None) -> None:
        self.comm = comm
        self.rank = comm.rank if comm is not None else 0

    def say(self, what: dict) -> None:
        if self.rank == 0:
            print(MARK + json.dumps(what), flush=True)

    def hear(self) -> str | None:
        """The next case on every rank; None at the end. Waiting costs no core."""
        word = (sys.stdin.readline() if self.rank == 0 else "").strip().encode()
        if self.comm is None:
            return word.decode() or None
        buffer = bytearray(word.ljust(64))
        request = self.comm.Ibcast(buffer)
        while not request.Test():
            time.sleep(0.0005)
        return bytes(buffer).decode().strip() or None

    def barrier(self) -> None:
        if self.comm is not None:
            self.comm.Barrier()

    def largest(self, figure: float | None) -> float | None:
        if self.comm is None:
            return figure
        return max((f for f in self.comm.allgather(figure) if f is not None), default=None)


def crew_of_workers(servers: int) -> Crew:
    """All ranks of MPI but the last `servers`, apart from what hpcflow itself communicates."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return Crew(world.Create_group(world.group.Range_incl([(0, world.size - 1 - servers, 1)])))


def per_call(call: Callable[[], object], calls: int) -> float:
    """Seconds of one of `calls` calls."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def marked(done: subprocess.CompletedProcess[str]) -> Any:
    """What a job printed behind MARK, as plain data.

    Errors: SystemExit with its output if it failed or printed none.
    """
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not lines:
        raise SystemExit(f"a run ended with code {done.returncode}:\n{done.stdout}{done.stderr}")
    return json.loads(lines[0][len(MARK) :])


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Of this Python and what is installed beside it."""
    found = {name: importlib.metadata.version(name) for name in packages}
    return {"python": platform.python_version(), **found}


def versions_beside(python: str, *packages: str) -> dict[str, str]:
    """The same of another Python."""
    asks = "import json, sys, common; print(json.dumps(common.versions(sys.argv[1:])))"
    here = {**ENVIRON, "PYTHONPATH": str(pathlib.Path(__file__).parent)}
    told = subprocess.run(
        [python, "-c", asks, *packages], env=here, check=True, capture_output=True
    )
    return json.loads(told.stdout)


# -- in the parent's process


@dataclasses.dataclass(frozen=True)
class Contender:
    """A name and the command lines of its processes; `missing` says why it cannot take part."""

    name: str
    commands: Sequence[Sequence[str]] = ()
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)
    missing: str = ""
    threads: int = 1  # of each process


def role(python: str | None, script: str, role: str, *options: object) -> list[str]:
    """The command line of this benchmark as a contender's process."""
    return [python or sys.executable, script, "--role", role, *map(str, options)]


def peer(name: str, python: str | None, option: str, *commands: Sequence[str]) -> Contender:
    """A contender that needs another Python, absent where none was given."""
    missing = "" if python else f"no {option} PYTHON was given"
    return Contender(name, commands, missing=missing)


def ranks(n: int, command: Sequence[str], **environ: str) -> tuple[list[str], dict[str, str]]:
    """The command line and environment that start `n` ranks of a command, as `hpcflow run` does."""
    from hpcflow.launch import launcher_detection

    start = launcher_detection.start_command(n, command, ENVIRON)
    return start.argv, start.env | environ


def environ(contender: Contender) -> dict[str, str]:
    """The environment of a contender's processes."""
    threads = dict.fromkeys(THREADS, str(contender.threads))
    return {**ENVIRON, **QUIET, **contender.environ, **threads}


class _Child:
    def __init__(self, contender: Contender) -> None:
        self.errors = tempfile.TemporaryFile("w+")
        self.processes = [
            subprocess.Popen(
                command,
                env=environ(contender),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                text=True,
                bufsize=1,
                start_new_session=True,
            )
            for command in contender.commands
        ]
        self.name, self.answers = contender.name, list[dict]()

    def wait(self) -> None:
        """Wait until it has set itself up."""
        began = time.monotonic()
        try:
            self.answers = [self.read(process) for process in self.processes]
        except (OSError, RuntimeError):
            self.close()
            raise
        waited = time.monotonic() - began
        print(f"{self.name} is ready, {waited:.0f} s waited", file=sys.stderr, flush=True)

    def read(self, process: subprocess.Popen, limit: float = 300.0) -> dict:
        assert process.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            while ready.select(limit):
                line = process.stdout.readline()
                if line.startswith(MARK):
                    return json.loads(line[len(MARK) :])
                if not line:
                    break
        self.errors.seek(0)
        said = self.errors.read().strip().splitlines()
        raise RuntimeError("; ".join(said[-3:]) or f"said nothing for {limit:.0f} s")

    def measure(self, case: str, first: bool) -> float | None:
        """One repeat; `first` before all else on the machine, by real-time priority."""
        if first:
            self.schedule(os.SCHED_RR, 1)
        try:
            return self._measure(case)
        finally:
            if first:
                self.schedule(os.SCHED_OTHER, 0)

    def schedule(self, policy: int, priority: int) -> None:
        sessions = {process.pid for process in self.processes}
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):  # those that have ended meanwhile
                if os.getsid(int(name)) in sessions:
                    for thread in os.listdir(f"/proc/{name}/task"):
                        os.sched_setscheduler(int(thread), policy, os.sched_param(priority))

    def _measure(self, case: str) -> float | None:
        for process in self.processes:
            assert process.stdin is not None
            try:
                process.stdin.write(case + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                self.read(process)  # raises, with its last words
        figures = [self.read(process)["figure"] for process in self.processes]
        return max((f for f in figures if f is not None), default=None)

    def close(self) -> None:
        for process in self.processes:
            with contextlib.suppress(OSError):  # an empty word: launchers may not pass on the end
                process.stdin.write("\n")  # type: ignore[union-attr]
            with contextlib.suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # ranks, too, whose launcher it is
                process.wait()
            process.stdout.close()  # type: ignore[union-attr]
        self.errors.close()


class Tournament:
    """Lets contenders take turns; collects figures, versions, and who is absent and why.

    With `together` they set themselves up at the same time, not one after the other.
    """

    def __init__(self, realtime: bool = False, together: bool = False) -> None:
        self.realtime, self.together = realtime, together
        if realtime:  # the parent must get through to contenders that keep all cores busy
            os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        self.figures: dict[str, dict[str, list[float]]] = {}
        self.versions: dict[str, dict[str, str]] = {}
        self.absent: dict[str, str] = {}
        self._load, self._since = os.getloadavg()[0], time.monotonic()

    def play(self, contenders: Sequence[Contender], rounds: int, repeats: int) -> None:
        """Start the contenders, let each run each of its cases `repeats` times in turn.

        So many rounds, each with fresh processes: luck with cores and pages stays with a process.
        """
        for _ in range(rounds):
            self._round(contenders, repeats)

    def _round(self, contenders: Sequence[Contender], repeats: int, discard: int = 1) -> None:
        children: list[_Child] = []
        try:
            for contender in contenders:
                self._start(contender, children)
            children[:] = [child for child in children if self._meet(child)]
            for repeat in range(repeats + discard):
                for child in children:
                    if child.name not in self.absent:
                        self._repeat(child, counts=repeat >= discard)
        finally:
            for child in children:
                child.close()

    def _repeat(self, child: _Child, counts: bool) -> None:
        """All cases once; a contender that dies is absent from then on, the others go on."""
        try:
            for case in child.answers[0]["ready"]:
                figure = child.measure(case, self.realtime)
                if counts and figure is not None:
                    self.add(case, child.name, figure)
        except (OSError, RuntimeError) as error:
            self.absent[child.name] = f"ended amid its repeats: {error}"

    def _start(self, contender: Contender, children: list[_Child]) -> None:
        if contender.missing or contender.name in self.absent:
            self.absent.setdefault(contender.name, contender.missing)
            return
        try:
            child = _Child(contender)
            if not self.together:
                child.wait()
        except (OSError, RuntimeError) as error:
            self.absent[contender.name] = str(error)
            return
        children.append(child)

    def _meet(self, child: _Child) -> bool:
        """Whether a contender that was started has set itself up."""
        try:
            if self.together:
                child.wait()
        except (OSError, RuntimeError) as error:
            self.absent[child.name] = str(error)
            return False
        self.versions[child.name] = child.answers[-1]["versions"]
        child.answers.sort(key=lambda answer: -len(answer["ready"]))
        return True

    def sample(
        self, case: str, contender: Contender, run: Callable[[Contender], float], counts: bool
    ) -> None:
        """One figure by `run`, for what is no long-lived process; what fails is absent."""
        if contender.missing or contender.name in self.absent:
            self.absent.setdefault(contender.name, contender.missing)
            return
        try:
            figure = run(contender)
        except (OSError, RuntimeError) as error:
            self.absent[contender.name] = str(error)
            return
        if counts:
            self.add(case, contender.name, figure)

    def add(self, case: str, name: str, figure: float) -> None:
        """One more figure."""
        self.figures.setdefault(case, {}).setdefault(name, []).append(figure)

    def merge(self, other: Tournament, suffix: str) -> None:
        """Take over the figures of another tournament, its cases named with a suffix."""
        for case, contenders in other.figures.items():
            self.figures[case + suffix] = contenders
        self.versions |= other.versions
        self.absent |= {name + suffix: why for name, why in other.absent.items()}

    def middle(self, case: str, name: str, best: bool = False) -> float | None:
        """The median (or least) figure of a contender; None if it has none."""
        found = self.figures.get(case, {}).get(name)
        return (min(found) if best else statistics.median(found)) if found else None

    def ratio(self, case: str, name: str, other: str, other_case: str = "") -> dict[str, Any]:
        """`name` divided by `other`, of medians and of minima."""
        values = []
        for best in (False, True):
            over = self.middle(case, name, best)
            under = self.middle(other_case or case, other, best)
            values.append(over / under if over is not None and under else None)
        return {"value": values[0], "of_minima": values[1]}

    def by_best(self, case: str, name: str, at_most: float | None = None) -> dict[str, Any]:
        """`name` divided by the least of the others, beside its target."""
        others = {n: self.middle(case, n) for n in self.figures.get(case, {}) if n != name}
        best = min(others, key=lambda n: others[n] or 0.0, default="the best peer")
        return check(f"{case}: by {best}", self.ratio(case, name, best), at_most=at_most)

    def record(self, checks: list[dict[str, Any]], unit: str, scale: float) -> dict[str, Any]:
        """The result as plain data."""
        rows = [
            {
                "case": case,
                "contender": name,
                "median": _digits(statistics.median(values) * scale),
                "min": _digits(min(values) * scale),
                "max": _digits(max(values) * scale),
                "samples": len(values),
            }
            for case, contenders in self.figures.items()
            for name, values in contenders.items()
        ]
        return {
            "command": " ".join([*_settings(), "python", *map(_plain, sys.argv)]),
            "host": host_facts() | {"load_before": self._load},
            "commit": commit(),
            "took_s": round(time.monotonic() - self._since),
            "versions": self.versions,
            "absent": self.absent,
            "unit": unit,
            "rows": rows,
            "checks": checks,
        }


def check(
    figure: str,
    value: float | dict[str, Any] | None,
    unit: str = "",
    at_most: float | None = None,
    at_least: float | None = None,
) -> dict[str, Any]:
    """One figure beside its target."""
    more = value if isinstance(value, dict) else {"value": value}
    number, met = more["value"], None
    if number is not None and at_most is not None:
        met = number <= at_most
    elif number is not None and at_least is not None:
        met = number >= at_least
    rounded = {k: _digits(v) for k, v in more.items()}
    target = {"at_most": at_most, "at_least": at_least, "met": met}
    return {"figure": figure, **rounded, "unit": unit, **target}


def _digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _settings() -> list[str]:
    """What the environment sets that bears on figures."""
    bears = ("HPCFLOW_", "OPENBLAS_", "OMPI_MCA_mpi")
    found = sorted(ENVIRON.items())
    return [f"{k}={v}" for k, v in found if k.startswith(bears) and k not in THREADS]


def _plain(word: str) -> str:
    """A word of the command line without the folders of this machine."""
    path = pathlib.Path(word)
    if not path.is_absolute():
        return word
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else f"PATH/{path.name}"


# Flags of a CPU on which the speed of products and of 16-bit floats depends.
INSTRUCTIONS = ("avx2", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16")


def host_facts() -> dict[str, Any]:
    """What a reader must know of the machine."""
    said = dict[str, str]()  # of the last core
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            said[name.strip()] = value.strip()
    flags = said.get("flags", "").split()
    return {
        "cpu": said.get("model name", platform.processor()),
        "instructions": [flag for flag in INSTRUCTIONS if flag in flags],
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "load_after": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d"),
    }


def commit() -> str:
    """Of the checkout that is measured; "" where there is none."""
    asked = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def free_ports(n: int) -> list[int]:
    """Ports of this host that nobody listens on now."""
    sockets = [socket.socket() for _ in range(n)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    found = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return found


def show(record: dict[str, Any]) -> None:
    """Print a result."""
    for row in record["rows"]:
        numbers = f"{row['median']:>10.5g}{row['min']:>10.5g}{row['max']:>10.5g}"
        print(f"  {row['case']:<26}{row['contender']:<38}{numbers} {record['unit']}")
    for name, why in record["absent"].items():
        print(f"  absent: {name} ({why})")
    for row in record["checks"]:
        print("  " + " | ".join(check_cells(row)))


def check_cells(row: dict[str, Any]) -> list[str]:
    """figure, value (of medians; of minima), target, met: as text."""
    value = "absent" if row["value"] is None else f"{row['value']:.4g} {row['unit']}".strip()
    if row.get("of_minima") is not None:
        value += f" ({row['of_minima']:.4g})"
    low, high = row["at_least"], row["at_most"]
    target = f"≤ {high:g}" if high is not None else f"≥ {low:g}" if low is not None else ""
    met = {True: "met", False: "missed", None: ""}[row["met"]]
    return [row["figure"], value, f"{target} {row['unit']}".strip() if target else "", met]


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The options all benchmarks have."""
    made = argparse.ArgumentParser(description=(doc or "").split("\n", 1)[0])
    made.add_argument("--rounds", type=int, default=3, help="each with fresh processes")
    made.add_argument("--repeats", type=int, default=7, help="in one round")
    made.add_argument("--torch", metavar="PYTHON", help="a python that can import torch")
    made.add_argument("--tf", metavar="PYTHON", help="a python that can import tensorflow")
    made.add_argument("--jax", metavar="PYTHON", help="a python that can import jax")
    made.add_argument(
        "--realtime",
        action="store_true",
        help="repeats run before all else on a busy machine (root)",
    )
    made.add_argument("--out", "--json", metavar="FILE", help="a JSON file for the result")
    made.add_argument("--role", help=argparse.SUPPRESS)
    return made


def finish(record: dict[str, Any], out: str | None) -> None:
    """Print a result and write it."""
    show(record)
    if out:
        pathlib.Path(out).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
