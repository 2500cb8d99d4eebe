"""Convolutions by cuDNN: what it is told, on a double of its frontend that does as it is told."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.static_shape import Spec
from hpcflow.kernels import cuda_provider, cudnn_convolution
from hpcflow.kernels.kernel_registry import (
    KernelNode,
    KernelPreferences,
    choose_kernel,
    find_plain_kernel,
)

from .fake_gpu import GARBAGE, FakeArray, FakeCudnn, FakeCupy

ROUNDINGS = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 4e-6}
WISH = KernelPreferences(("cudnn",))


def doubles(patch, **options):
    """A process whose CuPy and cuDNN are doubles."""
    xp, lib = FakeCupy(), FakeCudnn(**options)
    patch.setattr(cuda_provider, "cupy", lambda: xp)
    patch.setattr(cuda_provider, "no_generated_code", lambda: "of libraries alone")
    patch.setattr(cudnn_convolution, "_loaded", lambda: (lib, ""))
    patch.setattr(cudnn_convolution, "_thread_local", threading.local())
    cudnn_convolution.planned.cache_clear()
    return xp, lib


@pytest.fixture
def gpu(monkeypatch):
    yield lambda **options: doubles(monkeypatch, **options)
    cudnn_convolution.planned.cache_clear()


def array(rng, shape, dtype):
    return rng.standard_normal(shape).astype(dtype).view(FakeArray)


def node_of(type, attrs, inputs, tf32=False):
    specs = [Spec(x.dtype, x.shape) for x in inputs]
    return KernelNode(type, attrs, specs, lookup_op(type).infer(specs, attrs), tf32)


def run(xp, node, inputs):
    """What the chosen kernel computes, with the scratch memory that it asked for."""
    choice = choose_kernel(node, "gpu", WISH)
    assert choice.kernel.provider == "cudnn", choice.refused
    call = choice.kernel.make(xp, node)
    out = np.full(node.outputs[0].shape, np.nan, node.outputs[0].dtype).view(FakeArray)
    room = [np.zeros(shape, dtype).view(FakeArray) for dtype, shape in choice.kernel.scratch(node)]
    xp.made.clear()
    call(*inputs, out, room=room)
    return out, room


def by_plain(node, inputs):
    """By the plain kernel, in float64."""
    specs = [Spec(np.dtype("f8"), s.shape) for s in (*node.inputs, *node.outputs)]
    node = KernelNode(node.type, node.attrs, specs[:-1], specs[-1:])
    out = np.full(node.outputs[0].shape, np.nan)
    find_plain_kernel(node.type, "cpu").make(np, node)(
        *(np.array(x, np.float64) for x in inputs), out
    )
    return out


def close(found, wanted, dtype):
    apart = np.linalg.norm(found.astype(np.float64) - wanted)
    assert apart <= ROUNDINGS[dtype] * max(np.linalg.norm(wanted), 1.0), apart


def drawn(data, dtype):
    """Attributes, x, w and what y is."""
    number = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    axes, first, groups = number(1, 3), data.draw(st.booleans()), number(1, 3)
    space = tuple(number(1, 7) for _ in range(axes))
    window = tuple(number(1, 3) for _ in range(axes))
    gaps = tuple(number(1, 2) for _ in range(axes))
    pairs = tuple((number(0, 2), number(0, 2)) for _ in range(axes))
    pads = data.draw(st.sampled_from(["SAME", "VALID", pairs]))
    room = [n if isinstance(pads, str) else n + sum(p) for n, p in zip(space, pairs, strict=True)]
    reach = [(k - 1) * d + 1 for k, d in zip(window, gaps, strict=True)]
    assume(all(n >= r for n, r in zip(room, reach, strict=True)))
    attrs = {"strides": tuple(number(1, 3) for _ in range(axes)), "dilations": gaps}
    attrs |= {"padding": pads, "first": first, "groups": groups}
    channels, filters = groups * number(1, 3), groups * number(1, 3)
    rng = np.random.default_rng(number(0, 2**31))
    batch = number(1, 3)
    x = array(rng, (batch, channels, *space) if first else (batch, *space, channels), dtype)
    w = array(rng, (*window, channels // groups, filters), dtype)
    (y,) = lookup_op("Conv").infer([Spec(a.dtype, a.shape) for a in (x, w)], attrs)
    return attrs, x, w, array(rng, y.shape, dtype), array(rng, (filters,), dtype)


@pytest.mark.parametrize("type", list(cudnn_convolution.ROLES))
@given(data=st.data())
@settings(max_examples=40)
def test_convolutions_of_random_shapes(type, data):
    dtype = data.draw(st.sampled_from(list(ROUNDINGS)))
    attrs, x, w, y, bias = drawn(data, dtype)
    inputs = {"Conv": [x, w], "ConvBias": [x, w, bias], "ConvInputGrad": [y, w]}.get(type, [x, y])
    if type == "ConvBias":
        assume(not attrs["first"])  # such rows are not made
        attrs |= {"relu": data.draw(st.booleans())}
    if type.endswith("Grad"):
        attrs |= {"shape": x.shape if type == "ConvInputGrad" else w.shape}
    node = node_of(type, attrs, inputs)
    with pytest.MonkeyPatch.context() as patch:
        xp, _ = doubles(patch)
        found, (filters, rest) = run(xp, node, inputs)
    close(found, by_plain(node, inputs), dtype)
    assert xp.made == [], "a call allocates nothing"
    assert filters.dtype == w.dtype and math.prod(filters.shape) == w.size
    assert (rest == GARBAGE).all(), "the scratch memory was the step's"


ATTRS = {"strides": (1, 1), "dilations": (1, 1), "padding": "SAME", "first": False, "groups": 1}


def inputs(bias=True, dtype="f4"):
    rng = np.random.default_rng(1)
    shapes = [(2, 4, 4, 3), (3, 3, 3, 5), *([(5,)] if bias else [])]
    return [array(rng, shape, dtype) for shape in shapes]


def test_images_lie_as_they_are_and_filters_in_their_order(gpu):
    """Channels last is a matter of strides: the library's own order of axes is another."""
    for first, strides in ((False, [48, 1, 12, 3]), (True, [48, 16, 4, 1])):
        xp, lib = gpu()
        x, w = inputs(bias=False)
        x = x.transpose(0, 3, 1, 2).copy().view(FakeArray) if first else x
        run(xp, node_of("Conv", {**ATTRS, "first": first}, [x, w]), [x, w])
        image, filters = lib.graphs[-1].given.values()
        assert image.dim == [2, 3, 4, 4] and image.stride == strides
        assert filters.dim == [5, 3, 3, 3]
        assert filters.stride == ([27, 9, 3, 1] if first else [27, 1, 9, 3])


def test_plans_round_as_sums_of_32_bits_do_and_always_alike(gpu):
    wide = {"NONDETERMINISTIC", "REDUCED_PRECISION_REDUCTION"}
    for dtype, tf32, more in (("f4", False, True), ("f4", True, False), ("f2", False, False)):
        xp, lib = gpu()
        given = inputs(bias=False, dtype=dtype)
        run(xp, node_of("Conv", ATTRS, given, tf32), given)
        strict = {"TENSOR_CORE", "DOWN_CONVERT_INPUTS"} if more else set()
        assert set(lib.graphs[-1].without) == wide | strict


def test_a_relu_that_loses_nan_does_not_serve_and_the_bias_alone_does(gpu):
    xp, _ = gpu(keeps_nan=False)
    given = inputs()
    node = node_of("ConvBias", {**ATTRS, "relu": True}, given)
    assert choose_kernel(node, "gpu", WISH).refused == (("cudnn", cuda_provider.LOSES_NAN),)
    run(xp, node_of("ConvBias", {**ATTRS, "relu": False}, given), given)


def test_what_it_does_not_serve_it_says(gpu):
    gpu(refuses="no engine\nfor this")
    (refused,) = choose_kernel(node_of("Conv", ATTRS, inputs(bias=False)), "gpu", WISH).refused
    assert refused == ("cudnn", "cuDNN: no engine")
    specs = [Spec(np.dtype("f4"), shape) for shape in ((None, 4, 4, 3), (3, 3, 3, 5))]
    node = KernelNode("Conv", ATTRS, specs, lookup_op("Conv").infer(specs, ATTRS))
    assert "only in the step" in choose_kernel(node, "gpu", WISH).refused[0][1]


def test_a_plan_is_made_once_and_runs_on_the_current_stream(gpu):
    xp, lib = gpu()
    given = inputs(bias=False)
    for _ in range(3):
        run(xp, node_of("Conv", ATTRS, given), given)
    assert len(lib.graphs) == 1 and list(lib.streams) == [1]


def test_without_scratch_memory_of_the_step_it_takes_its_own(gpu):
    xp, _ = gpu()
    given = inputs(bias=False)
    node = node_of("Conv", ATTRS, given)
    out = np.full(node.outputs[0].shape, np.nan, "f4").view(FakeArray)
    choose_kernel(node, "gpu", WISH).kernel.make(xp, node)(*given, out)
    close(out, by_plain(node, given), "float32")
    assert xp.made == ["empty", "empty"]


def test_the_package_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(cuda_provider, "cupy", FakeCupy)
    monkeypatch.setattr(cudnn_convolution.importlib.util, "find_spec", lambda name: None)
    cudnn_convolution._loaded.cache_clear()
    assert "nvidia-cudnn-frontend is not installed: pip install" in cudnn_convolution.absent()
    cudnn_convolution._loaded.cache_clear()
    monkeypatch.setattr(cuda_provider, "cupy", lambda: None)
    assert cudnn_convolution.absent() == "this rank uses no GPU"
