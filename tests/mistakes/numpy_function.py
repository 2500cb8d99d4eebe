"""A function of NumPy is called on a tensor."""

import numpy as np

import hpcflow as hf

x = hf.placeholder("float32", [None], name="x")
y = np.sqrt(x)  # the mistake
