"""Compressed gradients: accuracy by step, and the bytes that workers send for it.

    python benchmarks/paper/compression.py            # about ten minutes on two cores

Scikit-learn's digits by the network of examples/digits.py, with gradients as they are, in bfloat16,
and by their largest hundredth with error feedback: by synchronous replicas, and by asynchronous
workers of one parameter server. No time is measured. `--rank` is one rank of a job.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import statistics
import sys
from collections.abc import Iterator
from typing import Any

import bed
import common
import ranks
from bed import Bed, Job, Row

sys.path.append(str(common.ROOT / "examples"))

KINDS = {"none": "as they are", "bfloat16": "bfloat16", "top-k": "largest 1 %, feedback"}
MODES = {"4 replicas": (4, 0), "4 workers, 1 server": (4, 1)}  # workers, servers
SEEDS, EPOCHS, BATCH, RATE, EVERY = 3, 30, 64, 0.003, 25
NAME = "compression"


# -- in a rank


def optimizer(hf: Any, kind: str) -> Any:
    """Adam, its gradients compressed so."""
    inside = hf.train.AdamOptimizer(RATE)
    if kind == "none":
        return inside
    half = kind == "bfloat16"
    made = hf.train.BFloat16Compression() if half else hf.train.TopKCompression(0.01)
    return hf.train.CompressedOptimizer(inside, made)


def rank(arguments: argparse.Namespace) -> None:
    """Train, and note the accuracy on images held out; each worker tells what it sent."""
    import digits

    import hpcflow as hf

    pixels, labels = digits.load()
    hf.set_random_seed(arguments.seed)
    x = hf.placeholder(hf.float32, [None, 64])
    y = hf.placeholder(hf.int32, [None])
    loss, accuracy = digits.network(x, y)
    count = hf.train.get_or_create_global_step()
    train = optimizer(hf, arguments.kind).minimize(loss, global_step=count)
    test = {x: pixels[: digits.HELD_OUT], y: labels[: digits.HELD_OUT]}
    data = hf.data.Dataset(
        {x: pixels[digits.HELD_OUT :], y: labels[digits.HELD_OUT :]},
        batch=BATCH,
        seed=arguments.seed,
    )
    curve, sent = [], 0
    with hf.train.TrainingSession() as session:
        traffic = session.context.world.traffic
        for batch in data.epochs(arguments.epochs):
            before = traffic.total_bytes
            session.step(train, batch)
            sent += traffic.total_bytes - before
            if session.is_chief and session.steps % EVERY == 0:
                curve.append([int(session.run(count)), float(session.run(accuracy, test))])
        session.wait()
        if session.is_chief:
            curve.append([int(session.run(count)), float(session.run(accuracy, test))])
        found = {"curve": curve, "bytes": sent, "steps": session.steps}
        found |= {"kind": arguments.kind, "seed": arguments.seed}
        ranks.write(arguments.out, session, found)


# -- all jobs


def measure(arguments: argparse.Namespace) -> Iterator[Row]:
    """Every mode with every compression, from several seeds."""
    seeds, epochs = (1, 2) if arguments.quick else (SEEDS, arguments.epochs)
    with Bed(0, shared=True) as here:
        for (mode, (workers, servers)), kind in itertools.product(MODES.items(), KINDS):
            for seed in range(seeds):
                options = ["--kind", kind, "--seed", seed, "--epochs", epochs]
                yield row_of(here.run(__file__, Job(workers, servers, options)), mode)


def row_of(told: list[Row], mode: str) -> Row:
    """What the workers of one job have told."""
    first = told[0]
    a_step = sum(w["bytes"] for w in told) / sum(w["steps"] for w in told)
    about = {"mode": mode, "kind": first["kind"], "seed": first["seed"]}
    return {**about, "curve": first["curve"], "bytes_a_step": a_step}


def groups(record: Row) -> Iterator[tuple[str, str, list[Row]]]:
    """The rows of each mode and compression."""
    for mode, kind in itertools.product(dict.fromkeys(r["mode"] for r in record["rows"]), KINDS):
        rows = [r for r in record["rows"] if (r["mode"], r["kind"]) == (mode, kind)]
        if rows:
            yield mode, kind, rows


def mean_curve(rows: list[Row]) -> tuple[list[float], list[float]]:
    """Steps, and the mean over seeds of the accuracy there."""
    points = zip(*(row["curve"] for row in rows), strict=False)
    means = [[statistics.mean(v) for v in zip(*point, strict=True)] for point in points]
    return [step for step, _ in means], [accuracy for _, accuracy in means]


def reached(row: Row, wanted: float) -> str:
    """The first step noted with this accuracy."""
    return next((str(step) for step, accuracy in row["curve"] if accuracy >= wanted), "never")


def show(record: Row) -> str:
    """A line for each mode and compression."""
    lines = []
    for mode, kind, rows in groups(record):
        last = [row["curve"][-1][1] for row in rows]
        lines.append(
            [
                mode,
                KINDS[kind],
                f"{statistics.mean(r['bytes_a_step'] for r in rows):,.0f}",
                ", ".join(reached(row, 0.95) for row in rows),
                f"{statistics.mean(last):.4f} ({min(last):.4f} to {max(last):.4f})",
            ]
        )
    head = ["ranks", "gradients", "bytes a worker sends in a step", "steps to 95 %", "accuracy"]
    return bed.table(head, lines)


def draw(figure: Any, record: Row) -> None:
    """Accuracy by step, a panel for each mode."""
    import plots

    for axes, mode in zip(figure.subplots(1, len(MODES), sharey=True), MODES, strict=True):
        for found, kind, rows in groups(record):
            if found == mode:
                color = plots.COLORS[list(KINDS).index(kind)]
                axes.plot(*mean_curve(rows), color=color, label=KINDS[kind])
        axes.set(title=mode, xlabel="step", ylabel="accuracy, images held out", ylim=(0.5, 1))
        axes.legend()


def main() -> None:
    """Run, then write the record and the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="short jobs, to see that it works")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--again", metavar="FILE", help="table and picture of an earlier result")
    parser.add_argument("--out", help="JSON file of the result; of ranks: a folder")
    parser.add_argument("--rank", action="store_true", help="be a rank of a job")
    parser.add_argument("--tell", metavar="FOLDERS", nargs="+", help="a table of these jobs")
    parser.add_argument("--kind", choices=KINDS, default="none", help="of a rank")
    parser.add_argument("--seed", type=int, default=0, help="of a rank")
    arguments = parser.parse_args()
    if arguments.rank:
        rank(arguments)
        return
    if arguments.tell:
        jobs = [bed.read(folder) for folder in arguments.tell]
        print(show({"rows": [row_of(told, f"{len(told)} workers") for told in jobs]}))
        return
    out = pathlib.Path(arguments.again or arguments.out or bed.RESULTS / f"{NAME}.json")
    if arguments.again:
        record = json.loads(out.read_text())
    else:
        versions = common.versions(["numpy", "ml_dtypes"])
        record = {"versions": versions, "rows": []}
        for row in measure(arguments):
            print(f"  {bed.brief(row)}  {row['curve'][-1]}", file=sys.stderr, flush=True)
            record["rows"].append(row)
        if arguments.out or not arguments.quick:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    print(show(record))
    if not arguments.quick:
        import plots

        plots.picture(bed.DOCS / f"experiments_{NAME}.svg", draw, record)


if __name__ == "__main__":
    main()
