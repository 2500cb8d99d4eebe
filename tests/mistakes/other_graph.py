"""A tensor of another graph is used."""

import hpcflow as hf

with hf.Graph().as_default():
    x = hf.constant([1.0, 2.0])
with hf.Graph().as_default():
    y = x + hf.constant([1.0, 2.0])  # the mistake
