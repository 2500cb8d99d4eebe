"""The networks of the TensorFlow paper's Table 1: forward, and forward with gradients.

    python benchmarks/convnets.py --torch PYTHON --tf PYTHON --jax PYTHON --out FILE
    python benchmarks/convnets.py --device gpu --torch PYTHON --jax PYTHON --out FILE

AlexNet, Overfeat, OxfordNet and GoogleNet as of convnet-benchmarks (benchmarks/nets/convnets.py),
float32, with one set of weights and images for all; losses have to agree. On a GPU the batches are
those of the paper (128, OxfordNet 64); on a CPU `--batch` images, by default 4, and one thread.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import tempfile

import common
from common import Tournament, check, per_call
from nets import contest, convnets, convnets_in
from nets.contest import OURS

CASES = ("forward", "both")
ALLOWED = 1e-4  # relative difference of losses
SECONDS = 0.3  # of one repeat on a GPU, about; on a CPU one step is enough
ON_GPU = {"CUDA_VISIBLE_DEVICES": "0", "JAX_PLATFORMS": ""}


def act(of: str, arguments: argparse.Namespace) -> None:
    """Be the process of one contender; its loss goes to a file."""
    module, _, net = of.split(":")
    steps = convnets_in.made(module, net, size_of(net, arguments), arguments.device)
    arguments.losses.write_text(json.dumps([steps.forward(), steps.both()]))
    calls = {case: 1 for case in CASES}
    if arguments.device == "gpu":
        for case in CASES:
            one = per_call(getattr(steps, case), 2)
            calls[case] = max(1, round(SECONDS / one))
    figures = {
        f"{net} {case}": lambda case=case: per_call(getattr(steps, case), calls[case])
        for case in CASES
    }
    common.serve(figures, contest.packages(module))


def size_of(net: str, arguments: argparse.Namespace) -> int:
    """Images of a batch."""
    whole = convnets.NETS[net].batch
    return arguments.batch or (whole if arguments.device == "gpu" else 4)


def play(cup: Tournament, net: str, arguments: argparse.Namespace, folder: pathlib.Path) -> None:
    """All that can train the network on this device."""

    def options(name: str) -> list[object]:
        file = contest.losses_file(folder, net, name)
        batch = size_of(net, arguments)
        return ["--losses", file, "--device", arguments.device, "--batch", batch]

    environ = ON_GPU if arguments.device == "gpu" else {}
    made = contest.contenders(
        *(__file__, net, arguments, contest.WITHOUT_COMPILERS, options, environ)
    )
    cup.play(made, arguments.rounds, arguments.repeats)


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--nets", nargs="+", choices=convnets.NETS, default=list(convnets.NETS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--losses", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        act(arguments.role, arguments)
        return
    cup, checks, proofs = Tournament(arguments.realtime), [], []
    with tempfile.TemporaryDirectory() as name:
        for net in arguments.nets:
            folder = pathlib.Path(name)
            play(cup, net, arguments, folder)
            checks += [cup.by_best(f"{net} {case}", OURS, at_most=1.0) for case in CASES]
            worst = max(contest.apart(folder, net), default=None)
            proofs.append(check(f"{net}: losses differ by", worst, at_most=ALLOWED))
    common.finish(cup.record([*checks, *proofs], "ms", 1e3), arguments.out)


if __name__ == "__main__":
    main()
