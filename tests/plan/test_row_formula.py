"""An optimizer's formula over rows is one loop: the same bits as operation by operation."""

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import hpcflow as hf
from hpcflow.errors import RangeError
from hpcflow.lowering.fusion.sparse_optimizer_fusion import fuse_sparse_optimizers
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings

ROWS, WIDTH, STEPS = 30, 7, 4
OPTIMIZERS = {
    "momentum": lambda: hf.train.MomentumOptimizer(0.1, 0.9),
    "nesterov": lambda: hf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adagrad": lambda: hf.train.AdagradOptimizer(0.1),
    "adam": lambda: hf.train.LazyAdamOptimizer(0.1),
    "rmsprop": lambda: hf.train.RMSPropOptimizer(0.1),
    "ftrl": lambda: hf.train.FtrlOptimizer(0.1),
}


def start():
    return np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype("f4")


def batches():
    rng = np.random.default_rng(1)
    for _ in range(STEPS):
        yield rng.integers(0, 12, 25), rng.standard_normal((25, WIDTH)).astype("f4")


def trained(name, **settings):
    """The table after some steps on rows of which many come twice, and what the driver runs."""
    with use_context(RankContext(Settings(**settings))), hf.Graph().as_default():
        table = hf.Variable(start())
        at = hf.placeholder(hf.int64, [25])
        g = hf.placeholder(hf.float32, [25, WIDTH])
        optimizer = OPTIMIZERS[name]()
        train = optimizer.minimize(hf.reduce_sum(hf.gather(table, at) * g))
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        for indices, values in batches():
            feeds = {at: indices, g: values}
            session.run(train, feeds)
        plan = session.plan(train, feeds)
        part = fuse_sparse_optimizers(plan.parts[plan.driver], True)
        slots = [session.run(optimizer.get_slot(table, n)) for n in optimizer.get_slot_names()]
        types = [node.type for node in part.nodes.values()]
        return [session.run(table), *[s for s in slots if s.shape]], types


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_loop_makes_the_same_bits(name):
    fused, types = trained(name, exact=True)
    plain, _ = trained(name, kernels="plain")
    if name != "ftrl":  # which takes powers
        assert sum(type.startswith("UpdateRows") for type in types) == 1
        assert not {"ReadRows", "ScatterUpdate", "ScatterSub", "Square"} & set(types[5:])
    assert [a.tobytes() for a in fused] == [a.tobytes() for a in plain]
    assert not np.array_equal(fused[0][:12], start()[:12])
    assert np.array_equal(fused[0][12:], start()[12:])


def test_adam_adds_the_gradients_of_a_row_up_once():
    x, m, v = (start().astype("f8"), *np.zeros((2, ROWS, WIDTH)))
    for t, (indices, values) in enumerate(batches(), 1):
        for i in np.unique(indices):
            g = values[indices == i].astype("f8").sum(0)
            m[i] += 0.1 * (g - m[i])
            v[i] += 0.001 * (g * g - v[i])
            x[i] -= 0.1 * (1 - 0.999**t) ** 0.5 / (1 - 0.9**t) * m[i] / (v[i] ** 0.5 + 1e-8)
    np.testing.assert_allclose(trained("adam")[0][0], x, rtol=1e-4, atol=1e-5)


def test_a_wrong_index_is_an_error_and_changes_nothing():
    with hf.Graph().as_default():
        table = hf.Variable(start())
        at, g = hf.placeholder(hf.int64, [3]), hf.placeholder(hf.float32, [3, WIDTH])
        rows = hf.IndexedSlices(g, at, [ROWS, WIDTH])
        train = hf.train.MomentumOptimizer(0.1, 0.9).apply_gradients([(rows, table)])
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        with pytest.raises(RangeError, match=rf"index {ROWS} is outside \[0, {ROWS}\)"):
            session.run(train, {at: [1, ROWS, 2], g: np.ones((3, WIDTH), "f4")})
        assert np.array_equal(session.run(table), start())


def test_what_others_take_of_a_formula_is_still_there():
    """The rows of a table before and after their update, fetched with it."""
    with hf.Graph().as_default():
        table, at = hf.Variable(start()), hf.constant(np.array([3, 1, 4]))
        old = table.sparse_read(at)
        update = table._rows("ScatterUpdate", at, old * 2.0 + 1.0, None, distinct=True)
        with hf.control_dependencies([update]):
            new = table.sparse_read(at)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        before, after, _ = session.run([old, new, update])
        expected = start()[[3, 1, 4]]
        assert np.array_equal(before, expected) and np.array_equal(after, expected * 2 + 1)
