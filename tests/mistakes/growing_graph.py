"""The loop adds operations in each step."""

import numpy as np

import hpcflow as hf

x = hf.placeholder("float32", [None], name="x")
with hf.Session() as session:
    for _ in range(120):
        session.run(hf.reduce_mean(x), {x: np.ones(4, "float32")})  # the mistake
