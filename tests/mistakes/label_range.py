"""A class number is not below the number of classes."""

import numpy as np

import hpcflow as hf

logits = hf.placeholder("float32", [None, 3], name="logits")
labels = hf.placeholder("int32", [None], name="labels")
loss = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
with hf.Session() as session:
    session.run(loss, {logits: np.zeros((2, 3), "float32"), labels: [1, 3]})  # the mistake
