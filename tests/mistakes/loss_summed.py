"""The loss is summed over the batch, so the rate grows with the number of replicas."""

import numpy as np

import hpcflow as hf

x = hf.placeholder("float32", [None, 2], name="x")
w = hf.Variable(hf.zeros([2, 1]), name="w")
loss = hf.reduce_sum(hf.square(hf.matmul(x, w) - 1))  # the mistake
train = hf.train.GradientDescentOptimizer(0.01).minimize(loss)
with hf.train.TrainingSession() as session:
    for _ in range(3):
        session.step(train, {x: np.ones((4, 2), "float32")})
