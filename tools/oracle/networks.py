"""Functions of neural networks: convolutions, pools, normalization, losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tools.oracle.draw import INDICES, REALS, WIDE, Case, Draw, Text, written
from tools.oracle.parts import indices, sparse_tensor, unseeded

# -- neural networks


def images(
    d: Draw, channels: int, dims: int = 2, dtypes: Sequence[str] = WIDE, first: bool = False
) -> Text:
    spatial = tuple(d.whole(2, 6) for _ in range(dims))
    shape = (d.size(), channels, *spatial) if first else (d.size(), *spatial, channels)
    return d.array(shape, dtypes)


def convolution(d: Draw, f: str, dims: int = 2) -> Case:
    d.finite = True
    c, out = d.whole(1, 3), d.whole(1, 3)
    x = images(d, c, dims, ("float32", "float64"))
    dtype = d.inputs[0].value.dtype.name
    kernel = tuple(d.whole(1, 3) for _ in range(dims))
    inside = c + 1 if d.chance(d.wrong) else c
    w = d.array((*kernel, inside, out), dtype)
    stride = d.whole(1, 2)
    padding = d.one(["SAME", "VALID"])
    if f.endswith("conv1d"):
        return d.call(f, x, w, stride, padding)
    if f.endswith("convolution"):
        return d.call(f, x, w, padding, **d.some(strides=[[stride] * dims]))
    named = {"padding": padding}
    if dims == 2 and d.chance(0.3) and stride == 1:
        return d.call(f, x, w, strides=[1] * 4, **named, dilations=[1, 2, 2, 1])
    return d.call(f, x, w, strides=[1, *[stride] * dims, 1], **named)


def atrous(d: Draw, f: str) -> Case:
    d.finite = True
    c = d.whole(1, 2)
    x = images(d, c, 2, "float32" and ("float32",))
    w = d.array((d.whole(1, 3), d.whole(1, 3), c, d.whole(1, 2)), "float32")
    return d.call(f, x, w, d.whole(1, 2), d.one(["SAME", "VALID"]))


def depthwise(d: Draw, f: str) -> Case:
    d.finite = True
    c, m = d.whole(1, 3), d.whole(1, 2)
    x = images(d, c, 2, ("float32", "float64"))
    dtype = d.inputs[0].value.dtype.name
    w = d.array((d.whole(1, 3), d.whole(1, 3), c, m), dtype)
    args = [d.array((1, 1, c * m, d.whole(1, 3)), dtype)] if "separable" in f else []
    s = d.whole(1, 2)
    return d.call(f, x, w, *args, [1, s, s, 1], d.one(["SAME", "VALID"]))


def transposed(d: Draw, f: str, dims: int = 2) -> Case:
    d.finite = True
    c, out, stride, padding = d.whole(1, 2), d.whole(1, 2), d.whole(1, 2), d.one(["SAME", "VALID"])
    sizes = [d.whole(2, 4) for _ in range(dims)]
    kernel = [d.whole(1, 3) for _ in range(dims)]
    batch = d.whole(1, 2)
    pairs = zip(sizes, kernel, strict=True)
    full = [
        n * stride if padding == "SAME" else (n - 1) * stride + max(k, stride) for n, k in pairs
    ]
    if d.chance(d.wrong):
        full[0] += 3
    x = d.array((batch, *sizes, c), "float32")
    w = d.array((*kernel, out, c), "float32")
    strides: Any = stride if dims == 1 else [1, *[stride] * dims, 1]
    return d.call(f, x, w, d.sizes([batch, *full, out]), strides, padding=padding)


def backprop(d: Draw, f: str) -> Case:
    d.finite = True
    c, m, k, s, n = d.whole(1, 2), d.whole(1, 2), d.whole(1, 3), d.whole(1, 2), d.whole(3, 5)
    padding = d.one(["SAME", "VALID"])
    dims = 3 if "3d" in f else 2
    size = -(-n // s) if padding == "SAME" else -(-(n - k + 1) // s)
    deep = c * m if "depthwise" in f else m
    x, w = (2, *[n] * dims, c), (*[k] * dims, c, m)
    dy = (2, *[size] * dims, deep)
    strides = [1, *[s] * dims, 1]
    if "input" in f:
        return d.call(f, list(x), d.array(w, "float32"), d.array(dy, "float32"), strides, padding)
    return d.call(f, d.array(x, "float32"), list(w), d.array(dy, "float32"), strides, padding)


def pooling(d: Draw, f: str, dims: int = 2) -> Case:
    x = images(d, d.whole(1, 2), dims, ("float32", "float64"))
    k, padding = d.whole(1, 3), d.one(["SAME", "VALID"])
    s = d.whole(1, k if dims == 3 or f.endswith("nn.pool") else 3)  # others are TensorFlow's own
    if f.endswith("nn.pool"):
        return d.call(f, x, [k] * dims, d.one(["MAX", "AVG"]), padding, **d.some(strides=[[s, s]]))
    if dims == 1:
        return d.call(f, x, k, s, padding)
    return d.call(f, x, [1, *[k] * dims, 1], [1, *[s] * dims, 1], padding=padding)


def dilation(d: Draw, f: str) -> Case:
    d.finite = True
    c = d.whole(1, 2)
    x, w = d.array((1, 5, 5, c), "float32"), d.array((2, 2, c), "float32")
    s, r = d.whole(1, 2), d.whole(1, 2)
    return d.call(f, x, w, [1, s, s, 1], [1, r, r, 1], d.one(["SAME", "VALID"]))


def atrous_transposed(d: Draw, f: str) -> Case:
    d.finite = True
    c, out, rate = d.whole(1, 2), d.whole(1, 2), d.whole(1, 2)
    x, w = d.array((1, 4, 4, c), "float32"), d.array((2, 2, out, c), "float32")
    padding = d.one(["SAME", "VALID"])
    size = 4 if padding == "SAME" else 4 + rate
    return d.call(f, x, w, [1, size, size, out], rate, padding)


def sampler(d: Draw, f: str) -> Case:
    classes = d.array((d.whole(1, 3), 1), "int64", 0, 4)
    named = {"unigrams": [0.2] * 5} if "unigram" in f else {}
    args = [1, 3, True] if f.endswith("all_candidate_sampler") else [1, 3, d.chance(0.5), 5]
    return unseeded(d.call(f, classes, *args, **named))


def sampled_loss(d: Draw, f: str) -> Case:
    n = d.whole(1, 3)
    weights, biases = d.array((5, 2), "float32"), d.array((5,), "float32")
    labels, x = d.array((n, 1), "int64", 0, 4), d.array((n, 2), "float32")
    return unseeded(d.call(f, weights, biases, labels, x, 2, 5))


def accidental_hits(d: Draw, f: str) -> Case:
    classes = d.array((d.whole(1, 3), 2), "int64", 0, 4)
    return d.call(f, classes, d.array((4,), "int64", 0, 4), 2)


def bias_add(d: Draw, f: str) -> Case:
    shape, dtype = d.shape(2, 4), d.one(("float32", "float64", "int32"))
    named = d.some(data_format=["NHWC", "NCHW"]) if len(shape) == 4 else {}
    n = shape[1] if named.get("data_format") == "NCHW" else shape[-1]
    return d.call(f, d.array(shape, dtype), d.array((n + d.chance(d.wrong),), dtype), **named)


def softmax(d: Draw, f: str) -> Case:
    shape = d.shape(1)
    named = {"axis": d.axis(len(shape))} if d.chance(0.4) else {}
    return d.call(f, d.array(shape, REALS), **named)


def cross_entropy(d: Draw, f: str) -> Case:
    shape, dtype = d.shape(1, 3), d.one(WIDE)
    labels = (shape[0] + 1, *shape[1:]) if d.chance(d.wrong) else shape
    return d.call(f, labels=d.array(labels, dtype, 0, 1), logits=d.array(shape, dtype))


def sparse_cross_entropy(d: Draw, f: str) -> Case:
    shape = (*d.shape(0, 2), d.whole(1, 4))
    labels = indices(d, shape[:-1], shape[-1])
    return d.call(f, labels=labels, logits=d.array(shape, WIDE))


def weighted_cross_entropy(d: Draw, f: str) -> Case:
    shape = d.shape(0, 3)
    x = [d.array(shape, "float32", 0, 1), d.array(shape, "float32")]
    return d.call(f, *x, pos_weight=d.one([0.5, 2.0]))


def log_poisson(d: Draw, f: str) -> Case:
    shape = d.shape(0, 3)
    return d.call(
        f, *(d.array(shape, "float32", 0) for _ in range(2)), **d.some(compute_full_loss=[True])
    )


def in_top_k(d: Draw, f: str) -> Case:
    n, k = d.size(), d.whole(1, 5)
    return d.call(f, d.array((n, k), "float32"), d.array((n,), INDICES, 0, k - 1), d.whole(1, 3))


def moments(d: Draw, f: str) -> Case:
    shape = d.shape(1)
    axes = sorted({d.whole(0, len(shape) - 1) for _ in range(2)})
    x = d.array(shape, ("float32", "float64"))
    if "weighted" in f:
        w = d.array(d.one([shape, (shape[0], *[1] * (len(shape) - 1)), ()]), "float32", 0)
        d.inputs[0].value = d.inputs[0].value.astype("float32")
        return d.call(f, x, axes, w, **d.some(keep_dims=[True]))
    return d.call(f, x, axes, **d.some(keep_dims=[True]))


def normalize_moments(d: Draw, f: str) -> Case:
    shape = d.shape(0, 2)
    parts = [d.array((), "float32", 1, 5), *(d.array(shape, "float32", 0) for _ in range(2))]
    return d.call(f, *parts, d.one([None, 0.5]))


def batch_normalization(d: Draw, f: str) -> Case:
    shape, dtype = d.shape(2, 4), d.one(("float32", "float64"))
    n = shape[-1:]
    mean, variance = d.array(n, dtype), d.array(n, dtype, 0.1)
    offset, scale = (None if d.chance(0.3) else d.array(n, dtype) for _ in range(2))
    return d.call(f, d.array(shape, dtype), mean, variance, offset, scale, 0.001)


def old_batch_norm(d: Draw, f: str) -> Case:
    d.finite = True
    c = d.whole(1, 3)
    x = images(d, c, 2, ("float32",))
    parts = [d.array((c,), "float32", 0.1) for _ in range(4)]
    return d.call(f, x, *parts, 0.001, d.chance(0.5))


def fused_batch_norm(d: Draw, f: str) -> Case:
    d.finite = True
    c, training = d.whole(1, 3), d.chance(0.6)
    x = images(d, c, 2, ("float32",))
    parts = [d.array((c,), "float32", 0.1) for _ in range(2)]
    rest = {} if training else {k: d.array((c,), "float32", 0.1) for k in ("mean", "variance")}
    return d.call(f, x, *parts, **rest, is_training=training)


def l2_normalize(d: Draw, f: str) -> Case:
    d.finite = True
    shape = d.shape(1)
    return d.call(f, d.array(shape, WIDE), d.axis(len(shape)), **d.some(epsilon=[1e-3]))


def lrn(d: Draw, f: str) -> Case:
    d.finite = True
    named = d.some(depth_radius=[1, 2], bias=[2.0], alpha=[0.5], beta=[0.75])
    return d.call(f, images(d, d.whole(1, 5), 2, ("float32",)), **named)


def xw_plus_b(d: Draw, f: str) -> Case:
    m, k, n = d.size(), d.size(), d.size()
    return d.call(f, *(d.array(s, "float32") for s in ((m, k), (k, n), (n,))))


def dropout(d: Draw, f: str) -> Case:
    return unseeded(
        d.call(f, d.array(d.shape(1), WIDE), **d.one([{"rate": 0.5}, {"keep_prob": 0.5}]))
    )


def leaky(d: Draw, f: str) -> Case:
    return d.call(f, d.array(d.shape(), WIDE), **d.some(alpha=[0.1, 0.3]))


def crelu(d: Draw, f: str) -> Case:
    shape = d.shape(1)
    return d.call(f, d.array(shape, WIDE), **d.some(axis=[-1, 0]))


def embedding(d: Draw, f: str) -> Case:
    n, tail = d.whole(1, 5), d.shape(0, 2)
    table = d.array((n, *tail), ("float32", "float64"), way=d.one(["variable", "fed"]))
    named = {"max_norm": 1.0} if d.chance(0.2) and tail else {}
    return d.call(f, table, indices(d, d.shape(0, 2), n), **named)


def sparse_embedding(d: Draw, f: str) -> Case:
    table = d.array((5, 3), "float32", way="variable")
    ids = sparse_tensor(d, 2, "int64", 0, 4, full=True)
    return d.call(f, table, ids, None, combiner=d.one(["sum", "mean", "sqrtn"]))


def greedy_decoder(d: Draw, f: str) -> Case:
    t, b, c = d.whole(1, 4), d.whole(1, 2), d.whole(2, 4)
    lengths = d.array((b,), "int32", 1, t)
    named: dict[str, Any] = {"merge_repeated": d.chance(0.5)}
    if "beam" in f:
        named = {"beam_width": 4, "top_paths": 1, "merge_repeated": False}
    return d.call(f, d.array((t, b, c), "float32", 0), lengths, **named)


def ctc_loss(d: Draw, f: str) -> Case:
    t, b, c = 6, 2, d.whole(3, 5)
    labels = (
        "tf.SparseTensor(np.array([[0, 0], [0, 1], [1, 0]]), np.array([0, 1, 1], 'int32'), [2, 2])"
    )
    lengths = d.array((b,), "int32", 5, t)
    return d.call(f, Text(labels), d.array((t, b, c), "float32", 0), lengths)


def rnn(d: Draw, f: str) -> Case:
    b, t, n = d.whole(1, 3), d.whole(1, 4), 3
    cell = d.one(["BasicRNNCell", "GRUCell", "BasicLSTMCell", "LSTMCell"])
    x = d.array((b, t, n), "float32", 0, way="fed")
    d.inputs[-1].static = [None, None, n] if d.chance(0.5) else [b, t, n]
    named: dict[str, Any] = {"dtype": Text("tf.float32")}
    if d.chance(0.5):
        named["sequence_length"] = d.array((b,), "int32", 0, t)
    cells = [Text(f"tf.nn.rnn_cell.{cell}(2)") for _ in range(1 + ("bidirectional" in f))]
    call = written(f, *cells, x, **named)
    if "static" in f:
        d.inputs[0].static = [b, t, n]
        call = written(f, *cells, Text(f"tf.unstack({x}, axis=1)"), **named)
    return Case(f, f"with_constant_weights(lambda: {call})", d.inputs)


# -- losses


def loss(d: Draw, f: str, low: float = -3) -> Case:
    shape, dtype = d.shape(1, 3), d.one(("float32", "float32", "float64"))
    labels = (shape[0] + 1, *shape[1:]) if d.chance(d.wrong) else shape
    named: dict[str, Any] = d.some(**_reduction())
    if "cosine" in f:
        named["axis"] = d.one([-1, len(shape) - 1])
    return d.call(
        f,
        d.array(labels, dtype, low, 1),
        d.array(shape, dtype, low, 1),
        **_weights(d, shape),
        **named,
    )


def _reduction() -> dict[str, Any]:
    names = ("NONE", "SUM", "MEAN", "SUM_OVER_BATCH_SIZE", "SUM_BY_NONZERO_WEIGHTS")
    return {"reduction": [Text(f"tf.losses.Reduction.{n}") for n in names]}


def _weights(d: Draw, shape: Sequence[int]) -> dict[str, Any]:
    chosen = d.one(["none", "number", "same", "rows", "wrong"])
    if chosen in ("same", "rows"):
        return {
            "weights": d.array(
                tuple(shape) if chosen == "same" else (shape[0], *[1] * (len(shape) - 1)),
                "float32",
                0,
            )
        }
    return {"weights": 0.5} if chosen == "number" else {}


def sigmoid_loss(d: Draw, f: str) -> Case:
    shape = d.shape(1, 3) if "sigmoid" in f else d.shape(2, 3)
    named = d.some(label_smoothing=[0.1], **_reduction())
    labels = d.array(shape, ("float32", "int32"), 0, 1)
    weights = _weights(d, shape if "sigmoid" in f else shape[:-1])
    return d.call(f, labels, d.array(shape, "float32"), **weights, **named)


def sparse_softmax_loss(d: Draw, f: str) -> Case:
    n, k = d.size(), d.whole(1, 4)
    return d.call(
        f,
        indices(d, (n,), k),
        d.array((n, k), "float32"),
        **_weights(d, (n,)),
        **d.some(**_reduction()),
    )


def weighted_loss(d: Draw, f: str) -> Case:
    shape = d.shape(1, 3)
    return d.call(
        f, d.array(shape, ("float32", "float64")), **_weights(d, shape), **d.some(**_reduction())
    )
