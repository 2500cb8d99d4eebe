"""The ranks build different graphs, by a draw without a seed."""

import os

import hpcflow as hf

width = 3 + int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
w = hf.Variable(hf.zeros([width]), name="w")  # the mistake
loss = hf.reduce_mean(hf.square(w - 1))
train = hf.train.GradientDescentOptimizer(0.1).minimize(loss)
with hf.train.TrainingSession() as session:
    session.step(train, {})
