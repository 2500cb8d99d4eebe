"""Integers are divided, then compared by a float."""

import hpcflow as hf

count = hf.constant([1, 2, 3])
mean = hf.reduce_sum(count) * 0.5  # the mistake
