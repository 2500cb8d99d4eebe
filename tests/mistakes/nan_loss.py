"""The loss becomes NaN."""

import numpy as np

import hpcflow as hf

x = hf.placeholder("float32", [None], name="x")
w = hf.Variable(hf.zeros([]), name="w")
loss = hf.reduce_mean(hf.log(x) * (w - 1))
train = hf.train.GradientDescentOptimizer(0.1).minimize(loss)
with hf.train.TrainingSession() as session:
    for _ in range(3):
        print(session.step([train, loss], {x: np.array([-1.0, 1.0], "float32")}))  # the mistake
