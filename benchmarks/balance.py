"""Synchronous workers of which one is three times slower: equal shares, and shares by speed.

    python benchmarks/balance.py --ranks 3 --out FILE

A 784-256-256-10 network, 64 samples a rank in the joined batch, SGD; each sample costs a worker a
millisecond besides, the last worker three. By default it sleeps for that, so that ranks may share
cores; `--how burn` computes instead. Both must come to the same weights before anything is timed.
With shares in proportion to the speeds a step takes 3 / (3 n - 2) of n ranks' equal one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

import common
from common import Contender, Crew, Tournament, check, per_call, role

SIZES, SHARE, RATE, SAMPLES = (784, 256, 256, 10), 64, 0.01, 4096
SAMPLE_S, SLOWER = 1e-3, 3  # seconds of a sample, times of the last worker
PROOF_STEPS, CALLS = 60, 20
EQUAL, BALANCED = "equal shares", "balance=True"


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def burn(seconds: float) -> None:
    import numpy as np

    until, square = time.perf_counter() + seconds, np.ones((64, 64), "f4")
    while time.perf_counter() < until:
        square = square @ square * np.float32(1 / 64)


def stepper(balance: bool, how: str) -> tuple[Callable[[], Any], Callable[[], float], Any, Crew]:
    """One training step, the weights' square sum, the dataset, and the ranks."""
    import hpcflow as hf
    from hpcflow.runtime.job.job_membership import current_context

    import numpy as np  # isort: skip  (after hpcflow, which gives it its threads)

    context = current_context()
    crew = common.crew_of_workers(0) if context.world is not None else Crew()
    last, work = context.roles.replicas - 1, {"sleep": sleep, "burn": burn}[how]
    cost = SAMPLE_S * (SLOWER if context.replica == last else 1)
    rng = np.random.RandomState(0)
    x = hf.placeholder(hf.float32, [None, SIZES[0]])
    labels = hf.placeholder(hf.int32, [None])
    out = hf.py_func(lambda rows: [work(cost * len(rows)), rows][1], [x], hf.float32)
    out.set_shape([None, SIZES[0]])
    for i, (n, m) in enumerate(itertools.pairwise(SIZES)):
        out = hf.nn.relu(out) if i else out
        start = (rng.randn(n, m) * (2 / n) ** 0.5).astype("f4")
        out = hf.nn.bias_add(hf.matmul(out, hf.Variable(start)), hf.Variable(np.zeros(m, "f4")))
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=out)
    train = hf.train.GradientDescentOptimizer(RATE).minimize(hf.reduce_mean(losses))
    rows, classes = rng.randn(SAMPLES, SIZES[0]).astype("f4"), rng.randint(0, SIZES[-1], SAMPLES)
    data = hf.data.Dataset(
        {x: rows, labels: classes.astype("i4")}, batch_per_rank=SHARE, balance=balance
    )
    weights = hf.trainable_variables()
    session = hf.train.TrainingSession()
    batches = data.epochs(1 << 30)

    def step() -> None:
        session.step(train, next(batches))

    def norm() -> float:
        return float(sum(np.square(w, dtype="f8").sum() for w in session.run(weights)))

    return step, norm, data, crew


def act(arguments: argparse.Namespace) -> None:
    """Be one rank: prove the weights, then be timed."""
    step, norm, data, crew = stepper(arguments.role == "balanced", arguments.how)
    for _ in range(PROOF_STEPS):
        step()
    found = {"norm": norm(), "shares": data.shares}
    if crew.rank == 0:
        pathlib.Path(arguments.proof).write_text(json.dumps(found))
    common.serve({"step": lambda: per_call(step, CALLS)}, ["numpy"], crew)


def contenders(arguments: argparse.Namespace, folder: pathlib.Path) -> list[Contender]:
    made = []
    for name, kind in ((EQUAL, "equal"), (BALANCED, "balanced")):
        options = ("--how", arguments.how, "--proof", folder / kind)
        command, environ = common.ranks(arguments.ranks, role(None, __file__, kind, *options))
        made.append(Contender(name, [command], environ))
    return made


def checks_of(
    cup: Tournament, ranks: int, equal: dict[str, Any], balanced: dict[str, Any]
) -> list[dict[str, Any]]:
    apart = abs(equal["norm"] - balanced["norm"]) / equal["norm"]
    if apart > 1e-5:
        raise SystemExit(f"shares by speed train otherwise: weights differ by {apart:.2g}")

    def rate(name: str) -> float | None:
        spent = cup.middle("step", name)
        return spent and SHARE * ranks / spent

    return [
        check(f"weights after {PROOF_STEPS} steps differ by", apart, at_most=1e-5),
        check("samples/s, equal shares", rate(EQUAL)),
        check("samples/s, balance=True", rate(BALANCED)),
        check("... by equal shares", cup.ratio("step", EQUAL, BALANCED), at_least=1.5),
        check("... with shares in proportion", SLOWER * (ranks - 1 + 1 / SLOWER) / ranks),
        check("the slow worker's share by the others' mean", share_of_slow(balanced["shares"])),
    ]


def share_of_slow(shares: list[int]) -> float:
    return shares[-1] / (sum(shares[:-1]) / max(len(shares) - 1, 1))


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--how", choices=("sleep", "burn"), default="sleep")
    parser.add_argument("--proof", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        act(arguments)
        return
    cup = Tournament(arguments.realtime)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        cup.play(contenders(arguments, folder), arguments.rounds, arguments.repeats)
        proofs = [json.loads((folder / kind).read_text()) for kind in ("equal", "balanced")]
    common.finish(cup.record(checks_of(cup, arguments.ranks, *proofs), "ms", 1e3), arguments.out)


if __name__ == "__main__":
    main()
