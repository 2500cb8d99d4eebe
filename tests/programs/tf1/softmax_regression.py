"""Softmax regression by gradient descent, in an interactive session."""

import numpy as np

import hpcflow as tf

rng = np.random.RandomState(0)
xs = rng.randn(64, 784)
ys = np.eye(10)[rng.randint(0, 10, 64)]
x = tf.placeholder(tf.float32, [None, 784])
W = tf.Variable(tf.zeros([784, 10]))
b = tf.Variable(tf.zeros([10]))
y = tf.nn.softmax(tf.matmul(x, W) + b)
y_ = tf.placeholder("float", [None, 10])
cross_entropy = tf.reduce_mean(-tf.reduce_sum(y_ * tf.log(y), reduction_indices=[1]))
train_step = tf.train.GradientDescentOptimizer(0.05).minimize(cross_entropy)
sess = tf.InteractiveSession()
tf.global_variables_initializer().run()
for _ in range(5):
    sess.run(train_step, feed_dict={x: xs, y_: ys})
correct = tf.equal(tf.argmax(y, 1), tf.argmax(y_, 1))
acc = tf.reduce_mean(tf.cast(correct, "float"))
print(acc.eval({x: xs, y_: ys}), round(float(cross_entropy.eval({x: xs, y_: ys})), 4))
sess.close()
