"""The global batch cannot be divided among the ranks."""

import numpy as np

import hpcflow as hf

x = hf.placeholder("float32", [None, 2], name="x")
data = hf.data.Dataset({x: np.ones((30, 2), "float32")}, batch=1)  # the mistake
w = hf.Variable(hf.zeros([2, 1]), name="w")
loss = hf.reduce_mean(hf.square(hf.matmul(x, w) - 1))
train = hf.train.GradientDescentOptimizer(0.01).minimize(loss)
with hf.train.TrainingSession() as session:
    for batch in data.epochs(1):
        session.step(train, batch)
