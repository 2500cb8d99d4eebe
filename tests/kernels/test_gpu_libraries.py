"""NVIDIA's libraries in whole steps: doubles on a double of a GPU, the real ones where one is."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.doctor import gpu_kernel_agreement
from hpcflow.kernels import cublaslt_matmul, cuda_provider, cudnn_convolution
from hpcflow.kernels.kernel_registry import KernelNode, KernelPreferences, choose_kernel
from hpcflow.runtime.device import device
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.step.kernel_selection import kernels_data
from hpcflow.settings import Settings
from tests.kernels.fake_gpu import OF_FLOAT, TF32, FakeCudnn, FakeCupy, FakeLt, Graph
from tests.runtime import fake_cupy
from tests.runtime.test_gpu import DoubleGpu, GpuModule


class Gpu(DoubleGpu):
    """With a stream, as CuPy has one."""

    xp = type("Module", (GpuModule,), {"cuda": FakeCupy().cuda})()


def forget():
    for cached in (cublaslt_matmul.planned, cublaslt_matmul.context, cudnn_convolution.planned):
        cached.cache_clear()


def load(monkeypatch, lt, lib):
    monkeypatch.setattr(cuda_provider, "no_generated_code", lambda: "of libraries alone")
    monkeypatch.setattr(cublaslt_matmul, "_loaded", lambda: lt)
    monkeypatch.setattr(cudnn_convolution, "_loaded", lambda: (lib, ""))
    monkeypatch.setattr(cudnn_convolution, "_thread_local", threading.local())
    forget()


@pytest.fixture
def gpu(monkeypatch):
    """Call it: from then on the rank has a GPU, whose cuBLASLt it returns."""

    def use_it():
        xp, lt, lib = FakeCupy(), FakeLt(keeps_nan=False), FakeCudnn()
        monkeypatch.setattr(device, "_FACTORIES", {"cpu": device.Device, "gpu": Gpu})
        monkeypatch.setattr(device, "device_names", lambda server, index: ["gpu:0", "cpu:0"])
        monkeypatch.setattr(cuda_provider, "cupy", lambda: xp)
        load(monkeypatch, lt, lib)
        return lt

    yield use_it
    forget()


def trained(dtype, **settings):
    """A small convolutional net's losses and weights, and who served each operation."""
    rng = np.random.default_rng(0)
    with use_context(RankContext(Settings(**settings))) as context, hf.Graph().as_default():
        x, y = hf.placeholder(dtype, [6, 8, 8, 3]), hf.placeholder(hf.int32, [6])
        shapes = {"w": (3, 3, 3, 4), "b": (4,), "v": (64, 5), "c": (5,), "u": (5, 3)}
        by = {
            name: hf.Variable((rng.standard_normal(shape) / 3).astype(dtype))
            for name, shape in shapes.items()
        }
        h = hf.nn.relu(hf.nn.conv2d(x, by["w"], [1, 2, 2, 1], "SAME") + by["b"])
        h = hf.nn.relu(hf.matmul(hf.reshape(h, [6, 64]), by["v"]) + by["c"])
        logits = hf.cast(hf.matmul(h, by["u"]), hf.float32)
        losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        loss = hf.reduce_mean(losses)
        train = hf.train.GradientDescentOptimizer(0.1).minimize(loss)
        feeds = {x: rng.standard_normal((6, 8, 8, 3)).astype(dtype), y: np.int32([0, 1, 2] * 2)}
        with hf.Session() as session:
            session.run(hf.global_variables_initializer())
            losses = [session.run([loss, train], feeds)[0] for _ in range(4)]
            weights = session.run(list(by.values()))
            plan = session.plan([loss, train], feeds)
        told = {(one["type"], one["provider"]) for one in kernels_data(plan, context.devices)}
        return [np.array(losses), *weights], told


@pytest.mark.parametrize("dtype", [hf.float32, hf.bfloat16])
def test_a_net_trains_by_them_as_it_does_by_numpy(gpu, dtype):
    wanted, _ = trained(dtype, kernels="plain")
    lt = gpu()
    found, told = trained(dtype, kernels="cublaslt,cudnn")
    for mine, theirs in zip(found, wanted, strict=True):
        tolerance = 1e-5 if dtype == hf.float32 else 2e-2
        np.testing.assert_allclose(mine.astype("f4"), theirs.astype("f4"), rtol=0, atol=tolerance)
    assert {("MatMul", "cublaslt"), ("MatMulBias", "cublaslt")} <= told
    assert {("ConvBias", "cudnn"), ("ConvFilterGrad", "cudnn")} <= told
    assert {one["epilogue"] for one in lt.seen} == {1, 4, 6}  # 6: the relu was tried


@pytest.mark.parametrize("allowed", [False, True])
def test_tf32_is_a_setting(gpu, allowed):
    lt = gpu()
    trained(hf.float32, kernels="cublaslt,cudnn", allow_tf32=allowed)
    assert {one["compute"] for one in lt.seen} == {TF32 if allowed else OF_FLOAT}
    strict = {"TENSOR_CORE" in made.without for made in cudnn_convolution.library().graphs}
    assert strict == {not allowed}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "case",
    gpu_kernel_agreement.PRODUCTS + gpu_kernel_agreement.CONVOLUTIONS,
    ids=lambda case: case[0],
)
def test_a_cuda_graph_holds_them(case, dtype, monkeypatch):
    """On a double that is strict about capture: it is launched with other values in the same
    memory, and a call has allocated nothing."""
    type, attrs, shapes, shape = case
    cupy, lt, lib = fake_cupy.install(monkeypatch), FakeLt(), FakeCudnn()
    for library in (lt, lib):
        library.launch = lambda work: fake_cupy.gpu.current[-1].add(work)
        library.stream = lambda: fake_cupy.gpu.current[-1].ptr
    load(monkeypatch, lt, lib)
    rng = np.random.default_rng(0)
    draw = lambda: [rng.standard_normal(s).astype(dtype) for s in shapes]  # noqa: E731
    node = KernelNode(type, attrs, draw(), [np.full(shape, np.nan, dtype)])
    provider = "cudnn" if type.startswith("Conv") else "cublaslt"
    kernel, refused = choose_kernel(node, "gpu", KernelPreferences((provider,)))
    assert not refused
    run, inputs = kernel.make(cupy, node), [cupy.array(x) for x in node.inputs]
    out, room = cupy.empty(shape, dtype), [cupy.empty(s, d) for d, s in kernel.scratch(node)]
    stream, pool = fake_cupy.Stream(non_blocking=True), fake_cupy.MemoryPool()
    with stream, fake_cupy.using_allocator(pool.malloc):
        stream.begin_capture()
        run(*inputs, out, room=room)
        graph = stream.end_capture()
    assert pool.used == 0
    for _ in range(2):
        node = dataclasses.replace(node, inputs=draw())
        for array, values in zip(inputs, node.inputs, strict=True):
            array[...] = cupy.array(values)
        graph.launch()
        tolerance = gpu_kernel_agreement.ROUNDINGS * gpu_kernel_agreement.EPSILON[dtype]
        assert (
            gpu_kernel_agreement._relative_difference(
                out.get(), gpu_kernel_agreement._by_plain(node)
            )
            <= tolerance
        )
    forget()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [hf.float32, hf.float16, hf.bfloat16, hf.float64])
def test_a_net_trains_on_a_real_gpu(dtype):
    found, told = trained(dtype)
    wanted, _ = trained(dtype, kernels="plain")
    libraries = {"cublaslt"} if dtype == hf.float64 else {"cublaslt", "cudnn"}
    assert libraries <= {name for _, name in told}
    for mine, theirs in zip(found, wanted, strict=True):
        tolerance = {hf.float32: 1e-4, hf.float64: 1e-7}.get(dtype, 3e-2)  # the loss is float32
        np.testing.assert_allclose(mine.astype("f8"), theirs.astype("f8"), rtol=0, atol=tolerance)


def test_the_doctor_runs_each_of_them_once(gpu):
    gpu()
    products, convolutions = gpu_kernel_agreement.agreements(cuda_provider.cupy())
    assert (products.provider, products.run, products.wrong) == ("cublaslt", 12, {})
    assert (convolutions.provider, convolutions.run, convolutions.wrong) == ("cudnn", 15, {})
    assert (
        set(products.refused.values()) == {cuda_provider.LOSES_NAN} and len(products.refused) == 4
    )


def test_the_doctor_finds_a_library_that_is_wrong_and_one_that_fails(gpu, monkeypatch):
    lt = gpu()
    monkeypatch.setattr(lt, "_matrices", lambda *of: FakeLt._matrices(lt, *of)[:, ::-1])
    monkeypatch.setattr(Graph, "execute", lambda *of, **more: 1 / 0)
    products, convolutions = gpu_kernel_agreement.agreements(cuda_provider.cupy())
    assert len(products.wrong) == products.run == 12
    assert all(why.endswith(" off") for why in products.wrong.values())
    assert convolutions.wrong["Conv of float32"] == "ZeroDivisionError: division by zero"


@pytest.mark.gpu
def test_the_doctor_of_a_real_gpu_finds_nothing_wrong():
    for one in gpu_kernel_agreement.agreements(device.make_device("gpu:0").xp):
        assert one.run and one.wrong == {}
