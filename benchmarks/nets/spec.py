"""Sizes, first weights, batches and optimizers of the networks; NumPy only, for any Python."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

BATCHES = 4  # different ones, over and over


class Optimizer(NamedTuple):
    """`kind` is "sgd", "momentum" (of 0.9), "adam", or "none": gradients are made and not used."""

    kind: str
    rate: float


OPTIMIZERS = {
    "mlp_sgd": Optimizer("momentum", 0.01),
    "mlp_adam": Optimizer("adam", 1e-3),
    "lenet": Optimizer("momentum", 0.001),
    "alexnet": Optimizer("none", 0.0),
    "lstm_full": Optimizer("sgd", 0.5),
    "lstm_sampled": Optimizer("sgd", 0.5),
    "word2vec": Optimizer("sgd", 0.5),
    "transformer": Optimizer("sgd", 0.01),
    "resnet50": Optimizer("momentum", 0.01),
}
NETS = tuple(net for net in OPTIMIZERS if net != "resnet50")  # those that a CPU trains

MLP = {"batch": 128, "sizes": (784, 256, 256, 10)}
LENET = {"batch": 64}
ALEXNET = {"batch": 16}
# (size of a filter, channels in, channels out, stride, zeros around, pooled after it)
ALEXNET_CONV = (
    (11, 3, 64, 4, 2, True),
    (5, 64, 192, 1, 2, True),
    (3, 192, 384, 1, 1, False),
    (3, 384, 256, 1, 1, False),
    (3, 256, 256, 1, 1, True),
)
ALEXNET_DENSE = ((9216, 4096), (4096, 4096), (4096, 1000))
LSTM = {"batch": 32, "steps": 20, "hidden": 512, "vocabulary": 10_000, "sampled": 512}
WORD2VEC = {"batch": 1024, "vocabulary": 200_000, "size": 128, "negative": 5}
RESNET = {"batch": 64, "side": 224, "blocks": (3, 4, 6, 3)}
TRANSFORMER = {"batch": 16, "steps": 128, "size": 256, "heads": 4, "inner": 1024}


def resnet_filters() -> dict[str, tuple[int, int, int, int]]:
    """Name -> size, channels in and out, stride of each convolution of ResNet-50, in order.

    The stride is that of the middle one of a block, as in PyTorch's ("v1.5").
    """
    found, n = {"stem": (7, 3, 64, 2)}, 64
    for stage, count in enumerate(RESNET["blocks"]):
        m = 64 << stage
        for block in range(count):
            name, stride = f"{stage}/{block}", 2 if stage and not block else 1
            if not block:
                found[f"{name}/past"] = (1, n, 4 * m, stride)
            found |= {f"{name}/in": (1, n, m, 1), f"{name}/over": (3, m, m, stride)}
            found[f"{name}/out"] = (1, m, 4 * m, 1)
            n = 4 * m
    return found


def weights(net: str) -> dict[str, np.ndarray]:
    """Name -> first value; images are NHWC, filters HWIO, matrices [in, out]."""
    rng = np.random.RandomState(1)
    return {name: _drawn(rng, *how) for name, how in _shapes(net).items()}


def _drawn(rng: np.random.RandomState, shape: tuple[int, ...], scale: float | None) -> np.ndarray:
    """Normal numbers, by default as of He et al. 2015; all alike if `scale` is 0 or 1."""
    if scale in (0.0, 1.0):
        return np.full(shape, scale, "f4")
    of = scale or (2.0 / int(np.prod(shape[:-1]))) ** 0.5
    return (rng.standard_normal(shape) * of).astype("f4")


def _shapes(net: str) -> dict[str, tuple[tuple[int, ...], float | None]]:
    if net.startswith("mlp"):
        return _layers([(n, m) for n, m in itertools.pairwise(MLP["sizes"])])
    if net == "lenet":
        return _layers([(5, 5, 1, 32), (5, 5, 32, 64), (3136, 1024), (1024, 10)])
    if net == "alexnet":
        filters = [(k, k, n, m) for k, n, m, *_ in ALEXNET_CONV]
        return _layers([*filters, *ALEXNET_DENSE])
    if net == "resnet50":
        made: dict[str, tuple[tuple[int, ...], float | None]] = {}
        for name, (k, n, m, _) in resnet_filters().items():
            made |= {name: ((k, k, n, m), None), f"{name}/scale": ((m,), 1.0)}
            made |= {f"{name}/shift": ((m,), 0.0)}
        return made | {"w": ((2048, 1000), 0.02), "b": ((1000,), 0.0)}
    if net.startswith("lstm"):
        n, h = LSTM["vocabulary"], LSTM["hidden"]
        return {
            "embedding": ((n, h), 0.1),
            "kernel": ((2 * h, 4 * h), 0.03),
            "bias": ((4 * h,), 0.0),
            "softmax": ((n, h), 0.03),
            "softmax_bias": ((n,), 0.0),
        }
    if net == "word2vec":
        shape = (WORD2VEC["vocabulary"], WORD2VEC["size"])
        return {"center": (shape, 0.1), "context": (shape, 0.1)}
    d, inner = TRANSFORMER["size"], TRANSFORMER["inner"]
    norm = {"scale1": ((d,), 1.0), "shift1": ((d,), 0.0), "scale2": ((d,), 1.0)}
    dense = {"qkv": (d, 3 * d), "out": (d, d), "up": (d, inner), "down": (inner, d)}
    made = {**norm, "shift2": ((d,), 0.0)}
    for name, shape in dense.items():
        made |= {name: (shape, None), f"{name}_bias": (shape[1:], 0.0)}
    return made


def _layers(shapes: list[tuple[int, ...]]) -> dict[str, tuple[tuple[int, ...], float | None]]:
    made: dict[str, tuple[tuple[int, ...], float | None]] = {}
    for i, shape in enumerate(shapes):
        made |= {f"w{i}": (shape, None), f"b{i}": (shape[-1:], 0.0)}
    return made


def batches(net: str) -> Iterator[tuple[np.ndarray, ...]]:
    """Without end; the classes drawn for a sampled softmax are part of the data."""
    rng = np.random.RandomState(0)
    return itertools.cycle([_batch(net, rng) for _ in range(BATCHES)])


def _batch(net: str, rng: np.random.RandomState) -> tuple[np.ndarray, ...]:
    def integers(n: int, *shape: int) -> np.ndarray:
        return rng.randint(0, n, shape).astype("i4")

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype("f4")

    if net.startswith("mlp"):
        n = MLP["batch"]
        return normal(n, MLP["sizes"][0]), integers(10, n)
    if net == "lenet":
        return normal(LENET["batch"], 28, 28, 1), integers(10, LENET["batch"])
    if net == "alexnet":
        return normal(ALEXNET["batch"], 224, 224, 3), integers(1000, ALEXNET["batch"])
    if net == "resnet50":
        n, side = RESNET["batch"], RESNET["side"]
        return normal(n, side, side, 3), integers(1000, n)
    if net.startswith("lstm"):
        shape = LSTM["steps"], LSTM["batch"]
        words = integers(LSTM["vocabulary"], *shape), integers(LSTM["vocabulary"], *shape)
        return words if net == "lstm_full" else (*words, _candidates(rng))
    if net == "word2vec":
        n, size = WORD2VEC["batch"], WORD2VEC["vocabulary"]
        negative = integers(size, n, WORD2VEC["negative"])
        return integers(size, n), integers(size, n), negative
    shape = TRANSFORMER["batch"], TRANSFORMER["steps"], TRANSFORMER["size"]
    return normal(*shape), normal(*shape)


def _candidates(rng: np.random.RandomState) -> np.ndarray:
    """Different classes, by the log-uniform distribution."""
    n, found = LSTM["vocabulary"], dict[int, None]()
    while len(found) < LSTM["sampled"]:
        found[int(np.exp(rng.rand() * np.log(n + 1.0))) - 1] = None
    return np.array(list(found), "i4")


def log_expected(ids: Any, xp: Any) -> Any:
    """The logarithm of how often these classes are among the candidates, as of TensorFlow.

    `ids` are floats of the array module `xp`.
    """
    n, k = LSTM["vocabulary"], LSTM["sampled"]
    return xp.log(k * (xp.log(ids + 2.0) - xp.log(ids + 1.0)) / float(np.log(n + 1.0)))
