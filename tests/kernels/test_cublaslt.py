"""Products by cuBLASLt: what it is told, on a double that does as it is told."""

from __future__ import annotations

import ctypes
import gc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.static_shape import Spec
from hpcflow.kernels import cublaslt_matmul, cuda_provider
from hpcflow.kernels.kernel_registry import KernelNode, KernelPreferences, choose_kernel

from .fake_gpu import GARBAGE, TF32, FakeArray, FakeCupy, FakeLt

ROUNDINGS = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-6, "float64": 1e-14}
WISH = KernelPreferences(("cublaslt",))


@pytest.fixture
def gpu(monkeypatch):
    """`use(**options)` gives a process whose CuPy and cuBLASLt are doubles."""

    def use(**options):
        xp, lt = FakeCupy(), FakeLt(**options)
        monkeypatch.setattr(cuda_provider, "cupy", lambda: xp)
        monkeypatch.setattr(cublaslt_matmul, "_loaded", lambda: lt)
        cublaslt_matmul.planned.cache_clear()
        cublaslt_matmul.context.cache_clear()
        return xp, lt

    yield use
    gc.collect()  # descriptors of the double
    cublaslt_matmul.planned.cache_clear()
    cublaslt_matmul.context.cache_clear()


def array(rng, shape, dtype, offset=0):
    """Random numbers in an array that begins `offset` elements behind a multiple of 64 bytes."""
    dtype = np.dtype(dtype)
    block = np.zeros(int(np.prod(shape)) * dtype.itemsize + 256, np.uint8)
    start = -block.ctypes.data % 64 + offset * dtype.itemsize
    made = block[start : start + int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)
    made[...] = rng.standard_normal(shape)
    return made.view(FakeArray)


def node_of(inputs, type="MatMul", tf32=False, **attrs):
    attrs = {"transpose_a": False, "transpose_b": False, **attrs}
    specs = [Spec(x.dtype, x.shape) for x in inputs]
    return KernelNode(type, attrs, specs, lookup_op(type).infer(specs, attrs), tf32)


def run(xp, node, inputs, offset=0):
    """What the chosen kernel computes, in memory of a step: the scratch that it asked for."""
    choice = choose_kernel(node, "gpu", WISH)
    assert choice.kernel.provider == "cublaslt", choice.refused
    out = array(np.random.default_rng(0), node.outputs[0].shape, node.outputs[0].dtype, offset)
    out.fill(np.nan)
    call = choice.kernel.make(xp, node)
    room = [np.zeros(shape, dtype).view(FakeArray) for dtype, shape in choice.kernel.scratch(node)]
    xp.made.clear()
    call(*inputs, out, room=room)
    return out, room


def expected(node, inputs):
    """By NumPy in float64, of the numbers as they were rounded."""
    a, b, *bias = (x.astype(np.float64).view(np.ndarray) for x in inputs)
    a = a.swapaxes(-1, -2) if node.attrs["transpose_a"] else a
    b = b.swapaxes(-1, -2) if node.attrs["transpose_b"] else b
    made = a @ b
    made = made + bias[0] if bias else made
    return np.maximum(made, 0) if node.attrs.get("relu") else made


def close(found, wanted, dtype):
    apart = np.linalg.norm(found.astype(np.float64) - wanted)
    assert apart <= ROUNDINGS[dtype] * max(np.linalg.norm(wanted), 1.0), apart


@given(data=st.data())
@settings(max_examples=80)
def test_products_of_random_shapes(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    size = lambda: data.draw(st.integers(1, 9))  # noqa: E731
    lead = tuple(size() for _ in range(data.draw(st.integers(0, 2))))
    whose = data.draw(st.sampled_from(["both", "a", "b"]))  # the leading axes
    rows, summed, columns = size(), size(), size()
    turn_a, turn_b = data.draw(st.booleans()), data.draw(st.booleans())
    dtype = data.draw(st.sampled_from(list(ROUNDINGS)))
    offset = data.draw(st.integers(0, 1))
    a = (() if whose == "b" else lead) + ((summed, rows) if turn_a else (rows, summed))
    b = (() if whose == "a" else lead) + ((columns, summed) if turn_b else (summed, columns))
    inputs = [array(rng, shape, dtype, offset) for shape in (a, b)]
    attrs = {"transpose_a": turn_a, "transpose_b": turn_b}
    if data.draw(st.booleans()):
        inputs.append(array(rng, (columns,), dtype))
        node = node_of(inputs, "MatMulBias", **attrs, relu=data.draw(st.booleans()))
    else:
        node = node_of(inputs, **attrs)
    with pytest.MonkeyPatch.context() as patch:
        xp, lt = FakeCupy(), FakeLt()
        patch.setattr(cuda_provider, "cupy", lambda: xp)
        patch.setattr(cublaslt_matmul, "_loaded", lambda: lt)
        cublaslt_matmul.planned.cache_clear()
        cublaslt_matmul.context.cache_clear()
        found, room = run(xp, node, inputs, offset)
        close(found, expected(node, inputs), dtype)
        assert xp.made == [], "a call allocates nothing"
        assert [(r == GARBAGE).all() for r in room] == [True], "the scratch memory was the step's"
        del found, room
        cublaslt_matmul.planned.cache_clear()


@pytest.mark.slow
def test_numbers_that_begin_anywhere_have_a_plan_of_their_own(gpu):
    xp, lt = gpu()
    rng = np.random.default_rng(3)
    for offset in (0, 1, 0):
        inputs = [array(rng, (4, 4), "f4", offset) for _ in range(2)]
        node = node_of(inputs)
        close(run(xp, node, inputs)[0], expected(node, inputs), "float32")
    assert [one["aligned"] for one in lt.seen] == [16, 4, 16]


@pytest.mark.slow
def test_a_view_in_another_order_is_copied(gpu):
    xp, _ = gpu()
    rng = np.random.default_rng(4)
    inputs = [array(rng, (5, 6), "f4").T, array(rng, (5, 3), "f4")]
    node = node_of(inputs)
    close(run(xp, node, inputs)[0], expected(node, inputs), "float32")
    assert xp.made == ["ascontiguousarray"]


@pytest.mark.slow
def test_float32_is_multiplied_as_it_is_unless_tf32_is_allowed(gpu):
    xp, lt = gpu()
    for dtype, tf32 in (("f4", False), ("f4", True), ("f8", True), (ml_dtypes.bfloat16, True)):
        inputs = [array(np.random.default_rng(6), (4, 4), dtype) for _ in range(2)]
        run(xp, node_of(inputs, tf32=tf32), inputs)
    assert [one["compute"] for one in lt.seen] == [68, TF32, 70, 68]


@pytest.mark.slow
def test_sums_of_parts_are_kept_wide_and_in_one_order(gpu):
    _, lt = gpu()
    made = cublaslt_matmul.MatmulDescriptors(_product(), 16, 1 << 20)
    assert lt.objects[made.preference.value].has[3] == 2  # only in the compute type


def _product(**more):
    usual = {"bias": False, "relu": False, "tf32": False, **more}
    return cublaslt_matmul.MatmulProblem("float32", (False, False), (4, 4), (4, 4), (4, 4), **usual)


def test_a_relu_that_loses_nan_does_not_serve_and_the_bias_alone_does(gpu):
    xp, lt = gpu(keeps_nan=False)
    inputs = [array(np.random.default_rng(7), s, "f4") for s in ((4, 4), (4, 4), (4,))]
    node = node_of(inputs, "MatMulBias", relu=True)
    assert choose_kernel(node, "gpu", WISH).refused == (("cublaslt", cuda_provider.LOSES_NAN),)
    run(xp, node_of(inputs, "MatMulBias", relu=False), inputs)
    assert lt.seen[-1]["epilogue"] == 4


@pytest.mark.slow
def test_nan_comes_out_of_the_relu(gpu):
    xp, _ = gpu()
    inputs = [array(np.random.default_rng(8), s, "f4") for s in ((4, 4), (4, 4), (4,))]
    inputs[2][1] = np.nan
    found, _ = run(xp, node_of(inputs, "MatMulBias", relu=True), inputs)
    assert np.isnan(found[:, 1]).all() and not np.isnan(found[:, [0, 2, 3]]).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shapes", "dtype", "why"),
    [
        ([(4, 4), (4, 4)], "i4", "int32"),
        ([(None, 4), (4, 4)], "f4", "only in the step"),
        ([(0, 4), (4, 4)], "f4", "empty"),
        ([(2, 1, 4, 4), (3, 4, 4)], "f4", "broadcast"),
    ],
)
def test_what_it_does_not_serve_it_says(gpu, shapes, dtype, why):
    gpu()
    specs = [Spec(np.dtype(dtype), shape) for shape in shapes]
    attrs = {"transpose_a": False, "transpose_b": False}
    node = KernelNode("MatMul", attrs, specs, lookup_op("MatMul").infer(specs, attrs))
    choice = choose_kernel(node, "gpu", WISH)
    assert choice.kernel.provider == "plain" and why in choice.refused[0][1]


def test_what_the_library_has_no_algorithm_for_is_told(gpu):
    gpu(algorithms=0)
    inputs = [array(np.random.default_rng(9), (4, 4), "f4") for _ in range(2)]
    choice = choose_kernel(node_of(inputs), "gpu", WISH)
    assert choice.refused == (("cublaslt", "cuBLASLt: it has no algorithm for it"),)


@pytest.mark.slow
def test_descriptors_are_destroyed_with_their_plans(gpu):
    _, lt = gpu()
    plan = cublaslt_matmul.MatmulPlan(_product())
    assert len(lt.objects) == 5
    del plan
    gc.collect()
    assert lt.objects == {}


def test_a_rank_without_a_gpu_says_so(monkeypatch):
    xp = FakeCupy()
    xp.is_available = lambda: False
    for cupy in (None, xp):
        monkeypatch.setattr(cuda_provider, "cupy", lambda cupy=cupy: cupy)
        assert cublaslt_matmul.absent() == "this rank uses no GPU"


def test_a_missing_library_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(cuda_provider, "cupy", FakeCupy)
    monkeypatch.setattr(cublaslt_matmul, "_loaded", lambda: None)
    assert "pip install 'hpcflow-mpi[cuda12]'" in cublaslt_matmul.absent()


# -- the library itself, which needs no GPU to be told of a product


@pytest.fixture
def real(monkeypatch):
    monkeypatch.setattr(cuda_provider, "cupy", FakeCupy)
    cublaslt_matmul._loaded.cache_clear()
    if cublaslt_matmul._loaded() is None:
        pytest.skip("needs cuBLASLt")
    yield cublaslt_matmul._loaded()
    gc.collect()
    cublaslt_matmul._loaded.cache_clear()


def read(handle, attribute, type):
    get = getattr(cublaslt_matmul.library(), f"cublasLt{handle.kind}GetAttribute")
    pointer = ctypes.c_void_p
    get.argtypes = [pointer, ctypes.c_int, pointer, ctypes.c_size_t, pointer]
    value, size = type(), ctypes.c_size_t()
    place, nbytes = ctypes.byref(value), ctypes.sizeof(value)
    assert get(handle.value, attribute, place, nbytes, ctypes.byref(size)) == 0
    assert size.value == nbytes
    return value.value


def test_the_library_has_understood_what_it_was_told(real):
    shapes = (5, 7, 3), (7, 11), (5, 3, 11)
    of = cublaslt_matmul.MatmulProblem("bfloat16", (True, False), *shapes, True, True, False)
    made = cublaslt_matmul.MatmulDescriptors(of, 4, 1 << 20)
    int32, int64, uint64 = ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64
    names = {0: int32, 1: int32, 3: int32, 4: int32, 7: int32, 8: uint64}
    told = [read(made.product, name, type) for name, type in names.items()]
    assert told == [68, 0, 0, 1, 6, 4]
    names = {0: int32, 1: int32, 2: uint64, 3: uint64, 4: int64, 5: int32, 6: int64}
    lying = [[read(x, n, t) for n, t in names.items()] for x in (made.a, made.b, made.c)]
    assert lying == [[14, 0, 3, 7, 3, 5, 21], [14, 0, 11, 7, 11, 5, 0], [14, 0, 11, 3, 11, 5, 33]]
    names = {1: uint64, **dict.fromkeys((3, 5, 6, 7, 8), ctypes.c_uint32)}
    assert [read(made.preference, n, t) for n, t in names.items()] == [1 << 20, 2, 4, 4, 4, 4]
