"""Compiled partitions, and step instances: the buffers and channels of one step in flight."""

from __future__ import annotations

import collections
import functools
import linecache
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpcflow.codegen.kernel_cache import prepare
from hpcflow.codegen.python_call_abi import as_contiguous
from hpcflow.errors import HpcflowError, KernelError, NumericError
from hpcflow.graph.static_shape import Spec, require_known
from hpcflow.lowering.fusion import fused_node_label
from hpcflow.lowering.instructions import Binding, BindingKind, BufferView
from hpcflow.lowering.kept_values import owned_values
from hpcflow.lowering.kernel_metadata import GeneratedCode, KernelInfo, LoweredPartition
from hpcflow.monitoring.stack_dump import OPS
from hpcflow.plan.cost.memory_estimate import (
    MemoryEstimate,
    collective_bytes_of,
    constant_bytes,
    memory_of_code,
    variable_bytes,
)
from hpcflow.plan.ir.control_flow_nodes import nested_nodes
from hpcflow.plan.ir.program import Node, Partition, Ref
from hpcflow.runtime.device.device import Device, device_of
from hpcflow.runtime.device.memory_accounting import ExpectedMemory
from hpcflow.runtime.device.out_of_memory import out_of_memory_error
from hpcflow.runtime.dynamic_types import DeviceArray, KernelFunction, State, Value
from hpcflow.runtime.state.state_store import StateStore
from hpcflow.runtime.step.cooperative_scheduling import VariableUses
from hpcflow.runtime.step.observer import Observer

Allocator = Callable[
    [str, int], DeviceArray
]  # (device, bytes) -> memory for the buffers of one partition
LARGE_INITIALIZER_BYTES = (
    1 << 20
)  # bytes: buffers that initialize larger variables are released after the step
MAX_KNOWN_ELEMENTS = 16  # most elements of constants that kernels receive as specs
SHARED_BINDINGS = frozenset(kind for kind in BindingKind if kind <= BindingKind.ALLOCATOR)  # shared
COMPUTED = frozenset({BindingKind.KERNEL, BindingKind.DYNAMIC_KERNEL})


class CompiledPartition:
    """The compiled code of one task's partition, and everything that its instances share."""

    def __init__(
        self,
        lowered: LoweredPartition,
        devices: Mapping[str, Device],
        store: StateStore,
        label: str = "",
        observers: Sequence[StepObserver] = (),
    ) -> None:
        """`observers` hear the events of set-up, also of the loops and branches in it."""
        self.devices, self.store, self.label = devices, store, label
        self.observers = tuple(observers)
        self.seed = store.seed
        self.part, self.code = lowered.part, lowered.code
        part = self.part
        # where its rank records its predicted memory
        self.expected_memory: ExpectedMemory | None = None
        self.trains = False  # whether a step of its plan updates variables, initialization excepted
        self.frames = {
            name: {
                key: CompiledPartition(body, devices, store, label, observers)
                for key, body in bodies.items()
            }
            for name, bodies in lowered.frames.items()
        }
        self.spans_tasks = any(
            node.row.message in ("send", "receive") for node in nested_nodes(part.nodes)
        )
        self._prepare_loops()
        self.file = f"<hpcflow {part.task} {id(self):x}>"
        weakref.finalize(self, linecache.cache.pop, self.file, None).atexit = False
        lines = self.code.source.splitlines(keepends=True)
        linecache.cache[self.file] = (len(self.code.source), None, lines, self.file)
        scope: dict[str, Value] = {OPS: self.code.lines}
        exec(compile(self.code.source, self.file, "exec"), scope)
        self.make = scope["make"]
        binds = [
            (name, what) for name, what in self.code.binds.items() if what.kind in SHARED_BINDINGS
        ]
        try:
            self.shared = {name: self._bind(what) for name, what in binds}
        except MemoryError as error:
            raise out_of_memory_error(self, error, None, None) from error
        self.dependents, self.pending = self._dependencies()
        waits = sum(node.row.waits for node in part.nodes.values())
        self.end_count = len(self.code.segments) + waits  # number of segments and waits of a step
        self._variable_uses: dict[int, VariableUses] = {}

    def _prepare_loops(self) -> None:
        """Start to compile the generated loops of each device."""
        loops: dict[Device, list[str]] = {}
        for node, text in _generated_loops(self.part, self.code):
            loops.setdefault(self.device(node), []).append(text)
        for device, texts in loops.items():
            prepare(texts, device.maker)

    def observe(self, observer: StepObserver) -> None:
        """Report the set-up of its instances, but not those of its loops and branches."""
        self.observers += (observer,)

    def close(self) -> None:
        """Release kernels with their memory, constants and state; no instance is left."""
        for parts in self.frames.values():
            for part in parts.values():
                part.close()
        self.shared.clear()
        self._variable_uses.clear()
        self.observers = ()

    def device(self, node: Node) -> Device:
        """The device that a node runs on."""
        return device_of(node, self.part.task, self.devices)

    def info(self, node: Node) -> KernelInfo:
        """The calling convention of the kernel that computes `node`."""
        return self.device(node).info(node, self.specs(node))

    @property
    def initializes_large(self) -> bool:
        """Whether it initializes large variables and does not train. Replicas agree on it."""
        nodes = self.part.nodes.values()
        has_initial_values = any(
            node.row.variable == "assign" and node.attrs.get("initial") for node in nodes
        )
        return (
            has_initial_values
            and not self.trains
            and sum(variable_bytes(self.part).values()) > LARGE_INITIALIZER_BYTES
        )

    @property
    def constants(self) -> dict[str, int]:
        """Bytes of each of its constants, including those of its loops and branches."""
        nbytes = constant_bytes(self.part, self.code)
        for partition in (c for parts in self.frames.values() for c in parts.values()):
            nbytes |= partition.constants
        return nbytes

    @functools.cached_property
    def arenas(self) -> collections.Counter[str]:
        """Bytes of its buffers on each device, including those of its loops and branches."""
        nbytes = collections.Counter(self.code.arenas)
        for partition in (c for parts in self.frames.values() for c in parts.values()):
            nbytes.update(partition.arenas)
        return nbytes

    @functools.cached_property
    def kept(self) -> frozenset[Ref]:
        """The values that tensor lists and arrays keep without a copy, and nobody fetches."""
        return frozenset(owned_values(self.part)).difference(self.part.fetches)

    @functools.cached_property
    def memory(self) -> MemoryEstimate:
        """The predicted memory of one step."""
        insides = (c.memory for parts in self.frames.values() for c in parts.values())
        return memory_of_code(self.part, self.code, 1, insides)

    def spec_of(self, ref: Ref) -> Spec:
        """The spec of a value; the spec of a small constant includes its value.

        So kernels need not copy the constant from a GPU.
        """
        node = self.part.nodes[ref.node]
        if node.row.source != "constant" or np.size(node.attrs["value"]) > MAX_KNOWN_ELEMENTS:
            return self.part.spec(ref)
        return self.part.spec(ref)._replace(value=np.asarray(node.attrs["value"]))

    def specs(self, node: Node) -> list[Spec]:
        """The specs of the inputs of a node."""
        return [self.spec_of(ref) for ref in node.inputs]

    def _bind(self, binding: Binding) -> Value:
        """The object that a name in the generated code is bound to, the same for all instances."""
        node = self.part.nodes[binding.node]
        device = self.device(node)
        specs = self.specs(node)
        if binding.kind == BindingKind.TILED_KERNEL:
            kernel: Value = device.kernel(node, specs)
            return kernel.tiles
        if binding.kind in COMPUTED:
            run: Value = device.kernel(node, specs)
            if hasattr(run, "draws"):  # plans for other shapes continue the same series of draws
                draws = self.store.draws.setdefault((self.label, node.name), run.draws)
                run.continue_draws(draws, self.seed)
            if binding.kind == BindingKind.KERNEL:
                return run
            return _allocating_kernel(device, node, specs, run, _is_fetched(node, self.part))
        if binding.kind == BindingKind.LOOP:
            return device.loop(binding.text)
        if binding.kind == BindingKind.CONTIGUOUS:
            return as_contiguous if device.kind == "cpu" else device.xp.ascontiguousarray
        if binding.kind == BindingKind.CONSTANT:
            value = np.asarray(node.attrs["value"])
            array = device.from_host(value)
            device.held_memory.keep("constants", array, value.nbytes)
            return array
        if binding.kind == BindingKind.VARIABLE:
            return self.store.find(node, device)
        if binding.kind == BindingKind.OWN_COPY:
            return device.copied
        if binding.kind == BindingKind.ALLOCATOR:
            spec = node.specs[binding.position]
            shape, dtype = require_known(spec.shape), spec.dtype
            if Ref(node.name, binding.position) in self.kept:
                return device.row_allocator(shape, dtype)
            return lambda: device.allocate(shape, dtype)
        source = self.device(self.part.nodes[node.inputs[0].node])  # DEVICE_COPY

        def copied(array: DeviceArray) -> DeviceArray:
            host = source.to_host(array)
            source.check_indices()
            return device.from_host(host)

        return copied

    def _dependencies(self) -> tuple[dict[str | int, list[int]], list[int]]:
        """The dependents of each wait and segment, and each segment's number of dependencies."""
        followers: dict[str | int, list[int]] = {}
        for i, segment in enumerate(self.code.segments):
            befores: list[str | int] = [*segment.waits, *segment.after]
            for before in befores:
                followers.setdefault(before, []).append(i)
        return followers, [len(s.waits) + len(s.after) for s in self.code.segments]

    def variable_uses(self, index: int) -> VariableUses:
        """The variables that a segment uses, without those of loops and branches that wait."""
        if index not in self._variable_uses:
            reads: set[State] = set()
            writes: set[State] = set()
            for node in (self.part.nodes[name] for name in self.code.segments[index].nodes):
                updates = node.row.waits and node.row.variable != "wait"
                for i, ref in enumerate(node.inputs):
                    source = self.part.nodes[ref.node]
                    if node.row.message == "send" and source.row.variable == "read":
                        source = self.part.nodes[source.inputs[0].node]  # the Send reads it
                    if source.row.variable == "handle":
                        used = writes if updates or i in node.row.writes else reads
                        used.add(self.store.find(source, self.device(source)))
                if not node.row.waits:
                    for inside in self.frames.get(node.name, {}).values():
                        for i in range(len(inside.code.segments)):
                            reads |= inside.variable_uses(i).reads
                            writes |= inside.variable_uses(i).writes
            self._variable_uses[index] = VariableUses(frozenset(reads), frozenset(writes))
        return self._variable_uses[index]

    def located(self, error: HpcflowError, name: str, rank: int) -> HpcflowError:
        """`error` of the wait `name`, with its operation, line and rank."""
        node = self.part.nodes[name]
        error.op, error.line = error.op or node.name, error.line or node.line
        error.rank = rank if error.rank is None else error.rank
        return error

    def explain(self, error: BaseException, rank: int, name: str = "") -> BaseException:
        """`error` with the operation, the user's line and the rank where it was raised.

        The operation is that of the traceback, else the node `name`.
        """
        trace = error.__traceback__
        while trace is not None:
            frame = trace.tb_frame
            if frame.f_code.co_filename.startswith(self.file):
                name = frame.f_globals[OPS][trace.tb_lineno - 1]
            trace = trace.tb_next
        node = self.part.nodes.get(name)
        if isinstance(error, HpcflowError):
            if node is not None:
                error.op, error.line = error.op or node.name, error.line or node.line
            error.rank = rank if error.rank is None else error.rank
            return error
        if isinstance(error, MemoryError):
            return out_of_memory_error(self, error, node, rank)
        if node is None:
            return error
        shapes = ", ".join(
            f"{s.dtype}{list(s.shape or ())}" for s in map(self.spec_of, node.inputs)
        )
        fused_text = (
            f", one loop for {', '.join(fused_node_label.fused_names(node))},"
            if node.type == "Fused"
            else ""
        )
        return KernelError(
            f"{fused_node_label.node_label(node)}({shapes}){fused_text} failed: "
            f"{type(error).__name__}: {error}",
            op=node.name,
            line=node.line,
            rank=rank,
        )


def _generated_loops(part: Partition, code: GeneratedCode) -> Iterator[tuple[Node, str]]:
    """The sources of a partition's generated loops, each with a node that it computes."""
    for node in part.nodes.values():
        if node.row.generated:
            yield node, node.attrs["text"]
    for binding in code.binds.values():
        if binding.kind == BindingKind.LOOP:
            yield part.nodes[binding.node], binding.text


def _is_fetched(node: Node, part: Partition) -> bool:
    return any(ref.node == node.name for ref in part.fetches)


def _allocating_kernel(
    device: Device, node: Node, specs: list[Spec], run: KernelFunction, fetched: bool
) -> KernelFunction:
    """A kernel for sizes known only at run time: each call of `run` allocates its outputs.

    A `fetched` value is allocated for the caller, not from the pool.
    """
    if device.info(node, specs).form != "out":
        return run
    infer, attrs = node.row.infer, node.attrs
    take = device.allocate if fetched else device.take

    def value_of(x: Value, known_value: Any) -> Any:
        """The value of what may be a shape or an axis; a GPU copies integers for that."""
        if known_value is not None or x.ndim >= 2 or x.size >= MAX_KNOWN_ELEMENTS:
            return known_value
        return device.to_host(x) if device.kind == "cpu" or x.dtype.kind in "iub" else None

    def call(*inputs: Value) -> Value:
        input_specs = [
            Spec(x.dtype, x.shape, value_of(x, s.value)) for x, s in zip(inputs, specs, strict=True)
        ]
        outs = [take(require_known(spec.shape), spec.dtype) for spec in infer(input_specs, attrs)]
        run(*inputs, *outs)
        return outs[0] if len(outs) == 1 else tuple(outs)

    return call


class StepInstance:
    """One step in flight: its buffers, channels, buckets and progress."""

    def __init__(
        self,
        compiled: CompiledPartition,
        link: Any,
        slot: int = 0,
        take: Allocator | None = None,
        observers: tuple[StepObserver, ...] = (),
        outer: StepInstance | None = None,
        frame: str = "",
        *,
        on_done: Callable[[StepInstance], None] | None = None,
        failed: Callable[[StepInstance], None] | None = None,
        patient: bool = False,
    ) -> None:
        """`take` allocates from an existing arena; without it the instance has its own.

        `on_done` is called at the end of each step; `failed` where it fails, to report it to other
        ranks. A `patient` one waits for other steps, for unlimited time.

        The instance of a loop or branch belongs to the node `frame` of the instance `outer`.
        """
        self.compiled, self.link, self.slot, self.take = compiled, link, slot, take
        self.observers = (*compiled.observers, *observers)
        self._own_observers, self.outer, self.frame = observers, outer, frame
        self.has_own_kernels = False  # an observer has replaced a kernel
        self.part, self.code = compiled.part, compiled.code
        self.arena_lease: Any = None  # where the arena is shared: its Lane
        self.nested: list[StepInstance] = []  # of its loops and branches
        self.arrays: dict[str, Value] = {}
        self.received: dict[str, Value] = {}  # Recv node -> its buffer
        self.frames: dict[str, Value] = {}  # loops and branches that wait: their instances
        self.boxes: dict[str, list[list[Value]]] = {}  # wait -> a box for each of its values
        self.buckets: dict[str, Value] = {}
        self._bind_code()
        self.channels: Any = link.open(self)  # its channels: see hpcflow.runtime.step.step_channels
        self._count_expected_memory()
        self.pending: list[int] = []
        self.unfinished = 0
        self.step = 0
        self.begun_waits: set[str] = set()  # waits that the step has started, except receives
        self.waiting: dict[str, Value] = {}  # those of them that are not collectives
        self.sent_flags = bytearray(len(self.code.sends_info))  # sends that it has started
        self.error: BaseException | None = None  # the error by which the step fails
        self.started = False  # its first segment has run, or was skipped
        self.early: list[int] = []  # segments that became ready before that
        self.is_broken = False  # it failed in a way that no other step can follow
        self.has_voted = False  # `vote` was called
        self.patient = patient
        self.on_done: Callable[[StepInstance], None] = on_done or _ignore_end
        self.failed: Callable[[StepInstance], None] = failed or _ignore_end

    def _bind_code(self) -> None:
        """Allocate its buffers, and bind the code to them. Errors: OutOfMemoryError."""
        try:
            self.arenas = self._allocated()
            names = self._names()
            self.segments, self.release = self.compiled.make(*names)
            for observer in self.observers:
                segments = self.segments, self.release
                self.segments, self.release = observer.bind_segments(self, segments, names)
        except MemoryError as error:
            raise out_of_memory_error(
                self.compiled, error, None, self.link.executor.rank
            ) from error

    def _count_expected_memory(self) -> None:
        """Add the bytes of its buffers, messages and buckets to what the plan expects."""
        compiled = self.compiled
        if compiled.expected_memory is not None:
            nodes, memory = self.part.nodes, compiled.memory
            sums = (
                (bucket, collective_bytes_of(nodes[name])) for name, bucket in self.buckets.items()
            )
            nbytes = memory.buffers if self.take is None else 0  # the arena counts borrowed buffers
            compiled.expected_memory.step(self.channels, nbytes + memory.messages, sums)

    def _allocated(self) -> dict[str, DeviceArray]:
        """The memory of its buffers, by device."""
        take = self.take or (lambda device, size: self._device(device).arena(size))
        return {device: take(device, size) for device, size in self.code.arenas.items()}

    def _names(self) -> list[Value]:
        """The objects that the names in the code are bound to; creates its buffers and buckets."""
        for node in self.part.nodes.values():
            if node.row.collective:
                bucket = self.buckets[node.name] = self.link.bucket(node)
                self.compiled.device(node).held_memory.keep("sums", bucket, bucket.nbytes)
        return [self._bound(name, binding) for name, binding in self.code.binds.items()]

    def inside(self, compiled: CompiledPartition, name: str) -> StepInstance:
        """An instance of a partition of its loop or branch `name`."""
        instance = StepInstance(
            compiled, self.link, self.slot, self.take, self._own_observers, self, name
        )
        self.nested.append(instance)
        return instance

    def observe(self, observer: StepObserver) -> None:
        """Report its steps and its end."""
        self.observers += (observer,)

    @property
    def is_bound(self) -> bool:
        """Whether it has borrowed memory and can run."""
        return self.take is not None

    def unbind(self) -> None:
        """Release buffers and channels; nothing is in flight, and it does not run again."""
        for part in self.nested:
            part.unbind()
        if not self.is_broken and self.channels is not None:  # else messages may still be in flight
            self.channels.close()
            self.channels = None
        for observer in self.observers:
            observer.unbind(self)
        self.observers = self._own_observers = ()
        self.segments, self.release, self.take = (), tuple, None
        for collection in (self.arenas, self.arrays, self.received, self.frames, self.boxes):
            collection.clear()
        self.buckets.clear()
        self.nested.clear()

    def begin(self, step: int) -> None:
        """Reset the progress for a new step."""
        self.step, self.error, self.is_broken, self.started = step, None, False, False
        self.has_voted = False
        self.early.clear()
        if self.begun_waits:
            self.begun_waits.clear()
            self.waiting.clear()
        self.sent_flags = bytearray(len(self.sent_flags))
        self.pending = self.compiled.pending.copy()
        self.unfinished = self.compiled.end_count
        for observer in self.observers:
            observer.step_begin(self)

    def run_inside(self, on_done: Callable[[StepInstance], None]) -> None:
        """Let the next step be as patient as that of `outer`, and end with `on_done`."""
        assert self.outer is not None
        self.patient, self.on_done = self.outer.patient, on_done

    def extend(self) -> None:
        """Let the step end only after one more end, of something that its plan does not count."""
        self.unfinished += 1

    def tear(self, error: BaseException) -> None:
        """Its step fails such that no other can follow: by its first error, else by `error`."""
        self.error, self.is_broken = self.error or error, True

    def vote(self) -> None:
        """Its last collective starts, by which others may commit the step."""
        self.has_voted = True

    def learn_error(self, error: BaseException) -> None:
        """Another rank tells by which error the step fails that was cancelled here."""
        self.error = error

    def forget_error(self) -> None:
        """Release the error of a step that has ended: its traceback references arrays."""
        self.error = None

    def end_unnoticed(self) -> None:
        """Report the end of the step to nobody: its driver is gone."""
        self.on_done = _ignore_end

    @property
    def finished(self) -> bool:
        """Whether all has run or was skipped and all messages have been sent, or it is torn."""
        return not self.unfinished or self.is_broken

    def _device(self, name: str) -> Device:
        return self.compiled.devices[name.removeprefix(self.part.task + "/")]

    def _bound(self, name: str, binding: Binding) -> Value:
        value = self.compiled.shared.get(name)
        if value is None:
            value = self._make(binding)
        elif self.observers and binding.kind in COMPUTED:
            value = self._observed(self.part.nodes[binding.node], value)
        self.arrays[name] = value
        return value

    def _observed(self, node: Node, kernel: KernelFunction) -> KernelFunction:
        """The kernel of a node, as the observers bind it."""
        bound = kernel
        for observer in self.observers:
            bound = observer.bind_kernel(self, node, bound)
        self.has_own_kernels |= bound is not kernel
        return bound

    def _make(self, binding: Binding) -> Value:
        """The object that a name is bound to in this instance."""
        kind, node = binding.kind, self.part.nodes.get(binding.node)
        if kind == BindingKind.HOOK:
            return self._hook(binding.text)
        if kind == BindingKind.BUFFER:
            return self._buffer(binding.buffers[0])
        if kind == BindingKind.WORKSPACE:
            return tuple(map(self._buffer, binding.buffers))
        assert node is not None
        if kind == BindingKind.BODY:
            return self.link.frame(self, node)
        if kind == BindingKind.VIEW:
            device, specs = self.compiled.device(node), self.compiled.specs(node)
            return device.kernel(node, specs)(self.arrays[binding.text])
        if kind in (BindingKind.BUCKET_INPUT, BindingKind.BUCKET_OUTPUT):
            side = "bucket_in" if kind == BindingKind.BUCKET_INPUT else "bucket_out"
            return self.buckets[node.name].views(side)[binding.position]
        if kind == BindingKind.BOX:
            return self.boxes.setdefault(node.name, [[None] for _ in node.specs])[binding.position]
        return self._message_buffer(node, kind == BindingKind.RECEIVE_BUFFER)

    def _hook(self, name: str) -> KernelFunction:
        """The function of the runtime that the code calls by `name`, as the observers bind it."""
        own: dict[str, KernelFunction] = {"check": self.check, "tick": self.tick}
        hook = own.get(name) or getattr(self.link, name)(self)
        for observer in self.observers:
            hook = observer.bind_hook(self, name, hook)
        return hook

    def _buffer(self, view: BufferView) -> DeviceArray:
        """A part of the arena of a device."""
        device, block, dtype, shape, start = view
        start += self.code.blocks[block].start
        return self._device(device).view(self.arenas[device], require_known(shape), dtype, start)

    def _message_buffer(self, node: Node, receives: bool) -> DeviceArray:
        """The buffer of a Recv or of a Send."""
        default = next(iter(self.compiled.devices.values()))
        spec = node.specs[0] if receives else self._staged(node)
        array = default.host_empty(require_known(spec.shape), spec.dtype)
        self.compiled.devices["cpu:0"].held_memory.keep("messages", array, array.nbytes)
        if receives:
            self.received[node.name] = array
        return array

    def put(self, name: str, *values: Value) -> None:
        """Store the values of the wait `name`, which is over."""
        for box, value in zip(self.boxes.get(name, ()), values, strict=True):
            box[0] = value

    def _staged(self, node: Node) -> Spec:
        """The spec of the value that a Send copies to its buffer; a control token has no bytes."""
        return self.compiled.spec_of(node.inputs[0]) if node.inputs else Spec(np.dtype("u1"), (0,))

    def tick(self) -> None:
        """Count a step that the executor does not count."""
        self.step += 1

    def check(self, array: DeviceArray, name: str) -> None:
        """Errors: NumericError if `array` has a NaN or an infinity (setting check_numerics)."""
        host = self.compiled.device(self.part.nodes[name]).to_host(array)
        bad = int(np.size(host) - np.count_nonzero(np.isfinite(host)))
        if bad:
            raise NumericError(
                f"{bad} of {np.size(host)} values are NaN or infinite in step {self.step} of these "
                "fetches; this is the first operation where they are",
                op=name,
            )


def _ignore_end(instance: StepInstance) -> None:
    """Default of `on_done` and `failed`: does nothing."""


StepObserver = Observer[CompiledPartition, StepInstance]
