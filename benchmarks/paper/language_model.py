"""Language model: words a second against the number of servers (OSDI'16, figure 9).

    python benchmarks/paper/language_model.py

LSTM-512-512 with 40,000 words in the paper, here one of 64 units with 4,000 words, its parameters
cut over the servers by rows; workers are asynchronous, as the paper's. Three softmax layers:

full        a worker reads all weights and sends a gradient as large
on servers  as the paper's: each server multiplies by its own weights, activations travel
sampled     a worker reads the rows of the true words and of 1/78 of the others
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

WORKERS, SERVERS = (4, 8), (1, 2, 4, 8)
SCHEMES = ("full", "on servers", "sampled")
LESS_DATA = 78  # sampled softmax looks at 1/78 of the words, as the paper's 512 of 40,000
RATE = 0.1


# -- in a rank


def hidden_states(hf: Any, words: Any, arguments: argparse.Namespace) -> Any:
    """What the LSTM says after each word: [batch * unroll, units]."""
    units = arguments.units
    table = hf.get_variable("embedding", [arguments.words, units])
    inputs = hf.unstack(hf.nn.embedding_lookup(table, words), arguments.unroll, axis=1)
    said, _ = hf.nn.static_rnn(hf.nn.rnn_cell.LSTMCell(units), inputs, dtype=hf.float32)
    return hf.concat(said, 0)


def full(hf: Any, h: Any, labels: Any, arguments: argparse.Namespace) -> Any:
    w = hf.get_variable("softmax", [arguments.words, arguments.units])
    logits = hf.matmul(h, w, transpose_b=True)
    return hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def on_servers(hf: Any, h: Any, labels: Any, arguments: argparse.Namespace) -> Any:
    """Server i holds the weights of every P-th word.

    Of each position it says the log of the sum of its words' exponentials, and the true word's
    logit if that word is its own.
    """
    servers = arguments.servers
    sums, true = [], []
    for i in range(servers):
        with hf.device(f"/job:ps/task:{i}"):
            rows = len(range(i, arguments.words, servers))
            w = hf.get_variable(f"softmax_{i}", [rows, arguments.units])
            sums.append(hf.reduce_logsumexp(hf.matmul(h, w, transpose_b=True), 1))
            own = hf.gather(w, hf.minimum(labels // servers, rows - 1))
            is_own = hf.cast(hf.equal(labels % servers, i), hf.float32)
            true.append(hf.reduce_sum(h * own, 1) * is_own)
    return hf.reduce_logsumexp(hf.stack(sums, 1), 1) - hf.add_n(true)


def sampled(hf: Any, h: Any, labels: Any, arguments: argparse.Namespace) -> Any:
    w = hf.get_variable("softmax", [arguments.words, arguments.units])
    b = hf.get_variable("bias", [arguments.words])
    count = max(1, round(arguments.words / LESS_DATA))
    labels = hf.expand_dims(labels, 1)
    return hf.nn.sampled_softmax_loss(w, b, labels, h, count, arguments.words)


def training(hf: Any, words: Any, labels: Any, scheme: str, arguments: argparse.Namespace) -> Any:
    losses = {"full": full, "on servers": on_servers, "sampled": sampled}[scheme]
    with hf.variable_scope(scheme.replace(" ", "_")) as scope:
        h = hidden_states(hf, words, arguments)
        flat = hf.reshape(hf.transpose(labels), [-1])
        loss = hf.reduce_mean(losses(hf, h, flat, arguments))
        mine = hf.get_collection("trainable_variables", scope.name + "/")
    return hf.train.GradientDescentOptimizer(RATE).minimize(loss, var_list=mine), loss


def log_uniform(rng: Any, words: int, shape: tuple[int, ...]) -> Any:
    """Words in the order of falling frequency, about as in texts."""
    import numpy as np

    drawn = np.exp(rng.uniform(0, np.log(words + 1), shape)) - 1
    return np.minimum(drawn, words - 1).astype("int32")


def rank(arguments: argparse.Namespace) -> None:
    """Train with each softmax on this rank."""
    import hpcflow as hf

    import numpy as np  # isort: skip

    arguments.servers = hf.Session().context.settings.ps
    shape = (arguments.batch, arguments.unroll)
    words, labels = hf.placeholder(hf.int32, shape), hf.placeholder(hf.int32, shape)
    made = {name: training(hf, words, labels, name, arguments) for name in arguments.schemes}
    found = {}
    with hf.train.TrainingSession() as session:
        rng = np.random.default_rng(session.worker)
        for name, (train, loss) in made.items():
            losses = []

            def step(train: Any = train, loss: Any = loss, losses: list = losses) -> None:
                text = log_uniform(rng, arguments.words, (shape[0], shape[1] + 1))
                feeds = {words: text[:, :-1], labels: text[:, 1:]}
                losses.append(float(session.run([train, loss], feeds)[1]))

            found[name] = ranks.timed(session, step, arguments.seconds)
            found[name]["losses"] = losses
        facts = {"servers": arguments.servers, "words_a_step": shape[0] * shape[1]}
        ranks.write(arguments.out, session, {**facts, "cases": found})


# -- all jobs


def rows_of(told: list[Row]) -> Iterator[Row]:
    """A row for each softmax of one job; words a second of all workers together."""
    for case in told[0]["cases"]:
        mine = [worker["cases"][case] for worker in told]
        rate = sum(len(one["times"]) / one["seconds"] for one in mine)
        yield {
            "softmax": case,
            "servers": told[0]["servers"],
            "workers": len(told),
            "words_per_s": rate * told[0]["words_a_step"],
            "median_ms": ranks.quantiles([t for one in mine for t in one["times"]], 0.5)[0] * 1e3,
            "loss_first": sum(one["losses"][0] for one in mine) / len(mine),
            "loss_last": sum(one["losses"][-1] for one in mine) / len(mine),
            "cpu": max(one["cpu"] for one in mine),
        }


def measure(arguments: argparse.Namespace, bed_: Bed) -> Iterator[Row]:
    """Every number of workers with every number of servers."""
    counts = ((1,), (1, 2)) if arguments.quick else (WORKERS, SERVERS)
    if arguments.shared:
        counts = ((2,), (1, 2))
    seconds = 0.3 if arguments.quick else arguments.seconds
    sizes = itertools.chain(*((f"--{k}", getattr(arguments, k)) for k in SIZES))
    options = ["--seconds", seconds, *sizes, "--schemes", *arguments.schemes]
    settings = {"shard_bytes": 1 << 14}
    for workers, servers in itertools.product(*counts):
        yield from rows_of(bed_.run(__file__, Job(workers, servers, options, settings)))


def series(record: Row) -> dict[tuple[str, int], list[Row]]:
    """The rows of each softmax and number of workers."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in record["rows"]:
        found.setdefault((row["softmax"], row["workers"]), []).append(row)
    return {key: sorted(rows, key=lambda row: row["servers"]) for key, rows in found.items()}


def show(record: Row) -> str:
    """Words a second by servers, a line for each softmax and number of workers."""
    servers = sorted({row["servers"] for row in record["rows"]})
    lines = []
    for (softmax, workers), rows in series(record).items():
        cells = [f"{r['words_per_s']:,.0f}{'*' * (r['cpu'] > bed.BUSY)}" for r in rows]
        lines.append([softmax, workers, *cells])
    nouns = [f"{n} server{'s' * (n > 1)}" for n in servers]
    return bed.table(["softmax", "workers", *nouns], lines)


def draw(figure: Any, record: Row) -> None:
    """Words a second against servers: a panel for each number of workers."""
    import plots

    workers = sorted({row["workers"] for row in record["rows"]})
    panels = figure.subplots(1, len(workers), sharey=True, squeeze=False)[0]
    for axes, count in zip(panels, workers, strict=True):
        for i, ((softmax, n), rows) in enumerate(series(record).items()):
            if n == count:
                x, y = [r["servers"] for r in rows], [r["words_per_s"] for r in rows]
                j = SCHEMES.index(softmax) if softmax in SCHEMES else i
                look = {"color": plots.COLORS[j], "marker": plots.MARKS[j], "label": softmax}
                axes.plot(x, y, **look)
                plots.counts(axes, x)
        axes.set(title=f"{count} workers", xlabel="servers", yscale="log")
    panels[0].set_ylabel("words/s, all workers")
    panels[0].legend()


SIZES = {"words": 4000, "units": 64, "batch": 16, "unroll": 8}


def main() -> None:
    parser = bed.parser(__doc__)
    for name, default in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--schemes", nargs="+", default=SCHEMES, choices=SCHEMES)
    arguments = parser.parse_args()
    if arguments.rank:
        rank(arguments)
    elif arguments.tell:
        print(show({"rows": [row for f in arguments.tell for row in rows_of(bed.read(f))]}))
    else:
        most = 3 if arguments.quick else max(WORKERS) + max(SERVERS)
        run = functools.partial(measure, arguments)
        bed.conduct(arguments, "language_model", most, run, show, draw)


if __name__ == "__main__":
    main()
