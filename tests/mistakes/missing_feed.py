"""A placeholder gets no value."""

import hpcflow as hf

x = hf.placeholder("float32", [None, 4], name="x")
y = hf.reduce_sum(x)
with hf.Session() as session:
    print(session.run(y))  # the mistake
