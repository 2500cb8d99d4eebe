"""The networks as a user of hpcflow writes them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import hpcflow as hf
from nets import spec


def step(net: str, mode: str = "") -> Callable[[], float]:
    batches = spec.batches(net)
    first = next(batches)
    feeds = [hf.placeholder(hf.as_dtype(a.dtype), a.shape) for a in first]
    v = {name: hf.Variable(value, name=name) for name, value in spec.weights(net).items()}
    loss = LOSSES[net](v, *feeds)
    train = trained(loss, list(v.values()), *spec.OPTIMIZERS[net])
    session = hf.Session()
    if mode == "gpu" and session.list_devices()[0].device_type != "GPU":
        raise SystemExit("hpcflow sees no GPU")
    session.run(hf.global_variables_initializer())
    batches = itertools.chain([first], batches)

    def run() -> float:
        return float(session.run([loss, train], dict(zip(feeds, next(batches), strict=True)))[0])

    return run


def trained(loss: Any, variables: list[Any], kind: str, rate: float) -> Any:
    """The operation that trains; of "none" one that has all gradients made."""
    if kind == "none":
        return hf.group(*hf.gradients(loss, variables))
    makers = {
        "sgd": lambda: hf.train.GradientDescentOptimizer(rate),
        "momentum": lambda: hf.train.MomentumOptimizer(rate, 0.9),
        "adam": lambda: hf.train.AdamOptimizer(rate),
    }
    return makers[kind]().minimize(loss)


def cross_entropy(logits: Any, labels: Any) -> Any:
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return hf.reduce_mean(losses)


def dense(v: Any, i: int, x: Any) -> Any:
    return hf.nn.bias_add(hf.matmul(x, v[f"w{i}"]), v[f"b{i}"])


def mlp(v: Any, x: Any, y: Any) -> Any:
    for i in range(2):
        x = hf.nn.relu(dense(v, i, x))
    return cross_entropy(dense(v, 2, x), y)


def lenet(v: Any, x: Any, y: Any) -> Any:
    for i in range(2):
        x = hf.nn.relu(hf.nn.bias_add(hf.nn.conv2d(x, v[f"w{i}"], 1, "SAME"), v[f"b{i}"]))
        x = hf.nn.max_pool2d(x, 2, 2, "VALID")
    x = hf.nn.relu(dense(v, 2, hf.reshape(x, [-1, 3136])))
    return cross_entropy(dense(v, 3, x), y)


def alexnet(v: Any, x: Any, y: Any) -> Any:
    for i, (_, _, _, stride, around, pooled) in enumerate(spec.ALEXNET_CONV):
        pads = [[0, 0], [around, around], [around, around], [0, 0]]
        x = hf.nn.bias_add(hf.nn.conv2d(x, v[f"w{i}"], stride, pads), v[f"b{i}"])
        x = hf.nn.relu(x)
        x = hf.nn.max_pool2d(x, 3, 2, "VALID") if pooled else x
    x = hf.reshape(x, [-1, 9216])
    for i in (5, 6):
        x = hf.nn.relu(dense(v, i, x))
    return cross_entropy(dense(v, 7, x), y)


def resnet50(v: Any, x: Any, y: Any) -> Any:
    """In bfloat16, but for the weights, and the logits on."""
    filters = spec.resnet_filters()

    def conv(x: Any, name: str) -> Any:
        k, _, _, stride = filters[name]
        around = [k // 2, k // 2]
        filter, scale, shift = (
            hf.cast(v[name + part], hf.bfloat16) for part in ("", "/scale", "/shift")
        )
        x = hf.nn.conv2d(x, filter, stride, [[0, 0], around, around, [0, 0]])
        return hf.nn.fused_batch_norm(x, scale, shift)[0]

    x = hf.nn.relu(conv(hf.cast(x, hf.bfloat16), "stem"))
    x = hf.nn.max_pool2d(x, 3, 2, "SAME")
    for name in (name.removesuffix("/in") for name in filters if name.endswith("/in")):
        past = conv(x, f"{name}/past") if f"{name}/past" in filters else x
        h = hf.nn.relu(conv(hf.nn.relu(conv(x, f"{name}/in")), f"{name}/over"))
        x = hf.nn.relu(conv(h, f"{name}/out") + past)
    x = hf.cast(hf.reduce_mean(x, [1, 2]), hf.float32)
    return cross_entropy(hf.nn.bias_add(hf.matmul(x, v["w"]), v["b"]), y)


def hidden(v: Any, words: Any) -> Any:
    """The outputs of all steps, [steps x batch, hidden]."""
    inputs = hf.unstack(hf.nn.embedding_lookup(v["embedding"], words), spec.LSTM["steps"])
    h = c = hf.zeros([spec.LSTM["batch"], spec.LSTM["hidden"]])
    outputs = []
    for x in inputs:
        gates = hf.nn.bias_add(hf.matmul(hf.concat([x, h], 1), v["kernel"]), v["bias"])
        i, j, f, o = hf.split(gates, 4, axis=1)
        c = hf.sigmoid(f + 1.0) * c + hf.sigmoid(i) * hf.tanh(j)
        h = hf.sigmoid(o) * hf.tanh(c)
        outputs.append(h)
    return hf.concat(outputs, 0)


def lstm_full(v: Any, words: Any, following: Any) -> Any:
    logits = hf.matmul(hidden(v, words), v["softmax"], transpose_b=True)
    logits = hf.nn.bias_add(logits, v["softmax_bias"])
    return cross_entropy(logits, hf.reshape(following, [-1]))


def lstm_sampled(v: Any, words: Any, following: Any, candidates: Any) -> Any:
    labels = hf.reshape(following, [-1, 1])
    expected = [
        hf.exp(spec.log_expected(hf.cast(ids, hf.float32), hf)) for ids in (labels, candidates)
    ]
    losses = hf.nn.sampled_softmax_loss(
        v["softmax"],
        v["softmax_bias"],
        labels,
        hidden(v, words),
        spec.LSTM["sampled"],
        spec.LSTM["vocabulary"],
        sampled_values=(candidates, *expected),
    )
    return hf.reduce_mean(losses)


def word2vec(v: Any, center: Any, context: Any, negative: Any) -> Any:
    u = hf.nn.embedding_lookup(v["center"], center)
    near = hf.reduce_sum(u * hf.nn.embedding_lookup(v["context"], context), 1)
    far = hf.einsum("bd,bnd->bn", u, hf.nn.embedding_lookup(v["context"], negative))
    away = hf.reduce_sum(hf.log_sigmoid(-far), 1)
    return -(hf.reduce_mean(hf.log_sigmoid(near)) + hf.reduce_mean(away))


def transformer(v: Any, x: Any, y: Any) -> Any:
    b, t, d = x.shape
    heads = spec.TRANSFORMER["heads"]

    def normal(x: Any, i: int) -> Any:
        mean = hf.reduce_mean(x, -1, keepdims=True)
        variance = hf.reduce_mean(hf.square(x - mean), -1, keepdims=True)
        return (x - mean) * hf.rsqrt(variance + 1e-5) * v[f"scale{i}"] + v[f"shift{i}"]

    def dense(x: Any, name: str) -> Any:
        flat = hf.matmul(hf.reshape(x, [b * t, -1]), v[name])
        return hf.reshape(hf.nn.bias_add(flat, v[f"{name}_bias"]), [b, t, -1])

    parts = hf.split(dense(normal(x, 1), "qkv"), 3, axis=-1)
    q, k, w = (hf.transpose(hf.reshape(p, [b, t, heads, d // heads]), [0, 2, 1, 3]) for p in parts)
    scores = hf.nn.softmax(hf.matmul(q, k, transpose_b=True) * (d // heads) ** -0.5)
    mixed = hf.reshape(hf.transpose(hf.matmul(scores, w), [0, 2, 1, 3]), [b, t, d])
    h = x + dense(mixed, "out")
    h = h + dense(hf.nn.gelu(dense(normal(h, 2), "up"), approximate=True), "down")
    return hf.reduce_mean(hf.square(h - y))


LOSSES = {
    "mlp_sgd": mlp,
    "mlp_adam": mlp,
    "lenet": lenet,
    "alexnet": alexnet,
    "lstm_full": lstm_full,
    "lstm_sampled": lstm_sampled,
    "word2vec": word2vec,
    "transformer": transformer,
    "resnet50": resnet50,
}
