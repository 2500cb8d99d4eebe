"""The gradient of a variable that the loss does not use is None."""

import hpcflow as hf

w = hf.Variable(hf.zeros([2]), name="w")
unused = hf.Variable(hf.zeros([3]), name="unused")
loss = hf.reduce_mean(hf.square(w - 1))
gradients = hf.gradients(loss, [w, unused])
with hf.Session() as session:
    session.run(hf.global_variables_initializer())
    print(session.run(gradients))  # the mistake
