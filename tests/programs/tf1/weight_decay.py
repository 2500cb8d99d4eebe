"""Regularizers of variable scopes, collections of losses, clipped gradients."""

import numpy as np

import hpcflow as tf

rng = np.random.RandomState(11)
x = tf.placeholder(tf.float32, [None, 5])
y = tf.placeholder(tf.float32, [None, 1])
reg = 0.01
with tf.variable_scope("m", regularizer=lambda w: reg * tf.nn.l2_loss(w)):
    w = tf.get_variable("w", [5, 3], initializer=tf.constant_initializer(np.sin(np.arange(15))))
    b = tf.get_variable("b", shape=[3], initializer=tf.zeros_initializer(), regularizer=None)
    w2 = tf.get_variable("w2", initializer=tf.ones([3, 1]))
pred = tf.matmul(tf.nn.tanh(tf.nn.xw_plus_b(x, w, b)), w2)
tf.add_to_collection("losses", tf.reduce_mean(tf.squared_difference(pred, y)))
tf.add_to_collection("losses", tf.add_n(tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)))
total = tf.add_n(tf.get_collection("losses"), name="total")
gs = tf.Variable(0, trainable=False, name="global_step")
lr = tf.train.polynomial_decay(0.1, gs, 10, 0.01)
opt = tf.train.AdagradOptimizer(lr)
gv = opt.compute_gradients(total)
capped = [(tf.clip_by_value(g, -1.0, 1.0), v) for g, v in gv if g is not None]
train = opt.apply_gradients(capped, global_step=gs)
X = rng.randn(10, 5)
Y = rng.randn(10, 1)
with tf.control_dependencies([train]):
    after = tf.no_op(name="train")
with tf.Session() as s:
    s.run(tf.global_variables_initializer())
    for _i in range(5):
        s.run(after, {x: X, y: Y})
    print(
        np.round(s.run([total, lr], {x: X, y: Y}), 5).tolist(),
        s.run(gs),
        len(tf.get_collection("losses")),
        sorted(v.name.split(":")[0] for v in tf.trainable_variables()),
    )
