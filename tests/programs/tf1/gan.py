"""Two networks against each other, an optimizer and a list of variables for each."""

import numpy as np

import hpcflow as tf

rng = np.random.RandomState(6)


def gen(z, reuse=None):
    with tf.variable_scope("generator", reuse=reuse):
        h = tf.layers.dense(
            z,
            8,
            activation=tf.nn.leaky_relu,
            kernel_initializer=tf.constant_initializer(np.sin(np.arange(16)).reshape(2, 8)),
        )
        return tf.layers.dense(
            h,
            3,
            activation=tf.tanh,
            kernel_initializer=tf.constant_initializer(np.cos(np.arange(24)).reshape(8, 3)),
        )


def disc(x, reuse=None):
    with tf.variable_scope("discriminator", reuse=reuse):
        h = tf.layers.dense(
            x,
            8,
            activation=tf.nn.relu,
            kernel_initializer=tf.constant_initializer(np.cos(np.arange(24)).reshape(3, 8)),
            name="h",
        )
        l = tf.layers.dense(
            h,
            1,
            kernel_initializer=tf.constant_initializer(np.sin(np.arange(8)).reshape(8, 1)),
            name="o",
        )
        return (tf.nn.sigmoid(l), l)


X = tf.placeholder(tf.float32, shape=[None, 3])
Z = tf.placeholder(tf.float32, shape=[None, 2])
G = gen(Z)
dr, lr_ = disc(X)
df, lf = disc(G, reuse=True)
D_loss = tf.reduce_mean(
    tf.nn.sigmoid_cross_entropy_with_logits(logits=lr_, labels=tf.ones_like(lr_) * 0.9)
) + tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(logits=lf, labels=tf.zeros_like(lf)))
G_loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(logits=lf, labels=tf.ones_like(lf)))
tv = tf.trainable_variables()
dv = [v for v in tv if v.name.startswith("discriminator")]
gv = [v for v in tv if "generator" in v.name]
D = tf.train.AdamOptimizer(learning_rate=0.01, beta1=0.5).minimize(D_loss, var_list=dv)
Gs = tf.train.AdamOptimizer(0.01, beta1=0.5).minimize(G_loss, var_list=gv)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for _i in range(10):
        xb, zb = (rng.randn(8, 3), rng.uniform(-1.0, 1.0, [8, 2]))
        _, dl = sess.run([D, D_loss], {X: xb, Z: zb})
        _, gl = sess.run([Gs, G_loss], {Z: zb})
    print(len(dv), len(gv), np.round([dl, gl], 4).tolist())
