"""A function is misspelt."""

import hpcflow as hf

x = hf.constant([1.0, 2.0])
y = hf.reduce_maen(x)  # the mistake
