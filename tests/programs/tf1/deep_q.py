"""Deep Q-learning: a target network set by assign, batches of object arrays."""

import random
from collections import deque

import numpy as np

import hpcflow as tf

rng = np.random.RandomState(4)


def net(scope, x):
    with tf.variable_scope(scope):
        w1 = tf.get_variable(
            "w1",
            [4, 6],
            initializer=tf.constant_initializer(rng.randn(4, 6) * 0.3),
            collections=[scope + "_params", tf.GraphKeys.GLOBAL_VARIABLES],
        )
        b1 = tf.get_variable(
            "b1",
            [1, 6],
            initializer=tf.constant_initializer(0.1),
            collections=[scope + "_params", tf.GraphKeys.GLOBAL_VARIABLES],
        )
        l1 = tf.nn.relu(tf.matmul(x, w1) + b1)
        w2 = tf.get_variable(
            "w2",
            [6, 2],
            initializer=tf.constant_initializer(rng.randn(6, 2) * 0.3),
            collections=[scope + "_params", tf.GraphKeys.GLOBAL_VARIABLES],
        )
        return tf.matmul(l1, w2)


s = tf.placeholder(tf.float32, [None, 4], name="s")
s_ = tf.placeholder(tf.float32, [None, 4], name="s_")
a = tf.placeholder(tf.int32, [None])
r = tf.placeholder(tf.float32, [None])
d = tf.placeholder(tf.float32, [None])
q = net("eval_net", s)
qn = net("target_net", s_)
e_params = tf.get_collection("eval_net_params")
t_params = tf.get_collection("target_net_params")
replace = [tf.assign(t, e) for t, e in zip(t_params, e_params, strict=False)]
target = tf.stop_gradient(r + (1 - d) * 0.9 * tf.reduce_max(qn, axis=1))
a_ind = tf.stack([tf.range(tf.shape(a)[0], dtype=tf.int32), a], axis=1)
qa = tf.gather_nd(params=q, indices=a_ind)
loss = tf.reduce_mean(tf.squared_difference(target, qa, name="TD"))
train = tf.train.RMSPropOptimizer(0.01, 0.99, 0.0, 1e-06).minimize(loss, var_list=e_params)
mem = deque(maxlen=50)
for i in range(40):
    mem.append((rng.randn(4), rng.randint(2), rng.rand(), rng.randn(4), float(i % 7 == 0)))
sess = tf.Session()
sess.run(tf.global_variables_initializer())
random.seed(0)
for i in range(12):
    if i % 5 == 0:
        sess.run(replace)
    batch = random.sample(list(mem), 8)
    arr = np.array(batch, dtype=object)
    _, l = sess.run(
        [train, loss],
        {s: np.stack(arr[:, 0]), a: arr[:, 1], r: arr[:, 2], s_: np.stack(arr[:, 3]), d: arr[:, 4]},
    )
acts = sess.run(q, {s: np.array([1.0, 0, 0, 1])[np.newaxis, :]})
print(np.round(l, 5), np.argmax(acts), np.round(acts, 4).tolist())
