"""A feed has another number of columns than its placeholder."""

import numpy as np

import hpcflow as hf

x = hf.placeholder("float32", [None, 4], name="x")
y = hf.reduce_sum(x)
with hf.Session() as session:
    print(session.run(y, {x: np.zeros((8, 3), "float32")}))  # the mistake
