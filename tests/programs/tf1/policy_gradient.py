"""Policy gradients with discounted rewards."""

import numpy as np

import hpcflow as tf

np.random.seed(1)
W0 = np.random.randn(4, 6) * 0.3
W1 = np.random.randn(6, 2) * 0.3
obs = tf.placeholder(tf.float32, [None, 4], name="observations")
acts = tf.placeholder(tf.int32, [None], name="actions_num")
vt = tf.placeholder(tf.float32, [None], name="actions_value")
layer = tf.layers.dense(
    inputs=obs,
    units=6,
    activation=tf.nn.tanh,
    kernel_initializer=tf.constant_initializer(W0),
    bias_initializer=tf.constant_initializer(0.1),
    name="fc1",
)
all_act = tf.layers.dense(
    inputs=layer,
    units=2,
    activation=None,
    kernel_initializer=tf.constant_initializer(W1),
    bias_initializer=tf.constant_initializer(0.1),
    name="fc2",
)
prob = tf.nn.softmax(all_act, name="act_prob")
neg = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=all_act, labels=acts)
loss = tf.reduce_mean(neg * vt)
train = tf.train.AdamOptimizer(0.02).minimize(loss)
sess = tf.Session()
sess.run(tf.global_variables_initializer())
ep_obs, ep_as, ep_rs = ([], [], [])
o = np.random.randn(4)
for t in range(10):
    p = sess.run(prob, feed_dict={obs: o[np.newaxis, :]})
    a = int(p.ravel()[0] < 0.5)
    ep_obs.append(o)
    ep_as.append(a)
    ep_rs.append(1.0)
    o = np.random.randn(4)
disc = np.zeros_like(ep_rs)
run = 0
for t in reversed(range(len(ep_rs))):
    run = run * 0.99 + ep_rs[t]
    disc[t] = run
disc -= np.mean(disc)
disc /= np.std(disc)
for _i in range(5):
    _, l = sess.run(
        [train, loss], feed_dict={obs: np.vstack(ep_obs), acts: np.array(ep_as), vt: disc}
    )
print(ep_as, np.round(l, 5))
sess.close()
