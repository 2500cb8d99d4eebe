"""A training step of a second set of networks beside the best of TensorFlow, PyTorch and JAX.

    python benchmarks/nets2/run.py --torch PYTHON --tf PYTHON --jax PYTHON --out FILE
    python benchmarks/nets2/run.py --only resnet unet --unknown-batch --torch PYTHON
    python benchmarks/nets2/run.py --module FILE --threads 2 --jax PYTHON

A network is a file of this folder, or any FILE as `benchmarks/nets2/__init__.py` describes it. The
same first weights and batches everywhere; batches are fed as NumPy arrays and the loss is fetched
every step. Losses have to agree at step 1 and at step 20, as far as the network's file says.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import pathlib
import sys
import tempfile
from typing import Any

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
import common
from common import Tournament, check, per_call
from nets import contest
from nets.contest import OURS, PEERS

from nets2.drivers import network

FOLDER = pathlib.Path(__file__).resolve().parent
NETS = {
    file.stem: file for file in sorted(FOLDER.glob("*.py")) if file.stem not in ("__init__", "run")
}
SECONDS = 0.4  # of one repeat, about
TARGET, MEAN_TARGET = 0.85, 0.75  # hpcflow by the best peer, and the geometric mean of that
PROOF_STEPS = 20


def act(arguments: argparse.Namespace) -> None:
    """Be the process of one contender that trains one network; its first losses go to a file."""
    module, mode, name = arguments.role.split(":")
    driver = importlib.import_module(f"nets2.drivers.{module}")
    step = driver.step(network.load(arguments.file), mode, arguments.unknown_batch)
    arguments.losses.write_text(json.dumps([step() for _ in range(PROOF_STEPS)]))
    calls = max(1, round(SECONDS / per_call(step, 2)))
    common.serve({name: lambda: per_call(step, calls)}, contest.packages(module))


def play(
    cup: Tournament, name: str, file: pathlib.Path, arguments: Any, folder: pathlib.Path
) -> None:
    """All that can train the network."""
    unknown = ["--unknown-batch"] if arguments.unknown_batch else []
    peers = [peer for peer in PEERS if peer not in arguments.without]

    def options(contender: str) -> list[object]:
        losses = contest.losses_file(folder, name, contender)
        return ["--file", file, "--losses", losses, *unknown]

    cup.play(
        contest.contenders(__file__, name, arguments, peers, options),
        arguments.rounds,
        arguments.repeats,
    )


def agreement(name: str, tolerances: tuple[float, float], folder: pathlib.Path) -> list[Any]:
    """How far our losses are from those of the farthest peer, at the first and the last step."""
    differences = contest.differences(folder, name)
    checks = []
    for step, tolerance in zip((1, PROOF_STEPS), tolerances, strict=True):
        by_peer = {peer: apart[step - 1] for peer, apart in differences.items()}
        worst = max(by_peer, key=lambda peer: _size(by_peer[peer]), default="")
        figure = f"{name}: losses of step {step} differ by" + (f", {worst}" if worst else "")
        checks.append(check(figure, by_peer.get(worst), at_most=tolerance))
    return checks


def _size(difference: float) -> float:
    return math.inf if math.isnan(difference) else difference


def geometric_mean(ratios: list[dict[str, Any]]) -> dict[str, Any]:
    values = [row["value"] for row in ratios if row["value"] is not None]
    mean = math.exp(sum(map(math.log, values)) / len(values)) if values else None
    return check("geometric mean of all ratios", mean, at_most=MEAN_TARGET)


def parsed() -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument("--only", nargs="+", default=[], choices=NETS, metavar="NET")
    parser.add_argument("--module", type=pathlib.Path, help="the file of a network, not these")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--unknown-batch", action="store_true", help="JAX knows it nevertheless")
    parser.add_argument(
        "--without", action="extend", nargs="+", default=[], choices=PEERS, help="peers left out"
    )
    parser.add_argument("--file", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--losses", type=pathlib.Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    if arguments.role:
        act(arguments)
        return
    names = arguments.only or ([] if arguments.module else NETS)
    files = {name: NETS[name] for name in names}
    if arguments.module:
        files[arguments.module.stem] = arguments.module.resolve()
    cup, ratios, proofs = Tournament(arguments.realtime), list[Any](), list[Any]()
    with tempfile.TemporaryDirectory() as folder:
        for name, file in files.items():
            play(cup, name, file, arguments, pathlib.Path(folder))
            ratios.append(cup.by_best(name, OURS, TARGET))
            proofs += agreement(name, network.load(file).TOLERANCE, pathlib.Path(folder))
    checks = [*ratios, geometric_mean(ratios), *proofs]
    common.finish(cup.record(checks, "ms", 1e3), arguments.out)


if __name__ == "__main__":
    main()
