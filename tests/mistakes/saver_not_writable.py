"""The folder of a saver cannot be made."""

import hpcflow as hf

w = hf.Variable(hf.zeros([2]), name="w")
with hf.Session() as session:
    session.run(hf.global_variables_initializer())
    hf.train.Saver().save(session, "/proc/saved/model")  # the mistake
