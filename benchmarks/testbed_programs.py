"""Twelve small training programs of named blocks, each of which a placement may put on any task.

    graph = Program(BUILDERS["mlp"], tasks)       # block k on task tasks[k]; None: left open

A block is a layer with its variables. `Program` builds the graph in the default graph of hpcflow
and counts the FLOPs of each block's products and the bytes of its variables by itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda hf: hf.train.GradientDescentOptimizer(0.05),
    "momentum": lambda hf: hf.train.MomentumOptimizer(0.01, 0.9),
    "adam": lambda hf: hf.train.AdamOptimizer(1e-3),
}


class Blocks:
    """What a builder calls: blocks, variables, feeds, and layers that count their FLOPs."""

    def __init__(self, hf: Any, tasks: Sequence[int] | None) -> None:
        self.hf, self.tasks = hf, tasks
        self.names: list[str] = []
        self.flops: list[int] = []
        self.nbytes: list[int] = []
        self.feeds: dict[Any, np.ndarray] = {}
        self._rng, self._seed, self._now = np.random.default_rng(7), 0, 0

    @contextlib.contextmanager
    def block(self, name: str) -> Iterator[None]:
        """A scope of operations; a name that is used again continues its block."""
        if name not in self.names:
            self.names.append(name)
            self.flops.append(0)
            self.nbytes.append(0)
        outer, self._now = self._now, self.names.index(name)
        device = f"/job:worker/task:{self.tasks[self._now]}" if self.tasks is not None else None
        with self.hf.name_scope(f"{name}/"), self.hf.device(device):
            yield
        self._now = outer

    def weight(self, *shape: int, scale: float | None = None) -> Any:
        """A variable of the block, of normal values; by default, divided by the root of inputs."""
        self._seed += 1
        self.nbytes[self._now] += 4 * int(np.prod(shape))
        deviation = float(np.prod(shape[:-1])) ** -0.5 if scale is None else scale
        values = self.hf.random_normal(shape, stddev=deviation, seed=self._seed)
        return self.hf.Variable(values, name="w")

    def feed(self, *shape: int) -> Any:
        """A placeholder that is fed normal values."""
        return self._fed(self._rng.standard_normal(shape).astype("f4"), self.hf.float32)

    def ids(self, count: int, *shape: int) -> Any:
        """A placeholder that is fed integers below `count`."""
        return self._fed(self._rng.integers(0, count, shape).astype("i4"), self.hf.int32)

    def _fed(self, values: np.ndarray, dtype: Any) -> Any:
        x = self.hf.placeholder(dtype, values.shape)
        self.feeds[x] = values
        return x

    def product(self, x: Any, w: Any) -> Any:
        """A matrix product."""
        self.flops[self._now] += 2 * int(x.shape[0]) * int(np.prod(w.shape.as_list()))
        return self.hf.matmul(x, w)

    def dense(self, x: Any, units: int, relu: bool = True) -> Any:
        """A dense layer of a matrix."""
        w, bias = self.weight(int(x.shape[1]), units), self.weight(units, scale=0.01)
        x = self.hf.nn.bias_add(self.product(x, w), bias)
        return self.hf.nn.relu(x) if relu else x

    def conv(self, x: Any, side: int, channels: int, stride: int = 1, relu: bool = True) -> Any:
        """A convolution of images [batch, height, width, channels]."""
        w = self.weight(side, side, int(x.shape[3]), channels)
        bias = self.weight(channels, scale=0.01)
        x = self.hf.nn.bias_add(self.hf.nn.conv2d(x, w, [1, stride, stride, 1], "SAME"), bias)
        pixels = int(np.prod(x.shape.as_list()[:3]))
        self.flops[self._now] += 2 * pixels * int(np.prod(w.shape.as_list()))
        return self.hf.nn.relu(x) if relu else x

    def cell(self, w: Any, x: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        """One step of an LSTM; the state has the cell and the output."""
        hf, (c, h) = self.hf, state
        i, j, f, o = hf.split(self.product(hf.concat([x, h], 1), w), 4, axis=1)
        c = hf.sigmoid(f + 1.0) * c + hf.sigmoid(i) * hf.tanh(j)
        return c, hf.sigmoid(o) * hf.tanh(c)

    def cross_entropy(self, logits: Any) -> Any:
        """The mean loss of rows of logits against fed labels."""
        hf, (rows, classes) = self.hf, logits.shape.as_list()
        labels = self.ids(classes, rows)
        losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return hf.reduce_mean(losses)


Builder = Callable[[Blocks], Any]


def mlp(b: Blocks) -> Any:
    """Five dense layers."""
    x = b.feed(24, 256)
    for k in range(5):
        with b.block(f"dense{k}"):
            x = b.dense(x, 256)
    with b.block("loss"):
        return b.cross_entropy(b.dense(x, 10, relu=False))


def lenet(b: Blocks) -> Any:
    """Two convolutions and two dense layers."""
    x, pool = b.feed(8, 28, 28, 1), ([1, 2, 2, 1], [1, 2, 2, 1], "SAME")
    for k, (side, channels) in enumerate(((5, 16), (3, 32))):
        with b.block(f"conv{k}"):
            x = b.hf.nn.max_pool(b.conv(x, side, channels), *pool)
    with b.block("dense0"):
        x = b.dense(b.hf.reshape(x, [8, 7 * 7 * 32]), 128)
    with b.block("dense1"):
        return b.cross_entropy(b.dense(x, 10, relu=False))


def lstm(b: Blocks) -> Any:
    """A language model of two LSTM layers, unrolled."""
    batch, steps, units, words = 8, 6, 128, 400
    with b.block("embedding"):
        table, ids = b.weight(words, units, scale=0.5), b.ids(words, steps, batch)
        outputs = b.hf.unstack(b.hf.nn.embedding_lookup(table, ids), steps)
    for k in range(2):
        with b.block(f"layer{k}"):
            w = b.weight(2 * units, 4 * units)
            state = b.hf.zeros([batch, units]), b.hf.zeros([batch, units])
            inputs, outputs = outputs, []
            for x in inputs:
                state = b.cell(w, x, state)
                outputs.append(state[1])
    with b.block("softmax"):
        return b.cross_entropy(b.dense(b.hf.concat(outputs, 0), words, relu=False))


def gpt(b: Blocks) -> Any:
    """Two layers of a transformer with causal attention."""
    hf, batch, steps, size, heads, words = b.hf, 2, 32, 96, 4, 300
    with b.block("embedding"):
        table, ids = b.weight(words, size, scale=0.5), b.ids(words, batch, steps)
        x = hf.reshape(hf.nn.embedding_lookup(table, ids), [batch * steps, size])

    def normal(x: Any) -> Any:
        scale = b.weight(size, scale=1.0)
        return hf.nn.layer_normalization(x, scale, b.weight(size, scale=0.01))

    for k in range(2):
        with b.block(f"attention{k}"):
            parts = hf.split(b.dense(normal(x), 3 * size, relu=False), 3, axis=1)
            shape = [batch, steps, heads, size // heads]
            q, *kv = (hf.transpose(hf.reshape(part, shape), [0, 2, 1, 3]) for part in parts)
            h = hf.nn.scaled_dot_product_attention(q, *kv, causal=True)
            h = hf.reshape(hf.transpose(h, [0, 2, 1, 3]), [batch * steps, size])
            x = x + b.dense(h, size, relu=False)
        with b.block(f"mlp{k}"):
            x = x + b.dense(b.dense(normal(x), 4 * size), size, relu=False)
    with b.block("head"):
        return b.cross_entropy(b.dense(normal(x), words, relu=False))


def mobilenet(b: Blocks) -> Any:
    """Inverted residual blocks with depthwise convolutions."""
    hf, x = b.hf, b.feed(4, 16, 16, 3)
    with b.block("stem"):
        x = b.conv(x, 3, 16)
    for k, (channels, stride) in enumerate(((16, 1), (24, 2), (24, 1), (32, 2))):
        with b.block(f"residual{k}"):
            before, h = int(x.shape[3]), b.conv(x, 1, 4 * int(x.shape[3]))
            own = b.weight(3, 3, 4 * before, 1, scale=0.3)
            h = hf.nn.relu(hf.nn.depthwise_conv2d(h, own, [1, stride, stride, 1], "SAME"))
            h = b.conv(h, 1, channels, relu=False)
            x = x + h if before == channels and stride == 1 else h
    with b.block("head"):
        x = hf.reduce_mean(b.conv(x, 1, 128), [1, 2])
        return b.cross_entropy(b.dense(x, 10, relu=False))


def unet(b: Blocks) -> Any:
    """Two levels down and up, with values that cross between equal levels."""
    hf, side, across = b.hf, 32, []
    x = b.feed(2, side, side, 1)
    for k, channels in enumerate((8, 16)):
        with b.block(f"down{k}"):
            across.append(b.conv(x, 3, channels))
            x = hf.nn.max_pool(across[-1], [1, 2, 2, 1], [1, 2, 2, 1], "SAME")
    with b.block("bottom"):
        x = b.conv(x, 3, 32)
    for k, channels in ((1, 16), (0, 8)):
        with b.block(f"up{k}"):
            shape = [2, side >> k, side >> k, channels]
            w = b.weight(2, 2, channels, int(x.shape[3]), scale=0.2)
            x = hf.nn.conv2d_transpose(x, w, shape, [1, 2, 2, 1])
            x = b.conv(hf.concat([x, across[k]], 3), 3, channels)
    with b.block("out"):
        return hf.reduce_mean(hf.square(b.conv(x, 1, 1, relu=False) - b.feed(2, side, side, 1)))


def dlrm(b: Blocks) -> Any:
    """Five embeddings, each with layers of its own, their dot products, and two MLPs."""
    hf, batch, size = b.hf, 64, 32
    with b.block("bottom"):
        vectors = [b.dense(b.dense(b.feed(batch, 13), 128), size)]
    for k in range(5):
        with b.block(f"table{k}"):
            table, ids = b.weight(1000, 64, scale=0.5), b.ids(1000, batch, 2)
            bag = hf.reduce_sum(hf.nn.embedding_lookup(table, ids), 1)
            vectors.append(b.dense(b.dense(bag, 160), size))
    with b.block("top"):
        x = hf.stack(vectors, 1)
        products = hf.reshape(hf.matmul(x, x, transpose_b=True), [batch, 36])
        x = b.dense(b.dense(hf.concat([vectors[0], products], 1), 128), 2, relu=False)
        return b.cross_entropy(x)


def tagger(b: Blocks) -> Any:
    """An LSTM in each direction over the same words, unrolled."""
    batch, steps, units, words, tags = 8, 6, 128, 400, 16
    with b.block("embedding"):
        table, ids = b.weight(words, units, scale=0.5), b.ids(words, steps, batch)
        inputs = b.hf.unstack(b.hf.nn.embedding_lookup(table, ids), steps)
    both = []
    for name, order in (("forward", 1), ("backward", -1)):
        with b.block(name):
            w = b.weight(2 * units, 4 * units)
            state, outputs = (b.hf.zeros([batch, units]), b.hf.zeros([batch, units])), []
            for x in inputs[::order]:
                state = b.cell(w, x, state)
                outputs.append(state[1])
            both.append(b.hf.concat(outputs[::order], 0))
    with b.block("tags"):
        return b.cross_entropy(b.dense(b.hf.concat(both, 1), tags, relu=False))


def rows(b: Blocks) -> Any:
    """Two large embeddings of which a step uses and updates some rows, and dense layers."""
    hf, batch, size = b.hf, 64, 128
    sides = []
    for name in ("users", "items"):
        with b.block(name):
            table, ids = b.weight(4000, size, scale=0.5), b.ids(4000, batch)
            sides.append(b.dense(hf.nn.embedding_lookup(table, ids), size))
    with b.block("product"):
        x = sides[0] * sides[1]
    for k in range(2):
        with b.block(f"dense{k}"):
            x = b.dense(x, 192)
    with b.block("loss"):
        return b.cross_entropy(b.dense(x, 2, relu=False))


def two_towers(b: Blocks) -> Any:
    """A tower of four layers and one of two, which meet in a loss."""
    hf, ends = b.hf, []
    for name, layers, width in (("large", 4, 224), ("small", 2, 160)):
        x = b.feed(24, width)
        for k in range(layers):
            with b.block(f"{name}{k}"):
                x = b.dense(x, width)
        with b.block(f"{name}{layers - 1}"):
            ends.append(b.dense(x, 64, relu=False))
    with b.block("loss"):
        return hf.reduce_mean(hf.square(ends[0] * ends[1] - 1.0))


def pipeline(b: Blocks) -> Any:
    """Four stages of two layers; four micro-batches pass them one after the other."""
    hf, width, count = b.hf, 160, 4
    parts = [b.feed(8, width) for _ in range(count)]
    for stage in range(4):
        with b.block(f"stage{stage}"):
            weights = [b.weight(width, width, scale=0.1) for _ in range(2)]
            for w in weights:
                parts = [hf.tanh(b.product(x, w)) for x in parts]
            if stage == 3:
                return hf.add_n([hf.reduce_mean(hf.square(x - 0.5)) for x in parts]) / count


def memory(b: Blocks) -> Any:
    """Six layers whose variables fit no rank together."""
    x = b.feed(8, 384)
    for k in range(6):
        with b.block(f"dense{k}"):
            x = b.dense(x, 384)
    with b.block("loss"):
        return b.cross_entropy(b.dense(x, 10, relu=False))


BUILDERS: dict[str, tuple[Builder, str]] = {
    "mlp": (mlp, "adam"),
    "lenet": (lenet, "sgd"),
    "lstm": (lstm, "sgd"),
    "gpt": (gpt, "adam"),
    "mobilenet": (mobilenet, "momentum"),
    "unet": (unet, "momentum"),
    "dlrm": (dlrm, "sgd"),
    "tagger": (tagger, "sgd"),
    "rows": (rows, "sgd"),
    "two_towers": (two_towers, "momentum"),
    "pipeline": (pipeline, "sgd"),
    "memory": (memory, "adam"),
}


class Program:
    """A program in the default graph: `loss`, `train` and the `blocks` with their counts."""

    def __init__(self, name: str, tasks: Sequence[int] | None = None) -> None:
        import hpcflow as hf

        build, optimizer = BUILDERS[name]
        self.blocks = Blocks(hf, tasks)
        self.loss = build(self.blocks)
        self.train = OPTIMIZERS[optimizer](hf).minimize(self.loss)
