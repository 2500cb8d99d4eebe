"""A session of one graph runs a tensor of another."""

import hpcflow as hf

with hf.Graph().as_default():
    x = hf.constant([1.0, 2.0])
with hf.Session() as session:
    print(session.run(x))  # the mistake
