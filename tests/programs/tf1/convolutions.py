"""Two layers of convolution and pooling, dropout by a fed rate, Adam."""

import numpy as np

import hpcflow as tf

rng = np.random.RandomState(1)


def weight(shape):
    return tf.Variable(rng.randn(*shape).astype("f") * 0.1)


def bias(shape):
    return tf.Variable(tf.constant(0.1, shape=shape))


def conv2d(x, W):
    return tf.nn.conv2d(x, W, strides=[1, 1, 1, 1], padding="SAME")


def pool(x):
    return tf.nn.max_pool(x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")


x = tf.placeholder(tf.float32, shape=[None, 64])
y_ = tf.placeholder(tf.float32, shape=[None, 3])
keep_prob = tf.placeholder(tf.float32)
h = tf.reshape(x, [-1, 8, 8, 1])
h = pool(tf.nn.relu(conv2d(h, weight([3, 3, 1, 4])) + bias([4])))
h = pool(tf.nn.relu(conv2d(h, weight([3, 3, 4, 8])) + bias([8])))
flat = tf.reshape(h, [-1, 2 * 2 * 8])
fc = tf.nn.relu(tf.matmul(flat, weight([32, 16])) + bias([16]))
drop = tf.nn.dropout(fc, keep_prob)
out = tf.matmul(drop, weight([16, 3])) + bias([3])
loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=y_, logits=out))
step = tf.train.AdamOptimizer(0.01).minimize(loss)
X = rng.rand(20, 64)
Y = np.eye(3)[rng.randint(0, 3, 20)]
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for _i in range(10):
        step.run(feed_dict={x: X, y_: Y, keep_prob: 1.0})
    print(np.round(loss.eval({x: X, y_: Y, keep_prob: 1.0}), 4))
