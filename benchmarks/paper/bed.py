"""Where the paper's experiments run on one machine, and what they write.

A `Bed` is so many hosts in network namespaces, each with one rank and a port of 10 MB/s, or with
`shared` plain ranks of this host. Each worker of a job writes what it has measured to a file of its
own (ranks.py); the experiment makes rows of them, a table, a JSON file and a picture.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
import common

sys.path.append(str(common.ROOT / "tests" / "network"))
import hosts

RATE, PORT = "80mbit", 10e6  # of a port in each direction: for tc, and in bytes a second
RESULTS = common.ROOT / "benchmarks" / "results" / "paper"
DOCS = common.ROOT / "docs"
BUSY = 0.5  # of the machine's cores: above this they may limit, not the ports
LIMIT_S = 300.0  # for one job
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Job:
    """So many ranks of a script, with these options and settings (fields of hpcflow.settings)."""

    workers: int
    servers: int
    options: Sequence[object] = ()
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return self.workers + self.servers


class Bed:
    """Hosts for jobs of up to `ranks` ranks while the `with` block lasts."""

    def __init__(self, ranks: int, shared: bool = False) -> None:
        self.hosts = None if shared else hosts.Hosts(ranks, RATE)

    def __enter__(self) -> Bed:
        if self.hosts is not None:
            if hosts.missing():
                raise SystemExit(f"the test-bed {hosts.missing()}; --shared does without")
            self.hosts.__enter__()
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.hosts is not None:
            self.hosts.__exit__(kind, error, trace)

    def run(self, script: str, job: Job) -> list[Row]:
        """What each worker of the job has told, in the workers' order.

        Also in `dropped`, the packets that ports have dropped meanwhile; None without ports.
        """
        before = None if self.hosts is None else self.hosts.dropped()
        with tempfile.TemporaryDirectory(prefix="hpcflow-paper-") as folder:
            words = ["--rank", "--out", folder, *job.options]
            program = [sys.executable, script, *map(str, words)]
            settings = {"ps": job.servers, "run_dir": folder, "threads": 1, **job.settings}
            environ = {f"HPCFLOW_{k.upper()}": str(v) for k, v in settings.items()}
            environ |= {**common.ONE_THREAD, "PYTHONPATH": str(common.ROOT)}
            done = self._start(program, environ, job.ranks)
            told = read(folder)
        if done.returncode or len(told) != job.workers:
            said = f"{done.stdout}{done.stderr}"
            raise SystemExit(f"{job} ended with code {done.returncode}, {len(told)} told:\n{said}")
        dropped = None if self.hosts is None else self.hosts.dropped() - before
        return [worker | {"dropped": dropped} for worker in told]

    def _start(
        self, program: list[str], environ: dict[str, str], ranks: int
    ) -> subprocess.CompletedProcess[str]:
        if self.hosts is not None:
            # a rank sees no other on its host, but all hosts share the cores
            return self.hosts.run(program, {"HPCFLOW_CROWDED": "1", **environ}, LIMIT_S, ranks)
        command, env = common.ranks(ranks, program, **environ)
        return hosts.run_job(command, env, LIMIT_S)


def read(folder: str | os.PathLike[str]) -> list[Row]:
    """What the workers of a job have written in a folder."""
    files = pathlib.Path(folder).glob("worker-*.json")
    return sorted((json.loads(f.read_text()) for f in files), key=lambda told: told["worker"])


# -- an experiment's command


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The options of every experiment."""
    made = argparse.ArgumentParser(description=(doc or "").split("\n", 1)[0])
    made.add_argument("--quick", action="store_true", help="a few short jobs, to see that it works")
    made.add_argument("--shared", action="store_true", help="plain ranks of this host, no ports")
    made.add_argument("--seconds", type=float, default=2.5, help="for each thing measured")
    made.add_argument("--out", metavar="PATH", help="JSON file of the result; of ranks: a folder")
    made.add_argument("--rank", action="store_true", help="be a rank of a job (as job scripts do)")
    made.add_argument("--tell", metavar="FOLDERS", nargs="+", help="a table of these jobs' folders")
    made.add_argument("--again", metavar="FILE", help="table and picture of an earlier result")
    return made


def conduct(
    arguments: argparse.Namespace,
    name: str,
    most: int,
    measure: Callable[[Bed], Iterable[Row]],
    show: Callable[[Row], str],
    draw: Callable[[Any, Row], None],
) -> None:
    """Run the experiment `name` on `most` hosts: its table, JSON file and picture.

    `measure` yields rows as they come; `show` makes the table of a record, `draw` its picture.
    """
    suffix = "_shared" if arguments.shared else ""
    out = pathlib.Path(arguments.again or arguments.out or RESULTS / f"{name}{suffix}.json")
    if arguments.again:
        record = json.loads(out.read_text())
    else:
        record = _measured(arguments, measure, most)
        if arguments.out or not arguments.quick:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    print(show(record))
    print(f"took {record['seconds']:.0f} s; cores in use {busiest(record)}")
    if not arguments.quick:
        import plots

        plots.picture(DOCS / f"experiments_{name}{suffix}.svg", draw, record)


def _measured(
    arguments: argparse.Namespace, measure: Callable[[Bed], Iterable[Row]], most: int
) -> Row:
    begun, load = time.time(), os.getloadavg()[0]
    rows = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # hosts are removed then, too
    with Bed(most, arguments.shared) as bed:
        for row in measure(bed):
            print(f"  {time.time() - begun:5.0f} s  {brief(row)}", file=sys.stderr, flush=True)
            rows.append(row)
    return {
        "command": " ".join(["python", *map(common._plain, sys.argv)]),
        "host": common.host_facts() | {"load_before": load},
        "versions": common.versions(["numpy", "mpi4py"]),
        "bed": "shared memory" if arguments.shared else f"ports of {RATE}, mtu {hosts.MTU}",
        "seconds": time.time() - begun,
        "rows": rows,
    }


def brief(row: Row) -> str:
    """A row in one line, without what it has in lists."""
    return "  ".join(
        f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}"
        for k, v in row.items()
        if not isinstance(v, (list, dict))
    )


def busiest(record: Row) -> str:
    """How much of the machine's cores the rows used, and how many used too much."""
    used = [row["cpu"] for row in record["rows"] if row.get("cpu") is not None]
    over = sum(u > BUSY for u in used)
    return f"{min(used):.0%} to {max(used):.0%}, {over} of {len(used)} rows above {BUSY:.0%}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """As Markdown; floats with three digits."""
    lines = [list(head), ["---"] * len(head)]
    lines += [[f"{v:.3g}" if isinstance(v, float) else str(v) for v in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
