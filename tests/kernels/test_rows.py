"""Generated kernels of rows: equal to NumPy's formulas to the last bit, on random indices."""

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import hpcflow.kernels.llvm_row_gather_scatter  # noqa: F401  (fills the table)
from hpcflow.errors import RangeError, ShapeError
from hpcflow.graph.static_shape import Spec
from hpcflow.kernels.kernel_registry import KernelNode, choose_kernel, kernel_preferences

UFUNCS = {
    **{"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide},
    **{"Min": np.minimum, "Max": np.maximum},
}


def generated(type, attrs, inputs, outputs=()):
    """The kernel that a plan would choose, which is a generated one."""
    specs = [[Spec(a.dtype, a.shape) for a in arrays] for arrays in (inputs, outputs)]
    node = KernelNode(type, attrs, *specs)
    row = choose_kernel(node, "cpu", kernel_preferences()).kernel
    assert row.provider == "llvm"
    return row.make(np, node)


def refused(type, attrs, inputs, outputs=()):
    """Why no generated kernel serves."""
    specs = [[Spec(a.dtype, a.shape) for a in arrays] for arrays in (inputs, outputs)]
    return dict(
        choose_kernel(KernelNode(type, attrs, *specs), "cpu", kernel_preferences()).refused
    )["llvm"]


def drawn(rng, shape, dtype):
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        return rng.integers(1, 100, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def handle(table):
    return {"dtype": table.dtype, "shape": table.shape}


SHAPES = [((50, 7), (200,)), ((9, 128), (4, 5)), ((3,), (40,)), ((6, 2, 3), (0,)), ((5, 0), (3,))]


FLOATS, INTEGERS = ["float32", "float64"], ["int32", "int64"]
CHANGES = [(how, dtype) for how in UFUNCS for dtype in [*FLOATS, *INTEGERS]
           if how != "Div" or dtype in FLOATS]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("index", INTEGERS)
@pytest.mark.parametrize(("how", "dtype"), CHANGES)
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_rows_are_changed_one_after_the_other(how, dtype, index, sizes):
    rng = np.random.default_rng(0)
    (shape, at), ufunc = sizes, UFUNCS[how]
    table, indices = drawn(rng, shape, dtype), rng.integers(0, shape[0], at).astype(index)
    rows = drawn(rng, (*at, *shape[1:]), dtype)
    expected = table.copy()
    ufunc.at(expected, indices, rows)
    run = generated(f"Scatter{how}", handle(table), [np.zeros(()), indices, rows])
    run(table, indices, rows)
    assert table.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_of_rows_that_replace_one_the_last_stays(dtype):
    rng = np.random.default_rng(1)
    table, indices = drawn(rng, (20, 33), dtype), rng.integers(0, 20, 100)
    rows, expected = drawn(rng, (100, 33), dtype), table.copy()
    for i, row in zip(indices, rows, strict=True):
        expected[i] = row
    generated("ScatterUpdate", handle(table), [np.zeros(()), indices, rows])(table, indices, rows)
    assert (table == expected).all()


def test_more_rows_than_one_tile_holds():
    rng = np.random.default_rng(2)
    table, indices = drawn(rng, (300, 1000), "float32"), rng.integers(0, 300, 700)
    rows, expected = drawn(rng, (700, 1000), "float32"), table.copy()
    np.subtract.at(expected, indices, rows)
    run = generated("ScatterSub", handle(table), [np.zeros(()), indices, rows])
    assert len(list(run.tiles(table, indices, rows))) > 1
    assert table.tobytes() == expected.tobytes()


def test_a_scalar_fills_rows_and_arrays_may_lie_anyhow():
    rng = np.random.default_rng(3)
    table, indices = drawn(rng, (10, 4), "float32"), np.array([1, 0, 1, 0, 7, 0])[::2]
    expected, two = table.copy(), np.array(2, "float32")
    np.add.at(expected, indices, np.full((3, 4), 2, "float32"))
    run = generated("ScatterAdd", handle(table), [np.zeros(()), indices, two])
    run(table, indices, two)
    np.add.at(expected, indices, np.arange(12, dtype="float32").reshape(4, 3).T)
    run(table, indices, np.arange(12, dtype="float32").reshape(4, 3).T)
    assert table.tobytes() == expected.tobytes()


@pytest.mark.parametrize("wrong", [-1, 5, 2**40])
@pytest.mark.parametrize("places", [3, 1000])
def test_nothing_is_changed_if_an_index_is_outside(wrong, places):
    table = np.zeros((5, 600), "float32")
    indices = np.arange(places) % 5
    indices[-1] = wrong
    rows = np.ones((places, 600), "float32")
    run = generated("ScatterAdd", handle(table), [np.zeros(()), indices, rows])
    with pytest.raises(RangeError, match=rf"index {wrong} is outside \[0, 5\) \(1 of {places} are"):
        run(table, indices, rows)
    assert not table.any()


def test_updates_of_another_shape_are_an_error():
    table, indices = np.zeros((5, 2), "float32"), np.array([1, 2])
    run = generated("ScatterAdd", handle(table), [np.zeros(()), indices, np.zeros((2, 2))])
    with pytest.raises(ShapeError, match="need"):
        run(table, indices, np.zeros((3, 2), "float32"))


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "float16", "float32", "float64", "complex64", "complex128"]
)
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_rows_are_taken_along_an_axis(dtype, index, axis):
    rng = np.random.default_rng(4)
    table = (rng.standard_normal((6, 7, 9)) * 3).astype(dtype)
    for at in [(5,), (2, 30), (), (0,)]:
        indices = rng.integers(0, table.shape[axis], at).astype(index)
        expected = np.take(table, indices, axis)
        out = np.empty_like(expected)
        run = generated("Gather", {"axis": axis}, [table, indices], [out])
        run(table, indices, out)
        assert out.tobytes() == expected.tobytes()
        run(np.asfortranarray(table), indices, out)
        assert out.tobytes() == expected.tobytes()


def test_rows_of_a_variable_are_read():
    rng = np.random.default_rng(5)
    table, indices = drawn(rng, (1000, 200), "float32"), rng.integers(0, 1000, (30, 20))
    out = np.empty((30, 20, 200), "float32")
    run = generated("ReadRows", handle(table), [np.zeros(()), indices], [out])
    run(table, indices, out)
    assert (out == table[indices]).all()
    with pytest.raises(RangeError, match=r"rows: index -3 is outside \[0, 1000\) \(2 of 600 are"):
        indices[0, :2] = -3
        run(table, indices, out)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_the_gradient_of_a_gather_adds_rows_up(axis, dtype):
    rng = np.random.default_rng(6)
    shape, at = (4, 5, 6), (3, 8)
    indices = rng.integers(0, shape[axis], at)
    g = drawn(rng, (*shape[:axis], *at, *shape[axis + 1 :]), dtype)
    out, expected = np.full(shape, 9, dtype), np.zeros(shape, dtype)
    where = (slice(None),) * axis + (indices,)
    np.add.at(expected, where, g)
    run = generated("GatherGrad", {"axis": axis}, [g, indices], [out])
    run(g, indices, out)
    assert out.tobytes() == expected.tobytes()
    with pytest.raises(RangeError, match="gather: index 9"):
        indices[1, 1] = 9
        run(g, indices, out)


@pytest.mark.parametrize("kind, ufunc, empty", [("Sum", np.add, 0), ("Prod", np.multiply, 1)])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_rows_of_negative_segments_are_of_none(kind, ufunc, empty, dtype):
    rng = np.random.default_rng(7)
    ids, data = rng.integers(-2, 6, (10, 3)).astype("int32"), drawn(rng, (10, 3, 5), dtype)
    out, expected = np.zeros((7, 5), dtype), np.full((7, 5), empty, dtype)
    ufunc.at(expected, ids[ids >= 0], data[ids >= 0])
    number = np.array(7)
    run = generated(f"UnsortedSegment{kind}", {}, [data, ids, number], [out])
    run(data, ids, number, out)
    assert out.tobytes() == expected.tobytes()
    with pytest.raises(RangeError, match=r"segment number 7 is outside \[0, 7\)"):
        ids[0, 0] = 7
        run(data, ids, number, out)


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("most", [1, 30, 2**31 - 1])
def test_rows_of_one_index_are_summed(most, dtype, index):
    rng = np.random.default_rng(8)
    for row in [(), (7,), (2, 40)]:
        indices, values = rng.integers(0, most, 100).astype(index), drawn(rng, (100, *row), dtype)
        outputs = [values, indices, indices.astype("int64")]
        run = generated("SumEqualRows", {}, [values, indices], outputs)
        summed, found, inverse = run(values, indices)
        expected, where = np.unique(indices, return_inverse=True)
        total = np.zeros((len(expected), *row), dtype)
        np.add.at(total, where, values)
        assert found.dtype == indices.dtype and (found == expected).all()
        assert (inverse == where).all() and summed.tobytes() == total.tobytes()


@pytest.mark.parametrize("indices", [[], [-1, 4, -1, 2**40], [2**31, 5, 2**31]], ids=str)
def test_sums_of_indices_of_more_bits(indices):
    indices = np.array(indices, "int64")
    values = np.arange(float(len(indices)))
    outputs = [values, indices, indices]
    summed, found, _ = generated("SumEqualRows", {}, [values, indices], outputs)(values, indices)
    expected = {i: values[indices == i].sum() for i in indices}
    assert dict(zip(found, summed, strict=True)) == expected and (np.diff(found) > 0).all()


def test_what_plain_kernels_are_left_with():
    table, at = np.zeros((3, 2), "float16"), np.zeros(2, "int64")
    assert "float16" in refused("ScatterAdd", handle(table), [np.zeros(()), at, table])
    table = table.astype("float32")
    assert "uint8" in refused("ReadRows", handle(table), [np.zeros(()), at.astype("u1")], [table])
    assert "batch" in refused("Gather", {"axis": 1, "batch_dims": 1}, [table, table], [table])
