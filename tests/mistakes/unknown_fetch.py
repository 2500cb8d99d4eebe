"""A name is fetched that no operation has."""

import hpcflow as hf

loss = hf.reduce_mean(hf.constant([1.0, 2.0]), name="loss")
with hf.Session() as session:
    print(session.run("los:0"))  # the mistake
