"""Which plain kernels a CUDA graph can hold: all cases of the op table, on a double of CuPy.

What is captured is launched with other values in the same memory, so that a number that a kernel
took from the values it was captured with is found out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpcflow.errors import DeviceError
from hpcflow.graph.static_shape import Spec
from hpcflow.kernels.kernel_registry import KernelNode, find_plain_kernel
from hpcflow.ops.random.random_kernels import DrawCount
from tests.ops.cases import Case
from tests.ops.evaluate import call
from tests.ops.test_table import CASES, OPS, bits, close, made
from tests.runtime import fake_cupy


def registered_reason(type: str) -> str:
    """Why no CUDA graph can capture the plain kernel of an op on GPUs, as its registration says."""
    return find_plain_kernel(type, "gpu").uncaptured(KernelNode(type, {}, [], []))


def refusal(
    case: Case,
    cupy: Any,
    dtype: Any = None,
    capture: bool = True,
    compare: Callable[[np.ndarray, Any, np.dtype], None] = close,
) -> str | None:
    """Why the kernel of a case is not captured, "" if it is; None if no GPU has such a kernel.

    `compare` compares what the kernel computes with the CPU's; without `capture` that is all.
    """
    dtype = dtype or case.dtypes[0]
    inputs = made(case, dtype)
    with contextlib.suppress(DeviceError):
        kernel = find_plain_kernel(case.type, "gpu")
        specs = [Spec(x.dtype, x.shape, x) for x in inputs]
        outputs = OPS[case.type].infer(specs, case.attrs)
        if any(spec.dtype.kind in "OSU" for spec in (*specs, *outputs)):
            return None
        run = kernel.make(cupy, KernelNode(case.type, case.attrs, specs, outputs))
        given = [cupy.array(x) for x in inputs]

        def called() -> list[Any]:
            if kernel.form in ("view", "new"):
                found = run(*given)
                return list(found) if len(outputs) > 1 else [found]
            outs = [cupy.empty(spec.shape, spec.dtype) for spec in outputs]
            if case.type in ("Maximum", "Minimum"):
                run(*given, out=outs[0])
            else:
                run(*given, *outs)
            return outs

        for mine, theirs in zip(called(), call(case.type, case.attrs, inputs), strict=True):
            compare(mine.get(), theirs, dtype)
        if not capture:
            return ""
        stream, pool = cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
        with stream, cupy.cuda.using_allocator(pool.malloc):
            stream.begin_capture()
            try:
                held = called()
            except (RuntimeError, NotImplementedError) as error:  # CUDA's errors are RuntimeErrors
                return str(error)
            finally:
                with contextlib.suppress(RuntimeError):
                    graph = stream.end_capture()
        again = [x[::-1].copy() if x.ndim and _any_values(case) else x for x in inputs]
        for array, values in zip(given, again, strict=True):
            array[...] = cupy.array(values)
        plain = [x.get() for x in called()]
        cupy.cuda.get_current_stream().synchronize()
        graph.launch()
        assert [bits(x.get()) for x in held] == [bits(x) for x in plain], case
        return ""
    return None


def _any_values(case: Case) -> bool:
    """Whether its inputs may be turned round: they are numbers, not places or sizes."""
    return all(x.dtype.kind in "fc" for x in made(case, case.dtypes[0]))


@pytest.mark.slow
def test_a_kernel_is_registered_as_uncaptured_if_it_is_refused_whatever_the_node(
    monkeypatch: Any,
) -> None:
    """And of others what is captured is right."""
    cupy = fake_cupy.install(monkeypatch)
    by_op: dict[str, set[bool]] = {}
    for case in CASES:
        why = refusal(case, cupy)
        if why is not None:
            by_op.setdefault(case.type, set()).add(bool(why))
    always = {op for op, refused in by_op.items() if refused == {True}}
    assert always == {op for op in by_op if registered_reason(op)} - {"Print"}  # may be silent


def test_draws_are_counted_on_the_device(monkeypatch: Any) -> None:
    """The words are those of the ordinal that the device's counter has when it is launched."""
    cupy = fake_cupy.install(monkeypatch)
    attrs = {"minval": 0.0, "maxval": 1.0, "dtype": np.dtype("f4"), "key": 7, "shape": (64,)}
    node = KernelNode(
        "RandomUniform", attrs, [Spec(np.dtype("i4"), (1,))], [Spec(np.dtype("f4"), (64,))]
    )
    run = find_plain_kernel("RandomUniform", "gpu").make(cupy, node)
    drawn = np.empty(64, "f4")
    on_host = find_plain_kernel("RandomUniform", "cpu").make(np, node)
    shape, out = cupy.array(np.array([64], "i4")), cupy.empty(64, "f4")
    run(shape, out)
    run.counter = cupy.array(np.array([0], "u8"))
    stream, pool = fake_cupy.Stream(non_blocking=True), fake_cupy.MemoryPool()
    with stream, fake_cupy.using_allocator(pool.malloc):
        stream.begin_capture()
        run(shape, out)
        graph = stream.end_capture()
    for ordinal in (0, 5, 3):
        run.counter[...] = ordinal
        graph.launch()
        on_host.draws = DrawCount(ordinal)
        on_host(np.array([64], "i4"), drawn)
        assert bits(out.get()) == bits(drawn)
