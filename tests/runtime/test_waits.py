"""A waiting node with inputs and outputs: its inputs stay, its values reach whoever uses them."""

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.graph.graph import get_default_graph
from hpcflow.graph.op_registry import OPS, NoGrad, OpDef
from hpcflow.graph.static_shape import Spec
from hpcflow.runtime.executor import async_ops
from tests.runtime.ranks import run_ranks

ONE = np.ones(3, np.float32)


class Later:
    """Over after a few tests: twice its input, and its input three times over, sizes unknown."""

    def __init__(self, instance, node, x):
        self.instance, self.node, self.x, self.left = instance, node, x, 5

    def test(self):
        self.left -= 1
        if not self.left:
            self.instance.put(self.node.name, self.x * 2, np.concatenate([self.x] * 3))
        return self.left <= 0


def infer(inputs, attrs):
    (x,) = inputs
    return [Spec(x.dtype, x.shape), Spec(x.dtype, None if x.shape is None else (None,))]


@pytest.fixture(autouse=True)
def later(monkeypatch):
    row = OpDef("Later", infer, NoGrad("a test"), stateful=True, waits=True)
    monkeypatch.setitem(OPS, "Later", row)
    monkeypatch.setitem(async_ops._STARTS, "Later", Later)


def make(x):
    return get_default_graph().create_op("Later", [x], {}).outputs


def test_values_of_a_wait_are_used_viewed_and_fetched():
    with hf.Graph().as_default():
        x = hf.placeholder(hf.float32, [3])
        double, triple = make(x + 1.0)
        sums = [double + x, hf.reduce_sum(triple), hf.reshape(double, [3, 1])[1:], make(triple)[0]]
        session = hf.Session()
        for i in range(3):
            found = session.run([double, triple, *sums], {x: ONE * i})
            np.testing.assert_array_equal(found[0], ONE * 2 * (i + 1))
            np.testing.assert_array_equal(found[1], np.ones(9) * (i + 1))
            np.testing.assert_array_equal(found[2], ONE * (3 * i + 2))
            assert found[3] == 9 * (i + 1)
            np.testing.assert_array_equal(found[4], np.full((2, 1), 2 * (i + 1)))
            np.testing.assert_array_equal(found[5], np.ones(9) * 2 * (i + 1))


def test_inputs_of_a_wait_stay_while_what_they_come_from_changes():
    with hf.Graph().as_default():
        v = hf.Variable(ONE, name="v")
        read = v.value()
        double, _ = make(read)
        computed, _ = make(hf.reshape(read + 1.0, [3]))
        with hf.control_dependencies([read]):
            update = v.assign_add(ONE)
        busy = [hf.tanh(read + float(i)) for i in range(4)]  # would use the block again
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        for i in range(1, 4):
            found = session.run([double, computed, update, *busy])
            np.testing.assert_array_equal(found[0], ONE * 2 * i)
            np.testing.assert_array_equal(found[1], ONE * 2 * (i + 1))


@pytest.mark.parametrize("size", [3, 100_000])
def test_values_of_a_wait_travel_between_ranks(size):
    def body(context):
        x = hf.placeholder(hf.float32, [size])
        with hf.device("/job:worker/task:1"):
            double, triple = make(x)
        with hf.device("/job:worker/task:0"):
            again, _ = make(double)
            total = hf.reduce_sum(triple)
        session = hf.Session()
        return [session.run([again, total], {x: np.full(size, i, "f4")}) for i in range(3)]

    (found,) = run_ranks(2, body, seed=1, tasks_per_replica=2)
    for i, (again, total) in enumerate(found):
        np.testing.assert_array_equal(again, np.full(size, 4 * i))
        assert total == 3 * size * i
