"""Training on GPUs: on a real one where there is one, else on a double that is as strict.

The double refuses to mix its arrays with host arrays, as CuPy does, so a missing copy between host
and device fails here. That kernels and NCCL themselves work only a real GPU can show.
"""

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.codegen import kernel_cache, ptx_compiler
from hpcflow.comm.nccl_allreduce import NcclCommunicator
from hpcflow.errors import CommError
from hpcflow.runtime.device import device
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from hpcflow.train.step_timing import StepTiming
from tests.comm.fake_cuda import fake_packages
from tests.native import emulated
from tests.runtime.nets import data, net, plain, trained
from tests.runtime.ranks import run_ranks


def strict(arrays):
    """`arrays` as plain NumPy for NumPy to work on; host arrays among them are an error."""
    for array in arrays:
        if isinstance(array, np.ndarray) and not isinstance(array, GpuArray) and array.ndim:
            raise TypeError("a host array reached a GPU kernel")
    return [a.view(np.ndarray) if isinstance(a, GpuArray) else a for a in arrays]


class GpuArray(np.ndarray):
    """Device memory: joins only its like."""

    data = property(lambda self: type("Pointer", (), {"ptr": self.ctypes.data}))

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        if out:
            options["out"] = tuple(strict(out))
        made = getattr(ufunc, method)(*strict(inputs), **options)
        return out[0] if out else np.asarray(made).view(GpuArray)

    def __setitem__(self, key, value):
        np.ndarray.__setitem__(self.view(np.ndarray), key, strict([value])[0])


class GpuModule:
    """NumPy's functions on device memory, as CuPy offers them; kernels run in an emulator."""

    cuda = emulated.cuda

    def __getattr__(self, name):
        of_numpy = getattr(np, name)
        if isinstance(of_numpy, (np.ufunc, type)) or not callable(of_numpy):
            return of_numpy  # a ufunc finds its way by __array_ufunc__

        def function(*given, out=None, **options):
            options |= {} if out is None else {"out": strict([out])[0]}
            made = of_numpy(*strict(given), **options)
            return made.view(GpuArray) if isinstance(made, np.ndarray) and out is None else out

        return function


class DoubleGpu(device.Device):
    """A GPU in host memory."""

    kind = "gpu"
    xp = GpuModule()
    maker = property(lambda self: ptx_compiler.gpu(self.xp.cuda))

    def makes_loops(self):
        return not self.preferences.exact

    def loop(self, text):
        return kernel_cache.loop_on_gpu(self.xp.cuda, text)

    def allocate(self, shape, dtype):
        return np.empty(shape, dtype).view(GpuArray)

    def to_host(self, array):
        assert isinstance(array, GpuArray), "a host array was to be copied from the GPU"
        return array.view(np.ndarray).copy()

    def from_host(self, array):
        assert not isinstance(array, GpuArray), "a GPU array was to be copied from the host"
        return array.copy().view(GpuArray)


@pytest.fixture
def gpus(monkeypatch):
    """Each rank has a GPU of its own, default for its operations."""
    emulated.install(monkeypatch)
    monkeypatch.setattr(device, "_FACTORIES", {"cpu": device.Device, "gpu": DoubleGpu})
    monkeypatch.setattr(
        device, "device_names", lambda server, index: ["cpu:0"] if server else ["gpu:0", "cpu:0"]
    )
    monkeypatch.setattr(
        RankContext, "_allreduce_communicator", lambda self, group: by_nccl(group, self.rank)
    )


@pytest.fixture
def one_gpu(monkeypatch):
    """The first worker of the node has a GPU, the others have none."""
    emulated.install(monkeypatch)
    monkeypatch.setattr(device, "_FACTORIES", {"cpu": device.Device, "gpu": DoubleGpu})
    monkeypatch.setattr(
        device,
        "device_names",
        lambda server, index: ["cpu:0"] if server or index else ["gpu:0", "cpu:0"],
    )


def by_nccl(group, rank):
    cupy, nccl = fake_packages(rank)
    cupy.zeros = lambda count, dtype: np.zeros(count, dtype).view(GpuArray)
    return NcclCommunicator(group, 0, (cupy, nccl))


def equal(found, atol=0.0):
    for mine, theirs in zip(found, plain(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=atol)


def test_one_rank_trains_on_its_gpu(gpus):
    with use_context(RankContext(Settings())), hf.Graph().as_default():
        equal(trained(), atol=1e-6)


def test_replicas_sum_on_their_gpus(gpus):
    for found in run_ranks(2, lambda context: trained()):
        assert not any(isinstance(w, GpuArray) for w in found)
        equal(found, atol=1e-5)


def test_each_rank_of_a_node_names_its_own_gpu_gpu_0(gpus, monkeypatch):
    """The driver plans for all tasks: their GPUs have its name, not their numbers on the node."""
    monkeypatch.setattr(device, "device_names", lambda server, index: [f"gpu:{index}", "cpu:0"])

    def body(context):
        with hf.device("/gpu:0"):
            y = hf.constant(2.0) * 3.0
        return list(context.devices), context.devices["gpu:0"].index, hf.Session().run(y)

    both = ["gpu:0", "cpu:0"]
    assert run_ranks(2, body) == [(both, 0, 6.0), (both, 1, 6.0)]
    (found,) = run_ranks(3, lambda context: trained(cut=True), tasks_per_replica=3)
    equal(found, atol=1e-6)


def test_gpu_workers_with_servers_on_the_host(gpus):
    (found,) = run_ranks(2, lambda context: trained(), ps=1)
    equal(found, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("comm", ["auto", "mpi"], ids=["chosen", "asked"])
def test_a_gpu_worker_and_cpu_workers_train_as_one(one_gpu, comm):
    kinds = []

    def body(context):
        kinds.append(context.cluster.devices[0])
        return trained()

    for found in run_ranks(3, body, comm=comm):
        equal(found, atol=1e-5)
    assert sorted(kinds) == ["cpu:0", "cpu:0", "gpu:0"]


def test_unlike_workers_with_servers(one_gpu):
    """Each worker's steps are its own: one after the other they train as one worker would."""

    def body(context):
        mine = trained(steps=6 if context.is_chief else 0)
        context.barrier()
        return mine

    for found in run_ranks(3, body, ps=1)[:1]:
        for mine, theirs in zip(found, plain(6), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_unlike_workers_are_dealt_by_their_speed(one_gpu, monkeypatch):
    """The GPU works four times as fast: its clock is told so."""

    def end(self, batch):
        self.ended += 0.1
        self.window.add(batch.size * (1.0 if self._engine.rank == 0 else 4.0), 0.0, batch)

    monkeypatch.setattr(StepTiming, "end", end)

    def body(context):
        x, y, _, train, variables = net()
        features, labels = data()
        dealt = hf.data.Dataset({x: features, y: labels}, batch=12, seed=2, balance=True)
        with hf.train.TrainingSession() as session:
            for batch in dealt.epochs(12):
                session.step(train, batch)
            session.wait()
            return dealt.shares, session.run(variables)

    results = run_ranks(3, body)
    assert [shares for shares, _ in results] == [[8, 2, 2]] * 3
    with use_context(RankContext(Settings())), hf.Graph().as_default():
        _, alone = body(None)
    for _, found in results:
        for mine, theirs in zip(found, alone, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)


def test_nccl_is_refused_where_not_all_workers_have_gpus(one_gpu):
    with pytest.raises(CommError, match="not all workers run on GPUs"):
        run_ranks(2, lambda context: None, comm="nccl")


@pytest.mark.slow
def test_replicas_sum_by_way_of_the_host_when_asked(gpus, monkeypatch):
    monkeypatch.setattr(RankContext, "_allreduce_communicator", lambda self, group: group)
    for found in run_ranks(3, lambda context: trained(), comm="mpi"):
        equal(found, atol=1e-5)


@pytest.mark.slow
def test_layers_on_the_gpus_of_three_ranks(gpus):
    (found,) = run_ranks(3, lambda context: trained(cut=True), tasks_per_replica=3)
    equal(found, atol=1e-6)


@pytest.mark.gpu
def test_a_real_gpu():
    with use_context(RankContext(Settings())), hf.Graph().as_default():
        equal(trained(), atol=1e-4)
