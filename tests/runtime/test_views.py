"""A view of a variable is the value that was read, whatever updates come before it is used."""

import numpy as np

import hpcflow as hf
from tests.runtime.ranks import run_ranks


def test_a_fetched_view_is_not_changed_by_a_later_update():
    with hf.Graph().as_default():
        v = hf.Variable(np.zeros(3, np.float32))
        view = hf.reshape(v.value(), [3, 1])
        with hf.control_dependencies([view]):
            update = v.assign_add(np.ones(3, np.float32))
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        for i in range(3):
            found, _ = session.run([view, update])
            np.testing.assert_array_equal(found, np.full((3, 1), i))


def test_a_large_view_that_is_sent_is_not_changed_on_its_way():
    """The sum is made where the variable lives, when it is read; the view takes its time."""
    n = 40_000

    def body(context):
        ones = np.ones(n, np.float32)
        v = hf.Variable(np.zeros(n, np.float32), name="v")
        with hf.device("/job:ps/task:0"):
            view = hf.reshape(v.value(), [n // 2, 2])
            mean = hf.reduce_mean(view)
            update = v.assign_add(ones)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        if context.replica == 0:
            for _ in range(100):
                session.run(update)
            return 0
        wrong = 0
        for _ in range(100):
            found, expected = session.run([view, mean])
            wrong += not np.array_equal(found, np.full_like(found, expected))
        return wrong

    assert run_ranks(3, body, ps=1, seed=1) == [0, 0]
