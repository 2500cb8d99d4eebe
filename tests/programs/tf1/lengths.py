"""GRU cells by dynamic_rnn over sequences of given lengths, a decaying rate."""

import numpy as np

import hpcflow as tf

rng = np.random.RandomState(3)
x = tf.placeholder(tf.float32, [None, None, 3])
seq = tf.placeholder(tf.int32, [None])
y = tf.placeholder(tf.int64, [None])
with tf.variable_scope("rnn", initializer=tf.constant_initializer(0.1)):
    cell = tf.nn.rnn_cell.GRUCell(4)
    cell = tf.nn.rnn_cell.DropoutWrapper(cell, output_keep_prob=1.0)
    outs, st = tf.nn.dynamic_rnn(cell, x, sequence_length=seq, dtype=tf.float32)
    bs = tf.shape(outs)[0]
    idx = tf.range(0, bs) * tf.shape(outs)[1] + (seq - 1)
    last = tf.gather(tf.reshape(outs, [-1, 4]), idx)
    W = tf.get_variable("W", [4, 2], initializer=tf.constant_initializer(np.arange(8) / 8.0))
    logits = tf.matmul(last, W)
loss = tf.losses.sparse_softmax_cross_entropy(labels=y, logits=logits)
gs = tf.train.get_or_create_global_step()
lr = tf.train.exponential_decay(0.1, gs, 2, 0.5, staircase=True)
op = tf.train.RMSPropOptimizer(lr).minimize(loss, global_step=gs)
X = rng.randn(4, 6, 3)
with tf.Session() as s:
    s.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    for _i in range(6):
        _, l, g, r = s.run([op, loss, gs, lr], {x: X, seq: [6, 3, 1, 4], y: [0, 1, 1, 0]})
    print(
        np.round(l, 4),
        g,
        r,
        np.allclose(s.run(last - st, {x: X, seq: [6, 3, 1, 4]}), 0, atol=1e-06),
    )
