"""The value of a tensor is asked by `np.asarray`."""

import numpy as np

import hpcflow as hf

x = hf.constant([1.0, 2.0])
y = np.asarray(x)  # the mistake
