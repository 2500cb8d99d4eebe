"""The same networks in hpcflow and in each of its peers, for `benchmarks/training_step.py`.

`spec.py` says what all have in common: sizes, first weights, batches, optimizers. Each other module
has `step(net, mode)`: a function that trains on the next batch and returns the loss, as a float.
"""
