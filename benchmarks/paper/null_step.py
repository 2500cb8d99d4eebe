"""Null step: a worker reads the model, does next to nothing, sends an update (OSDI'16, figure 6).

    python benchmarks/paper/null_step.py              # test-bed: ports of 10 MB/s, as root
    python benchmarks/paper/null_step.py --shared     # ranks of this host, by shared memory

Every step of every worker reads `scalar` (a number on each server), a dense model spread evenly
over the servers, or 32 random rows of a table that is cut over the servers; the update is as large.
Synchronous, as the paper's; `--sync async` is asynchronous. The test-bed's models are 1/1000 of the
paper's, its ports about 1/100.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import bed
import ranks
from bed import Bed, Job, Row

WORKERS, SERVERS = (1, 2, 4, 8, 12), (1, 4)
DENSE, TABLES = (1e5, 1e6), (8e6, 128e6)  # bytes
ROWS, WIDTH = 32, 64  # of a table: rows a step, and float32 numbers in a row
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1.0, "B"))
PAPER = {  # 16 servers: milliseconds with 1 and with 100 workers
    "scalar": (1.8, 8.8),
    "sparse": (5.0, 20.0),
    "dense 100 MB": (147.0, 613.0),
    "dense 1 GB": (1010.0, 7160.0),
}


def size(nbytes: float) -> str:
    """`100 KB`, `1 MB`, `16 GB`."""
    unit, name = next((u, n) for u, n in UNITS if nbytes >= u)
    return f"{nbytes / unit:g} {name}"


# -- in a rank


def dense_step(hf: Any, servers: int, nbytes: float, name: str) -> Any:
    """Reads a model of so many bytes, updates it by what the worker computes of it."""
    variables, losses = [], []
    shape = [max(int(nbytes) // 4 // servers, 1)] if nbytes > 4 else []
    for i in range(servers):
        with hf.device(f"/job:ps/task:{i}"):
            v = hf.Variable(hf.zeros(shape), name=f"{name}_{i}")
        variables.append(v)
        losses.append(nearly_linear(hf, v))
    return hf.train.GradientDescentOptimizer(1e-3).minimize(hf.add_n(losses), var_list=variables)


def sparse_step(hf: Any, nbytes: float, name: str, ids: Any) -> Any:
    """Reads the rows `ids` of a table of so many bytes, and updates them by ones."""
    table = hf.Variable(hf.zeros([int(nbytes) // 4 // WIDTH, WIDTH]), name=name)
    loss = nearly_linear(hf, hf.nn.embedding_lookup(table, ids))
    return hf.train.GradientDescentOptimizer(1e-3).minimize(loss, var_list=[table])


def nearly_linear(hf: Any, x: Any) -> Any:
    """A loss whose gradient, x * 1e-6 + 1, needs x."""
    return hf.reduce_sum(hf.square(x) * 5e-7 + x)


def rank(arguments: argparse.Namespace) -> None:
    """Time every case on this rank."""
    import hpcflow as hf

    import numpy as np  # isort: skip

    servers = hf.Session().context.settings.ps
    ids = hf.placeholder(hf.int32, [ROWS])
    cases: dict[str, tuple[Any, int]] = {"scalar": (dense_step(hf, servers, 4, "scalar"), 0)}
    for nbytes in arguments.dense:
        name = f"dense {size(nbytes)}"
        cases[name] = (dense_step(hf, servers, nbytes, name.replace(" ", "_")), 0)
    for nbytes in arguments.tables:
        name = f"sparse {size(nbytes)}"
        op = sparse_step(hf, nbytes, name.replace(" ", "_"), ids)
        cases[name] = (op, int(nbytes) // 4 // WIDTH)
    found = {}
    with hf.train.TrainingSession() as session:
        rng = np.random.default_rng(session.worker)
        for name, (op, rows) in cases.items():

            def step(op: Any = op, rows: int = rows) -> None:
                session.run(op, {ids: rng.integers(0, rows, ROWS, "int32")} if rows else {})

            found[name] = ranks.timed(session, step, arguments.seconds)
        ranks.write(arguments.out, session, {"servers": servers, "cases": found})


# -- all jobs


def rows_of(told: list[Row]) -> Iterator[Row]:
    """A row for each case of one job."""
    for case in told[0]["cases"]:
        mine = [worker["cases"][case] for worker in told]
        times = list(itertools.chain(*(one["times"] for one in mine)))
        low, middle, high = ranks.quantiles(times, 0.1, 0.5, 0.9)
        yield {
            "case": case,
            "servers": told[0]["servers"],
            "workers": len(told),
            "p10_ms": low * 1e3,
            "median_ms": middle * 1e3,
            "p90_ms": high * 1e3,
            "steps": len(times),
            "cpu": max(one["cpu"] for one in mine),
            "dropped_in_job": told[0].get("dropped"),
        }


def measure(arguments: argparse.Namespace, bed_: Bed) -> Iterator[Row]:
    """Every number of workers with every number of servers."""
    counts = ((1, 2), (1,)) if arguments.quick else (WORKERS, SERVERS)
    if arguments.shared:
        counts = ((1, 2, 4), (1, 2))
    seconds = 0.3 if arguments.quick else arguments.seconds
    options = ["--seconds", seconds, "--dense", *arguments.dense, "--tables", *arguments.tables]
    settings = {"sync": arguments.sync, "shard_bytes": 1 << 20}
    for workers, servers in itertools.product(*counts):
        yield from rows_of(bed_.run(__file__, Job(workers, servers, options, settings)))


def show(record: Row) -> str:
    """Medians (p10 to p90) in ms by workers, a line for each case and number of servers."""
    rows = record["rows"]
    workers = sorted({row["workers"] for row in rows})
    lines = []
    for case, servers in dict.fromkeys((row["case"], row["servers"]) for row in rows):
        cells = []
        for n in workers:
            point = (case, servers, n)
            found = [r for r in rows if (r["case"], r["servers"], r["workers"]) == point]
            cells += [_cell(found[0]) if found else ""]
        lines.append([case, servers, *cells])
    found = bed.table(["case", "servers", *(f"{n} workers" for n in workers)], lines)
    drops = [row["dropped_in_job"] for row in rows if row["dropped_in_job"] is not None]
    return found + (f"\n\nPorts dropped up to {max(drops)} packets in a job." if drops else "")


def _cell(row: Row) -> str:
    mark = "*" if row["cpu"] > bed.BUSY else ""
    return f"{row['median_ms']:.3g} ({row['p10_ms']:.3g} to {row['p90_ms']:.3g}){mark}"


def draw(figure: Any, record: Row) -> None:
    """Step against workers: a panel for each number of servers, and the paper's own points."""
    import plots

    servers = sorted({row["servers"] for row in record["rows"]})
    panels = figure.subplots(1, len(servers) + 1, sharey=True)
    for axes, count in zip(panels, servers, strict=False):
        mine = [row for row in record["rows"] if row["servers"] == count]
        for i, case in enumerate(dict.fromkeys(row["case"] for row in mine)):
            points = [row for row in mine if row["case"] == case]
            x = [row["workers"] for row in points]
            low, middle, high = ([p[k] for p in points] for k in ("p10_ms", "median_ms", "p90_ms"))
            look = {"color": plots.COLORS[i], "marker": plots.MARKS[i], "label": case}
            axes.errorbar(x, middle, plots.bars(low, middle, high), capsize=2, **look)
        plots.counts(axes, x)
        axes.axvline(count, color=plots.GREY, linestyle=":")
        noun = "server" if count == 1 else "servers"
        axes.set(title=f"{count} {noun}", xlabel="workers")
        axes.set_yscale("log")
    panels[0].set_ylabel("step (ms)")
    panels[0].legend(fontsize=7)
    for i, (case, ends) in enumerate(PAPER.items()):
        panels[-1].plot((1, 100), ends, marker=plots.MARKS[i], color=plots.COLORS[i], label=case)
    panels[-1].set(title="paper, 16 servers", xlabel="workers", xscale="log", yscale="log")
    panels[-1].legend(fontsize=7)


def main() -> None:
    parser = bed.parser(__doc__)
    parser.add_argument("--dense", type=float, nargs="*", default=DENSE, help="bytes")
    parser.add_argument("--tables", type=float, nargs="*", default=TABLES, help="bytes")
    parser.add_argument("--sync", default="all", help="the setting: all, async, backup:1 ...")
    arguments = parser.parse_args()
    if arguments.rank:
        rank(arguments)
    elif arguments.tell:
        rows = [row for folder in arguments.tell for row in rows_of(bed.read(folder))]
        print(show({"rows": rows}))
    else:
        most = 3 if arguments.quick else max(WORKERS) + max(SERVERS)
        bed.conduct(arguments, "null_step", most, functools.partial(measure, arguments), show, draw)


if __name__ == "__main__":
    main()
