"""A greedy decoder: while_loop with a TensorArray, and its gradient."""

import numpy as np

import hpcflow as tf

V, H, B, M = (5, 3, 2, 6)
emb = tf.constant(np.linspace(-1, 1, V * H).reshape(V, H), dtype=tf.float32)
W = tf.constant(np.cos(np.arange(H * V)).reshape(H, V), tf.float32)
U = tf.Variable(np.eye(H, dtype=np.float32) * 0.5)


def body(t, tok, h, ta, done):
    e = tf.nn.embedding_lookup(emb, tok)
    h = tf.tanh(tf.matmul(h, U) + e)
    logits = tf.matmul(h, W)
    tok = tf.argmax(logits, axis=1, output_type=tf.int32)
    tok = tf.where(done, tf.zeros_like(tok), tok)
    ta = ta.write(t, tok)
    done = tf.logical_or(done, tf.equal(tok, 4))
    return (t + 1, tok, h, ta, done)


def cond(t, tok, h, ta, done):
    return tf.logical_and(t < M, tf.logical_not(tf.reduce_all(done)))


t, tok, h, ta, done = tf.while_loop(
    cond,
    body,
    [
        tf.constant(0),
        tf.constant([1, 2]),
        tf.zeros([B, H]),
        tf.TensorArray(tf.int32, size=0, dynamic_size=True),
        tf.zeros([B], tf.bool),
    ],
)
out = tf.transpose(ta.stack())
loss = tf.reduce_sum(h * h)
g = tf.gradients(loss, U)[0]
with tf.Session() as s:
    s.run(tf.global_variables_initializer())
    o, n, gv = s.run([out, t, g])
    print(o.tolist(), n, np.round(gv, 4).tolist())
