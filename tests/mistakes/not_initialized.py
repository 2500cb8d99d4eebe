"""A variable is read before it has a value."""

import hpcflow as hf

w = hf.Variable(hf.zeros([2]), name="w")
y = 2 * w
with hf.Session() as session:
    print(session.run(y))  # the mistake
