"""What model.py predicts: the test-bed's own points, then the paper's curves.

    python benchmarks/paper/predict.py       # after null_step.py, backup.py and language_model.py

From the null step of *one* worker with one server come the ports' bandwidth and a step's fixed
cost, from the scalar steps of one server the processor's time for a request; the delays of the
second experiment are known. All else is predicted. For the paper's cluster likewise from its one
worker; its compute time is a fit, as it published no distribution.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
import backup
import bed
import language_model
import model
import null_step
import numpy as np
from bed import Row
from model import Cluster

NULL_ROUNDS, ROUNDS = 3, 400  # without delays all rounds are alike
LSTM_S, LSTM_SIGMA = 0.02, 0.5
PAPER_SERVERS = 16
INCEPTION = {"bytes": 108.6e6, "servers": 17, "port": 1.05e9, "server_port": 0.95e9, "batch": 32}
COMPUTE_S, COMPUTE_SIGMA = 1.0, 0.28  # fitted to the paper's t(0), t(3), t(4) of 50 workers
PAPER_WORKERS = (1, 2, 5, 10, 16, 25, 50, 100, 200)
PAPER_IMAGES = {200: 2300}  # a second, by workers
DENSE_MS = {1e8: (147.0, 613.0), 1e9: (1010.0, 7160.0)}  # the paper's, 1 and 100 workers


def calibrated(rows: list[Row]) -> tuple[float, float, float]:
    """Port (bytes/s), fixed cost of a step and service of a request (s), from one server's rows."""
    ms = {(r["case"], r["workers"]): r["median_ms"] for r in rows if r["servers"] == 1}
    dense = [(nbytes, ms[f"dense {null_step.size(nbytes)}", 1]) for nbytes in null_step.DENSE]
    (small, fast), (large, slow) = dense
    port = 2 * (large - small) / (slow - fast) * 1e3  # all bytes move in, then out
    fixed = max(fast / 1e3 - 2 * small / port, 0.0)
    scalar = sorted((n, t) for (case, n), t in ms.items() if case == "scalar")
    (few, short), (many, long) = scalar[0], scalar[-1]
    return port, fixed, max((long - short) / (many - few) / 1e3, 0.0)


def null_points(rows: list[Row], known: tuple[float, float, float]) -> Iterator[Row]:
    """The dense null steps, measured and predicted; what was fitted is marked."""
    port, fixed, service = known
    sizes = {f"dense {null_step.size(nbytes)}": nbytes for nbytes in null_step.DENSE}
    for row in rows:
        if row["case"] in sizes:
            cluster = Cluster(row["workers"], row["servers"], port, fixed=fixed, service=service)
            steps = model.sync_rounds(cluster, sizes[row["case"]], model.nothing, NULL_ROUNDS)
            what = f"{row['case']}, {row['workers']} workers, {row['servers']} servers"
            is_fit = row["workers"] == row["servers"] == 1
            yield point(what, row["median_ms"], float(np.median(steps)) * 1e3, is_fit)


def backup_points(rows: list[Row], known: tuple[float, float, float]) -> Iterator[Row]:
    """Mean steps under each rule, from delays drawn as the workers draw them."""
    port, fixed, service = known
    for row in rows:
        n, b = row["workers"], row["backups"]
        drawn = [backup.delays(w, backup.MEAN_S, backup.SIGMA) for w in range(n)]
        cluster = Cluster(n, backup.SERVERS, port, fixed=fixed, service=service)
        delays = lambda worker, drawn=drawn: next(drawn[worker])  # noqa: E731
        if row["sync"] == "async":
            steps = model.async_steps(cluster, backup.MODEL, delays, ROUNDS * n)
        else:
            steps = model.sync_rounds(cluster, backup.MODEL, delays, ROUNDS, b)
        what = f"{row['sync']}, {n} workers, {backup.SERVERS} servers"
        yield point(what, row["mean_ms"], float(steps.mean()) * 1e3, False)


def language_points(rows: list[Row], known: tuple[float, float, float]) -> Iterator[Row]:
    """Median steps of the full softmax whose weights travel; the LSTM's own time is an estimate."""
    port, fixed, service = known
    words, units, batch, unroll = (language_model.SIZES[k] for k in language_model.SIZES)
    cell = (2 * units + 1) * 4 * units
    nbytes = 4 * (words * units + cell + batch * unroll * units)
    for row in rows:
        if row["softmax"] == "full":
            n, servers = row["workers"], row["servers"]
            cluster = Cluster(n, servers, port, fixed=fixed, service=service)
            delays = model.lognormal(LSTM_S, LSTM_SIGMA)  # lets workers drift apart
            steps = model.async_steps(cluster, nbytes, delays, 60 * n)[20 * n :]
            what = f"full softmax, {n} workers, {servers} servers"
            yield point(what, row["median_ms"], float(np.median(steps)) * 1e3, False)


def point(what: str, measured: float, predicted: float, is_fit: bool) -> Row:
    error = predicted / measured - 1
    both = {"measured": measured, "predicted": predicted, "error": error}
    return {"what": what, **both, "fitted": is_fit}


# -- the paper's cluster


def paper_null() -> dict[str, list[float]]:
    """Dense null steps in ms for PAPER_WORKERS, from one worker's two sizes."""
    (small, (fast, _)), (large, (slow, _)) = DENSE_MS.items()
    port = 2 * (large - small) / (slow - fast) * 1e3
    fixed = fast / 1e3 - 2 * small / port
    found = {}
    for nbytes in DENSE_MS:
        clusters = [Cluster(n, PAPER_SERVERS, port, fixed=fixed) for n in PAPER_WORKERS]
        steps = [model.sync_rounds(c, nbytes, model.nothing, 1)[0] * 1e3 for c in clusters]
        found[null_step.size(nbytes)] = [float(step) for step in steps]
    return found


def inception(workers: int, backups: int, rounds: int) -> float:
    """Mean seconds of a synchronous step of the paper's Inception-v3; nothing overlaps."""
    at = INCEPTION
    cluster = Cluster(workers, at["servers"], at["port"], at["server_port"])
    delays = model.lognormal(COMPUTE_S, COMPUTE_SIGMA)
    return float(model.sync_rounds(cluster, at["bytes"], delays, rounds, backups).mean())


def paper_backup(rounds: int) -> list[Row]:
    """50 workers and 0 to 5 backups."""
    steps = [inception(50 + b, b, rounds) for b in range(6)]
    return [
        {"backups": b, "predicted": t, "paper": backup.PAPER.get(b)}
        | {"normalised": steps[0] / t * 50 / (50 + b)}
        for b, t in enumerate(steps)
    ]


def paper_scaling(rounds: int) -> list[Row]:
    """Images a second of synchronous training."""
    return [
        {"workers": n, "images_per_s": INCEPTION["batch"] * n / inception(n, 0, rounds)}
        for n in PAPER_WORKERS
    ]


# -- table and picture


def show(record: Row) -> str:
    port, fixed, service = record["calibration"]
    lines = [
        f"Fitted: ports of {port / 1e6:.2f} MB/s, {fixed * 1e3:.2f} ms a step, "
        f"{service * 1e3:.2f} ms of a server for a request."
    ]
    points = (
        [p["what"], float(p["measured"]), float(p["predicted"]), told(p)] for p in record["points"]
    )
    lines.append(bed.table(["test-bed", "measured ms", "predicted ms", "error"], points))
    head = ["paper, 16 servers", "1 worker", "100 workers", "error"]
    lines.append(bed.table(head, dense(record)))
    head = ["backups of 50 workers", "predicted s", "paper s", "normalised gain, predicted"]
    rows = [
        [r["backups"], r["predicted"], r["paper"] or "", r["normalised"]] for r in record["backup"]
    ]
    lines.append(bed.table(head, rows))
    rows = [
        [r["workers"], f"{r['images_per_s']:.0f}", PAPER_IMAGES.get(r["workers"], "")]
        for r in record["scaling"]
    ]
    lines.append(bed.table(["workers, Inception-v3", "images/s, predicted", "paper"], rows))
    return "\n\n".join(lines)


def told(row: Row) -> str:
    return "fitted" if row["fitted"] else f"{row['error']:+.0%}"


def dense(record: Row) -> Iterator[list[object]]:
    """The paper's dense null steps beside those predicted."""
    ends = [PAPER_WORKERS.index(1), PAPER_WORKERS.index(100)]
    for nbytes, (_, hundred) in DENSE_MS.items():
        found = record["null"][null_step.size(nbytes)]
        one, many = (found[i] for i in ends)
        both = [f"{one:.0f} ms (fitted)", f"{many:.0f} ms (paper {hundred:.0f})"]
        yield [f"dense {null_step.size(nbytes)}", *both, f"{many / hundred - 1:+.0%}"]


def draw(figure: Any, record: Row) -> None:
    """Predicted against measured; the paper's null step; its backup workers."""
    import plots

    own, null, backups = figure.subplots(1, 3)
    points = [p for p in record["points"] if not p["fitted"]]
    for i, kind in enumerate(("dense", "async", "all", "backup", "full")):
        mine = [p for p in points if p["what"].startswith(kind)]
        look = {"color": plots.COLORS[i], "marker": plots.MARKS[i], "linestyle": "", "label": kind}
        own.plot([p["measured"] for p in mine], [p["predicted"] for p in mine], **look)
    ends = [f(p["measured"] for p in record["points"]) for f in (min, max)]
    own.plot(ends, ends, color=plots.GREY, linestyle=":")
    own.set(title="test-bed", xlabel="measured ms", ylabel="predicted ms")
    own.set(xscale="log", yscale="log")
    own.legend()
    for i, (nbytes, found) in enumerate(record["null"].items()):
        null.plot(PAPER_WORKERS, found, color=plots.COLORS[i], label=f"dense {nbytes}, predicted")
    for i, (one, hundred) in enumerate(DENSE_MS.values()):
        null.plot((1, 100), (one, hundred), plots.MARKS[i], color=plots.COLORS[i], label="paper")
    null.set(title="paper's null step, 16 servers", xlabel="workers", ylabel="ms")
    null.set(xscale="log", yscale="log")
    null.legend(fontsize=7)
    rows = record["backup"]
    x = [r["backups"] for r in rows]
    backups.plot(x, [r["predicted"] for r in rows], color=plots.COLORS[0], label="predicted")
    known = [(b, t) for b, t in backup.PAPER.items()]
    backups.plot(*zip(*known, strict=True), "s", color=plots.COLORS[1], label="paper")
    backups.set(title="paper's 50 workers", xlabel="backups", ylabel="s a step", ylim=(0, None))
    backups.legend()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--results", type=pathlib.Path, default=bed.RESULTS, help="a folder")
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing written")
    arguments = parser.parse_args()
    null, rules, language = (
        json.loads((arguments.results / f"{name}.json").read_text())["rows"]
        for name in ("null_step", "backup", "language_model")
    )
    points = [null_points(null, known := calibrated(null)), backup_points(rules, known)]
    points.append(language_points(language, known))
    rounds = 10 if arguments.quick else ROUNDS // 2
    record = {
        "command": "python benchmarks/paper/predict.py",
        "calibration": known,
        "points": list(itertools.chain(*points)),
        "null": paper_null(),
        "backup": paper_backup(rounds),
        "scaling": paper_scaling(10 if arguments.quick else 40),
    }
    print(show(record))
    if not arguments.quick:
        import plots

        text = json.dumps(record, indent=1) + "\n"
        pathlib.Path(arguments.results / "predict.json").write_text(text)
        plots.picture(bed.DOCS / "experiments_predict.svg", draw, record)


if __name__ == "__main__":
    main()
