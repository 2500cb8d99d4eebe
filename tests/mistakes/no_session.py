"""A value is asked without a session."""

import hpcflow as hf

loss = hf.reduce_mean(hf.constant([1.0, 2.0]))
print(loss.eval())  # the mistake
