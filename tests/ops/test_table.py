"""The walk over the op table: each row against its shape rule, oracle and finite differences."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

from hpcflow.autodiff.gradients import gradients
from hpcflow.errors import GradientError
from hpcflow.graph.dtypes import kind_of
from hpcflow.graph.graph import Graph, Tensor
from hpcflow.graph.op_registry import NoGrad, all_ops
from hpcflow.graph.static_shape import Spec, merge_shapes
from hpcflow.kernels.kernel_registry import find_plain_kernel, names
from hpcflow.ops.array.array_ops import constant, placeholder
from hpcflow.ops.variables.sparse_row_update_ops import SCATTERS
from tests.ops.cases import BOOL, C64, C128, CASES, F32, F64, I32, I64, Case, for_each_case
from tests.ops.evaluate import call, evaluate

for _file in sorted(Path(__file__).parent.glob("cases_*.py")):  # each adds its cases
    importlib.import_module(f"tests.ops.{_file.stem}")

OPS = all_ops()
BUILT_IN = "it has no kernel: generated code and the tests' interpreter do it themselves"
PLAN = "made when the plan is cut; tested with the plan and the engine"
WAITS = "state of the runtime and waits for it; tested in tests/runtime/test_queues.py"
ACCUMULATES = "as queues; tested in tests/runtime/test_accumulators.py"
ITERATES = "as queues; tested in tests/data/test_pipeline.py"
READS = "as queues; tested in tests/train/test_readers.py"
ROUNDS = "between workers and servers; tested in tests/ps/test_rounds.py, test_rules.py"
DRAWS = ("RandomUniform", "RandomNormal", "TruncatedNormal", "RandomUniformInt", "RandomGamma")
DRAWS = (*DRAWS, "RandomPoisson", "RandomPermutation")
ELSEWHERE = {
    **dict.fromkeys(
        ["Const", "Placeholder", "Variable", "ReadVariable", "Assign", "NoOp"], BUILT_IN
    ),
    **dict.fromkeys(["Send", "Recv", "Copy", "Feed", "AllReduce", "Broadcast"], PLAN),
    **dict.fromkeys(["Parcel", "Fused"], PLAN),
    "Rows": "tests/plan/test_algebra.py",
    **dict.fromkeys([f"UpdateRows{n}" for n in range(1, 7)], PLAN),
    **dict.fromkeys(["Packed", "PackedMatMul"], "tests/kernels/test_packed.py"),
    "StridedMatMul": "tests/kernels/test_strided.py",
    "FromParcel": "test_parcel.py, test_parcels.py",
    **dict.fromkeys(["ReplicaSum", "ReplicaShare", "ReplicaOffset", "WaitInitialized"], PLAN),
    **dict.fromkeys([s + t for t in DRAWS for s in ("", "Stateless")], "test_random.py"),
    "IsVariableInitialized": "tests/runtime/test_session_tf1.py",
    **dict.fromkeys(["AssignAdd", "AssignSub", "ApplyGradientDescent"], "test_state.py"),
    **dict.fromkeys(["FIFOQueue", "PaddingFIFOQueue", "PriorityQueue"], WAITS),
    **dict.fromkeys(["QueueClose", "QueueDequeue", "QueueDequeueMany", "QueueDequeueUpTo"], WAITS),
    **dict.fromkeys(["QueueEnqueue", "QueueEnqueueMany", "QueueIsClosed", "QueueSize"], WAITS),
    **dict.fromkeys(["CountUpTo", "RandomShuffleQueue"], WAITS),
    **dict.fromkeys(["Reader", "ReaderRead", "ReaderReadUpTo"], READS),
    **dict.fromkeys(["ReaderCount", "ReaderReset"], READS),
    **dict.fromkeys(
        "Iterator MakeIterator IteratorGetNext IteratorGetNextOf IteratorToHandle".split(), ITERATES
    ),
    **dict.fromkeys(["AccumulatorApplyGradient", "AccumulatorNumAccumulated"], ACCUMULATES),
    **dict.fromkeys(["AccumulatorSetGlobalStep", "AccumulatorTakeGradient"], ACCUMULATES),
    **dict.fromkeys(["ConditionalAccumulator", "SparseConditionalAccumulator"], ACCUMULATES),
    **dict.fromkeys(["Rounds", "RoundBegin", "RoundAdd", "RoundReady", "RoundTotal"], ROUNDS),
    **dict.fromkeys(["RoundOver", "RoundPick", "RoundSum", "RoundEnd", "ClockTick"], ROUNDS),
    **dict.fromkeys(["PyFunc", "PyFuncStateless", "PyFuncThread"], "test_host.py"),
    **dict.fromkeys(["ReadFile", "WriteFile", "MatchingFiles"], "test_strings.py"),
    **dict.fromkeys([t for t in OPS if t.endswith("Summary")], "test_summaries.py"),
    "ReadCheckpoint": "tests/checkpoint/test_best.py",
    **dict.fromkeys(["ApplyMomentum", "ApplyAdam"], "test_state.py"),
    **dict.fromkeys(["If", "While", "Parameter"], PLAN),
    "ListCopy": "tests/runtime/test_captured_values.py",
    **dict.fromkeys(["ListEmpty", "ListPush", "ListPop", "ListRows"], "tests/runtime/test_flow.py"),
    **dict.fromkeys([t for t in OPS if t.startswith("TensorArray")], "tests/runtime/test_flow.py"),
    **dict.fromkeys(["Loop", "Branch", "LoopAcross", "BranchAcross"], PLAN),
    **dict.fromkeys(["ReplicaGather", "AllGather"], PLAN),
    **dict.fromkeys(["ReadRows", *(f"Scatter{s}" for s in SCATTERS)], "test_scatter.py"),
    **dict.fromkeys(["ScatterNdUpdate", "ScatterNdAdd", "ScatterNdSub"], "test_scatter.py"),
    **dict.fromkeys(["ConvBias", "MatMulBias"], "tests/kernels/test_onednn.py"),
    "MaxPoolReluGrad": "tests/kernels/test_llvm_pool.py",
}
GRADUAL = [c for c in CASES if {F64, C128} & set(c.dtypes)]


def made(case: Case, dtype: np.dtype) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    inputs = [np.asarray(make(rng, dtype)) for make in case.inputs]
    for x in inputs:
        x.flags.writeable = False
    return inputs


def wide(x: np.ndarray) -> np.ndarray:
    """The same numbers in double precision."""
    return x.astype({"f": F64, "c": C128}.get(kind_of(x.dtype), x.dtype))


def as_list(results: object) -> list:
    return list(results) if isinstance(results, tuple) else [results]


def bits(x: np.ndarray) -> object:
    """What two arrays have alike if they are the same to the last bit."""
    return x.tolist() if x.dtype.kind == "O" else x.tobytes()


def close(got: np.ndarray, expected: object, dtype: np.dtype) -> None:
    expected = np.asarray(expected)
    assert got.shape == expected.shape
    if got.dtype.kind == "O":
        assert got.tolist() == expected.tolist()
        return
    tolerance = 2e-5 if {F32, C64} & {dtype, got.dtype} else 1e-11
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


def test_every_row_is_tested() -> None:
    """A row without a case here fails: add one to a cases_*.py."""
    tested = {c.type for c in CASES}
    assert set(OPS) == tested | set(ELSEWHERE)
    assert not tested & set(ELSEWHERE)


def test_every_row_has_a_kernel_and_every_kernel_a_row() -> None:
    elsewhere = (BUILT_IN, PLAN, WAITS, ACCUMULATES, ITERATES, READS, ROUNDS)
    without = {t for t, why in ELSEWHERE.items() if why in elsewhere}
    assert names() == set(OPS) - without


@for_each_case(CASES)
def test_kernel_against_oracle(case: Case) -> None:
    for dtype in case.dtypes:
        inputs = made(case, dtype)
        expected = as_list(case.oracle(*map(wide, inputs)))
        got = call(case.type, case.attrs, inputs)
        for g, e in zip(got, expected, strict=True):
            close(g, e, dtype)
        again = call(case.type, case.attrs, inputs)
        assert all(bits(a) == bits(g) for a, g in zip(again, got, strict=True))


class OtherModule:
    """An array module that is not NumPy: kernels must find their way as they do with CuPy."""

    def __getattr__(self, name: str) -> object:
        function = getattr(np, name)
        if name == "einsum":
            return lambda *args: function(*args)
        return function


@for_each_case(CASES)
def test_kernel_for_another_array_module(case: Case) -> None:
    for dtype in case.dtypes:
        inputs = made(case, dtype)
        expected = call(case.type, case.attrs, inputs)
        for g, e in zip(
            call(case.type, case.attrs, inputs, xp=OtherModule()), expected, strict=True
        ):
            assert g.dtype == e.dtype
            close(g, e, dtype)


@for_each_case(CASES)
def test_shape_rule_against_kernel(case: Case) -> None:
    """Exact when all is known, and never wrong when less is: sizes, ranks or values unknown."""
    for dtype in case.dtypes:
        inputs = made(case, dtype)
        got = call(case.type, case.attrs, inputs)
        full = [_spec(x, x.shape, True) for x in inputs]
        for spec, value in zip(OPS[case.type].infer(full, case.attrs), got, strict=True):
            assert spec.dtype == value.dtype
            if find_plain_kernel(case.type, "cpu").form == "new":  # a size may depend on values
                merge_shapes(spec.shape, value.shape)
            else:
                assert spec.shape == value.shape
            if spec.value is not None:
                np.testing.assert_array_equal(spec.value, value)
        rng = np.random.default_rng(3)
        for known in (True, False) * 4:
            partial = [_spec(x, _forget(x.shape, rng), known) for x in inputs]
            for spec, value in zip(OPS[case.type].infer(partial, case.attrs), got, strict=True):
                assert spec.dtype == value.dtype
                merge_shapes(spec.shape, value.shape)


def _spec(x: np.ndarray, shape: object, known: bool) -> Spec:
    value = x if known and x.shape == shape else None
    return Spec(x.dtype, shape, value)  # type: ignore[arg-type]


def _forget(shape: tuple[int, ...], rng: np.random.Generator) -> object:
    if rng.random() < 0.2:
        return None
    return tuple(None if rng.random() < 0.5 else d for d in shape)


@for_each_case(CASES)
def test_output_may_share_the_inputs_it_says(case: Case) -> None:
    for dtype in case.dtypes:
        inputs = made(case, dtype)
        expected = call(case.type, case.attrs, inputs)
        for i in find_plain_kernel(case.type, "cpu").inplace:
            if i < len(inputs) and _alike(inputs[i], expected[0]):
                copies = [x.copy() for x in inputs]
                got = call(case.type, case.attrs, copies, share=i)
                if got[0].dtype.kind == "c":  # NumPy's loops round products as memory lies
                    close(got[0], expected[0], dtype)
                else:
                    assert bits(got[0]) == bits(expected[0])
                for k, (x, y) in enumerate(zip(inputs, copies, strict=True)):
                    assert k == i or bits(x) == bits(y)


def _alike(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype


# -- gradients


def build(case: Case, inputs: list[np.ndarray], shapes: str) -> tuple[list[Tensor], list[Tensor]]:
    """The op in the default graph: placeholders for its inputs, and its outputs."""
    feeds = []
    for x in inputs:
        if shapes == "known" and x.dtype.kind in "iu":
            feeds.append(constant(x))
        else:
            known = {"known": x.shape, "rank": [None] * x.ndim, "nothing": None}[shapes]
            feeds.append(placeholder(x.dtype, known))
    op = feeds[0].graph if feeds else Graph()
    return feeds, list(op.create_op(case.type, feeds, case.attrs).outputs)


def weights(outputs: list[np.ndarray]) -> list[np.ndarray]:
    rng = np.random.default_rng(11)
    return [_random(rng, y) for y in outputs]


def _random(rng: np.random.Generator, y: np.ndarray) -> np.ndarray:
    drawn = rng.standard_normal(y.shape)
    if y.dtype.kind == "c":
        return (drawn + 1j * rng.standard_normal(y.shape)).astype(y.dtype)
    return drawn.astype(y.dtype)


def differences(case: Case, inputs: list[np.ndarray], at: int, w: list[np.ndarray]) -> np.ndarray:
    """Central finite differences of the weighted sum of the outputs by input `at`.

    Of complex numbers it is that of the real part of conj(w) y: by the real part of the input plus
    i times by the imaginary part, which is TensorFlow's convention.
    """

    def total(x: np.ndarray) -> float:
        outputs = call(case.type, case.attrs, [*inputs[:at], x, *inputs[at + 1 :]])
        pairs = zip(w, outputs, strict=True)
        return sum(float((k.conj() * y).sum().real) for k, y in pairs if k.size)

    slope = np.zeros(inputs[at].shape, inputs[at].dtype)
    for place in np.ndindex(slope.shape):
        for unit in (1, 1j) if slope.dtype.kind == "c" else (1,):
            step = np.zeros_like(slope)
            step[place] = 1e-5 * unit
            if case.hermitian:
                step = (step + step.swapaxes(-1, -2).conj()) / 2
            slope[place] += unit * (total(inputs[at] + step) - total(inputs[at] - step)) / 2e-5
    return slope


@pytest.mark.parametrize("shapes", ["known", "rank", "nothing"])
@for_each_case(GRADUAL)
def test_gradient_against_finite_differences(case: Case, shapes: str) -> None:
    inputs = made(case, F64 if F64 in case.dtypes else C128)
    with Graph().as_default():
        feeds, outputs = build(case, inputs, shapes)
        smooth = [y for y in outputs if y.dtype.kind in "fc"]
        floats = [i for i, x in enumerate(inputs) if x.dtype.kind in "fc"]
        rule = OPS[case.type].grad
        if isinstance(rule, NoGrad):
            assert rule.reason
            by = [feeds[i] for i in floats]
            if smooth and floats and rule.none:
                assert gradients(smooth, by) == [None] * len(by)
            elif smooth and floats:
                with pytest.raises(GradientError, match=case.type):
                    gradients(smooth, by)
            return
        if not (smooth and floats):
            return
        given = dict(zip(feeds, inputs, strict=True))
        given = {t: x for t, x in given.items() if t.op.type == "Placeholder"}
        w = weights(call(case.type, case.attrs, inputs))
        seeds = [constant(k) for k, y in zip(w, outputs, strict=True) if y in smooth]
        unknown = floats[:] if case.sized and shapes != "known" else []
        for i in unknown or case.refused:
            with pytest.raises(GradientError, match=case.type):
                gradients(smooth, [feeds[i]], seeds)
            floats.remove(i)
        found = gradients(smooth, [feeds[i] for i in floats], seeds)
        values = evaluate([g for g in found if g is not None], given)
    w = [k if y in smooth else k * 0 for k, y in zip(w, outputs, strict=True)]
    for i, g in zip(floats, found, strict=True):
        slope = differences(case, inputs, i, w)
        if g is None:
            assert i in case.still or not slope.any(), "no gradient, but the output changes"
            continue
        value = values.pop(0)
        assert value.shape == inputs[i].shape
        np.testing.assert_allclose(value, slope, rtol=2e-6, atol=2e-7)


def test_the_dtypes_tested() -> None:
    """Every row that computes floats is tested in float32 and float64."""
    floating = {c.type for c in CASES if {F32, F64} & set(c.dtypes)}
    both = {c.type for c in CASES if F32 in c.dtypes} & {c.type for c in CASES if F64 in c.dtypes}
    assert floating == both
    assert {BOOL, I32, I64} <= {d for c in CASES for d in c.dtypes}
