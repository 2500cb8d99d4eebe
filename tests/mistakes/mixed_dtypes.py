"""A tensor of integers is multiplied by one of floats."""

import hpcflow as hf

labels = hf.placeholder("int32", [None], name="labels")
weights = hf.placeholder("float32", [None], name="weights")
y = labels * weights  # the mistake
