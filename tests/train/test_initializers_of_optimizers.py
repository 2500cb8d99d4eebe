"""Initializers of what optimizers make for themselves."""

from __future__ import annotations

import pytest

import hpcflow as hf

OPTIMIZERS = {
    "accumulation": lambda plain: hf.train.AccumulatingOptimizer(plain, 2),
    "loss scale": lambda plain: hf.train.LossScaleOptimizer(plain),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_initial_values_of_an_optimizer_do_not_follow_the_control_dependencies_of_its_place(make):
    """An initializer made the update once more that the training step follows."""
    with hf.Graph().as_default():
        w, count = hf.Variable([1.0, 2.0]), hf.Variable(0.0, trainable=False)
        optimizer = make(hf.train.GradientDescentOptimizer(0.5))
        with hf.control_dependencies([count.assign_add(1.0)]):
            train = optimizer.minimize(hf.reduce_sum(w * w))
        with hf.Session() as session:
            session.run([w.initializer, count.initializer])
            session.run([v.initializer for v in optimizer.variables()])
            assert session.run(count) == 0
            session.run(hf.global_variables_initializer())
            session.run(train)
            assert session.run(count) == 1
