"""Generated loops read rolled and padded values, and gradients of slices, from what is shifted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.codegen.fused_loop_ir import FULL, AxisShift, KernelOperand, column_pieces
from hpcflow.lowering.strided_layout import SHIFTING, Shift, c_order_layout, shifted_layout
from hpcflow.platform import cpu_threads
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from tests.plan.test_rows_where_they_lie import ran, types

RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


# -- layouts


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_rows_are_read_where_numpy_has_them(data: Any) -> None:
    """Every element of a rolled or padded permutation, by the offsets that a kernel would use."""
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    perm = data.draw(st.permutations(range(len(shape))))
    array = np.arange(1, math.prod(shape) + 1).reshape(shape)
    source, seen = c_order_layout(shape).transposed(perm), array.transpose(perm)
    shifts = []
    for axis, n in enumerate(seen.shape):
        if data.draw(st.booleans()):
            by = data.draw(st.integers(-2 * n, 2 * n))
            shifts.append(Shift(-by, n, True))
            seen = np.roll(seen, by, axis)
        else:
            before, after = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
            pads = [(0, 0)] * seen.ndim
            pads[axis] = (before, after)
            shifts.append(Shift(-before, n))
            seen = np.pad(seen, pads)
    lay = shifted_layout(source, seen.shape, tuple(shifts))
    assert lay is not None
    for cols in {math.prod(seen.shape[k:]) for k in range(seen.ndim)}:
        rows = lay.rows(cols)
        if rows is not None:
            np.testing.assert_array_equal(elements(array, rows, cols, seen.size), seen.ravel())
    if lay.strided.strides[-1] == 1:
        assert lay.rows(seen.shape[-1]) is not None
    assert lay.run() == 1 or lay.rows(lay.run()) is not None


def elements(array: np.ndarray, rows: Any, cols: int, size: int) -> list[int]:
    """What `KernelOperand` says of an operand with these beginnings and shifts of its rows."""
    (first, terms), shifts = rows[0] or (0, ((1, 0, cols),)), rows[1]
    found = []
    for row in range(size // cols):
        begin = first + sum(row // a % (b or size) * c for a, b, c in terms)
        inside = True
        for shift in (shift for shift in shifts if shift.over):
            index = row // shift.over % (shift.of or size) + shift.by
            index = index % shift.size if shift.wraps else index
            inside = inside and 0 <= index < shift.size
            begin += index * shift.stride
        for column in range(cols):
            offsets = [shift.column_offset(column) for shift in shifts if not shift.over]
            there = inside and None not in offsets
            found.append(array.ravel()[begin + column + sum(offsets)] if there else 0)
    return found


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(1, 9), st.booleans()), max_size=4))
def test_pieces_are_where_offsets_change(shifts: list[tuple[int, int, bool]]) -> None:
    cols = 9
    axes = [AxisShift(by, cols if wraps else size, wraps) for by, size, wraps in shifts]
    operands = [KernelOperand(np.dtype("f4"), FULL, shifts=(axis,)) for axis in axes]
    pieces = column_pieces(operands, cols)
    assert [a for a, _ in pieces] == [0, *(b for _, b in pieces[:-1])] and pieces[-1][1] == cols
    offsets = [[axis.column_offset(j) for axis in axes] for j in range(cols)]
    for first, end in pieces:
        assert first < end and all(offsets[j] == offsets[first] for j in range(first, end))


# -- kernels


@pytest.mark.parametrize("shape", [(3, 16, 40), (2, 5, 17), (1, 1, 64), (3, 128, 129)])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
def test_a_stencil_on_a_torus_is_one_loop(dtype: str, shape: tuple[int, ...]) -> None:
    x = (normal(*shape) * 9).astype(dtype)

    def build(x: hf.Tensor) -> Any:
        return [hf.add_n([hf.roll(x, by, axis) for axis in (1, 2) for by in (1, -2)]) - 4 * x]

    (found,), part = ran(build, x)
    assert "RollBy" not in types(part)
    expected = [np.roll(x, by, axis) for axis in (1, 2) for by in (1, -2)]
    np.testing.assert_array_equal(
        found, expected[0] + expected[1] + expected[2] + expected[3] - 4 * x
    )


@pytest.mark.parametrize("dtype", [hf.float32, hf.float64, hf.bfloat16])
def test_gradients_of_slices_are_added_without_zeros(dtype: Any) -> None:
    """u[1:-1, 1:-1] from its neighbours; the gradient is a sum of five padded arrays."""
    u, g = normal(34, 50), normal(32, 48)

    def build(u: hf.Tensor, g: hf.Tensor) -> Any:
        inner = u[1:-1, 1:-1] * 4
        near = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        return hf.gradients(near - inner, [u], [g])

    arrays = [a.astype(hf.as_dtype(dtype)) for a in (u, g)]
    (found,), part = ran(build, *arrays)
    assert not types(part) & SHIFTING
    expected = -4 * np.pad(arrays[1].astype("f8"), 1)
    for pads in (((2, 0), (1, 1)), ((0, 2), (1, 1)), ((1, 1), (2, 0)), ((1, 1), (0, 2))):
        expected += np.pad(arrays[1].astype("f8"), pads)
    np.testing.assert_allclose(
        found.astype("f8"), expected, rtol=0, atol=0.2 if dtype == hf.bfloat16 else 1e-5
    )


def test_indices_and_new_axes_of_slices_have_gradients_in_place() -> None:
    x, g = normal(6, 5, 32), normal(6, 1, 32)

    def build(x: hf.Tensor, g: hf.Tensor) -> Any:
        y = sum(x[:, t, None] * float(t + 1) for t in range(5))
        return hf.gradients(y, [x], [g])

    (found,), part = ran(build, x, g)
    assert not types(part) & SHIFTING
    np.testing.assert_allclose(found, g * np.arange(1.0, 6)[:, None], rtol=1e-12)


def test_padding_with_a_number_is_not_zero() -> None:
    x = normal(20, 30).astype("f4")

    def build(x: hf.Tensor) -> Any:
        minus = hf.pad(x, [[1, 0], [0, 2]], constant_values=-0.0)
        return [
            hf.exp(hf.pad(x, [[1, 2], [3, 4]])),
            hf.exp(hf.pad(x, [[0, 2], [3, 0]], constant_values=2.5)),
            1.0 / hf.abs(minus) * hf.sign(1.0 / minus),
        ]

    (zero, number, minus), _ = ran(build, x)
    np.testing.assert_allclose(zero, np.exp(np.pad(x, [(1, 2), (3, 4)])), rtol=1e-6)
    expected = np.exp(np.pad(x, [(0, 2), (3, 0)], constant_values=2.5))
    np.testing.assert_allclose(number, expected, rtol=1e-6)
    assert (minus[0] == -np.inf).all() and (minus[1:, -2:] == -np.inf).all()


def test_not_finite_elements_stay_where_they_are() -> None:
    """Zeros outside of an array are no products with what is there."""
    x = normal(3, 24, 32).astype("f4")
    x[1, 2, 3], x[1, 3, 31], x[2, 0, 0] = np.nan, np.inf, -np.inf

    def build(x: hf.Tensor) -> Any:
        shifted = [hf.pad(x[:, 1:], [[0, 0], [0, 1], [0, 0]]), hf.roll(x, [1, -1], [1, 2])]
        return [hf.add_n([*shifted, hf.pad(x[:, :, 3:], [[0, 0], [0, 0], [3, 0]])])]

    (found,), part = ran(build, x)
    assert not types(part) & SHIFTING
    expected = np.pad(x[:, 1:], [(0, 0), (0, 1), (0, 0)]) + np.roll(x, (1, -1), (1, 2))
    expected = expected + np.pad(x[:, :, 3:], [(0, 0), (0, 0), (3, 0)])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("fetched", [False, True])
def test_softmax_of_a_rolled_value(fetched: bool) -> None:
    """Reductions of rows read whole rows: columns are rolled before, axes of rows in place."""
    x = normal(4, 24, 32).astype("f4")

    def build(x: hf.Tensor) -> Any:
        down, right = hf.roll(x, 1, 1), hf.roll(x, 1, 2)
        return [hf.nn.softmax(down * right + x), *([right] if fetched else [])]

    found, _ = ran(build, x)
    y = np.roll(x, 1, 1) * np.roll(x, 1, 2) + x
    y = np.exp(y - y.max(-1, keepdims=True))
    np.testing.assert_allclose(found[0], y / y.sum(-1, keepdims=True), rtol=1e-5)
    if fetched:
        np.testing.assert_array_equal(found[1], np.roll(x, 1, 2))


def test_many_shifts_of_columns_are_copied() -> None:
    """Each would make a loop of its own."""
    x = normal(8, 64)

    def build(x: hf.Tensor) -> Any:
        return [hf.add_n([hf.roll(x, by, 1) for by in range(20)])]

    (found,), part = ran(build, x)
    assert "RollBy" in types(part)
    np.testing.assert_allclose(found, sum(np.roll(x, by, 1) for by in range(20)), rtol=1e-12)


def test_a_variable_is_read_before_it_is_updated() -> None:
    """An update in place must not change what a shifted read still has to read."""
    start = normal(40, 64).astype("f4")
    with hf.Graph().as_default():
        v = hf.Variable(start)
        near = hf.add_n([hf.roll(v, 1, 0), hf.roll(v, -1, 0), hf.roll(v, 1, 1)])
        step = v.assign(v + 0.25 * near)
        with hf.Session(context=RankContext(Settings(threads=2))) as session:
            session.run(hf.global_variables_initializer())
            for _ in range(3):
                session.run(step.op)
            found = session.run(v)
    for _ in range(3):
        near = np.roll(start, 1, 0) + np.roll(start, -1, 0) + np.roll(start, 1, 1)
        start = start + np.float32(0.25) * near
    np.testing.assert_allclose(found, start, rtol=1e-5)


def test_diffusion_in_a_loop_and_its_gradient() -> None:
    """The gradient by finite differences."""
    x, k = normal(2, 16, 18), 0.1 + 0.05 * RNG.random((16, 18))

    def loss(x: hf.Tensor, k: hf.Tensor) -> hf.Tensor:
        def step(i: Any, u: Any) -> Any:
            near = hf.add_n([hf.roll(u, by, axis) for axis in (1, 2) for by in (1, -1)])
            inner = u[:, 1:-1, 1:-1] - u[:, :-2, 1:-1]
            edge = hf.pad(inner, [[0, 0], [1, 1], [1, 1]])
            return i + 1, u + k * (near - 4.0 * u) + 0.1 * hf.square(edge)

        u = hf.while_loop(lambda i, u: i < 3, step, [hf.constant(0), x])[1]
        return hf.reduce_sum(hf.square(u))

    (value, dx, dk), _ = ran(lambda x, k: [loss(x, k), *hf.gradients(loss(x, k), [x, k])], x, k)
    for array, found in ((x, dx), (k, dk)):
        direction = RNG.standard_normal(array.shape)
        ends = []
        for sign in (1, -1):
            moved = array + sign * 1e-5 * direction
            pair = (moved, k) if array is x else (x, moved)
            ends.append(float(ran(lambda x, k: [loss(x, k)], *pair)[0][0]))
        expected = (ends[0] - ends[1]) / 2e-5
        assert abs(float((found * direction).sum()) - expected) < 1e-6 * abs(value)


def test_long_rows_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of zeros would be part of the code, and one row would be for one thread."""
    x = normal(3, 20_000)

    def build(x: hf.Tensor) -> Any:
        return hf.gradients(hf.square(x[1:] - x[:-1]), [x])

    (found,), part = ran(build, x)
    assert "StridedSliceGrad" in types(part)
    expected = np.zeros_like(x)
    expected[1:] += 2 * (x[1:] - x[:-1])
    expected[:-1] -= 2 * (x[1:] - x[:-1])
    np.testing.assert_allclose(found, expected, rtol=1e-12)

    def rolls(x: hf.Tensor) -> Any:
        return [hf.roll(x, 1, 0) + hf.roll(x, -1, 0) - 2.0 * x]

    line = normal(100_000)
    for number, left in ((1, False), (2, True)):
        chosen = cpu_threads.ThreadChoice(number, number, "a test")
        monkeypatch.setattr(cpu_threads, "chosen_threads", lambda chosen=chosen: chosen)
        (found,), part = ran(rolls, line)
        assert ("RollBy" in types(part)) == left
        np.testing.assert_allclose(found, np.roll(line, 1) + np.roll(line, -1) - 2 * line)


def test_a_tensor_array_is_read_before_it_is_written_again() -> None:
    """Its operations change one array in place: they keep their order beside fused loops."""
    x, z = normal(4, 40).astype("f4"), normal(4, 4).astype("f4")

    def build(x: hf.Tensor, z: hf.Tensor) -> Any:
        first = hf.TensorArray(hf.float32, 0, dynamic_size=True, element_shape=[4, 40])
        first = first.write(0, x)
        y = hf.exp(hf.matmul(z, x)) * 2.0
        stacked = first.stack()
        second = first.write(1, x)
        fixed = hf.TensorArray(hf.float32, 2, element_shape=[4, 40], clear_after_read=False)
        fixed = fixed.write(0, x).write(1, hf.zeros([4, 40]))
        read = fixed.read(1)
        return [hf.shape(stacked), hf.reduce_sum(hf.abs(read)), y + second.read(1), fixed.read(0)]

    (shape, total, _, _), _ = ran(build, x, z)
    assert shape.tolist() == [1, 4, 40] and total == 0
