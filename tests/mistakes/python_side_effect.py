"""A loop of the graph appends to a list of Python."""

import hpcflow as hf

seen = []


def body(i):
    """One pass."""
    seen.append(float(i))  # the mistake
    return i + 1


last = hf.while_loop(lambda i: i < 3, body, [hf.constant(0)])
