"""Synchronous training of a 784-256-256-10 network: samples per second on one rank and on two.

    python benchmarks/collective_training.py --torch PYTHON --out FILE

128 samples a rank whatever the number of ranks, SGD, one thread a rank, fixed random data fed as
NumPy arrays, the loss fetched every step. The same from the same weights in torch, alone and as
DistributedDataParallel over gloo; before anything is timed all must have the same losses.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import common
from common import Contender, Crew, Tournament, check, per_call, role

SIZES, BATCH, RATE, BATCHES = (784, 256, 256, 10), 128, 0.01, 4
PROOF_STEPS, CALLS = 20, 100
PLAIN, ALONE = "hpcflow, plain", "hpcflow, mpirun -n 1"
APART = "hpcflow, plain, {} at once"  # the machine's own limit: they share cores, not gradients
TORCH = "torch, plain"


def data(rank: int) -> list[tuple[Any, Any]]:
    import numpy as np

    rng = np.random.RandomState(1 + rank)
    draw = lambda: (rng.randn(BATCH, SIZES[0]).astype("f4"), rng.randint(0, SIZES[-1], BATCH))  # noqa: E731
    return [(x, y.astype("i4")) for x, y in (draw() for _ in range(BATCHES))]


def weights() -> list[tuple[Any, Any]]:
    import numpy as np

    rng = np.random.RandomState(0)
    return [
        ((rng.randn(n, m) * (2 / n) ** 0.5).astype("f4"), np.zeros(m, "f4"))
        for n, m in itertools.pairwise(SIZES)
    ]


def hpcflow_step() -> tuple[Callable[[], float], Crew]:
    import hpcflow as hf

    session = hf.Session()
    replicas = session.context.roles.replicas
    crew = common.crew_of_workers(0) if session.context.world is not None else Crew()
    x = hf.placeholder(hf.float32, [None, SIZES[0]])
    labels = hf.placeholder(hf.int32, [None])
    out = x
    for i, (w, b) in enumerate(weights()):
        out = hf.nn.relu(out) if i else out
        out = hf.nn.bias_add(hf.matmul(out, hf.Variable(w)), hf.Variable(b))
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=out)
    loss = hf.reduce_mean(losses)
    train = hf.train.GradientDescentOptimizer(RATE).minimize(loss)
    session.run(hf.global_variables_initializer())
    batches = itertools.cycle(data(session.context.replica if replicas > 1 else 0))

    def step() -> float:
        images, classes = next(batches)
        return float(session.run([train, loss], {x: images, labels: classes})[1])

    return step, crew


def torch_step(size: int, rank: int, port: int) -> tuple[Callable[[], float], Crew]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    layers: list[Any] = []
    for w, b in weights():
        layers += [torch.nn.ReLU()] if layers else []
        layers.append(torch.nn.Linear(*w.shape))
        with torch.no_grad():
            layers[-1].weight.copy_(torch.from_numpy(w.T.copy()))
            layers[-1].bias.copy_(torch.from_numpy(b))
    model: Any = torch.nn.Sequential(*layers)
    if size > 1:
        where = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=size)
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    lossy = torch.nn.CrossEntropyLoss()
    batches = itertools.cycle([(x, y.astype("i8")) for x, y in data(rank)])

    def step() -> float:
        images, classes = (torch.from_numpy(array) for array in next(batches))
        optimizer.zero_grad(set_to_none=True)
        loss = lossy(model(images), classes)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, Crew()


def act(arguments: argparse.Namespace) -> None:
    """Be one rank: prove the losses, then be timed."""
    kind, rank = arguments.role, arguments.rank
    if kind == "hpcflow":
        step, crew = hpcflow_step()
        rank = crew.rank
    else:
        step, crew = torch_step(arguments.ranks, rank, arguments.port)
    packages = {"hpcflow": ["numpy"], "torch": ["torch", "numpy"]}[kind]
    found = [step() for _ in range(PROOF_STEPS)]
    if rank == 0:
        pathlib.Path(arguments.losses).write_text(json.dumps(found))
    common.serve({"step": lambda: per_call(step, CALLS)}, packages, crew)
    if kind == "torch" and arguments.ranks > 1:
        os._exit(0)  # gloo's own end may wait for a rank that has left


def contenders(arguments: argparse.Namespace, folder: pathlib.Path) -> list[Contender]:
    def mine(kind: str, python: str | None, size: int, rank: int = 0, port: int = 0) -> list[str]:
        options = ["--ranks", size, "--rank", rank, "--port", port]
        losses = folder / f"{kind}-{size}"
        return role(python, __file__, kind, "--losses", losses, *options)

    plain = mine("hpcflow", None, 0)
    made = [Contender(PLAIN, [plain])]
    made.append(Contender(APART.format(arguments.ranks), [plain] * arguments.ranks))
    for n in (1, arguments.ranks):
        command, environ = common.ranks(n, mine("hpcflow", None, n))
        made.append(Contender(f"hpcflow, mpirun -n {n}", [command], environ))
    made.append(common.peer(TORCH, arguments.torch, "--torch", mine("torch", arguments.torch, 1)))
    port, n = common.free_ports(1)[0], arguments.ranks
    commands = [mine("torch", arguments.torch, n, rank, port) for rank in range(n)]
    made.append(common.peer(f"torch DDP over gloo, {n}", arguments.torch, "--torch", *commands))
    return made


def prove(folder: pathlib.Path) -> dict[str, Any]:
    """The largest relative difference of losses between programs on equal numbers of ranks.

    A program on one rank has no other data than rank 0 of several, but other weights.
    """
    losses = {file.name: json.loads(file.read_text()) for file in folder.iterdir()}
    alone = [found for name, found in losses.items() if name.endswith(("-0", "-1"))]
    together = [found for name, found in losses.items() if not name.endswith(("-0", "-1"))]
    worst = max(
        abs(a - b) / abs(a)
        for group in (alone, together)
        for other in group
        for a, b in zip(group[0], other, strict=True)
    )
    if worst > 1e-4:
        raise SystemExit(f"the programs do not compute the same: losses differ by {worst:.2g}")
    return check(f"losses of the first {PROOF_STEPS} steps differ by", worst, at_most=1e-4)


def checks_of(cup: Tournament, n: int) -> list[dict[str, Any]]:
    ours, ddp = f"hpcflow, mpirun -n {n}", f"torch DDP over gloo, {n}"

    def rate(name: str, size: int) -> float | None:
        spent = cup.middle("step", name)
        return spent and BATCH * size / spent

    def gain(name: str, alone: str) -> dict[str, Any]:
        slower = cup.ratio("step", alone, name)
        return {key: value and n * value for key, value in slower.items()}

    return [
        check(f"samples/s, hpcflow on {n} ranks", rate(ours, n)),
        check(f"samples/s, DDP on {n} ranks", rate(ddp, n)),
        check("... hpcflow by DDP", cup.ratio("step", ddp, ours), at_least=1.5),
        check(f"gain from 1 to {n} ranks, hpcflow", gain(ours, PLAIN), at_least=1.7),
        check(f"gain from 1 to {n} processes that do not sum", gain(APART.format(n), PLAIN)),
        check("... step with sums by step of these", cup.ratio("step", ours, APART.format(n))),
        check(f"gain from 1 to {n} ranks, DDP", gain(ddp, TORCH)),
        check("mpirun -n 1 by the plain plan", cup.ratio("step", ALONE, PLAIN), at_most=1.03),
        check("plain plan by plain torch", cup.ratio("step", PLAIN, TORCH)),
    ]


def main() -> None:
    import tempfile

    parser = common.parser(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    for option in ("--rank", "--port"):
        parser.add_argument(option, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--losses", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        act(arguments)
        return
    cup = Tournament(arguments.realtime)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        cup.play(contenders(arguments, folder), arguments.rounds, arguments.repeats)
        checks = [*checks_of(cup, arguments.ranks), prove(folder)]
    common.finish(cup.record(checks, "ms", 1e3), arguments.out)


if __name__ == "__main__":
    main()
