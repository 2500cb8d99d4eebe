"""Text is fed to a placeholder of numbers, as read from a CSV file."""

import hpcflow as hf

x = hf.placeholder("float32", [None], name="x")
y = hf.reduce_sum(x)
with hf.Session() as session:
    print(session.run(y, {x: ["1.0", "n/a"]}))  # the mistake
