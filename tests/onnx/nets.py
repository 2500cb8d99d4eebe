"""Small trained graphs that the tests move in and out of ONNX."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import hpcflow as hf

RNG = np.random.default_rng(3)


def array(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) * 0.3).astype(np.float32)


def dense(x: hf.Tensor, units: int, name: str) -> hf.Tensor:
    weights = hf.Variable(array(int(x.shape[-1]), units), name=f"{name}/weights")
    return hf.nn.bias_add(hf.matmul(x, weights), hf.Variable(array(units), name=f"{name}/bias"))


def dense_net() -> tuple[hf.Tensor, hf.Tensor]:
    x = hf.placeholder(hf.float32, [None, 6], name="x")
    hidden = hf.nn.relu(dense(x, 8, "hidden"))
    return x, hf.nn.softmax(dense(hidden, 3, "logits"), name="probabilities")


def conv_net() -> tuple[hf.Tensor, hf.Tensor]:
    x = hf.placeholder(hf.float32, [None, 9, 9, 2], name="images")
    filters = hf.Variable(array(3, 3, 2, 4), name="filters")
    y = hf.nn.relu(hf.nn.conv2d(x, filters, [1, 2, 2, 1], "SAME"))
    y = hf.nn.max_pool(y, 2, 2, "VALID")
    y = hf.nn.conv2d(y, hf.Variable(array(2, 2, 4, 3)), 1, "SAME")
    y = y * hf.Variable(array(3)) + hf.Variable(array(3))
    return x, dense(hf.reshape(y, [-1, 12]), 5, "classes")


def lstm_net() -> tuple[hf.Tensor, hf.Tensor]:
    x = hf.placeholder(hf.float32, [None, 5, 4], name="words")
    weights = hf.Variable(array(4 + 6, 24), name="kernel")
    h = c = hf.zeros([hf.shape(x)[0], 6])
    for t in range(5):
        gates = hf.matmul(hf.concat([x[:, t], h], 1), weights)
        i, j, f, o = hf.split(gates, 4, 1)
        c = hf.sigmoid(f + 1.0) * c + hf.sigmoid(i) * hf.tanh(j)
        h = hf.sigmoid(o) * hf.tanh(c)
    return x, dense(h, 2, "out")


def attention_net() -> tuple[hf.Tensor, hf.Tensor]:
    x = hf.placeholder(hf.float32, [None, 7, 8], name="tokens")
    mean = hf.reduce_mean(x, -1, keepdims=True)
    spread = hf.reduce_mean(hf.square(x - mean), -1, keepdims=True)
    y = (x - mean) * hf.rsqrt(spread + 1e-5) * hf.Variable(array(8))
    heads = []
    for name in ("query", "key", "value"):
        part = hf.matmul(y, hf.Variable(array(8, 8), name=name))
        heads.append(hf.transpose(hf.reshape(part, [-1, 7, 2, 4]), [0, 2, 1, 3]))
    query, key, value = heads
    scores = hf.nn.softmax(hf.matmul(query, key, transpose_b=True) / 2.0)
    mixed = hf.transpose(hf.matmul(scores, value), [0, 2, 1, 3])
    return x, x + hf.matmul(hf.reshape(mixed, [-1, 7, 8]), hf.Variable(array(8, 8)))


Net = Callable[[], tuple[hf.Tensor, hf.Tensor]]
NETS: list[Net] = [dense_net, conv_net, lstm_net, attention_net]
