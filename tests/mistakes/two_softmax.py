"""The loss applies softmax to what is already a softmax."""

import numpy as np

import hpcflow as hf

x = hf.placeholder("float32", [None, 4], name="x")
labels = hf.placeholder("int32", [None], name="labels")
output = hf.nn.softmax(hf.layers.dense(x, 3))
loss = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=output)  # the mistake
train = hf.train.GradientDescentOptimizer(0.1).minimize(hf.reduce_mean(loss))
with hf.train.TrainingSession() as session:
    session.step(train, {x: np.ones((2, 4), "float32"), labels: [0, 2]})
