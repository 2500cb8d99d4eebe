"""A training step of eight networks beside the best of TensorFlow, PyTorch and JAX.

    python benchmarks/training_step.py --torch PYTHON --tf PYTHON --jax PYTHON --out FILE
    python benchmarks/training_step.py --device gpu --torch PYTHON --out FILE

The same first weights and batches everywhere (benchmarks/nets), float32, one process with
`--threads` threads; batches are fed as NumPy arrays and the loss is fetched every step. Losses have
to agree: to 1e-4 at step 1 and to 1e-2 at step 50, relative.

On a GPU an MLP, LeNet and an LSTM (float32, without TF32) and ResNet-50 (bfloat16), with CUDA
graphs and without, beside PyTorch's ways and JAX. Its targets are what was aimed at: only ResNet-50
has been measured.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import tempfile
from typing import Any

import common
from common import Tournament, check, per_call
from nets import contest
from nets.contest import OURS
from nets.spec import NETS

SECONDS = 0.4  # of one repeat, about
LEFT_OUT = {  # Inductor compiles no gradients of sparse rows
    ("torch.compile", "word2vec"),
    ("torch.compile", "lstm_sampled"),
}
TARGETS = {
    "mlp_sgd": 0.75,
    "mlp_adam": 0.75,
    "word2vec": 0.8,
    "lstm_full": 0.85,
    "lstm_sampled": 0.85,
    "transformer": 0.85,
    "lenet": 0.95,
    "alexnet": 0.95,
}
ON_GPU = {"mlp_sgd": 1.2, "lenet": 1.2, "lstm_full": 2.5, "resnet50": 1.4}
PROOF_STEPS, ALLOWED = 50, ((1, 1e-4), (50, 1e-2))  # (step, relative difference)
ROUNDED = ((1, 3e-2),)  # of bfloat16


def act(of: str, losses: pathlib.Path) -> None:
    """Be the process of one contender that trains one network; its first losses go to a file."""
    module, mode, net = of.split(":")
    step = importlib.import_module(f"nets.{module}").step(net, mode)
    losses.write_text(json.dumps([step() for _ in range(1 if unused(net) else PROOF_STEPS)]))
    calls = max(1, round(SECONDS / per_call(step, 2)))
    common.serve({net: lambda: per_call(step, calls)}, contest.packages(module))


def unused(net: str) -> bool:
    """Whether its gradients are made and not used, so that all steps are the first."""
    return net == "alexnet"


def agreement(net: str, folder: pathlib.Path) -> list[dict[str, Any]]:
    """How far our losses are from those of the peers, at the steps that are looked at."""
    apart = contest.apart(folder, net)
    return [
        check(f"{net}: losses of step {step} differ by", apart[step - 1], at_most=allowed)
        for step, allowed in (ROUNDED if net == "resnet50" else ALLOWED)
        if step <= len(apart)
    ]


def play(cup: Tournament, net: str, arguments: argparse.Namespace, folder: pathlib.Path) -> None:
    """All that can train the network."""

    def options(name: str) -> list[object]:
        return ["--losses", contest.losses_file(folder, net, name)]

    if arguments.device == "gpu":
        made = contest.on_gpu(__file__, net, arguments, options)
    else:
        names = [name for name in contest.PEERS if (name, net) not in LEFT_OUT]
        made = contest.contenders(__file__, net, arguments, names, options)
    cup.play(made, arguments.rounds, arguments.repeats)


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--nets", nargs="+", choices=[*NETS, "resnet50"])
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--without", nargs="*", default=[], help="peers to leave out, on a GPU")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--losses", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        act(arguments.role, arguments.losses)
        return
    cup, checks, proofs = Tournament(arguments.realtime, arguments.device == "gpu"), [], []
    with tempfile.TemporaryDirectory() as name:
        targets = ON_GPU if arguments.device == "gpu" else TARGETS
        for net in arguments.nets or targets:
            folder = pathlib.Path(name)
            play(cup, net, arguments, folder)
            checks.append(cup.by_best(net, OURS, targets.get(net)))
            proofs += agreement(net, folder)
    common.finish(cup.record([*checks, *proofs], "ms", 1e3), arguments.out)


if __name__ == "__main__":
    main()
