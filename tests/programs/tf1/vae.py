"""A variational autoencoder with fed noise."""

import numpy as np

import hpcflow as tf

rng = np.random.RandomState(7)


def init(*sh):
    return rng.uniform(-0.3, 0.3, sh).astype(np.float32)


x = tf.placeholder(tf.float32, [None, 6])
eps = tf.placeholder(tf.float32, [None, 2])
w = {
    "h": tf.Variable(init(6, 5)),
    "m": tf.Variable(init(5, 2)),
    "s": tf.Variable(init(5, 2)),
    "d": tf.Variable(init(2, 5)),
    "o": tf.Variable(init(5, 6)),
}
h = tf.nn.softplus(tf.matmul(x, w["h"]))
mu = tf.matmul(h, w["m"])
ls = tf.matmul(h, w["s"])
z = tf.add(mu, tf.multiply(tf.sqrt(tf.exp(ls)), eps))
hd = tf.nn.softplus(tf.matmul(z, w["d"]))
rec = tf.nn.sigmoid(tf.matmul(hd, w["o"]))
rl = -tf.reduce_sum(x * tf.log(1e-10 + rec) + (1 - x) * tf.log(1e-10 + 1 - rec), 1)
kl = -0.5 * tf.reduce_sum(1 + ls - tf.square(mu) - tf.exp(ls), 1)
cost = tf.reduce_mean(rl + kl)
opt = tf.train.AdamOptimizer(learning_rate=0.01).minimize(cost)
X = (rng.rand(16, 6) > 0.5).astype(float)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for _i in range(20):
        _, c = sess.run((opt, cost), feed_dict={x: X, eps: rng.randn(16, 2)})
    print(round(float(c), 4))
    print(np.round(sess.run(mu, {x: X[:1]}), 4).tolist())
