"""Cost calibration: times operations of a few types and sizes by the kernels that a step would run.

Each case is a small graph. It is planned and lowered for the devices of this process, so that
operations are fused as in a step. Its operations then run one by one, on arrays that stay in the
caches if they fit. Updates of variables are not timed; a profiled run measures them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import hpcflow as hf
from hpcflow.codegen import kernel_cache
from hpcflow.graph.static_shape import Spec
from hpcflow.kernels.kernel_registry import kernel_preferences
from hpcflow.lowering.buffer_assignment import has_kernel
from hpcflow.plan.cost.cost_model import input_specs
from hpcflow.plan.cost.op_flops_and_bytes import cost_input_specs
from hpcflow.plan.cost.operation_features import operation_features
from hpcflow.plan.ir.program import Cluster, Node, Partition, Ref
from hpcflow.plan.pass_list import make_plan
from hpcflow.platform import cpu_threads
from hpcflow.platform.measured_costs import OperationCost, OperationKey, SampleSummary
from hpcflow.runtime.device.device import Device, device_names, device_of, make_device
from hpcflow.runtime.step.kernel_selection import lower_for_devices
from hpcflow.settings import Settings

MOST_SAMPLES = 1000  # calls of one operation that are timed
INDICES = 64  # rows that gathered indices name
SCALES = (1, 4, 16, 64)
WIDTH = 256  # columns of the matrices of elementwise operations, reductions and copies


class CalibrationCase(NamedTuple):
    """`make(*inputs)` adds the operations to the graph; `shapes` are those of the inputs."""

    make: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]


class Calibration(NamedTuple):
    """The measured rows, and how many of all cases ran."""

    rows: list[OperationCost]
    ran: int
    cases: int


def calibrate(seconds: float, settings: Settings) -> Calibration:
    """Time operations on each device of this process for about `seconds`.

    At least one case runs on each device, and each operation of a case is timed at least once. A
    short time leaves out the cases of large sizes.
    """
    kernel_cache.use(settings.kernel_cache)
    wish = kernel_preferences(settings.kernels, settings.exact, settings.allow_tf32)
    names = device_names(False, 0)
    devices = {name: make_device(name, wish) for name in names}
    built_in = [name for name in names if name.startswith(("cpu:", "gpu:"))]
    cases, start = list(all_cases()), time.perf_counter()
    rows, ran = list[OperationCost](), 0
    for number, name in enumerate(built_in, 1):
        until = start + seconds * number / len(built_in)
        for index, case in enumerate(cases):
            left = until - time.perf_counter()
            if left <= 0 and index:
                break
            rows += _measured(case, name, devices, settings, max(0.0, left / (len(cases) - index)))
            ran += 1
    return Calibration(rows, ran, len(cases) * len(built_in))


def all_cases() -> Iterator[CalibrationCase]:
    """The cases, small sizes first."""
    for scale in SCALES:
        for dtype in ("float32", "float64"):
            yield from _matrix_cases(scale, dtype)
        yield from _image_cases(scale)


def _matrix_cases(scale: int, dtype: str) -> Iterator[CalibrationCase]:
    n, matrix = 16 * scale, (16 * scale, WIDTH)

    def case(make: Callable[..., Any], *shapes: tuple[int, ...]) -> CalibrationCase:
        return CalibrationCase(make, shapes, (dtype,) * len(shapes))

    yield case(hf.matmul, (n, n), (n, n))
    yield case(hf.matmul, matrix, (WIDTH, WIDTH))
    yield case(lambda x, y: hf.nn.relu(x + y), matrix, matrix)
    yield case(lambda x, y: hf.tanh(x) * y, matrix, matrix)
    yield case(hf.exp, matrix)
    yield case(hf.reduce_sum, matrix)
    yield case(lambda x: hf.reduce_sum(x, 0), matrix)
    yield case(lambda x: hf.reduce_mean(x, 1), matrix)
    yield case(hf.transpose, matrix)
    yield case(lambda x, y: hf.concat([x, y], 1), matrix, matrix)
    yield case(hf.nn.softmax, matrix)
    other = "float64" if dtype == "float32" else "float32"
    yield case(lambda x: hf.cast(x, other), matrix)
    yield CalibrationCase(hf.gather, (matrix, (n,)), (dtype, "int32"))


def _image_cases(scale: int) -> Iterator[CalibrationCase]:
    images, filters = (scale, 16, 16, 16), (3, 3, 16, 16)
    float32 = ("float32", "float32")
    yield CalibrationCase(
        lambda x, w: hf.nn.conv2d(x, w, [1, 1, 1, 1], "SAME"), (images, filters), float32
    )
    yield CalibrationCase(
        lambda x: hf.nn.max_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "VALID"), (images,), float32[:1]
    )


def _measured(
    case: CalibrationCase,
    name: str,
    devices: Mapping[str, Device],
    settings: Settings,
    seconds: float,
) -> list[OperationCost]:
    """The rows of the operations of a case on the device `name`."""
    part = _lowered(case, name, devices, settings)
    draw, values, rows = np.random.default_rng(1), dict[Ref, Any](), list[OperationCost]()
    count = sum(map(has_kernel, part.nodes.values()))
    for node in part.nodes.values():
        device, given = device_of(node, part.task, devices), [values[ref] for ref in node.inputs]
        if has_kernel(node):
            run, outputs = _runner(node, part, device, given)
            samples = _times(run, device, seconds / count)
            for index, value in enumerate(outputs()):
                values[Ref(node.name, index)] = value
            rows += _row(node, part, device, samples)
        elif given:  # a copy between devices
            source = device_of(part.nodes[node.inputs[0].node], part.task, devices)
            values[Ref(node.name)] = device.from_host(source.to_host(given[0]))
        else:
            values[Ref(node.name)] = device.from_host(_random(node.specs[0], draw))
    return rows


def _row(
    node: Node, part: Partition, device: Device, samples: Sequence[float]
) -> list[OperationCost]:
    """The row of an operation; [] if its features are not known."""
    features = operation_features(node, cost_input_specs(node, part))
    if features is None:
        return []
    provider = device.provider(device.choose(node, input_specs(node, part)))
    threads = cpu_threads.chosen_threads().threads
    key = OperationKey(
        *(features.type, features.dtypes, provider, threads, device.kind),
        *(features.flops, features.nbytes),
    )
    return [OperationCost(key, SampleSummary.of(samples), int(time.time()))]


def _lowered(
    case: CalibrationCase, name: str, devices: Mapping[str, Device], settings: Settings
) -> Partition:
    with hf.Graph().as_default() as graph, hf.device(f"/{name}"):
        inputs = [
            hf.placeholder(dtype, shape)
            for dtype, shape in zip(case.dtypes, case.shapes, strict=True)
        ]
        feeds = {tensor: Spec(tensor.dtype, tensor.shape) for tensor in inputs}
        fetch = case.make(*inputs)
        plan = make_plan(graph, [fetch], feeds, Cluster(devices=tuple(devices)), settings)
    return lower_for_devices(plan.parts[plan.driver], devices)


def _random(spec: Spec, draw: np.random.Generator) -> np.ndarray:
    shape = tuple(size or 0 for size in spec.shape or ())
    if spec.dtype.kind == "i":
        return draw.integers(0, min(INDICES, *shape), shape).astype(spec.dtype)
    return draw.standard_normal(shape).astype(spec.dtype)


def _runner(
    node: Node, part: Partition, device: Device, values: Sequence[Any]
) -> tuple[Callable[[], Any], Callable[[], Sequence[Any]]]:
    """A function that runs the kernel of a node, and one that returns the outputs of its runs."""
    specs = input_specs(node, part)
    kernel, info = device.kernel(node, specs), device.info(node, specs)
    outs = [device.allocate(_sizes(spec), spec.dtype) for spec in node.specs]
    rooms = tuple(device.allocate(_sizes(spec), spec.dtype) for spec in info.scratch)
    more = {"room": rooms} if rooms else {}
    if info.form == "ufunc":
        return lambda: kernel(*values, out=outs[0], **more), lambda: outs
    if info.form == "out":
        return lambda: kernel(*values, *outs, **more), lambda: outs

    def results() -> Sequence[Any]:
        made = kernel(*values, **more)
        return made if isinstance(made, tuple) else [made]

    return lambda: kernel(*values, **more), results


def _sizes(spec: Spec) -> tuple[int, ...]:
    assert spec.known and spec.shape is not None
    return tuple(size for size in spec.shape if size is not None)


def _times(run: Callable[[], Any], device: Device, seconds: float) -> list[float]:
    """Seconds of calls, after one that is not counted."""
    run()
    device.finish()
    clock, samples = time.perf_counter_ns, list[float]()
    until = clock() + int(seconds * 1e9)
    while not samples or (clock() < until and len(samples) < MOST_SAMPLES):
        start = clock()
        run()
        device.finish()
        samples.append(max(1, clock() - start) / 1e9)
    return samples
