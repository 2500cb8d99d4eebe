"""Steps as CUDA graphs, on a double of CuPy that is as strict as the GPU, against the CPU.

That a graph launches faster, or that CUDA takes it at all, only a GPU can show.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.codegen import ptx_compiler
from hpcflow.kernels import kernel_registry
from hpcflow.lowering import update_tiling
from hpcflow.ops.random.random_kernels import DrawCount
from hpcflow.runtime.device import cuda_graph_capture, device
from hpcflow.runtime.device.cuda_graph_capture import CapturedInputs, _CapturedGraph
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.step.kernel_selection import kernels_data, kernels_text
from hpcflow.settings import Settings
from tests.native import emulated
from tests.runtime import fake_cupy
from tests.runtime.nets import data
from tests.runtime.nets import plain as plain_net
from tests.runtime.nets import trained as trained_net
from tests.runtime.ranks import run_ranks

STEPS = 20
HOW = ["captured", "plain", *([] if ptx_compiler.absent() else ["generated", "generated, large"])]
BATCH = 8


@pytest.fixture(params=[(), ("null",), ("others",)], ids=["late", "null", "others"])
def eager(request: Any) -> tuple[str, ...]:
    """Which streams of the GPU run ahead of the host's waiting."""
    return request.param


def on_gpu(monkeypatch: Any, eager: tuple[str, ...] = (), how: str = "captured") -> None:
    """Ranks have the double as `gpu:0`.

    `how`: its products are CuPy's ("plain"), which graphs cannot hold, or a provider's; fused
    operations have kernels that are "generated", and run in an emulator.
    """
    fake_cupy.install(monkeypatch, eager)
    factories = {"cpu": device.Device, "gpu": device.GpuDevice}
    monkeypatch.setattr(device, "_FACTORIES", factories)
    monkeypatch.setattr(device, "device_names", lambda server, index: ["gpu:0", "cpu:0"])
    if how == "generated":
        emulated.install(monkeypatch)
        kernel = fake_cupy.launched(emulated.Kernel.__call__)
        monkeypatch.setattr(emulated.Kernel, "__call__", kernel)
    if how != "plain":
        monkeypatch.setattr(fake_cupy, "BLAS", frozenset())
        row = dataclasses.replace(
            kernel_registry.find_plain_kernel("MatMul", "gpu"), uncaptured=lambda node: ""
        )
        monkeypatch.setitem(kernel_registry._TABLE, ("MatMul", "gpu"), row)


@contextlib.contextmanager
def graph_of(**settings: Any) -> Any:
    own = {"kernels": "onednn"} | settings  # on the GPU plain ones: others need its libraries
    with use_context(context := RankContext(Settings(**own))), hf.Graph().as_default():
        yield context


class Net:
    """A net with dropout, a rate of learning by step, and a plan that only evaluates."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.x = hf.placeholder(hf.float32, [None, 6], name="x")
        self.y = hf.placeholder(hf.int64, [None], name="y")
        self.keep = hf.placeholder(hf.float32, [], name="keep")
        w = hf.Variable(rng.standard_normal((6, 8)).astype("f4"), name="w")
        b = hf.Variable(np.zeros(8, "f4"), name="b")
        v = hf.Variable(rng.standard_normal((8, 4)).astype("f4"), name="v")
        hidden = hf.nn.relu(hf.nn.bias_add(hf.matmul(self.x, w), b))
        logits = hf.matmul(hf.nn.dropout(hidden, self.keep, seed=3), v)
        losses = hf.nn.softmax_cross_entropy_with_logits(
            labels=hf.one_hot(self.y, 4), logits=logits
        )
        self.loss = hf.reduce_mean(losses)
        self.step = hf.train.get_or_create_global_step()
        self.rate = hf.train.exponential_decay(0.1, self.step, 3, 0.8)
        optimizer = hf.train.MomentumOptimizer(self.rate, 0.9)
        self.train = optimizer.minimize(self.loss, global_step=self.step)
        self.variables = hf.global_variables()

    def feeds(self, step: int, keep: float = 0.5) -> dict[Any, Any]:
        features, labels = data()
        rows = slice(BATCH * (step % 3), BATCH * (step % 3) + BATCH)
        return {self.x: features[rows] + step, self.y: labels[rows], self.keep: keep}


def trained(folder: Any, steps: int = STEPS) -> list[Any]:
    """What is seen in training: losses, rates, evaluations, state; with a restore in the middle."""
    net, saver, seen = Net(), hf.train.Saver(), []
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        for step in range(steps):
            keep = 1.0 - 0.1 * (step % 4)
            if step % 5 == 3:  # nobody waits for it: the host runs ahead
                session.run(net.train, net.feeds(step, keep))
            else:
                seen += session.run([net.loss, net.train, net.rate], net.feeds(step, keep))[::2]
            if step % 4 == 1:
                seen.append(session.run(net.loss, net.feeds(step + 1, 1.0)))
            if step == steps // 3:
                path = saver.save(session, str(folder / "checkpoint"))
            if step == 2 * steps // 3:
                saver.restore(session, path)
        return [*seen, *session.run(net.variables)]


def alike(found: list[Any], expected: list[Any]) -> bool:
    """Whether two runs saw the same."""
    assert len(found) == len(expected)
    return all(
        np.allclose(mine, theirs, rtol=1e-4, atol=1e-5)
        for mine, theirs in zip(found, expected, strict=True)
    )


def expected(folder: Any) -> list[Any]:
    """The same on the CPU."""
    with graph_of():
        return trained(folder)


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
def test_training_is_that_of_the_cpu(
    monkeypatch: Any, tmp_path: Any, eager: tuple[str, ...], how: str
) -> None:
    theirs = expected(tmp_path)
    on_gpu(monkeypatch, eager, how.removesuffix(", large"))
    if how.endswith("large"):  # updates of so many elements are begun and ended
        monkeypatch.setattr(update_tiling, "MIN_TILED_ELEMENTS", 16)
    with graph_of(kernels="llvm" if "generated" in how else "plain") as context:
        assert alike(trained(tmp_path), theirs)
    told = context.report()["cuda_graphs"]["Mean:0,Momentum,ExponentialDecay/Cast_1:0"]
    assert told["graphs"] >= told["regions"] and not told["refused"]
    if how != "plain":
        assert told["regions"] == 1 and told["kernels"] == told["kernels_on_gpu"]
    else:
        assert told["regions"] > 1 and told["kernels"] < told["kernels_on_gpu"]
    assert fake_cupy.gpu.launches > STEPS / 2


def nothing(*given: Any, **options: Any) -> None:
    """In place of what is left out."""


def only_once(make: Any) -> Any:
    """A step's draws are counted where its blocks are made alone."""

    def made(self: Any, device: Any, stream: Any, specs: Any, drawing: Any) -> None:
        make(self, device, stream, specs, drawing)
        self.draws = [DrawCount(kernel.draws.total) for kernel in drawing]

    return made


BROKEN = {
    "the GPU does not wait for feeds": (fake_cupy.Stream, "wait_event", nothing),
    "the host does not wait for copies": (fake_cupy.Event, "synchronize", nothing),
    "nobody says when feeds were used": (fake_cupy.Event, "record", nothing),
    "draws are counted once": (CapturedInputs, "__init__", only_once(CapturedInputs.__init__)),
    "feeds stay": (fake_cupy.ndarray, "set", nothing),
    "updates are not counted on the host": (
        _CapturedGraph,
        "counts",
        property(lambda self: (), nothing),
    ),
    "temporaries lie in the common pool": (
        fake_cupy,
        "using_allocator",
        lambda allocator: contextlib.nullcontext(),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN)
def test_what_would_be_wrong_on_a_gpu_is_wrong_on_its_double(
    monkeypatch: Any, tmp_path: Any, broken: str
) -> None:
    theirs, wrong = expected(tmp_path), 0
    place, name, value = BROKEN[broken]
    monkeypatch.setattr(place, name, value, raising=False)
    for eager in ((), ("null",), ("others",)):
        on_gpu(monkeypatch, eager)
        with graph_of():
            try:
                wrong += not alike(trained(tmp_path), theirs)
            except Exception:
                wrong += 1
    assert wrong


def test_a_version_that_is_kept_is_not_changed(monkeypatch: Any, eager: tuple[str, ...]) -> None:
    """While somebody has a version of a variable, updates go elsewhere, and so do graphs."""
    seen: list[Any] = []

    def steps() -> list[Any]:
        v = hf.Variable(np.zeros(3, "f4"), name="v")
        x = hf.placeholder(hf.float32, [3])
        add, twice = hf.assign_add(v, x * 2 + 1), v * 2 + x
        session, found = hf.Session(), []
        session.run(hf.global_variables_initializer())
        state = session.store.states["v"]
        for step in range(16):
            held = state.pin() if step in (5, 9, 10) else None
            before = None if held is None else np.array(state.device.to_host(held))
            session.run(add, {x: np.arange(3, dtype="f4") + step})
            found.append(session.run(twice, {x: np.ones(3, "f4")}))
            if held is not None:
                assert np.array_equal(state.device.to_host(held), before)
                state.unpin(held)
        assert state.updates == 16
        return found

    with graph_of():
        theirs = steps()
    on_gpu(monkeypatch, eager)
    with graph_of():
        assert alike(steps(), theirs)
    assert fake_cupy.gpu.launches > 8 and not seen


def looked(session: Any, x: Any, y: Any, count: int) -> list[Any]:
    return [session.run(y, {x: np.arange(4, dtype="f4") + i}) for i in range(count)]


def test_an_operation_that_looks_at_values_is_left_out(monkeypatch: Any, caplog: Any) -> None:
    """It was not known to be one: its capture is refused, and graphs are made around it."""

    def net() -> tuple[Any, Any]:
        x = hf.placeholder(hf.float32, [4])
        places = hf.cast(hf.minimum(hf.abs(x), 3.0), hf.int32)
        y = hf.gather(hf.tanh(x) * 2, places, name="chosen")
        return x, hf.exp(y) / (y * y + 1) - 1

    with graph_of():
        x, y = net()
        theirs = looked(hf.Session(), x, y, 9)
    on_gpu(monkeypatch)
    caplog.set_level("INFO")
    with graph_of(kernels="plain") as context:
        x, y = net()
        assert alike(looked(hf.Session(), x, y, 9), theirs)
        (told,) = context.report()["cuda_graphs"].values()
    assert [*told["refused"]] == ["chosen"] and told["regions"] == 2 and told["graphs"] >= 2
    lines = [line for line in caplog.text.splitlines() if "no CUDA graph of" in line]
    assert len(lines) == 1 and "Gather" in lines[0] and "copy to the host" in lines[0]


def test_the_plan_tells_what_no_graph_can_hold(monkeypatch: Any) -> None:
    on_gpu(monkeypatch, how="plain")
    with graph_of() as context:
        net = Net()
        plan = hf.Session().plan(net.train, net.feeds(0))
        data = kernels_data(plan, context.devices)
        left = {one["type"]: one["uncaptured"] for one in data if "uncaptured" in one}
        assert [*left] == ["MatMul"] and "cuBLAS" in left["MatMul"]
        assert "in no CUDA graph" in kernels_text(plan, context.devices)


@pytest.mark.parametrize("setting", [{"cuda_graphs": False}, {"check_numerics": True}], ids=str)
def test_without_graphs(monkeypatch: Any, tmp_path: Any, setting: dict[str, bool]) -> None:
    theirs = expected(tmp_path)
    on_gpu(monkeypatch)
    with graph_of(**setting) as context:
        assert alike(trained(tmp_path), theirs)
        assert "cuda_graphs" not in context.report()
    assert not fake_cupy.gpu.captures


def test_memory_is_given_back(monkeypatch: Any) -> None:
    on_gpu(monkeypatch)
    with graph_of() as context:
        x = hf.placeholder(hf.float32, [None])
        y, gpu = hf.tanh(x) * x, context.devices["gpu:0"]
        with hf.Session() as session:
            for size in (4, 400, 4):  # the second one's arena takes the place of the first one's
                for _ in range(6):
                    fed = np.linspace(0, 1, size, dtype="f4")
                    np.testing.assert_allclose(session.run(y, {x: fed}), np.tanh(fed) * fed, 1e-6)
            assert gpu.held_memory.current["feeds"]
        assert not gpu.held_memory.current["feeds"] and not gpu.held_memory.current["buffers"]
    assert fake_cupy.gpu.captures == 6


def test_segments_between_ranks(monkeypatch: Any, eager: tuple[str, ...]) -> None:
    """A worker with a GPU whose variables live on a server: what comes is copied for the graphs."""
    theirs = plain_net(12)
    on_gpu(monkeypatch, eager)
    monkeypatch.setattr(
        device, "device_names", lambda server, index: ["cpu:0"] if server else ["gpu:0", "cpu:0"]
    )
    reports: list[Any] = []

    def body(context: RankContext) -> list[Any]:
        found = trained_net(12)
        reports.append(context.report()["cuda_graphs"])
        return found

    (found,) = run_ranks(2, body, ps=1, kernels="onednn")
    assert alike(found, theirs)
    told = reports[0]["Mean:0,GradientDescent"] if "Mean:0,GradientDescent" in reports[0] else None
    told = told or max(reports[0].values(), key=lambda one: one["kernels"])
    assert told["graphs"] and fake_cupy.gpu.launches > 10


def test_values_of_sizes_that_only_the_step_tells_are_in_no_graph(monkeypatch: Any) -> None:
    def net() -> tuple[Any, Any]:
        x = hf.placeholder(hf.float32, [None, 3])
        some = hf.boolean_mask(x, x[:, 0] > 2)
        return x, hf.reduce_sum(hf.exp(hf.tanh(some) * 2) + some)

    def steps() -> list[Any]:
        x, y = net()
        session = hf.Session()
        sizes = (10, 10, 10, 10, 1, 7, 10)
        return [
            session.run(y, {x: np.arange(1, 3 * n + 1, dtype="f4").reshape(n, 3)}) for n in sizes
        ]

    with graph_of():
        theirs = steps()
    on_gpu(monkeypatch)
    with graph_of():
        assert alike(steps(), theirs)


def test_draws_that_are_in_no_graph(monkeypatch: Any) -> None:
    def drawn() -> list[Any]:
        session, fetch = hf.Session(), hf.random.uniform([3], seed=1)
        return [session.run(fetch) for _ in range(5)]

    with graph_of():
        theirs = drawn()
    on_gpu(monkeypatch)
    with graph_of():
        assert alike(drawn(), theirs)


def test_faults_that_are_rehearsed_come_on_a_gpu(monkeypatch: Any, tmp_path: Any) -> None:
    on_gpu(monkeypatch)
    with graph_of(inject="slow:rank=0x2@step=3") as context:
        trained(tmp_path, 6)
        assert "cuda_graphs" not in context.report()


@pytest.mark.parametrize("length", [1, 2, 7, 1000])
def test_large_feeds_are_copied_whole_by_several_threads(monkeypatch: Any, length: int) -> None:
    monkeypatch.setattr(cuda_graph_capture, "MANY_BYTES", 64)
    monkeypatch.setattr(cuda_graph_capture.thread_team, "size", lambda: 3)
    names: set[str] = set()

    class Seen(np.ndarray):
        def __setitem__(self, key: Any, value: Any) -> None:
            raise AssertionError("not in parts")

    original = np.copyto

    def copied(target: Any, source: Any, **options: Any) -> None:
        names.add(threading.current_thread().name)
        original(target, source, **options)

    monkeypatch.setattr(cuda_graph_capture.np, "copyto", copied)
    source = np.arange(length * 32.0).reshape(length, 32)
    for given in (source, np.asfortranarray(source), source.astype("f4")):
        target = np.zeros((length, 32))
        cuda_graph_capture._copy(target.view(Seen), given)
        assert np.array_equal(target, source)
    assert names and all(name.startswith("hpcflow-feeds") for name in names)
    small = np.zeros(3)
    cuda_graph_capture._copy(small, np.arange(3.0))
    assert small.tolist() == [0, 1, 2]
