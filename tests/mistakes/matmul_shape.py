"""The inner sizes of a matrix product differ."""

import hpcflow as hf

x = hf.placeholder("float32", [None, 4], name="x")
w = hf.Variable(hf.zeros([5, 2]), name="w")
y = hf.matmul(x, w)  # the mistake
