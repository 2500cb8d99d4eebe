"""Residual units, batch normalization by moments, decay of some weights."""

import numpy as np

import hpcflow as tf

rng = np.random.RandomState(14)


def cv(x, n, ch, st):
    with tf.variable_scope(n):
        k = tf.get_variable(
            "k",
            [3, 3, x.get_shape()[-1], ch],
            initializer=tf.constant_initializer(
                np.sin(np.arange(9 * int(x.get_shape()[-1]) * ch) * 0.7) * 0.2
            ),
        )
        return tf.nn.conv2d(x, k, [1, st, st, 1], padding="SAME")


def bn(x, n):
    with tf.variable_scope(n):
        c = [x.get_shape()[-1]]
        beta = tf.get_variable(
            "beta", c, tf.float32, initializer=tf.constant_initializer(0.0, tf.float32)
        )
        gamma = tf.get_variable(
            "gamma", c, tf.float32, initializer=tf.constant_initializer(1.0, tf.float32)
        )
        m, v = tf.nn.moments(x, [0, 1, 2], name="moments")
        y = tf.nn.batch_normalization(x, m, v, beta, gamma, 0.001)
        y.set_shape(x.get_shape())
        return y


x = tf.placeholder(tf.float32, [4, 8, 8, 3])
lab = tf.placeholder(tf.float32, [4, 2])
h = tf.nn.relu(bn(cv(x, "c0", 4, 1), "b0"))
for i, (ch, st) in enumerate([(4, 1), (8, 2)]):
    with tf.variable_scope("u%d" % i):
        o = h
        y = tf.nn.relu(bn(cv(h, "c1", ch, st), "b1"))
        y = bn(cv(y, "c2", ch, 1), "b2")
        if st != 1:
            o = tf.nn.avg_pool(o, [1, st, st, 1], [1, st, st, 1], "VALID")
            o = tf.pad(o, [[0, 0], [0, 0], [0, 0], [(ch - 4) // 2, (ch - 4) // 2]])
        h = tf.nn.relu(y + o)
h = tf.reduce_mean(h, [1, 2])
lg = tf.nn.xw_plus_b(
    h, tf.Variable(np.cos(np.arange(16)).reshape(8, 2).astype("f")), tf.Variable(tf.zeros([2]))
)
cost = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(logits=lg, labels=lab))
costs = [0.0002 * tf.nn.l2_loss(v) for v in tf.trainable_variables() if v.op.name.find("k") > 0]
cost += tf.add_n(costs)
tr = tf.train.MomentumOptimizer(tf.constant(0.1, tf.float32), 0.9)
gr = tf.gradients(cost, tf.trainable_variables())
op = tr.apply_gradients(zip(gr, tf.trainable_variables(), strict=False), name="train_step")
with tf.Session() as s:
    s.run(tf.global_variables_initializer())
    X = rng.randn(4, 8, 8, 3)
    for i in range(3):
        _, c = s.run([op, cost], {x: X, lab: np.eye(2)[[0, 1, 1, 0]]})
    print(round(float(c), 3))
