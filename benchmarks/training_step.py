"""A training step of eight networks beside the best of TensorFlow, PyTorch and JAX.

    python benchmarks/training_step.py --torch PYTHON --tf PYTHON --jax PYTHON --out FILE

The same first weights and batches everywhere (benchmarks/nets), float32, one process with
`--threads` threads; batches are fed as NumPy arrays and the loss is fetched every step. Losses have
to agree: to 1e-4 at step 1 and to 1e-2 at step 50, relative.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import pathlib
import tempfile
from typing import Any

import common
from common import Contender, Tournament, check, peer, per_call, role
from nets.spec import NETS

SECONDS = 0.4  # of one repeat, about
OURS = "hpcflow"
PEERS = {  # name -> (option, module, mode)
    "TF1 graph": ("tf", "of_tensorflow", "graph"),
    "tf.function": ("tf", "of_tensorflow", "function"),
    "torch eager": ("torch", "of_torch", "eager"),
    "torch.compile": ("torch", "of_torch", "compile"),
    "JAX jit": ("jax", "of_jax", "jit"),
}
PACKAGES = {"of_tensorflow": "tensorflow-cpu", "of_torch": "torch", "of_jax": "jax"}
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
PROOF_STEPS, ALLOWED = 50, ((1, 1e-4), (50, 1e-2))  # (step, relative difference)


def act(of: str, losses: pathlib.Path) -> None:
    """Be the process of one contender that trains one network; its first losses go to a file."""
    module, mode, net = of.split(":")
    step = importlib.import_module(f"nets.{module}").step(net, mode)
    losses.write_text(json.dumps([step() for _ in range(1 if unused(net) else PROOF_STEPS)]))
    calls = max(1, round(SECONDS / per_call(step, 2)))
    packages = ["numpy", *filter(None, [PACKAGES.get(module)])]
    common.serve({net: lambda: per_call(step, calls)}, packages)


def unused(net: str) -> bool:
    """Whether its gradients are made and not used, so that all steps are the first."""
    return net == "alexnet"


def contenders(net: str, arguments: argparse.Namespace, folder: pathlib.Path) -> list[Contender]:
    def command(python: str | None, module: str, mode: str, name: str) -> list[str]:
        options = ["--losses", folder / f"{net} of {name}"]
        return role(python, __file__, f"{module}:{mode}:{net}", *options)

    made = [Contender(OURS, [command(None, "of_hpcflow", "", OURS)])]
    for name, (option, module, mode) in PEERS.items():
        if (name, net) not in LEFT_OUT:
            python = getattr(arguments, option)
            made.append(peer(name, python, f"--{option}", command(python, module, mode, name)))
    return [dataclasses.replace(one, threads=arguments.threads) for one in made]


def agreement(net: str, folder: pathlib.Path) -> list[dict[str, Any]]:
    """How far our losses are from those of each peer, at the steps that are looked at."""
    found = {
        file.name.removeprefix(f"{net} of "): json.loads(file.read_text())
        for file in folder.glob(f"{net} of *")
    }
    ours, made = found.pop(OURS), []
    for step, allowed in ALLOWED:
        if found and step <= len(ours):
            worst = max(abs(ours[step - 1] / of[step - 1] - 1) for of in found.values())
            made.append(check(f"{net}: losses of step {step} differ by", worst, at_most=allowed))
    return made


def by_best(cup: Tournament, net: str) -> dict[str, Any]:
    """Our step by that of the fastest peer."""
    times = {name: cup.middle(net, name) for name in PEERS}
    there = {name: spent for name, spent in times.items() if spent is not None}
    if not there:
        return check(f"{net}: by the best peer", None, at_most=TARGETS[net])
    best = min(there, key=lambda name: there[name])
    return check(f"{net}: by {best}", cup.ratio(net, OURS, best), at_most=TARGETS[net])


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=NETS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--losses", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        act(arguments.role, arguments.losses)
        return
    cup, checks, proofs = Tournament(arguments.realtime), [], []
    with tempfile.TemporaryDirectory() as name:
        for net in arguments.nets:
            folder = pathlib.Path(name)
            cup.play(contenders(net, arguments, folder), arguments.rounds, arguments.repeats)
            checks.append(by_best(cup, net))
            proofs += agreement(net, folder)
    common.finish(cup.record([*checks, *proofs], "ms", 1e3), arguments.out)


if __name__ == "__main__":
    main()
