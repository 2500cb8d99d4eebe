"""Trains a network of nets2 or nets for some seconds: the script of learned_correction.py's runs.

hpcflow run -n 2 --run-dir DIR benchmarks/learned_program.py --net conv1d --batch 8 --seconds 2
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import common

HERE = pathlib.Path(__file__).resolve().parent
SIZES = {"mlp_sgd": "MLP", "lenet": "LENET", "transformer": "TRANSFORMER"}  # of nets/spec
FIRST_STEPS, LEAST_STEPS = 10, 30


def of_nets(name: str, batch: int) -> tuple[Any, list[Any], Iterator[Any]]:
    """The training operation, the fed tensors and the batches of a network of nets."""
    from nets import of_hpcflow, spec

    import hpcflow as hf

    getattr(spec, SIZES[name])["batch"] = batch
    batches = spec.batches(name)
    feeds = [hf.placeholder(hf.as_dtype(a.dtype), a.shape) for a in next(batches)]
    v = {key: hf.Variable(value, name=key) for key, value in spec.weights(name).items()}
    loss = of_hpcflow.LOSSES[name](v, *feeds)
    train = of_hpcflow.trained(loss, list(v.values()), *spec.OPTIMIZERS[name])
    return [loss, train], feeds, batches


def of_nets2(name: str, batch: int) -> tuple[Any, list[Any], Iterator[Any]]:
    """The same of a network of nets2."""
    from nets2.drivers import network, of_hpcflow

    import hpcflow as hf

    net = network.load(HERE / "nets2" / f"{name}.py")
    if batch:
        net.BATCH = batch
    shapes = network.feed_shapes(net, False)
    feeds = [hf.placeholder(hf.as_dtype(dtype), shape) for dtype, shape in shapes]
    trained, state = network.weights(net)
    v = {key: hf.Variable(value, name=key) for key, value in trained.items()}
    v |= {key: hf.Variable(value, name=key, trainable=False) for key, value in state.items()}
    loss, updates = network.loss_and_updates(net.hpcflow_loss(hf, v, *feeds))
    assigned = [hf.assign(v[key], value) for key, value in updates.items()]
    train = hf.group(of_hpcflow.minimized(net, loss), *assigned)
    return [loss, train], feeds, network.batches(net)


def train(step: Callable[[], Any], seconds: float, crew: common.Crew) -> None:
    """So many steps that they take about so many seconds; equally many on all ranks."""
    for _ in range(FIRST_STEPS):
        step()
    begun = time.perf_counter()
    for _ in range(FIRST_STEPS):
        step()
    each = crew.largest((time.perf_counter() - begun) / FIRST_STEPS)
    for _ in range(max(LEAST_STEPS, int(seconds / (each or 1.0)))):
        step()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--net", required=True)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()

    import hpcflow as hf
    from hpcflow.runtime.job.job_membership import current_context

    crew = common.crew_of_workers(0) if current_context().world is not None else common.Crew()
    hf.set_random_seed(1)
    make = of_nets if arguments.net in SIZES else of_nets2
    fetches, feeds, batches = make(arguments.net, arguments.batch)
    with hf.train.TrainingSession() as session:
        step = functools.partial(_step, session, fetches, feeds, batches)
        train(step, arguments.seconds, crew)
        session.result()


def _step(session: Any, fetches: list[Any], feeds: list[Any], batches: Iterator[Any]) -> None:
    session.step(fetches, dict(zip(feeds, next(batches), strict=True)))


if __name__ == "__main__":
    main()
