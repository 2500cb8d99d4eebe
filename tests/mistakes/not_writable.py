"""The folder of checkpoints cannot be made."""

import hpcflow as hf

w = hf.Variable(hf.zeros([2]), name="w")
train = hf.train.GradientDescentOptimizer(0.1).minimize(hf.reduce_mean(hf.square(w - 1)))
with hf.train.TrainingSession(checkpoints="/proc/saved") as session:  # the mistake
    session.step(train, {})
