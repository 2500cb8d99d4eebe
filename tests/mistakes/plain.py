"""A correct script, for mistakes of the command line."""

import numpy as np

import hpcflow as hf

x = hf.placeholder("float32", [None, 2], name="x")
w = hf.Variable(hf.zeros([2, 1]), name="w")
loss = hf.reduce_mean(hf.square(hf.matmul(x, w) - 1))
train = hf.train.GradientDescentOptimizer(0.01).minimize(loss)
with hf.train.TrainingSession() as session:
    for _ in range(3):
        session.step(train, {x: np.ones((4, 2), "float32")})
print("trained")
