"""A function of the module math is called on a tensor."""

import math

import hpcflow as hf

x = hf.placeholder("float32", [], name="x")
y = math.sqrt(x)  # the mistake
