"""Trains a network in TensorFlow: as a TensorFlow 1 graph in a session, and as `tf.function`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from nets2.drivers import network

tf1 = tf.compat.v1
THREADS = int(os.environ.get("TF_NUM_INTRAOP_THREADS", "1"))
SLOTS = {"sgd": 0, "momentum": 1, "adam": 2}


def step(net: Any, mode: str, unknown: bool = False) -> Callable[[], float]:
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    return in_session(net, unknown) if mode == "graph" else as_function(net, unknown)


def in_session(net: Any, unknown: bool) -> Callable[[], float]:
    tf1.disable_eager_execution()
    trained, state = network.weights(net)
    v = {
        name: tf1.Variable(
            tf.zeros(value.shape, value.dtype),
            name=name,
            use_resource=True,
            trainable=name in trained,
        )
        for name, value in (trained | state).items()
    }
    feeds = [tf1.placeholder(dtype, shape) for dtype, shape in network.feed_shapes(net, unknown)]
    loss, updates = network.loss_and_updates(net.tensorflow_loss(tf, v, *feeds))
    assigned = [tf1.assign(v[name], value) for name, value in updates.items()]
    train, batches = tf.group(minimized(net, loss), *assigned), network.batches(net)
    config = tf1.ConfigProto(
        intra_op_parallelism_threads=THREADS, inter_op_parallelism_threads=THREADS
    )
    session = tf1.Session(config=config)
    session.run(tf1.global_variables_initializer())
    for name, value in (trained | state).items():
        v[name].load(value, session)

    def run() -> float:
        return float(session.run([train, loss], dict(zip(feeds, next(batches), strict=True)))[1])

    return run


def minimized(net: Any, loss: Any) -> Any:
    """The operation that changes the weights."""
    kind, rate = net.OPTIMIZER
    makers = {
        "sgd": lambda: tf1.train.GradientDescentOptimizer(rate),
        "momentum": lambda: tf1.train.MomentumOptimizer(rate, 0.9),
        "adam": lambda: tf1.train.AdamOptimizer(rate),
    }
    optimizer = makers[kind]()
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    return optimizer.apply_gradients(zip(clipped(net, gradients), variables, strict=True))


def clipped(net: Any, gradients: Any) -> Any:
    norm = network.clip_norm(net)
    return gradients if norm is None else tf.clip_by_global_norm(gradients, norm)[0]


def as_function(net: Any, unknown: bool) -> Callable[[], float]:
    trained, state = network.weights(net)
    variables = [tf.Variable(value, name=name) for name, value in trained.items()]
    v = dict(zip(trained, variables, strict=True))
    v |= {name: tf.Variable(value, trainable=False) for name, value in state.items()}
    kind, rate = net.OPTIMIZER
    slots = [[tf.Variable(tf.zeros_like(x)) for _ in range(SLOTS[kind])] for x in variables]
    count, batches = tf.Variable(0.0), network.batches(net)
    signature = [tf.TensorSpec(shape, dtype) for dtype, shape in network.feed_shapes(net, unknown)]

    @tf.function(input_signature=signature)
    def train(*batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss, updates = network.loss_and_updates(net.tensorflow_loss(tf, v, *batch))
        gradients = clipped(net, tape.gradient(loss, variables))
        count.assign_add(1.0)
        for x, g, own in zip(variables, gradients, slots, strict=True):
            update(kind, rate, x, g, own, count)
        for name, value in updates.items():
            v[name].assign(value)
        return loss

    return lambda: float(train(*[tf.constant(a) for a in next(batches)]).numpy())


def update(kind: str, rate: float, x: Any, g: Any, slots: list[Any], count: Any) -> None:
    """TensorFlow's own training operations, without Keras around them."""
    if kind == "sgd" and isinstance(g, tf.IndexedSlices):
        x.scatter_sub(tf.IndexedSlices(rate * g.values, g.indices))
        return
    g, step_size = tf.convert_to_tensor(g), tf.constant(rate, x.dtype)
    if kind == "sgd":
        tf.raw_ops.ResourceApplyGradientDescent(var=x.handle, alpha=step_size, delta=g)
    elif kind == "momentum":
        tf.raw_ops.ResourceApplyMomentum(
            var=x.handle, accum=slots[0].handle, lr=step_size, grad=g, momentum=0.9
        )
    else:
        tf.raw_ops.ResourceApplyAdam(
            var=x.handle,
            m=slots[0].handle,
            v=slots[1].handle,
            beta1_power=tf.cast(0.9**count, x.dtype),
            beta2_power=tf.cast(0.999**count, x.dtype),
            lr=step_size,
            beta1=0.9,
            beta2=0.999,
            epsilon=1e-8,
            grad=g,
        )
