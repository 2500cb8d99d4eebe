"""An operation is added inside the training loop."""

import hpcflow as hf

w = hf.Variable(hf.zeros([2]), name="w")
loss = hf.reduce_mean(hf.square(w - 1))
train = hf.train.GradientDescentOptimizer(0.1).minimize(loss)
with hf.train.TrainingSession() as session:
    session.step(train, {})
    print(session.run(hf.reduce_max(w)))  # the mistake
