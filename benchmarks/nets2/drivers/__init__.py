"""How each framework trains a network: `step(net, mode, unknown)`.

It makes a function that trains on the next batch and returns the loss, as a float. With `unknown`
the sizes of the batch axes are unknown when the graph is built.
"""
