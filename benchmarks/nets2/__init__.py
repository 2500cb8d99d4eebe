"""A second set of networks, beside the best of TensorFlow, PyTorch and JAX.

Each file but `run.py` is a network. It imports NumPy only, and is given the framework's module:

    OPTIMIZER = ("momentum", 0.01)  # "sgd", "momentum" (of 0.9) or "adam", and its rate
    TOLERANCE = (1e-4, 1e-2)  # relative, of the losses of step 1 and of step 20
    BATCH_AXES = (0, 0)  # for each array of a batch, the axis that is of unknown size on request
    weights(rng)  # name -> first value; names that begin with "moving" are not trained
    batch(rng)  # the arrays of a batch
    hpcflow_loss(hf, v, *batch)  # also tensorflow_loss, torch_loss, jax_loss

A loss may come with new values of what is not trained: `loss, {name: value}`. Optional are
`CLIP`, the global norm that gradients are clipped to, `SPARSE`, whether PyTorch's gradients of
tables are sparse, `torch_weights(torch, values)`, the weights as PyTorch is fastest with them, and
`jax_rows(v, *batch)`, the numbers of the rows which are gathered before JAX's loss is computed.
"""
