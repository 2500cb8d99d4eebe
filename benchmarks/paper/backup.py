"""Asynchronous against synchronous steps, and backup workers against stragglers (OSDI'16, 7 and 8).

    python benchmarks/paper/backup.py

A worker reads a model from all servers, computes for a time that is drawn from a lognormal
distribution (it sleeps: the same seeded delays in every rule), and sends a gradient as large. The
first part compares rules for 1 to 8 workers; in the second, 8 gradients make a step and b more
workers stand by (`sync=backup:b`). With the mean times t of a step, the gain of b of them is
t(0) / t(b), normalised by what they cost: t(0) / t(b) * 8 / (8 + b).
"""

from __future__ import annotations

import argparse
import functools
import itertools
import time
from collections.abc import Iterator
from typing import Any

import bed
import ranks
from bed import Bed, Job, Row

WORKERS, SERVERS, BACKUPS = (1, 2, 4, 8), 4, (0, 1, 2, 3, 4)
MODEL, MEAN_S, SIGMA = 2e5, 0.1, 0.5  # bytes; of the delays
PAPER = {0: 2.26, 3: 1.95, 4: 1.93}  # s a step with 50 workers; the first two as its text implies


# -- in a rank


def delays(worker: int, mean: float, sigma: float) -> Iterator[float]:
    """Seconds that a worker computes in its steps: lognormal, with this mean."""
    import numpy as np

    rng = np.random.default_rng([2016, worker])
    while True:
        yield float(mean * rng.lognormal(-(sigma**2) / 2, sigma))


def slow_training(hf: Any, servers: int, nbytes: float, wait: Any) -> Any:
    """A step whose gradients are there after `wait(version)`, called when the model is read."""
    import numpy as np

    count = hf.Variable(np.int64(0), trainable=False, name="global_step")
    shape = [max(int(nbytes) // 4 // servers, 1)]
    variables = []
    for i in range(servers):
        with hf.device(f"/job:ps/task:{i}"):
            variables.append(hf.Variable(hf.zeros(shape), name=f"v{i}"))
    first = [v[0] for v in variables]

    def computed(version: Any, *read: Any) -> Any:
        wait(int(version))
        return np.float32(1e-6)

    factor = hf.py_func(computed, [count.read_value(), *first], hf.float32)
    factor.set_shape([])
    factor = hf.stop_gradient(factor)
    loss = hf.add_n([hf.reduce_sum(hf.square(v) + v) for v in variables]) * factor
    return hf.train.GradientDescentOptimizer(1.0).minimize(loss, count)


def rank(arguments: argparse.Namespace) -> None:
    """Step on this rank, and write when it had read which version."""
    import hpcflow as hf

    servers = hf.Session().context.settings.ps
    read: list[tuple[int, float]] = []
    drawn: list[Iterator[float]] = []

    def wait(version: int) -> None:
        read.append((version, time.perf_counter()))
        time.sleep(next(drawn[0]))

    train = slow_training(hf, servers, arguments.model, wait)
    with hf.train.TrainingSession() as session:
        drawn.append(delays(session.worker, arguments.mean, arguments.sigma))
        found = ranks.timed(session, lambda: session.step(train, {}), arguments.seconds)
        session.wait()
        told = session.result()
    found["read"] = read[-len(found["times"]) :]
    found |= {"servers": servers, "sync": arguments.sync, "mean": arguments.mean}
    found["gradients"] = told.get("gradients") if told else None
    ranks.write(arguments.out, session, found)


# -- all jobs


def rounds(told: list[Row]) -> tuple[list[float], float]:
    """Seconds between the versions that workers have read: one by one, and their mean.

    Each worker looks at its own clock. One that has missed versions tells of several at once.
    """
    each, seconds, versions = [], 0.0, 0
    for worker in told:
        for (v, then), (w, now) in itertools.pairwise(worker["read"]):
            if w > v:
                each += [(now - then) / (w - v)] * (w - v)
                seconds, versions = seconds + now - then, versions + w - v
    return each, seconds / max(versions, 1)


def row_of(told: list[Row], backups: int = 0) -> Row:
    """One job: times of steps, and gradients used a second."""
    own = [t for worker in told for t in worker["times"]]
    each, mean = rounds(told)
    sync = told[0]["sync"]
    low, middle, high = ranks.quantiles(own if sync == "async" else each, 0.1, 0.5, 0.9)
    used = len(told) - backups
    rate = sum(len(w["times"]) / w["seconds"] for w in told) if sync == "async" else used / mean
    return {
        "sync": sync,
        "workers": len(told),
        "backups": backups,
        "p10_ms": low * 1e3,
        "median_ms": middle * 1e3,
        "p90_ms": high * 1e3,
        "mean_ms": (sum(own) / len(own) if sync == "async" else mean) * 1e3,
        "gradients_per_s": rate,
        "gradients": told[0]["gradients"],
        "cpu": max(w["cpu"] for w in told),
    }


def jobs(arguments: argparse.Namespace) -> Iterator[tuple[int, str, int, float]]:
    """Workers, rule, backups and seconds of each job."""
    short, long = arguments.seconds, 2.5 * arguments.seconds
    if arguments.quick:
        yield from [(2, "async", 0, 1.0), (2, "all", 0, 1.0), (3, "backup:1", 1, 1.0)]
        return
    for n in WORKERS:
        yield n, "async", 0, short
    for n in WORKERS[:-1]:
        yield n, "all", 0, short
    for b in BACKUPS:
        yield WORKERS[-1] + b, f"backup:{b}" if b else "all", b, long


def measure(arguments: argparse.Namespace, bed_: Bed) -> Iterator[Row]:
    """Every number of workers under each rule."""
    servers = 1 if arguments.quick else SERVERS
    sizes = ["--model", arguments.model, "--mean", arguments.mean, "--sigma", arguments.sigma]
    for workers, sync, backups, seconds in jobs(arguments):
        options = ["--seconds", seconds, "--sync", sync, *sizes]
        told = bed_.run(__file__, Job(workers, servers, options, {"sync": sync}))
        yield row_of(told, backups)


def gains(record: Row) -> list[tuple[int, float, float, float]]:
    """Backups, mean seconds of a step, gain, normalised gain."""
    rows = [row for row in record["rows"] if row["sync"] != "async"]
    n = next((row["workers"] - row["backups"] for row in rows if row["backups"]), 0)
    mine = sorted((r for r in rows if r["workers"] - r["backups"] == n), key=lambda r: r["backups"])
    if not mine or mine[0]["backups"]:
        return []
    t0 = mine[0]["mean_ms"]
    found = ((row["backups"], row["mean_ms"]) for row in mine)
    return [(b, t / 1e3, t0 / t, t0 / t * n / (n + b)) for b, t in found]


def show(record: Row) -> str:
    """Every job, then what backup workers gain."""
    keys = ["p10_ms", "median_ms", "p90_ms", "mean_ms", "gradients_per_s"]
    lines = [
        [r["sync"], r["workers"], *(float(r[k]) for k in keys), dropped(r), f"{r['cpu']:.0%}"]
        for r in record["rows"]
    ]
    head = ["sync", "workers", "p10 ms", "median", "p90", "mean", "gradients/s", "dropped"]
    found = [[b, t, gain, normal] for b, t, gain, normal in gains(record)]
    below = bed.table(["backups", "mean s a step", "gain", "normalised"], found)
    return bed.table([*head, "cores in use"], lines) + "\n\n" + below


def dropped(row: Row) -> str:
    """The share of gradients that came too late."""
    counts = row["gradients"]
    if not counts:
        return ""
    lost, used = sum(counts["dropped"]), sum(counts["used"])
    return f"{lost / (lost + used):.0%}"


def draw(figure: Any, record: Row) -> None:
    """Gradients a second, times of steps, and the gain of backup workers."""
    import plots

    rate, steps, backup = figure.subplots(1, 3)
    for i, sync in enumerate(("async", "all")):
        rows = [r for r in record["rows"] if r["sync"] == sync]
        x = [r["workers"] for r in rows]
        look = {"color": plots.COLORS[i], "marker": plots.MARKS[i], "label": sync}
        rate.plot(x, [r["gradients_per_s"] for r in rows], **look)
        low, middle, high = ([r[k] for r in rows] for k in ("p10_ms", "median_ms", "p90_ms"))
        steps.errorbar(x, middle, plots.bars(low, middle, high), capsize=2, **look)
        for axes in (rate, steps):
            plots.counts(axes, x)
    rate.set(title="throughput", xlabel="workers", ylabel="gradients/s")
    steps.set(title="step: median, p10 to p90", xlabel="workers", ylabel="ms", ylim=(0, None))
    rate.legend()
    found = gains(record)
    for i, (name, column) in enumerate((("gain", 2), ("normalised", 3))):
        look = {"color": plots.COLORS[i + 2], "marker": plots.MARKS[i], "label": name}
        backup.plot([g[0] for g in found], [g[column] for g in found], **look)
    backup.axhline(1, color=plots.GREY, linestyle=":")
    backup.set(title="backup workers", xlabel="backups", ylabel="t(0) / t(b)")
    backup.legend()


def main() -> None:
    parser = bed.parser(__doc__)
    parser.set_defaults(seconds=6.0)
    parser.add_argument("--model", type=float, default=MODEL, help="bytes")
    parser.add_argument("--mean", type=float, default=MEAN_S, help="seconds of a worker's delay")
    parser.add_argument("--sigma", type=float, default=SIGMA, help="of its logarithm")
    parser.add_argument("--sync", default="all", help="the rule of this job, for its record")
    arguments = parser.parse_args()
    if arguments.rank:
        rank(arguments)
    elif arguments.tell:
        told = [bed.read(folder) for folder in arguments.tell]
        rows = [row_of(t, int(t[0]["sync"].partition(":")[2] or 0)) for t in told]
        print(show({"rows": sorted(rows, key=lambda row: (row["sync"], row["workers"]))}))
    else:
        most = 4 if arguments.quick else WORKERS[-1] + max(BACKUPS) + SERVERS
        run = functools.partial(measure, arguments)
        bed.conduct(arguments, "backup", most, run, show, draw)


if __name__ == "__main__":
    main()
