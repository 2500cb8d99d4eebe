"""Floats are fed to a placeholder of integers."""

import numpy as np

import hpcflow as hf

x = hf.placeholder("int32", [None], name="labels")
y = hf.reduce_sum(x)
with hf.Session() as session:
    print(session.run(y, {x: np.array([0.5, 1.5])}))  # the mistake
