"""A session is used after the block that opened it."""

import hpcflow as hf

y = hf.constant(3.0) * 2
with hf.Session() as session:
    session.run(y)
print(session.run(y))  # the mistake
