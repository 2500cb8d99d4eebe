"""A loop goes over the rows of a tensor."""

import hpcflow as hf

x = hf.placeholder("float32", [3, 2], name="x")
for row in x:  # the mistake
    print(row)
