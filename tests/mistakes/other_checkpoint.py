"""A checkpoint of another model is restored."""

import hpcflow as hf

w = hf.Variable(hf.zeros([2]), name="w")
with hf.Session() as session:
    session.run(hf.global_variables_initializer())
    path = hf.train.Saver().save(session, "saved/model", global_step=1)
with hf.Graph().as_default():
    w = hf.Variable(hf.zeros([3]), name="w")
    with hf.Session() as session:
        hf.train.Saver().restore(session, path)  # the mistake
