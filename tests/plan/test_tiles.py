"""Large updates are computed tile by tile, with the results that whole arrays give, bit by bit."""

import operator
import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.kernels import kernel_registry
from hpcflow.lowering import tiled_update_loop, update_tiling
from hpcflow.ops.variables import variable_kernels as fused
from hpcflow.runtime.step import kernel_selection
from hpcflow.train.optimizers import adagrad, adam, gradient_descent, lars_lamb

BINARY = [operator.add, operator.sub, operator.mul, hf.maximum, hf.minimum]
UNARY = [hf.abs, hf.square, hf.sign, lambda x: hf.sqrt(hf.abs(x)), lambda x: -x]


@pytest.fixture(autouse=True)
def plain():
    """No loop is generated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_selection, "absent", lambda: "it is not here")
        yield


def results(program, n, large, monkeypatch):
    """What the random `program` leaves in its variables and fetches, and how many loops it has."""
    monkeypatch.setattr(update_tiling, "MIN_TILED_ELEMENTS", large)
    loops = []
    write = tiled_update_loop.TileLoop.write
    monkeypatch.setattr(
        tiled_update_loop.TileLoop, "write", lambda self: (loops.append(self.group), write(self))
    )
    with hf.Graph().as_default():
        rng = np.random.default_rng(3)
        variables = [hf.Variable(rng.standard_normal(n), name=f"v{i}") for i in range(2)]
        count = hf.Variable(np.float64(1), name="count")
        fed = hf.placeholder(hf.float64, [n], name="fed")
        values, scalars, done = [fed], [hf.constant(2.0, hf.float64)], []
        for kind, a, b, which in program:
            with hf.control_dependencies(done[-1:]):
                if kind == "read":
                    values.append(variables[which % 2].read_value())
                elif kind == "unary":
                    values.append(UNARY[which % len(UNARY)](values[a % len(values)]))
                elif kind == "binary":
                    pool = [*values, *scalars]
                    make = BINARY[which % len(BINARY)]
                    values.append(make(values[a % len(values)], pool[b % len(pool)]))
                elif kind == "where":
                    x, y = values[a % len(values)], values[b % len(values)]
                    more = hf.greater(x, y)
                    values.append(hf.where(more, x, y - x))
                    if which % 2:  # the booleans are used by more than a formula
                        scalars.append(hf.reduce_mean(hf.cast(more, hf.float64)))
                elif kind == "sum":
                    scalars.append(hf.reduce_mean(values[a % len(values)]))
                elif kind == "count":
                    done.append(count.assign_add(0.5).op)
                    with hf.control_dependencies(done[-1:]):
                        scalars.append(count.read_value())
                else:
                    done.append(getattr(variables[which % 2], kind)(values[a % len(values)]).op)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        feed = {fed: rng.standard_normal(n)}
        found = [session.run([values[-1], scalars[-1], *done[-1:]], feed) for _ in range(2)]
        end = session.run([*variables, count])
    monkeypatch.undo()
    arrays = [x for step in found for x in step if x is not None] + end
    return [np.asarray(x).tobytes() for x in arrays], len(loops)


STEP = st.tuples(
    st.sampled_from(
        "read unary binary binary where sum count assign assign_add assign_sub".split()
    ),
    *(st.integers(0, 50) for _ in range(3)),
)


@pytest.mark.slow
@settings(max_examples=60)
@given(program=st.lists(STEP, min_size=3, max_size=25), n=st.sampled_from([64, 100, 33]))
def test_any_program_gives_the_same_in_tiles(program, n):
    with pytest.MonkeyPatch.context() as monkeypatch:
        whole, loops = results(program, n, 1 << 60, monkeypatch)
        assert loops == 0
        monkeypatch.setattr(update_tiling, "TILE", 16)
        assert results(program, n, 32, monkeypatch)[0] == whole


def test_a_formula_is_one_loop_with_temporaries_of_one_tile(monkeypatch):
    program = [("read", 0, 0, 0)] + [("binary", i, 0, 2) for i in range(5)]
    program += [("assign_sub", 3, 0, 0), ("assign", 5, 0, 1)]
    assert results(program, 100, 32, monkeypatch)[1] == 1


OPTIMIZERS = {
    "descent": lambda: gradient_descent.GradientDescentOptimizer(0.1),
    "momentum": lambda: gradient_descent.MomentumOptimizer(0.1, 0.9),
    "nesterov": lambda: gradient_descent.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "proximal": lambda: gradient_descent.ProximalGradientDescentOptimizer(0.1, 0.01, 0.01),
    "adam": lambda: adam.AdamOptimizer(0.01),
    "adamw": lambda: adam.AdamWOptimizer(0.01, 0.01),
    "nadam": lambda: adam.NadamOptimizer(0.01),
    "adamax": lambda: adam.AdamaxOptimizer(0.01),
    "adagrad": lambda: adagrad.AdagradOptimizer(0.1),
    "adadelta": lambda: adagrad.AdadeltaOptimizer(0.1),
    "rmsprop": lambda: adagrad.RMSPropOptimizer(0.01, momentum=0.5, centered=True),
    "ftrl": lambda: adagrad.FtrlOptimizer(0.1, l1_regularization_strength=0.01),
    "lars": lambda: lars_lamb.LARSOptimizer(0.1),
    "lamb": lambda: lars_lamb.LAMBOptimizer(0.01),
}


def trained(make, n, dtype):
    with hf.Graph().as_default():
        rng = np.random.default_rng(5)
        v = hf.Variable(rng.standard_normal(n).astype(dtype), name="v")
        grad = hf.placeholder(v.dtype, [n], name="grad")
        step = make().apply_gradients([(grad, v)])
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        for _ in range(3):
            session.run(step, {grad: rng.standard_normal(n).astype(dtype)})
        return [np.asarray(x).tobytes() for x in session.run(hf.global_variables())]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_are_bit_equal_in_tiles(name, dtype, monkeypatch):
    n, make = 5003, OPTIMIZERS[name]
    monkeypatch.setattr(update_tiling, "MIN_TILED_ELEMENTS", 1 << 60)
    monkeypatch.setattr(fused, "TILE", 1 << 60)
    whole = trained(make, n, dtype)
    monkeypatch.setattr(update_tiling, "MIN_TILED_ELEMENTS", 1000)
    monkeypatch.setattr(update_tiling, "TILE", 512)
    monkeypatch.setattr(fused, "TILE", 512)
    assert trained(make, n, dtype) == whole


def test_a_pinned_version_stays_and_the_update_takes_another_buffer(monkeypatch):
    """A read used after the update of its variable keeps the old value, element by element."""
    monkeypatch.setattr(update_tiling, "MIN_TILED_ELEMENTS", 32)
    monkeypatch.setattr(update_tiling, "TILE", 16)
    v = hf.Variable(np.arange(100.0), name="v")
    w = hf.Variable(np.zeros(100), name="w")
    old = v.read_value()
    with hf.control_dependencies([v.assign_add(hf.ones([100], hf.float64) * (old + 1))]):
        after = w.assign(old * 10)
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    session.run(after)
    np.testing.assert_array_equal(session.run(w), np.arange(100.0) * 10)
    np.testing.assert_array_equal(session.run(v), 2 * np.arange(100.0) + 1)


def test_what_is_pinned_stays_though_one_loop_updates_several_variables_twice(monkeypatch):
    monkeypatch.setattr(update_tiling, "MIN_TILED_ELEMENTS", 32)
    monkeypatch.setattr(update_tiling, "TILE", 16)
    values = [np.arange(100.0), np.arange(100.0) ** 2]
    a, b = (hf.Variable(value, name=f"v{i}") for i, value in enumerate(values))
    with hf.control_dependencies([a.assign_add(b * 0.5), b.assign_sub(hf.ones([100], hf.float64))]):
        again = [a.assign_add(hf.ones([100], hf.float64)), b.assign_add(a * 0.0)]
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    states = [session.store.states[f"v{i}"] for i in range(2)]
    kept = [state.pin() for state in states]
    session.run(again)
    for mine, value in zip(kept, values, strict=True):
        np.testing.assert_array_equal(mine, value)
    np.testing.assert_array_equal(states[0].read(), values[0] + values[1] * 0.5 + 1)
    np.testing.assert_array_equal(states[1].read(), values[1] - 1)


def test_views_in_another_order_are_not_taken_in_tiles(monkeypatch):
    """A reversed view of a variable would be overwritten before it is read."""
    monkeypatch.setattr(update_tiling, "MIN_TILED_ELEMENTS", 32)
    monkeypatch.setattr(update_tiling, "TILE", 16)
    kernel_registry.names()  # all kernels are imported
    backwards = kernel_registry.Kernel("view", lambda xp, node: lambda x: x[::-1])
    monkeypatch.setitem(kernel_registry._TABLE, ("StridedSlice", "xp"), backwards)
    v = hf.Variable(np.arange(100.0), name="v")
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    session.run(v.assign_add(v.read_value()[::-1]))
    np.testing.assert_array_equal(session.run(v), np.full(100, 99.0))


def test_ctrl_c_waits_for_the_last_tile(monkeypatch):
    monkeypatch.setattr(update_tiling, "MIN_TILED_ELEMENTS", 32)
    monkeypatch.setattr(update_tiling, "TILE", 16)

    def interrupting(xp, node):
        def run(var, x):
            signal.raise_signal(signal.SIGINT)
            xp.add(var, x, var)

        return run

    kernel_registry.names()  # all kernels are imported
    row = kernel_registry.Kernel("update", interrupting)
    v = hf.Variable(np.zeros(100), name="v")
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    with monkeypatch.context() as patched:
        patched.setitem(kernel_registry._TABLE, ("AssignAdd", "xp"), row)
        add = v.assign_add(np.ones(100))
        with pytest.raises(KeyboardInterrupt):
            session.run(add)
    np.testing.assert_array_equal(session.run(v), np.ones(100))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
