"""A reduction of NumPy is called on a tensor."""

import numpy as np

import hpcflow as hf

x = hf.placeholder("float32", [None], name="x")
y = np.mean(x)  # the mistake
