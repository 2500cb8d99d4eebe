"""The networks in TensorFlow: as a TensorFlow 1 graph in a session, and as `tf.function`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from nets import spec

tf1 = tf.compat.v1
THREADS = int(os.environ.get("TF_NUM_INTRAOP_THREADS", "1"))


def step(net: str, mode: str) -> Callable[[], float]:
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    return in_session(net) if mode == "graph" else as_function(net)


def in_session(net: str) -> Callable[[], float]:
    tf1.disable_eager_execution()
    values, batches = spec.weights(net), spec.batches(net)
    v = {
        name: tf1.Variable(tf.zeros(value.shape), name=name, use_resource=True)
        for name, value in values.items()
    }
    sizes = spec.batches(net)
    feeds = [tf1.placeholder(tf.as_dtype(a.dtype), a.shape) for a in next(sizes)]
    loss = LOSSES[net](v, *feeds)
    kind, rate = spec.OPTIMIZERS[net]
    makers = {
        "none": lambda: used(tf1.gradients(loss, list(v.values()))),
        "sgd": lambda: tf1.train.GradientDescentOptimizer(rate).minimize(loss),
        "momentum": lambda: tf1.train.MomentumOptimizer(rate, 0.9).minimize(loss),
        "adam": lambda: tf1.train.AdamOptimizer(rate).minimize(loss),
    }
    train = makers[kind]()
    session = session_of_threads()
    session.run(tf1.global_variables_initializer())
    for name, value in values.items():
        v[name].load(value, session)

    def run() -> float:
        return float(session.run([train, loss], dict(zip(feeds, next(batches), strict=True)))[1])

    return run


def session_of_threads() -> Any:
    """A session with as many threads as TF_NUM_INTRAOP_THREADS says."""
    config = tf1.ConfigProto(
        intra_op_parallelism_threads=THREADS, inter_op_parallelism_threads=THREADS
    )
    return tf1.Session(config=config)


def as_function(net: str) -> Callable[[], float]:
    v = {name: tf.Variable(value, name=name) for name, value in spec.weights(net).items()}
    variables, batches = list(v.values()), spec.batches(net)
    kind, rate = spec.OPTIMIZERS[net]
    slots = [[tf.Variable(tf.zeros_like(x)) for _ in range(SLOTS[kind])] for x in variables]
    count = tf.Variable(0.0)

    @tf.function
    def train(*batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = LOSSES[net](v, *batch)
        gradients = tape.gradient(loss, variables)
        if kind == "none":
            return loss + 0.0 * used(gradients)
        count.assign_add(1.0)
        for x, g, own in zip(variables, gradients, slots, strict=True):
            update(kind, rate, x, g, own, count)
        return loss

    def run() -> float:
        return float(train(*[tf.constant(a) for a in next(batches)]).numpy())

    return run


SLOTS = {"none": 0, "sgd": 0, "momentum": 1, "adam": 2}


def update(kind: str, rate: float, x: Any, g: Any, slots: list[Any], count: Any) -> None:
    """TensorFlow's own training operations, without Keras around them."""
    if isinstance(g, tf.IndexedSlices):
        x.scatter_sub(tf.IndexedSlices(rate * g.values, g.indices))
    elif kind == "sgd":
        tf.raw_ops.ResourceApplyGradientDescent(var=x.handle, alpha=rate, delta=g)
    elif kind == "momentum":
        tf.raw_ops.ResourceApplyMomentum(
            var=x.handle, accum=slots[0].handle, lr=rate, grad=g, momentum=0.9
        )
    else:
        tf.raw_ops.ResourceApplyAdam(
            var=x.handle,
            m=slots[0].handle,
            v=slots[1].handle,
            beta1_power=0.9**count,
            beta2_power=0.999**count,
            lr=rate,
            beta1=0.9,
            beta2=0.999,
            epsilon=1e-8,
            grad=g,
        )


def used(gradients: list[Any]) -> Any:
    """A number that needs each gradient: those that only a group names are never made."""
    return tf.add_n([tf.reshape(g, [-1])[0] for g in gradients])


def cross_entropy(logits: Any, y: Any) -> Any:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return tf.reduce_mean(losses)


def dense(v: Any, i: int, x: Any) -> Any:
    return tf.matmul(x, v[f"w{i}"]) + v[f"b{i}"]


def mlp(v: Any, x: Any, y: Any) -> Any:
    for i in range(2):
        x = tf.nn.relu(dense(v, i, x))
    return cross_entropy(dense(v, 2, x), y)


def lenet(v: Any, x: Any, y: Any) -> Any:
    for i in range(2):
        x = tf.nn.relu(tf.nn.conv2d(x, v[f"w{i}"], 1, "SAME") + v[f"b{i}"])
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    x = tf.nn.relu(dense(v, 2, tf.reshape(x, [-1, 3136])))
    return cross_entropy(dense(v, 3, x), y)


def alexnet(v: Any, x: Any, y: Any) -> Any:
    for i, (_, _, _, stride, around, pooled) in enumerate(spec.ALEXNET_CONV):
        pads = [[0, 0], [around, around], [around, around], [0, 0]]
        x = tf.nn.relu(tf.nn.conv2d(x, v[f"w{i}"], stride, pads) + v[f"b{i}"])
        x = tf.nn.max_pool2d(x, 3, 2, "VALID") if pooled else x
    x = tf.reshape(x, [-1, 9216])
    for i in (5, 6):
        x = tf.nn.relu(dense(v, i, x))
    return cross_entropy(dense(v, 7, x), y)


def hidden(v: Any, words: Any) -> Any:
    """The outputs of all steps, [steps x batch, hidden]; unrolled, which is faster than a loop."""
    inputs = tf.unstack(tf.nn.embedding_lookup(v["embedding"], words), spec.LSTM["steps"])
    h = c = tf.zeros([spec.LSTM["batch"], spec.LSTM["hidden"]])
    kernel, bias = tf.convert_to_tensor(v["kernel"]), tf.convert_to_tensor(v["bias"])
    outputs = []
    for x in inputs:
        i, j, f, o = tf.split(tf.matmul(tf.concat([x, h], 1), kernel) + bias, 4, axis=1)
        c = tf.sigmoid(f + 1.0) * c + tf.sigmoid(i) * tf.tanh(j)
        h = tf.sigmoid(o) * tf.tanh(c)
        outputs.append(h)
    return tf.concat(outputs, 0)


def lstm_full(v: Any, words: Any, following: Any) -> Any:
    logits = tf.matmul(hidden(v, words), v["softmax"], transpose_b=True) + v["softmax_bias"]
    return cross_entropy(logits, tf.reshape(following, [-1]))


def lstm_sampled(v: Any, words: Any, following: Any, candidates: Any) -> Any:
    labels = tf.cast(tf.reshape(following, [-1, 1]), tf.int64)
    candidates = tf.cast(candidates, tf.int64)
    expected = [
        tf.exp(spec.log_expected(tf.cast(ids, tf.float32), tf.math)) for ids in (labels, candidates)
    ]
    losses = tf.nn.sampled_softmax_loss(
        v["softmax"],
        v["softmax_bias"],
        labels,
        hidden(v, words),
        spec.LSTM["sampled"],
        spec.LSTM["vocabulary"],
        sampled_values=(candidates, *expected),
    )
    return tf.reduce_mean(losses)


def word2vec(v: Any, center: Any, context: Any, negative: Any) -> Any:
    u = tf.nn.embedding_lookup(v["center"], center)
    near = tf.reduce_sum(u * tf.nn.embedding_lookup(v["context"], context), 1)
    far = tf.einsum("bd,bnd->bn", u, tf.nn.embedding_lookup(v["context"], negative))
    away = tf.reduce_sum(tf.math.log_sigmoid(-far), 1)
    return -(tf.reduce_mean(tf.math.log_sigmoid(near)) + tf.reduce_mean(away))


def transformer(v: Any, x: Any, y: Any) -> Any:
    b, t, d = x.shape
    heads = spec.TRANSFORMER["heads"]

    def normal(x: Any, i: int) -> Any:
        mean = tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(x - mean), -1, keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-5) * v[f"scale{i}"] + v[f"shift{i}"]

    def dense(x: Any, name: str) -> Any:
        flat = tf.matmul(tf.reshape(x, [b * t, -1]), v[name]) + v[f"{name}_bias"]
        return tf.reshape(flat, [b, t, -1])

    parts = tf.split(dense(normal(x, 1), "qkv"), 3, axis=-1)
    q, k, w = (tf.transpose(tf.reshape(p, [b, t, heads, d // heads]), [0, 2, 1, 3]) for p in parts)
    scores = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * (d // heads) ** -0.5)
    mixed = tf.reshape(tf.transpose(tf.matmul(scores, w), [0, 2, 1, 3]), [b, t, d])
    h = x + dense(mixed, "out")
    h = h + dense(tf.nn.gelu(dense(normal(h, 2), "up"), approximate=True), "down")
    return tf.reduce_mean(tf.square(h - y))


LOSSES = {
    "mlp_sgd": mlp,
    "mlp_adam": mlp,
    "lenet": lenet,
    "alexnet": alexnet,
    "lstm_full": lstm_full,
    "lstm_sampled": lstm_sampled,
    "word2vec": word2vec,
    "transformer": transformer,
}
