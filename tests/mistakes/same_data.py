"""Each rank reads all data, unsharded."""

import numpy as np

import hpcflow as hf

samples = np.random.default_rng(0).uniform(size=(64, 2)).astype("float32")
x = hf.placeholder("float32", [None, 2], name="x")
w = hf.Variable(hf.zeros([2, 1]), name="w")
loss = hf.reduce_mean(hf.square(hf.matmul(x, w) - 1))
train = hf.train.GradientDescentOptimizer(0.01).minimize(loss)
with hf.train.TrainingSession() as session:
    for step in range(4):
        session.step(train, {x: samples[16 * step : 16 * step + 16]})  # the mistake
