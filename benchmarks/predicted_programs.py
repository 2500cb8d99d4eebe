"""Programs whose steps are predicted: networks of one kind of layers each, with small weights.

    hpcflow predict --ranks 8 --ps 1 benchmarks/predicted_programs.py dense

Kernels of workers sleep for the time of the cost model times `--slowdown` (`sleeping_kernels.py`),
so ranks may share cores; servers compute as they are. Each worker prints when its steps ended, by
the clock that all processes of the machine share.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import common
from sleeping_kernels import sleep_in_kernels

import hpcflow as hf
from hpcflow.runtime.job.job_membership import current_context

import numpy as np  # isort: skip  (after hpcflow, which gives it its threads)

BATCH, CLASSES, SAMPLES, RATE = 16, 10, 4096, 0.01
RNG = np.random.default_rng(0)


def weight(name: str, *shape: int) -> Any:
    """A variable of small random numbers."""
    start = RNG.standard_normal(shape) / shape[0] ** 0.5
    return hf.Variable(start.astype("f4"), name=name)


def dense(features: int = 128, width: int = 192) -> tuple[Any, Any, np.ndarray]:
    """Three layers: the fed tensor, the logits, and what is fed."""
    x = hf.placeholder(hf.float32, [None, features])
    out = x
    for i, (n, m) in enumerate([(features, width), (width, width), (width, CLASSES)]):
        out = hf.nn.relu(out) if i else out
        out = hf.nn.bias_add(hf.matmul(out, weight(f"w{i}", n, m)), weight(f"b{i}", m))
    return x, out, RNG.standard_normal((SAMPLES, features)).astype("f4")


def transformer(length: int = 8, width: int = 64) -> tuple[Any, Any, np.ndarray]:
    """One block: attention of one head and a network of two layers, both with a residual."""
    x = hf.placeholder(hf.float32, [None, length, width])
    names = ("query", "key", "value")
    query, key, value = (hf.tensordot(x, weight(n, width, width), 1) for n in names)
    shares = hf.nn.softmax(hf.matmul(query, key, transpose_b=True) * width**-0.5)
    mixed = x + hf.tensordot(hf.matmul(shares, value), weight("joined", width, width), 1)
    inner = hf.nn.relu(hf.tensordot(mixed, weight("in", width, 4 * width), 1))
    out = mixed + hf.tensordot(inner, weight("out", 4 * width, width), 1)
    logits = hf.matmul(hf.reduce_mean(out, axis=1), weight("classes", width, CLASSES))
    return x, logits, RNG.standard_normal((SAMPLES, length, width)).astype("f4")


def embedding(rows: int = 4096, width: int = 64, ids: int = 24) -> tuple[Any, Any, np.ndarray]:
    """The mean of some rows of a table, then two layers."""
    x = hf.placeholder(hf.int32, [None, ids])
    mean = hf.reduce_mean(hf.nn.embedding_lookup(weight("table", rows, width), x), axis=1)
    inner = hf.nn.relu(hf.matmul(mean, weight("w0", width, 4 * width)))
    logits = hf.matmul(inner, weight("w1", 4 * width, CLASSES))
    return x, logits, RNG.integers(0, rows, (SAMPLES, ids)).astype("i4")


def tower(features: int = 96, width: int = 96, depth: int = 5) -> tuple[Any, Any, np.ndarray]:
    """Many equal layers: for development, none of the scored points has it."""
    x = hf.placeholder(hf.float32, [None, features])
    out = x
    for i in range(depth):
        out = hf.tanh(hf.matmul(out, weight(f"w{i}", features if i == 0 else width, width)))
    logits = hf.matmul(out, weight("classes", width, CLASSES))
    return x, logits, RNG.standard_normal((SAMPLES, features)).astype("f4")


def convolutional(size: int = 16, channels: int = 12) -> tuple[Any, Any, np.ndarray]:
    """Two convolutions, the second of stride 2, and two dense layers."""
    x = hf.placeholder(hf.float32, [None, size, size, 3])
    out = hf.nn.relu(hf.nn.conv2d(x, weight("first", 3, 3, 3, channels), 1, "SAME"))
    out = hf.nn.relu(hf.nn.conv2d(out, weight("second", 3, 3, channels, 2 * channels), 2, "SAME"))
    flat = size * size // 4 * 2 * channels
    inner = hf.nn.relu(hf.matmul(hf.reshape(out, [-1, flat]), weight("w0", flat, 64)))
    logits = hf.matmul(inner, weight("w1", 64, CLASSES))
    return x, logits, RNG.standard_normal((SAMPLES, size, size, 3)).astype("f4")


def recurrent(steps: int = 6, features: int = 48, width: int = 128) -> tuple[Any, Any, np.ndarray]:
    """A gated recurrent network, unrolled: the same weights in each step."""
    x = hf.placeholder(hf.float32, [None, steps, features])
    n = features + width
    update, reset, change = (weight(name, n, width) for name in ("update", "reset", "change"))
    state = hf.matmul(x[:, 0], weight("start", features, width))
    for i in range(steps):
        joined = hf.concat([x[:, i], state], 1)
        gate = hf.sigmoid(hf.matmul(joined, update))
        kept = hf.sigmoid(hf.matmul(joined, reset)) * state
        state = gate * state + (1 - gate) * hf.tanh(
            hf.matmul(hf.concat([x[:, i], kept], 1), change)
        )
    logits = hf.matmul(state, weight("classes", width, CLASSES))
    return x, logits, RNG.standard_normal((SAMPLES, steps, features)).astype("f4")


def wide(rows: int = 3000, width: int = 32, ids: int = 12) -> tuple[Any, Any, np.ndarray]:
    """Two tables that are read by the same numbers: one of weights of classes, one for layers."""
    x = hf.placeholder(hf.int32, [None, ids])
    linear = hf.reduce_sum(hf.nn.embedding_lookup(weight("linear", rows, CLASSES), x), axis=1)
    deep = hf.reshape(hf.nn.embedding_lookup(weight("table", rows, width), x), [-1, ids * width])
    for i, (n, m) in enumerate([(ids * width, 160), (160, 96)]):
        deep = hf.nn.relu(hf.matmul(deep, weight(f"w{i}", n, m)))
    logits = linear + hf.matmul(deep, weight("classes", 96, CLASSES))
    return x, logits, RNG.integers(0, rows, (SAMPLES, ids)).astype("i4")


PROGRAMS: dict[str, Callable[[], tuple[Any, Any, np.ndarray]]] = {
    one.__name__: one
    for one in (dense, transformer, embedding, tower, convolutional, recurrent, wide)
}
SLOWDOWN = {
    "dense": 500.0,
    "transformer": 120.0,
    "embedding": 700.0,
    "tower": 600.0,
    "convolutional": 100.0,
    "recurrent": 60.0,
    "wide": 300.0,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--compress", action="store_true", help="gradients as bfloat16")
    parser.add_argument("--slowdown", type=float, help="times the cost model's seconds")
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    slowdown = SLOWDOWN[arguments.program] if arguments.slowdown is None else arguments.slowdown
    sleep_in_kernels(current_context(), slowdown)
    x, logits, rows = PROGRAMS[arguments.program]()
    labels = hf.placeholder(hf.int32, [None])
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    optimizer: Any = hf.train.GradientDescentOptimizer(RATE)
    if arguments.compress:
        optimizer = hf.train.CompressedOptimizer(optimizer, hf.train.BFloat16Compression())
    train = optimizer.minimize(hf.reduce_mean(losses))
    classes = RNG.integers(0, CLASSES, SAMPLES).astype("i4")
    data = hf.data.Dataset({x: rows, labels: classes}, batch_per_rank=BATCH)
    batches = data.epochs(1 << 30)
    with hf.train.TrainingSession() as session:
        ends = []
        for _ in range(arguments.steps):
            session.step(train, next(batches))
            ends.append(time.perf_counter())
        print(common.MARK + json.dumps(ends), flush=True)
        session.wait()
        session.result()


if __name__ == "__main__":
    main()
