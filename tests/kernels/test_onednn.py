"""oneDNN's kernels against the plain ones, when they are chosen, and the library's binding."""

import threading

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import KernelError
from hpcflow.graph.dtypes import as_dtype, bfloat16
from hpcflow.graph.static_shape import Spec
from hpcflow.kernels import half_precision, kernel_registry, onednn_library
from hpcflow.kernels.kernel_registry import KernelNode, choose_kernel, kernel_preferences
from hpcflow.platform.cpu_threads import chosen_threads as chosen_threads
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.step.kernel_selection import selected_kernels
from hpcflow.settings import Settings
from tests.kernels.against_plain import both, chosen, close, run

pytestmark = pytest.mark.skipif(
    bool(onednn_library.absent()), reason=f"oneDNN: {onednn_library.absent()}"
)
CONVOLUTIONS = [
    # space, batch, channels, filters, groups, kernel, stride, dilation, padding, first
    ((9, 8), 2, 4, 6, 1, 3, 1, 1, "SAME", False),
    ((9, 8), 2, 4, 6, 2, 3, 2, 1, "SAME", False),
    ((9, 8), 2, 4, 6, 1, 3, 2, 1, "VALID", True),
    ((9, 8), 2, 4, 6, 1, 3, 1, 2, "SAME", False),
    ((9, 8), 3, 4, 8, 4, 3, 1, 1, ((1, 2), (0, 1)), False),
    ((9, 8), 2, 4, 6, 1, 2, 3, 1, "VALID", False),
    ((9, 8), 2, 16, 16, 16, 3, 1, 1, "SAME", False),
    ((7, 7), 1, 16, 32, 1, 1, 1, 1, "SAME", False),
    ((11, 12), 3, 3, 5, 1, 4, 2, 1, ((2, 0), (1, 3)), True),
    ((28, 28), 2, 1, 32, 1, 5, 1, 1, "SAME", False),
    ((9,), 3, 4, 8, 1, 3, 2, 1, "SAME", False),
    ((5, 4, 3), 1, 2, 3, 1, 2, 1, 1, "SAME", False),
]
POOLINGS = [
    # space, batch, channels, window, stride, padding, first
    ((8, 8), 3, 16, 2, 2, "VALID", False),
    ((9, 7), 2, 5, 3, 2, "VALID", False),
    ((9, 8), 2, 16, 3, 2, "SAME", False),
    ((9, 8), 2, 3, 3, 1, ((1, 0), (1, 1)), False),
    ((9, 8), 2, 3, 3, 2, "SAME", True),
    ((9,), 2, 8, 2, 2, "VALID", False),
    ((4, 5, 6), 2, 8, 2, 2, "SAME", False),
]


def drawn(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def image(rng, batch, channels, space, first):
    return drawn(rng, batch, channels, *space) if first else drawn(rng, batch, *space, channels)


def convolution(rng, space, batch, channels, filters, groups, k, stride, dilation, padding, first):
    """Attributes, x, w, and g of the shape of the result."""
    axes = len(space)
    attrs = dict(strides=(stride,) * axes, dilations=(dilation,) * axes, padding=padding)
    attrs |= dict(first=first, groups=groups)
    x = image(rng, batch, channels, space, first)
    w = drawn(rng, *(k,) * axes, channels // groups, filters)
    _, node = chosen("Conv", attrs, [x, w])
    return attrs, x, w, drawn(rng, *node.outputs[0].shape)


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolutions_in_all_directions(case):
    attrs, x, w, g = convolution(np.random.default_rng(0), *case)
    rows = {
        "Conv": (attrs, [x, w]),
        "ConvInputGrad": ({**attrs, "shape": x.shape}, [g, w]),
        "ConvFilterGrad": ({**attrs, "shape": w.shape}, [x, g]),
    }
    for type, (given, inputs) in rows.items():
        provider, fast, plain = both(type, given, inputs)
        single = type == "ConvInputGrad" and case[2] == 1
        assert provider == ("plain" if single else "onednn")
        close(fast, plain)


def test_convolutions_of_random_sizes():
    rng = np.random.default_rng(1)
    for _ in range(60):
        groups = int(rng.integers(1, 4))
        space = tuple(int(n) for n in rng.integers(5, 17, 2))
        counts = [int(n) for n in rng.integers(1, 9, 2)]
        pads = rng.integers(0, 3, (2, 2)).tolist()
        attrs, x, w, g = convolution(
            rng,
            space,
            int(rng.integers(1, 5)),
            counts[0] * groups,
            counts[1] * groups,
            groups,
            int(rng.integers(1, 6)),
            int(rng.integers(1, 4)),
            1,
            ["SAME", "VALID", tuple(map(tuple, pads))][int(rng.integers(3))],
            bool(rng.integers(2)),
        )
        close(*both("Conv", attrs, [x, w])[1:])
        close(*both("ConvInputGrad", {**attrs, "shape": x.shape}, [g, w])[1:])
        close(*both("ConvFilterGrad", {**attrs, "shape": w.shape}, [x, g])[1:])


@pytest.mark.parametrize("case", POOLINGS, ids=str)
def test_gradients_of_max_pooling_go_to_the_first_of_equal_elements(case):
    space, batch, channels, window, stride, padding, first = case
    rng = np.random.default_rng(2)
    axes = len(space)
    attrs = dict(strides=(stride,) * axes, dilations=(1,) * axes, window=(window,) * axes)
    attrs |= dict(padding=padding, first=first)
    shape = image(rng, batch, channels, space, first).shape
    for low in (-2, 0):  # many ties; as behind a relu
        x = np.maximum(rng.integers(-3, 3, shape), low).astype(np.float32)
        y = run(*chosen("MaxPool", attrs, [x]), [x])
        g = drawn(rng, *y.shape)
        provider, fast, plain = both("MaxPoolGrad", attrs, [x, y, g], (), "onednn")
        assert provider == "onednn"
        close(fast, plain)


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("case", POOLINGS, ids=str)
def test_mean_pooling(case, counted):
    space, batch, channels, window, stride, padding, first = case
    rng = np.random.default_rng(3)
    axes = len(space)
    attrs = dict(strides=(stride,) * axes, dilations=(1,) * axes, window=(window,) * axes)
    attrs |= dict(padding=padding, first=first, count_include_pad=counted)
    x = image(rng, batch, channels, space, first)
    provider, fast, plain = both("AvgPool", attrs, [x])
    assert provider == "onednn"
    close(fast, plain)
    given = {**attrs, "shape": x.shape}
    provider, fast, plain = both("AvgPoolGrad", given, [drawn(rng, *plain.shape)])
    assert provider == "onednn"
    close(fast, plain)


def test_windows_of_padding_alone_are_left_to_the_plain_kernel():
    attrs = dict(strides=(1,), dilations=(1,), window=(2,), padding=((3, 0),), first=False)
    x = np.ones((1, 4, 8), np.float32)
    provider, fast, plain = both("AvgPool", {**attrs, "count_include_pad": False}, [x])
    assert provider == "plain" and np.array_equal(fast, plain)


def conv_attrs(**others):
    return {**dict(strides=(1, 1), dilations=(1, 1), padding="SAME", first=False, groups=1),
            **others}  # fmt: skip


def test_float64_is_not_served():
    x, w = np.ones((1, 5, 5, 8)), np.ones((3, 3, 8, 8))
    choice, _ = chosen("Conv", conv_attrs(), [x, w])
    assert choice.kernel.provider == "plain" and "float32" in choice.refused[0][1]


@pytest.mark.parametrize("dtype", [np.float16, bfloat16], ids=str)
def test_16_bit_floats_are_computed_in_float32_and_rounded_once(dtype):
    rng = np.random.default_rng(6)
    x, w = (drawn(rng, *shape).astype(dtype) for shape in ((2, 9, 9, 8), (3, 3, 8, 16)))
    provider, value, plain = both("Conv", conv_attrs(), [x, w])
    assert provider == "onednn" and value.dtype == plain.dtype == dtype
    wide = both("Conv", conv_attrs(), [x.astype("f4"), w.astype("f4")])[1]
    rounded = wide.astype(dtype)
    assert np.array_equal(value.view("u2"), rounded.view("u2"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_floats_are_the_librarys_where_the_cpu_multiplies_them(dtype, monkeypatch):
    """Then no array is widened; elsewhere the library gets float32 copies."""
    kind = as_dtype(dtype)
    rng = np.random.default_rng(7)
    x, w = (drawn(rng, *shape).astype(kind) for shape in ((2, 9, 9, 8), (3, 3, 8, 16)))
    a, b = drawn(rng, 70, 130).astype(kind), drawn(rng, 130, 180).astype(kind)
    turns = {"transpose_a": False, "transpose_b": False}
    there = {False, onednn_library.has_instructions(dtype)}
    for type, attrs, inputs in (("Conv", conv_attrs(), [x, w]), ("MatMul", turns, [a, b])):
        for instructions in there:
            known = {"float32", dtype} if instructions else {"float32"}
            monkeypatch.setattr(onednn_library, "has_instructions", known.__contains__)
            choice, node = chosen(type, attrs, inputs)
            widens = []
            monkeypatch.setattr(half_precision, "_widen_arrays", recorded(widens))
            value = run(choice, node, inputs)
            assert choice.kernel.provider == "onednn" and value.dtype == kind
            assert bool(widens) is not instructions
            wide = both(type, attrs, [i.astype("f4") for i in inputs])[2]
            close(value, wide, tolerance=2.0**-8)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6, 8, 9, 12, 17, 18, 33, 34, 64])
@pytest.mark.parametrize("results", [8, 15, 16, 17, 32])
def test_a_nan_in_bfloat16_stays_in_its_windows(channels, results):
    """Tiles of few channels, and pairs of an odd number, hold those of the next pixel, too."""
    x, w = np.ones((1, 8, 8, channels), bfloat16), np.ones((3, 3, channels, results), bfloat16)
    g = np.ones((1, 8, 8, results), bfloat16)
    x[0, 4, 4, 0] = g[0, 4, 4, 0] = np.nan
    same = {**conv_attrs(), "padding": "SAME"}
    cases = [("Conv", conv_attrs(), [x, w]), ("ConvInputGrad", {**same, "shape": x.shape}, [g, w])]
    for type, attrs, inputs in cases:
        provider, value, plain = both(type, attrs, inputs)
        assert provider == "onednn" or channels == 1  # of one, NumPy's gradient is faster
        assert np.array_equal(np.isnan(value.astype("f4")), np.isnan(plain.astype("f4"))), type


def test_a_shape_that_only_the_step_knows_is_no_array_of_the_library():
    g, w = np.ones((2, 6, 6, 8), "f4"), np.ones((3, 3, 4, 8), "f4")
    attrs = {**conv_attrs(), "shape": None}
    specs = [Spec(g.dtype, (None, 6, 6, 8)), Spec(w.dtype, w.shape), Spec(np.dtype("i4"), (4,))]
    out = Spec(g.dtype, (None, 6, 6, 4))
    node = KernelNode("ConvInputGrad", attrs, specs, [out])
    assert choose_kernel(node, "cpu", kernel_preferences()).kernel.provider == "onednn"


def recorded(calls):
    """`_widen_arrays`, which also notes its calls."""
    original = half_precision._widen_arrays

    def widen(*arguments):
        calls.append(arguments)
        return original(*arguments)

    return widen


def test_sizes_that_only_the_step_knows():
    rng = np.random.default_rng(4)
    w = drawn(rng, 3, 3, 4, 8)
    choice, node = chosen("Conv", conv_attrs(), [drawn(rng, 2, 6, 6, 4), w], unknown=(0,))
    assert choice.kernel.provider == "onednn" and node.outputs[0].shape[0] is None
    kernel = choice.kernel.make(np, node)
    for batch in (3, 1, 0, 3):
        x = drawn(rng, batch, 6, 6, 4)
        out = np.full((batch, 6, 6, 8), np.nan, np.float32)
        kernel(x, w, out)
        close(out, both("Conv", conv_attrs(), [x, w])[2])


def test_inputs_need_not_be_contiguous_and_are_not_kept():
    rng = np.random.default_rng(5)
    whole, w = drawn(rng, 2, 12, 6, 4), drawn(rng, 3, 3, 4, 8)
    choice, node = chosen("Conv", conv_attrs(), [whole[:, ::2], w])
    kernel = choice.kernel.make(np, node)
    out = np.empty((2, 6, 6, 8), np.float32)
    for _ in range(3):
        x = whole[:, ::2]
        kernel(x, w, out)
        close(out, both("Conv", conv_attrs(), [x.copy(), w])[2])
        whole *= -1
    before = [drawn(rng, 2, 6, 6, 4) for _ in range(3)]
    for x in before:  # new arrays, perhaps where old ones were
        kernel(x, w, out)
        close(out, both("Conv", conv_attrs(), [x, w])[2])


def test_threads_that_run_one_kernel_at_once():
    rng = np.random.default_rng(6)
    w = drawn(rng, 3, 3, 16, 32)
    inputs = [drawn(rng, 4, 20, 20, 16) for _ in range(4)]
    choice, node = chosen("Conv", conv_attrs(), [inputs[0], w])
    kernel = choice.kernel.make(np, node)
    wanted = [both("Conv", conv_attrs(), [x, w])[2] for x in inputs]
    outs = [np.empty_like(y) for y in wanted]
    counts: list[int] = []

    def work(i):
        for _ in range(20):
            outs[i].fill(np.nan)
            kernel(inputs[i], w, outs[i])
        counts.append(onednn_library.library().omp_get_max_threads())

    each = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in each:
        thread.start()
    for thread in each:
        thread.join()
    assert counts == [chosen_threads().threads] * 4
    for out, value in zip(outs, wanted, strict=True):
        close(out, value)


def network(x, w):
    y = hf.nn.max_pool2d(hf.nn.relu(hf.nn.conv2d(x, w, 1, "SAME")), 2, 2, "VALID")
    loss = hf.reduce_sum(hf.square(y))
    return [loss, *hf.gradients(loss, [x, w])]


def outcome(**settings):
    """What a step of a small network computes, and who serves its ops."""
    rng = np.random.default_rng(7)
    with use_context(RankContext(Settings(**settings))) as context, hf.Graph().as_default():
        x = hf.placeholder(hf.float32, [2, 8, 8, 4])
        w = hf.Variable(drawn(rng, 3, 3, 4, 8))
        session, fetches = hf.Session(), network(x, w)
        session.run(hf.global_variables_initializer())
        feeds = {x: drawn(rng, 2, 8, 8, 4)}
        values = session.run(fetches, feeds)
        plan = session.plan(fetches, feeds)
        rows = selected_kernels(plan.parts[plan.driver], context.devices)
        return values, {row.type: row for row in rows}


def test_a_step_is_served_by_onednn_and_computes_the_same():
    plain, rows = outcome(kernels="plain")
    assert {row.provider for row in rows.values()} == {"numpy"}
    fast, rows = outcome(kernels="onednn")
    served_fast = {type for type, row in rows.items() if row.provider == "onednn"}
    assert {"Conv", "ConvFilterGrad", "ConvInputGrad", "MaxPoolGrad"} <= served_fast
    for a, b in zip(fast, plain, strict=True):
        close(np.asarray(a), np.asarray(b), 1e-5)


def test_exact_is_plain():
    values, rows = outcome(exact=True)
    plain, _ = outcome(kernels="plain")
    assert rows["Conv"].provider == "numpy" and "exact" in dict(rows["Conv"].refused)["onednn"]
    assert all(np.array_equal(a, b) for a, b in zip(values, plain, strict=True))


def test_without_the_library_plain_kernels_serve_and_it_is_told(monkeypatch):
    monkeypatch.setattr(onednn_library, "FILE", "libdnnl-of-no-machine.so")
    lib, why = onednn_library._loaded.__wrapped__()
    assert lib is None and "pip install" in why
    monkeypatch.setitem(kernel_registry._PROVIDERS, onednn_library.NAME, lambda: why)
    _, rows = outcome()
    assert rows["Conv"].provider == "numpy" and rows["Conv"].refused == (("onednn", why),)


def test_a_failed_call_is_an_error_that_names_it():
    with pytest.raises(KernelError, match=r"dnnl_memory_desc_create_with_strides.*invalid"):
        onednn_library.strided((2, 3), (-1, 1))


@pytest.mark.parametrize("relu", [False, True])
def test_products_and_convolutions_with_a_bias(relu):
    rng = np.random.default_rng(8)
    x, w, b = drawn(rng, 2, 9, 8, 5), drawn(rng, 3, 3, 5, 16), drawn(rng, 16)
    provider, fast, plain = both("ConvBias", conv_attrs(relu=relu), [x, w, b])
    assert provider == "onednn" and (fast < 0).any() != relu
    close(fast, plain)
    turns = dict(transpose_a=False, transpose_b=False, relu=relu)
    for rows in (32, 70):
        a, m, c = drawn(rng, rows, 300), drawn(rng, 300, 200), drawn(rng, 200)
        provider, fast, plain = both("MatMulBias", turns, [a, m, c])
        assert provider == "onednn" and (fast < 0).any() != relu
        close(fast, plain)


def test_a_relu_at_the_end_keeps_nan():
    rng = np.random.default_rng(9)
    b = drawn(rng, 256)
    b[3] = np.nan
    _, y, _ = both("ConvBias", conv_attrs(relu=True), [drawn(rng, 2, 5, 5, 8),
                   drawn(rng, 3, 3, 8, 256), b])  # fmt: skip
    assert np.isnan(y[..., 3]).all() and np.isnan(y).sum() == y[..., 3].size
    turns = dict(transpose_a=False, transpose_b=False, relu=True)
    for rows in (32, 64):
        _, y, _ = both("MatMulBias", turns, [drawn(rng, rows, 128), drawn(rng, 128, 256), b])
        assert np.isnan(y[..., 3]).all() and np.isnan(y).sum() == y[..., 3].size


@pytest.mark.parametrize("turn_a", [False, True])
@pytest.mark.parametrize("turn_b", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_products_of_sizes_that_only_the_step_knows(turn_a, turn_b, threads, monkeypatch):
    """Beside threads of oneDNN BLAS has one; small, empty and strided ones are NumPy's."""
    monkeypatch.setattr(onednn_library, "several", lambda: threads > 1)
    attrs = {"transpose_a": turn_a, "transpose_b": turn_b}
    rng = np.random.default_rng(1)
    sizes = [(192, 333, 512), (64, 500, 128), (3, 4, 5), (0, 7, 9), (7, 0, 9), (300, 200, 1)]
    for m, k, n in sizes:
        a = drawn(rng, k, m) if turn_a else drawn(rng, m, k)
        b = drawn(rng, n, k) if turn_b else drawn(rng, k, n)
        choice, node = chosen("MatMul", attrs, [a, b], unknown=(0, 1))
        if m and k:
            assert choice.kernel.provider == ("onednn" if threads > 1 else "plain")
        kernel = choice.kernel.make(np, node)
        for x in (a, np.repeat(a, 2, 1)[:, ::2]):  # as it lies, and with strides
            out = np.full((m, n), np.nan, np.float32)
            kernel(x, b, out)
            wide = (a.T if turn_a else a).astype("f8") @ (b.T if turn_b else b)
            np.testing.assert_allclose(out, wide, 1e-4, 1e-4)
