"""What a rank holds and sends at its start and in a step, and how that grows with the ranks.

    python benchmarks/growth.py --json FILE
    python benchmarks/growth.py --short            few ranks

Real ranks are started by mpirun on this machine, as many as `--ranks` says, and what they call of
MPI is counted; of the ranks of `--simulated` a few run, and the others are their echo
(growth_simulated.py). Each quantity is set beside the class that it is to stay in
(growth_classes.py); the exit status is 1 if one does not.
"""

from __future__ import annotations

import collections
import functools
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import common
import growth_rank
import growth_simulated
from growth_classes import Row

from hpcflow.launch import launcher_detection

LIMIT_S = 300
HELD = ("descriptors", "threads", "memory")  # is what there is; else what has been done since


class Mode(NamedTuple):
    """How the ranks of a job work together."""

    servers: int = 0
    rows: bool = False  # some gradients are rows of a table
    settings: Mapping[str, Any] = {}
    simulated: bool = True


MODES = {
    "collective": Mode(),
    "collective, rows of a table": Mode(rows=True),
    "collective, survive": Mode(settings={"survive": 1}, simulated=False),
    "ps, async": Mode(servers=1),
    "ps, sync=all": Mode(servers=1, settings={"sync": "all"}),
}
Told = dict[str, dict[str, Mapping[str, float]]]  # role -> phase -> quantity -> number


# -- real ranks


def real(n: int, mode: Mode) -> Told:
    """What is counted on `n` ranks of a job."""
    with tempfile.TemporaryDirectory() as name:
        folder, run_dir = pathlib.Path(name, "told"), pathlib.Path(name, "run")
        folder.mkdir(), run_dir.mkdir()
        script = [sys.executable, growth_rank.__file__, str(folder), *(["rows"] * mode.rows)]
        given = {"ps": mode.servers, "run_dir": run_dir, "random_seed": 1, **mode.settings}
        environ = {f"HPCFLOW_{key.upper()}": str(value) for key, value in given.items()}
        start = launcher_detection.start_command(n, script, common.ENVIRON)
        if mode.settings.get("survive"):
            start = launcher_detection.with_survival_option(start)
        env = {**start.env, **common.QUIET, **common.ONE_THREAD, **environ}
        ended = subprocess.run(start.argv, env=env, capture_output=True, text=True, timeout=LIMIT_S)
        if ended.returncode:
            raise SystemExit(f"{n} ranks of {mode}: {ended.stderr[-2000:]}")
        job = json.loads((folder / "job").read_text())
        phases = {
            phase: [json.loads((folder / f"{phase}-{rank}").read_text()) for rank in range(n)]
            for phase in ("begin", "start", "step", "meeting")
        }
    return _by_role(phases, job)


def _by_role(phases: Mapping[str, list[dict[str, Any]]], job: Mapping[str, Any]) -> Told:
    """The most that a rank of each role has, where a role has several."""
    for ranks in phases.values():
        _received(ranks)
    before = dict(zip(["start", "step", "meeting"], ["begin", "start", "step"], strict=True))
    times = {"start": 1, "step": growth_rank.STEPS, "meeting": growth_rank.MEETINGS}
    found: Told = {}
    for phase, earlier in before.items():
        for rank, now in enumerate(phases[phase]):
            role = "server" if rank in job["servers"] else "worker" if rank else "chief"
            most: Any = found.setdefault(role, {}).setdefault(phase, collections.Counter())
            for key, value in now.items():
                done = (value - phases[earlier][rank].get(key, 0)) / times[phase]
                if key not in HELD or phase == "start":
                    most[key] = max(most[key], done)
    found["chief"]["start"] |= {key: job[key] for key in job if key.startswith("files")}  # type: ignore[operator]
    return found


def _received(ranks: list[dict[str, Any]]) -> None:
    """Add what each rank has been sent, by what all have sent."""
    told = [rank.pop("sent to") for rank in ranks]
    for rank, row in enumerate(ranks):
        pairs = [sent[str(rank)] for sent in told if str(rank) in sent]
        row["messages received"] = sum(messages for messages, _ in pairs)
        row["bytes received"] = sum(nbytes for _, nbytes in pairs)


# -- simulated ranks


def simulated(n: int, mode: Mode) -> Told:
    """What is counted in a job of `n` simulated ranks."""
    given = dict(mode.settings)
    found: Told = growth_simulated.counted(n, mode.servers, mode.rows, **given)
    if mode.servers:
        return found
    held = growth_simulated.counted(n, mode.servers, mode.rows, trace=True, **given)
    for role, phases in found.items():
        phases["start"] = {**phases["start"], "memory": held[role]["start"]["memory"]}
    return found


# -- all of them


def rows_of(mode: str, source: str, told: Mapping[int, Told]) -> list[Row]:
    """A row for each quantity that any of the ranks have, by how many they are."""
    node = functools.partial(min, growth_simulated.NODE) if source == "simulated" else int
    names = {
        (role, phase, quantity): None
        for found in told.values()
        for role, phases in found.items()
        for phase, numbers in phases.items()
        for quantity in sorted(numbers)
    }
    rows = []
    for role, phase, quantity in names:
        values = {
            n: found[role][phase].get(quantity, 0.0) for n, found in told.items() if role in found
        }
        if any(values.values()) and len(values) > 1:
            rows.append(Row(mode, role, phase, quantity, source, values, node))
    return rows


def measured(modes: Sequence[str], ranks: Sequence[int], more: Sequence[int]) -> list[Row]:
    """The rows of all modes, of real and of simulated ranks."""
    rows = []
    for name in modes:
        mode = MODES[name]
        least = 2 + mode.servers  # the chief, a worker and the server
        sizes = {"real": (real, ranks), "simulated": (simulated, more if mode.simulated else ())}
        for source, (count, wanted) in sizes.items():
            told = {}
            for n in (n for n in wanted if n >= least):
                print(f"{name}: {n} {source} ranks", file=sys.stderr, flush=True)
                told[n] = count(n, mode)
            rows += rows_of(name, source, told)
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Cells for people: what, how much by the number of ranks, the class that was found, stated."""
    cells = []
    for row in rows:
        values = ", ".join(f"{n}: {_number(v)}" for n, v in row["values"].items())
        what = f"{row['phase']}: {row['quantity']}"
        met = {True: "yes", False: "NO", None: ""}[row["within"]]
        stated = f"{row['stated']} ({row['reason']})" if row["reason"] else row["stated"]
        cells.append(
            [row["mode"], row["role"], what, row["source"], values, row["found"], stated, met]
        )
    return cells


HEAD = ["mode", "role", "what", "ranks", "by their number", "found", "stated", "within"]


def _number(value: float) -> str:
    """Short: 12, 1.5 k, 23 M."""
    for factor, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if value >= factor:
            return f"{value / min(factor, 1e3 if unit == ' k' else factor):.3g}{unit}"
    return f"{value:.4g}"


def show(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table with columns of one width."""
    lines = [HEAD, *table(rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16, 32], metavar="N")
    parser.add_argument("--simulated", type=int, nargs="+", default=[16, 1024, 4096], metavar="N")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), metavar="MODE")
    parser.add_argument("--short", action="store_true", help="few ranks, real and simulated")
    arguments = parser.parse_args()
    if arguments.short or arguments.repeats == 1:  # what `make bench SHORT=1` gives
        arguments.ranks, arguments.simulated = [2, 4, 8], [16, 64, 256]
    cup = common.Tournament()
    rows = [row.plain() for row in measured(arguments.modes, arguments.ranks, arguments.simulated)]
    cup.versions["hpcflow"] = common.versions(["numpy", "mpi4py"])
    print(show(rows))
    outside = [row for row in rows if row["within"] is False]
    figure = common.check("quantities that grow faster than stated", len(outside), at_most=0)
    record = cup.record([figure], "", 1) | {"growth": rows}
    common.finish(record, arguments.out)
    raise SystemExit(1 if outside else 0)


if __name__ == "__main__":
    main()
