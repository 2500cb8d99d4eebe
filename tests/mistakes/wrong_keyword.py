"""A keyword of Keras is given."""

import hpcflow as hf

x = hf.placeholder("float32", [None, 2], name="x")
y = hf.layers.dense(x, units=3, activaton="relu")  # the mistake
