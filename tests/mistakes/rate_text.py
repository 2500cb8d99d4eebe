"""The learning rate is text, as read from the command line."""

import hpcflow as hf

w = hf.Variable(hf.zeros([2]), name="w")
loss = hf.reduce_mean(hf.square(w - 1))
train = hf.train.AdamOptimizer(learning_rate="0.1").minimize(loss)  # the mistake
with hf.train.TrainingSession() as session:
    session.step(train, {})
