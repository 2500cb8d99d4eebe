"""The loss depends on no variable."""

import hpcflow as hf

x = hf.placeholder("float32", [None, 2], name="x")
w = hf.Variable(hf.zeros([2]), name="w")
loss = hf.reduce_mean(hf.square(x - 1))
train = hf.train.GradientDescentOptimizer(0.1).minimize(loss)  # the mistake
