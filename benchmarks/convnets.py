"""The networks of the TensorFlow paper's Table 1: forward, and forward with gradients.

    python benchmarks/convnets.py --torch PYTHON --tf PYTHON --jax PYTHON --out FILE
    python benchmarks/convnets.py --device gpu --torch PYTHON --jax PYTHON --out FILE

AlexNet, Overfeat, OxfordNet and GoogleNet as of convnet-benchmarks (benchmarks/nets/convnets.py),
float32, with one set of weights and images for all; losses have to agree. On a GPU the batches are
those of the paper (128, OxfordNet 64); on a CPU `--batch` images, by default 4, and one thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import tempfile
from typing import Any

import common
from common import Contender, Tournament, check, peer, per_call, role
from nets import convnets, convnets_in

OURS = "hpcflow"
PEERS = {"TF1 graph": "tf", "torch eager": "torch", "JAX jit": "jax"}  # name -> option
PACKAGES = {"tf": "tensorflow-cpu", "torch": "torch", "jax": "jax"}
CASES = ("forward", "both")
ALLOWED = 1e-4  # relative difference of losses
SECONDS = 0.3  # of one repeat on a GPU, about; on a CPU one step is enough
ON_GPU = {"CUDA_VISIBLE_DEVICES": "0", "JAX_PLATFORMS": ""}


def act(of: str, arguments: argparse.Namespace) -> None:
    """Be the process of one contender; its loss goes to a file."""
    framework, net = of.split(":")
    steps = convnets_in.made(framework, net, size_of(net, arguments), arguments.device)
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
    common.serve(figures, ["numpy", *filter(None, [PACKAGES.get(framework)])])


def size_of(net: str, arguments: argparse.Namespace) -> int:
    """Images of a batch."""
    whole = convnets.NETS[net].batch
    return arguments.batch or (whole if arguments.device == "gpu" else 4)


def contenders(net: str, arguments: argparse.Namespace, folder: pathlib.Path) -> list[Contender]:
    def command(python: str | None, framework: str, name: str) -> list[str]:
        options = ["--losses", folder / f"{net} of {name}", "--device", arguments.device]
        return role(
            python, __file__, f"{framework}:{net}", *options, "--batch", size_of(net, arguments)
        )

    made = [Contender(OURS, [command(None, "hpcflow", OURS)])]
    for name, option in PEERS.items():
        python = getattr(arguments, option)
        made.append(peer(name, python, f"--{option}", command(python, option, name)))
    environ = ON_GPU if arguments.device == "gpu" else {}
    return [dataclasses.replace(one, threads=arguments.threads, environ=environ) for one in made]


def agreement(net: str, folder: pathlib.Path) -> dict[str, Any]:
    """How far our losses are from those of the peers."""
    found = {
        file.name.removeprefix(f"{net} of "): json.loads(file.read_text())
        for file in folder.glob(f"{net} of *")
    }
    ours = found.pop(OURS, None)
    apart = [
        abs(mine / its - 1)
        for of in found.values()
        for mine, its in zip(ours or (), of, strict=False)
    ]
    return check(f"{net}: losses differ by", max(apart, default=None), at_most=ALLOWED)


def by_best(cup: Tournament, case: str) -> dict[str, Any]:
    """Our step by that of the fastest peer."""
    times = {name: cup.middle(case, name) for name in PEERS}
    there = {name: spent for name, spent in times.items() if spent is not None}
    best = min(there, key=lambda name: there[name]) if there else ""
    return check(f"{case}: by {best or 'the best peer'}", cup.ratio(case, OURS, best), at_most=1.0)


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
            cup.play(contenders(net, arguments, folder), arguments.rounds, arguments.repeats)
            checks += [by_best(cup, f"{net} {case}") for case in CASES]
            proofs.append(agreement(net, folder))
    common.finish(cup.record([*checks, *proofs], "ms", 1e3), arguments.out)


if __name__ == "__main__":
    main()
