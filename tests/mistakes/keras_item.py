"""A value is asked as in PyTorch."""

import hpcflow as hf

loss = hf.reduce_mean(hf.constant([1.0, 2.0]))
print(loss.item())  # the mistake
