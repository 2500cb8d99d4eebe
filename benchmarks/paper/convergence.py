"""Convergence per step and per second under each rule: scanned digits, 8 workers, the same seeds.

    python benchmarks/paper/convergence.py

The network of examples/digits.py (69 KB on two servers). A worker takes a random time more in each
step, between reading the weights and its gradient: the same seeded delays in every rule. A joined
batch has 128 samples, 16 of each worker. Where every worker updates by itself (async, stale) the
rate is an eighth, and eight updates count as one step of the joined batch.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Iterator
from typing import Any

import backup
import bed
import ranks
from bed import Bed, Job, Row

RULES = ("async", "all", "backup:1", "stale:4")
WORKERS, SERVERS, SEEDS, EPOCHS = 8, 2, (0, 1), 12
BATCH, RATE, MEAN_S, SIGMA = 128, 0.4, 0.03, 0.7
HELD_OUT, LOW_LOSS, OVER = 360, 0.2, 12  # joined steps in a point of the curve


# -- in a rank


def digits() -> tuple[Any, Any]:
    """Images as rows of 64 numbers from 0 to 1, and their digits, in one fixed order."""
    import numpy as np
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.Generator(np.random.Philox(2024)).permutation(len(found.target))
    return (found.data / 16).astype("float32")[order], found.target.astype("int32")[order]


def network(hf: Any, images: Any, labels: Any, rate: float, wait: Any) -> tuple[Any, Any, Any]:
    """Step, what to fetch of each, and accuracy; gradients follow the call of `wait()`."""
    import numpy as np

    count = hf.Variable(np.int64(0), trainable=False, name="global_step")

    hidden = hf.layers.dense(images, 128, hf.nn.relu, name="hidden1")
    hidden = hf.layers.dense(hidden, 64, hf.nn.relu, name="hidden2")
    logits = hf.layers.dense(hidden, 10, name="logits")
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = hf.reduce_mean(losses)
    one = hf.py_func(lambda _: (wait(), np.float32(1))[1], [loss], hf.float32)
    one.set_shape([])
    train = hf.train.GradientDescentOptimizer(rate).minimize(loss * hf.stop_gradient(one), count)
    right = hf.equal(hf.cast(hf.argmax(logits, 1), hf.int32), labels)
    return train, [loss, count.read_value()], hf.reduce_mean(hf.cast(right, hf.float32))


def rank(arguments: argparse.Namespace) -> None:
    """Train on this rank until the updates are enough; write when each step had which loss."""
    import hpcflow as hf

    hf.set_random_seed(arguments.seed)
    place = hf.Session().context
    each = arguments.sync == "async" or arguments.sync.startswith("stale")
    delays = backup.delays(place.replica, arguments.mean, arguments.sigma)
    images, labels = hf.placeholder(hf.float32, [None, 64]), hf.placeholder(hf.int32, [None])
    updates = place.roles.replicas if each else 1  # of a joined batch
    rate = arguments.rate / updates
    train, fetched, accuracy = network(hf, images, labels, rate, lambda: time.sleep(next(delays)))
    pixels, target = digits()
    feeds = {images: pixels[HELD_OUT:], labels: target[HELD_OUT:]}
    data = hf.data.Dataset(feeds, batch=BATCH, seed=arguments.seed)
    with hf.train.TrainingSession() as session:
        session.context.barrier()
        cores, begun, curve = ranks.Cores(), time.perf_counter(), []
        last = arguments.epochs * data.steps_per_epoch - 1
        for batch in data.epochs(4 * arguments.epochs):  # some are dropped
            cost, version = session.step([train, fetched], batch)[1]
            step = float(version) / updates
            curve.append((step, time.perf_counter() - begun, float(cost)))
            if step >= last:
                break
        used = cores.used()
        session.wait()
        test = {images: pixels[:HELD_OUT], labels: target[:HELD_OUT]}
        score = float(session.run(accuracy, test)) if session.is_chief else None
        told = session.result()
    found = {"sync": arguments.sync, "seed": arguments.seed, "accuracy": score, "cpu": used}
    found |= {"curve": curve, "gradients": told.get("gradients") if told else None}
    ranks.write(arguments.out, session, found)


# -- all jobs


def curve_of(told: list[Row]) -> list[tuple[float, float, float]]:
    """(step, seconds, loss): means of what all workers told in OVER joined steps each."""
    bins: dict[int, list[tuple[float, float, float]]] = {}
    for worker in told:
        for point in worker["curve"]:
            bins.setdefault(int(point[0]) // OVER, []).append(point)
    last = max(point[0] for worker in told for point in worker["curve"])
    whole = sorted(i for i in bins if (i + 1) * OVER <= last + 1)
    columns = [list(zip(*bins[i], strict=True)) for i in whole]
    return [tuple(sum(c) / len(c) for c in three) for three in columns]  # type: ignore[misc]


def row_of(told: list[Row]) -> Row:
    """One job: its curve, and where the loss was first low."""
    curve = curve_of(told)
    low = next(((step, spent) for step, spent, loss in curve if loss < LOW_LOSS), (None, None))
    return {
        "sync": told[0]["sync"],
        "seed": told[0]["seed"],
        "workers": len(told),
        "steps": max(worker["curve"][-1][0] for worker in told) + 1,
        "seconds": max(worker["curve"][-1][1] for worker in told),
        "low_at_step": low[0],
        "low_at_s": low[1],
        "last_loss": curve[-1][2],
        "accuracy": told[0]["accuracy"],
        "gradients": told[0]["gradients"],
        "cpu": max(worker["cpu"] for worker in told),
        "curve": curve,
    }


def measure(arguments: argparse.Namespace, bed_: Bed) -> Iterator[Row]:
    """Every rule with every seed."""
    workers, servers, seeds = (2, 1, (0,)) if arguments.quick else (WORKERS, SERVERS, SEEDS)
    epochs = 2 if arguments.quick else arguments.epochs
    for seed in seeds:
        for sync in RULES[:2] if arguments.quick else RULES:
            options = ["--sync", sync, "--seed", seed, "--epochs", epochs]
            options += ["--rate", arguments.rate, "--mean", arguments.mean]
            job = Job(workers, servers, [*options, "--sigma", arguments.sigma], {"sync": sync})
            yield row_of(bed_.run(__file__, job))


def show(record: Row) -> str:
    """A line for each rule and seed."""
    keys = ["sync", "seed", "steps", "seconds", "low_at_step", "low_at_s", "last_loss", "accuracy"]
    lines = [["-" if r[k] is None else r[k] for k in keys] for r in record["rows"]]
    head = ["sync", "seed", "joined steps", "s", f"loss < {LOW_LOSS} at step", "at s"]
    return bed.table([*head, "last loss", "held-out accuracy"], lines)


def draw(figure: Any, record: Row) -> None:
    """Loss against steps and against seconds."""
    import plots

    panels = figure.subplots(1, 2, sharey=True)
    names = list(dict.fromkeys(row["sync"] for row in record["rows"]))
    for row in record["rows"]:
        i = names.index(row["sync"])
        label = None if row["seed"] else row["sync"]
        for axes, column in zip(panels, (0, 1), strict=True):
            x, y = [p[column] for p in row["curve"]], [p[2] for p in row["curve"]]
            axes.plot(x, y, color=plots.COLORS[i], label=label, linewidth=1)
    panels[0].set(title="per step", xlabel="joined step", ylabel="training loss", yscale="log")
    panels[1].set(title="per second", xlabel="s")
    panels[0].legend()


def main() -> None:
    parser = bed.parser(__doc__)
    parser.add_argument("--sync", default="async", help="the rule of this job")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--rate", type=float, default=RATE, help="of the joined batch")
    parser.add_argument("--mean", type=float, default=MEAN_S, help="seconds of a worker's delay")
    parser.add_argument("--sigma", type=float, default=SIGMA, help="of its logarithm")
    arguments = parser.parse_args()
    if arguments.rank:
        rank(arguments)
    elif arguments.tell:
        print(show({"rows": [row_of(bed.read(folder)) for folder in arguments.tell]}))
    else:
        most = 3 if arguments.quick else WORKERS + SERVERS
        run = functools.partial(measure, arguments)
        bed.conduct(arguments, "convergence", most, run, show, draw)


if __name__ == "__main__":
    main()
