"""Updates in generated loops leave the bits that the plain kernels leave."""

import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.lowering import generated_update_loop, update_tiling
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.step import kernel_selection
from hpcflow.runtime.step.cooperative_scheduling import DeferredInterrupt
from hpcflow.settings import Settings
from tests.plan.test_tiles import OPTIMIZERS

BINARY = [operator.add, operator.sub, operator.mul, hf.maximum, hf.minimum]
UNARY = [hf.abs, hf.square, lambda x: hf.sqrt(hf.abs(x)), lambda x: -x]
SHAPES = [(3, 5), (700,), (1,)]


@pytest.fixture
def loops(monkeypatch):
    """The groups for which a loop is generated."""
    found = []
    write = generated_update_loop.UpdateLoop.write
    monkeypatch.setattr(
        generated_update_loop.UpdateLoop,
        "write",
        lambda self: (found.append(self.group), write(self)),
    )
    return found


def session_of(generated):
    """A session whose updates are generated, or plain."""
    session = hf.Session(
        context=RankContext(Settings(kernels="auto" if generated else "plain", exact=True))
    )
    session.run(hf.global_variables_initializer())
    return session


def trained(make, dtype, generated):
    """The bytes of all variables after three steps by an optimizer, of several shapes."""
    rng = np.random.default_rng(5)
    with hf.Graph().as_default():
        values = [rng.standard_normal(shape).astype(dtype) for shape in (*SHAPES, (), (700,))]
        variables = [hf.Variable(value, name=f"v{i}") for i, value in enumerate(values)]
        grads = [hf.placeholder(v.dtype, v.shape) for v in variables]
        step = make().apply_gradients(list(zip(grads, variables, strict=True)))
        session = session_of(generated)
        for _ in range(3):
            fed = {g: rng.standard_normal(g.shape).astype(dtype) for g in grads}
            session.run(step, fed)
        return [np.asarray(x).tobytes() for x in session.run(hf.global_variables())]


@pytest.mark.parametrize(
    "dtype",
    [
        "float32",
        *(pytest.param(t, marks=pytest.mark.slow(first=False)) for t in ("float64", "float16")),
    ],
)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_optimizers_have_the_same_bits(name, dtype, loops):
    plain = trained(OPTIMIZERS[name], dtype, generated=False)
    assert not loops
    assert trained(OPTIMIZERS[name], dtype, generated=True) == plain
    assert loops or dtype == "float16"


@pytest.mark.parametrize("name", ["descent", "nesterov", "adam", "rmsprop"])
def test_large_variables_have_the_same_bits(name, monkeypatch, loops):
    monkeypatch.setattr(update_tiling, "MIN_TILED_ELEMENTS", 10)
    plain = trained(OPTIMIZERS[name], "float32", generated=False)
    assert trained(OPTIMIZERS[name], "float32", generated=True) == plain
    assert any(group.size > 10 for group in loops)


def test_a_rate_may_be_fed(loops):
    rates = [0.5, 0.25, 0.0]
    v = hf.Variable(np.full((3, 4), 2.0, np.float32), name="v")
    rate = hf.placeholder(hf.float32, [])
    optimizer = hf.train.GradientDescentOptimizer(rate)
    step = optimizer.apply_gradients([(hf.ones([3, 4]), v)])
    session = session_of(generated=True)
    for r in rates:
        session.run(step, {rate: np.float32(r)})
    np.testing.assert_array_equal(session.run(v), np.full((3, 4), 2.0 - sum(rates), np.float32))
    assert loops


def results(program, shape, generated):
    """What a random program leaves in its variables and fetches."""
    with hf.Graph().as_default():
        rng = np.random.default_rng(3)
        variables = [hf.Variable(rng.standard_normal(shape), name=f"v{i}") for i in range(3)]
        fed, scalar = hf.placeholder(hf.float64, shape), hf.placeholder(hf.float64, [])
        values, scalars, done = [fed], [hf.constant(2.0, hf.float64), scalar], []
        for kind, a, b, which, order in program:
            with hf.control_dependencies(done[-1:] if order else []):
                v, x = variables[which % 3], values[a % len(values)]
                if kind == "read":
                    values.append(v.read_value())
                elif kind == "unary":
                    values.append(UNARY[which % len(UNARY)](x))
                elif kind == "binary":
                    pool = [*values, *scalars]
                    values.append(BINARY[which % len(BINARY)](x, pool[b % len(pool)]))
                elif kind == "turned":
                    values.append(hf.reverse(x, [0]))
                elif kind == "sum":
                    scalars.append(hf.reduce_mean(x))
                elif kind == "apply" and not order:
                    rate = scalars[b % len(scalars)]
                    optimizer = hf.train.MomentumOptimizer(rate, 0.5)
                    with hf.control_dependencies(done[-1:]):
                        done.append(optimizer.apply_gradients([(x, v)]))
                elif kind.startswith("assign"):
                    with hf.control_dependencies(done[-1:]):
                        done.append(getattr(v, kind)(x))
        session = session_of(generated)
        feeds = {fed: rng.standard_normal(shape), scalar: np.float64(0.75)}
        found = [session.run([values[-1], scalars[-1], *done[-1:]], feeds) for _ in range(2)]
        end = session.run(hf.global_variables())
    arrays = [x for step in found for x in step if x is not None] + end
    return [np.asarray(x).tobytes() for x in arrays]


STEP = st.tuples(
    st.sampled_from(
        "read unary binary binary turned sum apply assign assign_add assign_sub".split()
    ),
    *(st.integers(0, 50) for _ in range(3)),
    st.booleans(),
)


@pytest.mark.slow
@settings(max_examples=100)
@given(program=st.lists(STEP, min_size=3, max_size=25), shape=st.sampled_from([(33,), (2, 3)]))
def test_any_program_leaves_the_same(program, shape):
    assert results(program, shape, True) == results(program, shape, False)


@pytest.mark.slow
@settings(max_examples=50)
@given(program=st.lists(STEP, min_size=3, max_size=25))
def test_any_program_leaves_the_same_where_all_is_large(program):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update_tiling, "MIN_TILED_ELEMENTS", 8)
        patch.setattr(update_tiling, "TILE", 16)
        assert results(program, (33,), True) == results(program, (33,), False)


def test_a_pinned_version_stays_and_the_update_takes_another_buffer(loops):
    v = hf.Variable(np.arange(100.0), name="v")
    step = hf.train.MomentumOptimizer(1.0, 0.5).apply_gradients([(hf.ones([100], hf.float64), v)])
    session = session_of(generated=True)
    state = session.store.states[v.name]
    kept = state.pin()
    session.run(step)
    np.testing.assert_array_equal(kept, np.arange(100.0))
    np.testing.assert_array_equal(state.read(), np.arange(100.0) - 1)
    assert loops


def test_ctrl_c_waits_only_where_two_buffers_are_to_become_current_together(monkeypatch, loops):
    monkeypatch.setattr(update_tiling, "MIN_TILED_ELEMENTS", 32)
    held = []
    monkeypatch.setattr(DeferredInterrupt, "hold", lambda self: held.append(True))
    v = hf.Variable(np.arange(100.0), name="v")
    step = hf.train.MomentumOptimizer(1.0, 0.5).apply_gradients([(hf.ones([100], hf.float64), v)])
    session = session_of(generated=True)
    state = session.store.states[v.name]
    session.run(step)
    assert not held
    state.pin()
    session.run(step)
    assert held
    assert loops


def test_two_updates_of_one_step_count_twice():
    """Each by Adam's own rate: a gradient of one sign moves a weight by about the learning rate."""
    v = hf.Variable(np.zeros(40, np.float32), name="v")
    adam = hf.train.AdamOptimizer(0.5)
    grad = hf.ones([40])
    with hf.control_dependencies([adam.apply_gradients([(grad, v)])]):
        again = adam.apply_gradients([(grad, v)])
    session = session_of(generated=True)
    session.run(again)
    np.testing.assert_allclose(session.run(v), np.full(40, -1.0), rtol=1e-6)
    assert session.store.updates()[v.name] == 2


def test_views_in_another_order_are_not_read_as_they_lie():
    v = hf.Variable(np.arange(6.0), name="v")
    session = session_of(generated=True)
    session.run(v.assign_add(hf.reshape(hf.transpose(hf.reshape(v.value(), [2, 3])), [6])))
    np.testing.assert_array_equal(session.run(v), [0, 4, 3, 7, 6, 10])


def test_without_llvmlite_updates_are_plain(monkeypatch, loops):
    monkeypatch.setattr(kernel_selection, "absent", lambda: "it is not here")
    v = hf.Variable(np.zeros(40), name="v")
    session = session_of(generated=True)
    session.run(v.assign_add(np.ones(40)))
    assert not loops
