"""What the lessons share: batches in a fixed order, the text, training for several seeds.

python examples/learn/dense.py                     one rank
hpcflow run -n 3 examples/learn/dense.py           three that train as one

Each lesson prints the mean over its seeds of one number, measured on data that it has not seen;
tests/programs compares them with PyTorch's.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hpcflow as hf  # before numpy, which it gives its number of threads

import numpy as np  # isort: skip

SOURCES = ("argparse", "ast", "calendar", "cmd", "configparser", "csv", "datetime", "decimal")
SOURCES += ("difflib", "doctest", "fractions", "heapq", "inspect", "locale", "optparse", "pathlib")
SOURCES += ("pdb", "pickle", "shutil", "statistics", "subprocess", "tarfile", "textwrap", "typing")


def text() -> str:
    """Sources of the Python standard library, one after the other."""
    folder = Path(sysconfig.get_path("stdlib"))
    return "\n".join(
        (folder / f"{name}.py").read_text(encoding="utf-8")
        for name in SOURCES
        if (folder / f"{name}.py").exists()
    )


def order(samples: int, batch: int, steps: int, seed: int) -> np.ndarray:
    """The samples of all steps one after the other: shuffled epoch after epoch."""
    rng = np.random.Generator(np.random.Philox(seed))
    epochs = -(-steps * batch // samples)
    return np.concatenate([rng.permutation(samples) for _ in range(epochs)])[: steps * batch]


def batches(feeds: Mapping[Any, np.ndarray], batch: int, steps: int, seed: int) -> Iterator[Any]:
    """Each step's share of its batch, as feeds: replicas divide the batches among themselves."""
    samples = len(next(iter(feeds.values())))
    rows = order(samples, batch, steps, seed)
    data = hf.data.Dataset({x: a[rows] for x, a in feeds.items()}, batch=batch, shuffle=False)
    return data.epochs(1)


def glorot(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Glorot and Bengio's uniform weights, drawn here so that another framework has the same."""
    limit = np.sqrt(6 / (np.prod(shape[:-2]) * (shape[-2] + shape[-1])))
    return rng.uniform(-limit, limit, shape).astype("float32")


def variables(weights: Mapping[str, np.ndarray]) -> dict[str, hf.Variable]:
    """A variable for each array of initial values."""
    return {name: hf.Variable(value, name=name) for name, value in weights.items()}


def main(train: Callable[[int], float | None], what: str) -> None:
    """Train with each seed; the chief prints the mean of the results."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    scores = []
    for seed in parser.parse_args().seeds:
        with hf.Graph().as_default():
            hf.set_random_seed(seed)
            scores.append(train(seed))
    if None not in scores:
        print(json.dumps({"what": what, "mean": float(np.mean(scores)), "scores": scores}))


def trained(
    train: hf.Operation, feeds: Iterator[Any], metric: Any, held_out: Mapping[Any, np.ndarray]
) -> float | None:
    """Run all steps, then measure on what was held out; the chief's number."""
    with hf.train.TrainingSession() as session:
        for batch in feeds:
            session.step(train, batch)
        session.wait()
        return float(session.run(metric, held_out)) if session.is_chief else None
