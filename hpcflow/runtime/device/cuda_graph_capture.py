"""CUDA graph capture: a region of generated code is captured once and replayed in later steps.

A CUDA graph contains the addresses and the scalar values of its capture. The buffers of a step keep
their addresses. The addresses of variables are checked before each launch; if one has changed, the
graph is dropped.

Values that change from step to step (feeds, and the draw counts of random ops) are copied in one
transfer into one of two GPU blocks. Each block has its own graph, so the copy for one step can
overlap the kernels of the previous step. Graphs are launched on the current stream, in order with
kernels that are launched individually.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from hpcflow.codegen import thread_team
from hpcflow.errors import HpcflowError, KernelError
from hpcflow.graph.static_shape import Spec, require_known
from hpcflow.lowering.arena_allocation import ALIGNED
from hpcflow.lowering.instructions import BindingKind
from hpcflow.plan.ir.program import Node
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.device.cuda_graph_regions import (
    KERNEL_BINDINGS,
    CodeWithRegions,
    GraphRegion,
    RegionFinder,
)
from hpcflow.runtime.device.device import Device
from hpcflow.runtime.step.observer import Segments
from hpcflow.runtime.step.step_instance import CompiledPartition, StepInstance, StepObserver

WARM_UP = 2  # calls of a region before its capture, in which its kernels are compiled
MANY_BYTES, MOST_COPYING = 1 << 20, 8  # of a feed that several threads copy; so many at most
MOST_MOVES = 8  # changes of variable addresses after which a region is not captured again
Run = Callable[..., tuple[Any, ...]]


class CudaGraphs(StepObserver):
    """The CUDA graphs of one rank: its streams, and the statistics for its report."""

    def __init__(self, device: Device, rank: int) -> None:
        self.device, self.rank = device, rank
        self.capturing = device.xp.cuda.Stream(non_blocking=True)
        self.copying = device.xp.cuda.Stream(non_blocking=True)
        self.plans: dict[str, dict[str, Any]] = {}  # label (the fetches) -> statistics

    def bind_partition(self, partition: CompiledPartition) -> None:
        """Capture the regions of a partition; the loops and branches in it run without graphs."""
        if not partition.initializes_large:
            partition.observe(_CapturedPartition(self, partition))

    def report(self) -> dict[str, Any]:
        """For each plan: regions, their kernels, all kernels on the GPU, graphs and refusals."""
        return {label: stats for label, stats in self.plans.items() if stats["kernels_on_gpu"]}


class _CapturedPartition(StepObserver):
    """One compiled partition, and the nodes that CUDA graphs cannot hold."""

    def __init__(self, graphs: CudaGraphs, compiled: CompiledPartition) -> None:
        self.graphs, self.compiled, self.device = graphs, compiled, graphs.device
        self.refused: dict[str, str] = {}  # node -> reason
        self.first = frozenset(compiled.code.segments[0].nodes)
        binds = compiled.code.binds.values()
        self.kernels = frozenset(b.node for b in binds if b.kind == BindingKind.KERNEL)
        self.logged = graphs.plans.setdefault(compiled.label, {"graphs": 0})
        self.cut = self._cut()

    def bind_segments(
        self, instance: StepInstance, segments: Segments, objects: Sequence[Any]
    ) -> Segments:
        """The segments and the `release` function of an instance, with regions.

        An instance whose kernels check a deadline has no graphs.
        """
        if instance.has_own_kernels:
            return segments
        captured = _CapturedSegments(self, objects)
        instance.observe(captured)
        runs = tuple(functools.partial(captured.run, i) for i in range(len(segments[0])))
        return runs, lambda: captured.release()  # late binding: the current segments

    def refuse(self, nodes: Sequence[str], reason: str) -> None:
        """Exclude nodes from regions from the next step on, and log the reason."""
        self.refused |= dict.fromkeys(nodes, reason)
        self.cut = self._cut()
        logger.info("no CUDA graph of %s: %s", self.compiled.label, reason)

    def on(self, node: Node) -> bool:
        """Whether a node is on the GPU."""
        return self.compiled.device(node) is self.device

    def _cut(self) -> CodeWithRegions:
        compiled = self.compiled
        cut = RegionFinder(compiled.code, compiled.part, self._refusal_reason, self.on).cut(
            compiled.file
        )
        binds = compiled.code.binds.values()
        kernels = [compiled.part.nodes[b.node] for b in binds if b.kind in KERNEL_BINDINGS]
        self.logged |= {
            "regions": len(cut.regions),
            "kernels": sum(len(region.kernels) for region in cut.regions),
            "kernels_on_gpu": sum(map(self.on, kernels)),
            "refused": self.refused,
        }
        return cut

    def _refusal_reason(self, node: Node) -> str:
        """Why a CUDA graph cannot hold the kernel of a node; "" if it can."""
        if node.name in self.refused:
            return self.refused[node.name]
        if node.name not in self.kernels:  # no kernel, or in a generated loop: can be captured
            return ""
        if "key" in node.attrs and node.name not in self.first:
            return "its draws are not those of the beginning of a step"
        return self.device.uncaptured(node, self.compiled.specs(node))


class _CapturedSegments(StepObserver):
    """The segments of one instance, with regions."""

    def __init__(self, part: _CapturedPartition, objects: Sequence[Any]) -> None:
        self.part, self.bound = part, objects
        self._make()

    def _make(self) -> None:
        cut, shared = self.part.cut, self.part.compiled.shared
        self.cut, device = cut, self.part.device
        kernels = [shared[name] for region in cut.regions for name in region.kernels]
        drawing = [kernel for kernel in kernels if hasattr(kernel, "counter")]
        specs = [node.specs[0] for node in cut.feeds]
        self.inputs = CapturedInputs(device, self.part.graphs.copying, specs, drawing)
        self.regions = [_RegionRunner(self, region) for region in cut.regions]
        objects = [
            *([self.inputs] if "_inputs" in cut.names else []),
            *(CapturedOutputs(device, [node.specs[0] for node in nodes]) for nodes in cut.outputs),
            *self.regions,
        ]
        self.segments, self.release = cut.make(*self.bound, *objects)

    def run(self, number: int, *feeds: Any) -> Any:
        """Run a segment; before segment 0, rebuild the regions if nodes have been refused since."""
        if not number and self.cut is not self.part.cut:
            self.part.device.finish()
            self._make()
        return self.segments[number](*feeds)

    def unbind(self, instance: StepInstance) -> None:
        """Release graphs and blocks after the GPU has finished with them."""
        self.part.device.finish()
        del self.inputs, self.regions, self.bound, self.segments, self.release


class CapturedInputs:
    """The values that the host passes to a step: feeds, and the draw count of each random op.

    They lie in one block of pinned memory, which is copied to the GPU on the copying stream. The
    blocks are double-buffered, on the host and on the GPU.
    """

    def __init__(self, device: Device, stream: Any, specs: list[Spec], drawing: list[Any]) -> None:
        counters = [Spec(np.dtype(np.uint64), (1,)) for _ in drawing]
        sizes = [-(-spec.nbytes // ALIGNED) * ALIGNED for spec in (*specs, *counters)]
        self.device, self.stream, self.turn = device, stream, 0
        self.draws = [kernel.draws for kernel in drawing]
        self.places = {id(kernel): len(specs) + i for i, kernel in enumerate(drawing)}
        starts = list(accumulate(sizes, initial=0))
        both = [_TransferBlock(device, [*specs, *counters], starts) for _ in range(2)]
        self.blocks = both if sizes else []

    def __call__(self, *feeds: Any) -> tuple[Any, ...]:
        """Copy the feeds of a step; the GPU arrays, valid for later work on the current stream."""
        if not self.blocks:  # no random op is in a region
            return ()
        self.blocks[self.turn].consumed.record()  # after all work that the last step has launched
        self.turn ^= 1
        block = self.blocks[self.turn]
        block.copied.synchronize()
        for place, feed in zip(block.host, feeds, strict=False):
            _copy(place, feed)
        for place, draws in zip(block.host[len(feeds) :], self.draws, strict=True):
            place[0] = draws.total
        self.stream.wait_event(block.consumed)
        block.gpu.set(block.pinned, stream=self.stream)
        block.copied.record(self.stream)
        self.device.xp.cuda.get_current_stream().wait_event(block.copied)
        return block.arrays[: len(feeds)]

    def counter(self, kernel: Any) -> Any:
        """The GPU array from which a kernel reads its draw count in this step."""
        return self.blocks[self.turn].arrays[self.places[id(kernel)]]


def _copy(target: np.ndarray, source: Any) -> None:
    """Copy an array on the host; one of many bytes by several threads of the rank."""
    threads = min(thread_team.size(), MOST_COPYING)
    if threads < 2 or target.nbytes < MANY_BYTES or source.__class__ is not np.ndarray:
        target[...] = source
        return
    ends = [len(target) * k // threads for k in range(threads + 1)]
    parts = [slice(*pair) for pair in pairwise(ends)]

    def copy(part: slice) -> None:
        np.copyto(target[part], source[part], casting="unsafe")

    list(_copiers().map(copy, parts))


@functools.cache
def _copiers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MOST_COPYING, "hpcflow-feeds")


class _TransferBlock:
    """One block of pinned memory and one GPU block, with the events that order their use."""

    def __init__(self, device: Device, specs: list[Spec], starts: list[int]) -> None:
        shape, dtype = (starts[-1],), np.dtype(np.uint8)
        self.pinned, self.gpu = device.host_empty(shape, dtype), device.hold("feeds", shape, dtype)
        views = [
            (require_known(s.shape), s.dtype, at) for s, at in zip(specs, starts, strict=False)
        ]
        self.host = [Device.view(device, self.pinned, *view) for view in views]
        self.arrays = tuple(device.view(self.gpu, *view) for view in views)
        event = device.xp.cuda.Event
        self.copied, self.consumed = event(disable_timing=True), event(disable_timing=True)


class CapturedOutputs:
    """Copies to the host that are synchronized together, into new pinned memory for the caller."""

    def __init__(self, device: Device, specs: list[Spec]) -> None:
        self.device, self.specs = device, [(require_known(s.shape), s.dtype) for s in specs]
        self.copied = device.xp.cuda.Event(disable_timing=True)

    def __call__(self, *arrays: Any) -> list[np.ndarray]:
        """The values of `arrays` on the host."""
        hosts = [self.device.host_empty(*spec) for spec in self.specs]
        for array, host in zip(arrays, hosts, strict=True):
            array.get(out=host, blocking=False)
        self.copied.record()
        self.copied.synchronize()
        self.device.check_indices()
        return hosts


class _RegionRunner:
    """Replaces a region in the code of one instance: it runs, captures or replays the region."""

    def __init__(self, captured: _CapturedSegments, region: GraphRegion) -> None:
        shared = captured.part.compiled.shared
        self.segments, self.part, self.nodes = captured, captured.part, region.nodes
        self.read = [shared[name] for name in region.read]
        self.written = [shared[name] for name in region.written]
        kernels = [shared[name] for name in region.kernels]
        self.drawing = [kernel for kernel in kernels if hasattr(kernel, "counter")]
        self.counters = _Counters(self.written, self.drawing)
        self.fed = [place is not None for place in region.feed_indices]
        self.turns = any(self.fed) or bool(self.drawing)
        self.pool = self.part.device.xp.cuda.MemoryPool()  # for temporary values of its graphs
        self.pool.set_limit(size=self.part.device.held_memory.limit)
        self.graphs: dict[int, _CapturedGraph] = {}  # by block index
        self.plain = self.moves = 0

    def __call__(self, run: Run, *given: Any) -> tuple[Any, ...]:
        """The effects and results of `run(*given)`."""
        turn = self.segments.inputs.turn if self.turns else 0
        graph = self.graphs.get(turn)
        if graph is not None:
            if graph.is_valid():
                return self._launched(graph, given)
            self._drop_stale_graphs()
        self.plain += 1
        if self.plain <= WARM_UP or not self._is_still():
            return run(*given)
        return self._captured(turn, run, given)

    def _is_still(self) -> bool:
        """Whether all variables have values, and updates change the written ones in place."""
        read = all(state.array is not None for state in self.read)
        return read and all(state.stays(state.array) for state in self.written)

    def _drop_stale_graphs(self) -> None:
        """The address of a variable has changed: drop the graphs."""
        self.part.device.finish()
        self.graphs.clear()
        self.plain, self.moves = 0, self.moves + 1
        if self.moves > MOST_MOVES:
            self.part.refuse(self.nodes, "its variables have other memory again and again")

    def _captured(self, turn: int, run: Run, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Capture what `run` launches, and launch the graph."""
        before, captured = self.counters.values(), None
        try:
            captured = self._capture(run, inputs)
        except Exception as error:
            self._refuse(error)
        counts = [now - old for now, old in zip(self.counters.values(), before, strict=True)]
        self.counters.count([-count for count in counts])  # nothing has run
        if captured is None:
            return run(*inputs)
        graph = _CapturedGraph(captured, self.read, self.written, self.counters, counts)
        self.graphs[turn] = graph
        self.part.logged["graphs"] += 1
        return self._launched(graph, inputs)

    def _launched(self, graph: _CapturedGraph, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            return graph.launch(inputs)
        except Exception as error:
            first, last, count = self.nodes[0], self.nodes[-1], len(self.nodes)
            raise KernelError(
                f"the CUDA graph of {count} operations, {first} to {last}, failed: {error}",
                hint="--set cuda_graphs=0 launches each by itself and names the one that fails",
            ) from error

    def _capture(
        self, run: Run, inputs: tuple[Any, ...]
    ) -> tuple[Any, list[tuple[int, Any]], tuple[Any, ...]]:
        """The graph, its inputs that are copied before each launch, and its results."""
        device, stream = self.part.device, self.part.graphs.capturing
        with contextlib.ExitStack() as stack:
            stack.enter_context(device.xp.cuda.using_allocator(self.pool.malloc))
            stack.enter_context(stream)
            if gc.isenabled():  # a finalizer might call CUDA
                gc.disable()
                stack.callback(gc.enable)
            buffers = [
                array if fed else device.allocate(array.shape, array.dtype)
                for array, fed in zip(inputs, self.fed, strict=True)
            ]
            for kernel in self.drawing:
                stack.enter_context(kernel.counted_by(self.segments.inputs.counter(kernel)))
            stream.begin_capture()
            try:
                results = run(*buffers)
            except BaseException:
                with contextlib.suppress(Exception):  # it repeats that the capture is invalid
                    stream.end_capture()
                raise
            graph = stream.end_capture()
        return graph, [(i, buffers[i]) for i, fed in enumerate(self.fed) if not fed], results

    def _refuse(self, error: Exception) -> None:
        explained = self.part.compiled.explain(error, self.part.graphs.rank)
        name = explained.op if isinstance(explained, HpcflowError) else None
        self.part.refuse([name] if name else self.nodes, str(explained))


class _Counters:
    """The host counters that a region advances: updates of variables, draws of random ops."""

    def __init__(self, written: list[Any], drawing: list[Any]) -> None:
        self._written, self._drawing = written, drawing

    def values(self) -> list[int]:
        """Their values."""
        updates = [state.updates for state in self._written]
        return updates + [kernel.draws.total for kernel in self._drawing]

    def count(self, increments: list[int]) -> None:
        """Add a number to each."""
        owners = [*self._written, *(kernel.draws for kernel in self._drawing)]
        for owner, number in zip(owners, increments, strict=True):
            owner.count(number)


class _CapturedGraph:
    """A CUDA graph, and the state that must be unchanged since its capture."""

    def __init__(
        self,
        captured: tuple[Any, list[tuple[int, Any]], tuple[Any, ...]],
        read: list[Any],
        written: list[Any],
        counters: _Counters,
        counts: list[int],
    ) -> None:
        """One launch advances `counters` by `counts`."""
        self.graph, self.moving, self.outputs = captured
        self.read = [(state, state.array) for state in read]
        self.written = [(state, state.array) for state in written]
        self.counters, self.counts = counters, counts

    def is_valid(self) -> bool:
        """Whether the variables have the same arrays as at capture, and can be updated in place."""
        for state, array in self.read:
            if state.array is not array:
                return False
        return all(state.stays(array) for state, array in self.written)

    def launch(self, feeds: tuple[Any, ...]) -> tuple[Any, ...]:
        """Replay the capture with the current values."""
        for place, array in self.moving:
            array[...] = feeds[place]
        self.graph.launch()
        self.counters.count(self.counts)
        return self.outputs
