"""A tensor is the condition of `if`."""

import hpcflow as hf

x = hf.placeholder("float32", [], name="x")
if x > 0:  # the mistake
    y = x
