"""A tensor is formatted as a number."""

import hpcflow as hf

loss = hf.reduce_mean(hf.constant([1.0, 2.0]))
print(f"loss {loss:.3f}")  # the mistake
