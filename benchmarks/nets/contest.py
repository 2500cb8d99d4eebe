"""hpcflow and its peers as contenders that run a network, and whether their losses agree."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from common import Contender, peer, role

OURS = "hpcflow"
PEERS = {  # name -> (option, module of `nets`, mode)
    "TF1 graph": ("tf", "of_tensorflow", "graph"),
    "tf.function": ("tf", "of_tensorflow", "function"),
    "torch eager": ("torch", "of_torch", "eager"),
    "torch.compile": ("torch", "of_torch", "compile"),
    "JAX jit": ("jax", "of_jax", "jit"),
}
WITHOUT_COMPILERS = ("TF1 graph", "torch eager", "JAX jit")  # one way of each peer
ON_GPU = {
    "torch eager": ("torch", "of_torch", "eager@cuda"),
    "torch CUDA graphs": ("torch", "of_torch", "graph@cuda"),
    "torch.compile": ("torch", "of_torch", "compile@cuda"),
    "JAX jit": ("jax", "of_jax", "jit"),
}
OF_A_GPU = {  # JAX would round the operands of float32 products to TF32
    "CUDA_VISIBLE_DEVICES": "0",
    "JAX_PLATFORMS": "cuda",
    "JAX_DEFAULT_MATMUL_PRECISION": "highest",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}
NOT_IN_JAX = ("resnet50",)
WITHOUT_GRAPHS = f"{OURS} without CUDA graphs"
PACKAGES = {"of_tensorflow": ["tensorflow-cpu"], "of_torch": ["torch"], "of_jax": ["jax"]}
Options = Callable[[str], Sequence[object]]  # of a contender's command line, by its name


def packages(module: str) -> list[str]:
    """What a contender says the versions of."""
    return ["numpy", *PACKAGES.get(module, [])]


def contenders(
    script: str,
    what: str,
    arguments: argparse.Namespace,
    names: Iterable[str] = tuple(PEERS),
    options: Options = lambda name: (),
    environ: Mapping[str, str] | None = None,
) -> list[Contender]:
    """Ours and those `names`; the role of each is `module:mode:what`."""
    made = [Contender(OURS, [role(None, script, f"of_hpcflow::{what}", *options(OURS))])]
    for name in names:
        option, module, mode = PEERS[name]
        python = getattr(arguments, option)
        command = role(python, script, f"{module}:{mode}:{what}", *options(name))
        made.append(peer(name, python, f"--{option}", command))
    both = {"threads": arguments.threads, "environ": environ or {}}
    return [dataclasses.replace(one, **both) for one in made]


def on_gpu(
    script: str, what: str, arguments: argparse.Namespace, options: Options
) -> list[Contender]:
    """Ours with CUDA graphs and without, PyTorch's ways and JAX."""
    made = [
        Contender(name, [role(None, script, f"of_hpcflow:gpu:{what}", *options(name))], environ)
        for name, environ in ((OURS, {}), (WITHOUT_GRAPHS, {"HPCFLOW_CUDA_GRAPHS": "0"}))
    ]
    for name, (option, module, mode) in ON_GPU.items():
        if name in arguments.without or (option == "jax" and what in NOT_IN_JAX):
            continue
        python = getattr(arguments, option)
        command = role(python, script, f"{module}:{mode}:{what}", *options(name))
        made.append(peer(name, python, f"--{option}", command))
    return [dataclasses.replace(one, environ=one.environ | OF_A_GPU) for one in made]


def losses_file(folder: pathlib.Path, net: str, name: str) -> pathlib.Path:
    """Where a contender leaves the losses of its first steps."""
    return folder / f"{net} of {name}"


def differences(folder: pathlib.Path, net: str) -> dict[str, list[float]]:
    """Peer -> how far our losses are from its, relative, step by step."""
    head = f"{net} of "
    files = {f.name.removeprefix(head): f for f in folder.glob(f"{head}*")}
    losses = {name: json.loads(file.read_text()) for name, file in files.items()}
    ours = losses.pop(OURS, [])
    return {
        name: [abs(mine / its - 1) for mine, its in zip(ours, theirs, strict=True)]
        for name, theirs in losses.items()
        if ours
    }


def apart(folder: pathlib.Path, net: str) -> list[float]:
    """How far our losses are from those of the peers at worst, relative, step by step."""
    return [max(steps) for steps in zip(*differences(folder, net).values(), strict=True)]
