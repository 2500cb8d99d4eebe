"""What all drivers do with a network's file: read it, draw its weights and batches."""

from __future__ import annotations

import importlib.util
import itertools
import pathlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

BATCHES = 4  # different ones, over and over
Shape = tuple[int | None, ...]


def load(file: pathlib.Path) -> ModuleType:
    """The module of a network's file, which may be anywhere."""
    spec = importlib.util.spec_from_file_location(f"network_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Dynamo looks it up by its name
    spec.loader.exec_module(module)
    return module


def weights(net: Any) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """First values of what is trained and of what is not."""
    values = net.weights(np.random.default_rng(1))
    trained = {name: x for name, x in values.items() if not name.startswith("moving")}
    return trained, {name: x for name, x in values.items() if name not in trained}


def batches(net: Any) -> Iterator[tuple[np.ndarray, ...]]:
    """Without end."""
    rng = np.random.default_rng(0)
    return itertools.cycle([net.batch(rng) for _ in range(BATCHES)])


def feed_shapes(net: Any, unknown: bool) -> list[tuple[np.dtype, Shape]]:
    """The dtype and the shape of each array of a batch; None for sizes that are unknown."""
    shapes = []
    for array, axis in zip(next(batches(net)), net.BATCH_AXES, strict=True):
        sizes: list[int | None] = list(array.shape)
        if unknown and axis is not None:
            sizes[axis] = None
        shapes.append((array.dtype, tuple(sizes)))
    return shapes


def loss_and_updates(result: Any) -> tuple[Any, dict[str, Any]]:
    """What a network's loss function returned, as a pair."""
    return result if isinstance(result, tuple) else (result, {})


def clip_norm(net: Any) -> float | None:
    """The global norm that gradients are clipped to."""
    return getattr(net, "CLIP", None)
