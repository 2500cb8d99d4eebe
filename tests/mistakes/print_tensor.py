"""`print` of a tensor shows the tensor, not its value."""

import hpcflow as hf

loss = hf.reduce_mean(hf.constant([1.0, 2.0]), name="loss")  # the mistake
print(loss)
