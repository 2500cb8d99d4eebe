"""The loss does not use a variable that is to be trained."""

import hpcflow as hf

w = hf.Variable(hf.zeros([2]), name="w")
unused = hf.Variable(hf.zeros([3]), name="unused")  # the mistake
loss = hf.reduce_mean(hf.square(w - 1))
train = hf.train.GradientDescentOptimizer(0.1).minimize(loss)
with hf.train.TrainingSession() as session:
    session.step(train, {})
