"""Class numbers are given where one-hot rows are expected."""

import hpcflow as hf

logits = hf.placeholder("float32", [None, 10], name="logits")
labels = hf.placeholder("int32", [None], name="labels")
loss = hf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits)  # the mistake
