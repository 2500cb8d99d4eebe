"""`==` of tensors compares objects, not values."""

import hpcflow as hf

labels = hf.placeholder("int32", [None], name="labels")
guesses = hf.placeholder("int32", [None], name="guesses")
right = hf.reduce_mean(hf.cast(labels == guesses, "float32"))  # the mistake
with hf.Session() as session:
    print(session.run(right, {labels: [1, 2], guesses: [1, 2]}))
