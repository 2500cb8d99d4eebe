"""cuBLASLt matrix products, with a bias and relu epilogue.

No other file loads the library. CuPy's own cuBLAS calls cannot be captured in a CUDA graph, and
have no epilogues. The library is column-major: of row-major arrays it computes c' = b' a'.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from collections.abc import Callable
from ctypes import byref, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple

import numpy as np

from hpcflow.errors import KernelError
from hpcflow.kernels import cuda_provider
from hpcflow.kernels.cuda_provider import ALIGNED, Sizes
from hpcflow.kernels.kernel_registry import KernelNode, fast

NAME = "cublaslt"
TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}  # element types
FLOAT, DOUBLE, TF32 = 68, 70, 77  # compute types
OF_A, OF_B, EPILOGUE, BIAS = 3, 4, 7, 8  # attributes of a product
PLAIN, WITH_BIAS, WITH_BIAS_RELU = 1, 4, 6  # epilogues
BATCH, STRIDE = 5, 6  # attributes of a layout
WORKSPACE, REDUCTION, ALIGNMENTS = 1, 3, (5, 6, 7, 8)  # attributes of a preference
IN_COMPUTE_TYPE = 2  # reduction scheme: partial sums in the compute type, added in a fixed order
MAX_WORKSPACE_BYTES = 32 << 20  # bytes of workspace, as NVIDIA advises for Hopper


class _Algorithm(ctypes.Structure):
    _fields_ = [("data", c_uint64 * 8)]


class _HeuristicResult(ctypes.Structure):
    _fields_ = [
        ("algorithm", _Algorithm),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", ctypes.c_float),
        ("reserved", c_int * 4),
    ]


P = c_void_p
SIGNATURES = {
    "Create": [P],
    "MatmulDescCreate": [P, c_int, c_int],
    "MatmulDescSetAttribute": [P, c_int, P, c_size_t],
    "MatrixLayoutCreate": [P, c_int, c_uint64, c_uint64, c_int64],
    "MatrixLayoutSetAttribute": [P, c_int, P, c_size_t],
    "MatmulPreferenceCreate": [P],
    "MatmulPreferenceSetAttribute": [P, c_int, P, c_size_t],
    "MatmulAlgoGetHeuristic": [P, P, P, P, P, P, P, c_int, P, P],
    "Matmul": [P, P, P, P, P, P, P, P, P, P, P, P, P, P, c_size_t, P],
    **{f"{kind}Destroy": [P] for kind in ("MatmulDesc", "MatrixLayout", "MatmulPreference")},
}


def absent() -> str:
    """Why the library cannot be used here; "" if it can."""
    why = cuda_provider.absent()
    return why or (
        "" if _loaded() is not None else f"libcublasLt is not found: {cuda_provider.INSTALL}"
    )


def version() -> str:
    """The version of the library, and the GPU architecture; the library must not be absent."""
    return f"{library().cublasLtGetVersion()} {cuda_provider.processor()}"


@functools.cache
def _loaded() -> Any:
    lib = cuda_provider.load("cublasLt")
    if lib is not None:
        for name, types in SIGNATURES.items():
            getattr(lib, f"cublasLt{name}").argtypes = types
        lib.cublasLtGetVersion.restype = c_size_t
        lib.cublasLtGetStatusString.restype = ctypes.c_char_p
    return lib


def library() -> Any:
    """The library; it must not be absent."""
    return _loaded()


def check(status: int, label: str) -> None:
    """Raise KernelError unless `status`, the result of a function, is success."""
    if status:
        status_text = library().cublasLtGetStatusString(status).decode()
        raise KernelError(f"cuBLASLt: {label}: {status_text}")


@functools.cache
def context() -> int:
    """The library handle of this rank's GPU; any thread may use it."""
    handle = c_void_p()
    check(library().cublasLtCreate(byref(handle)), "start")
    assert handle.value is not None
    return handle.value


class CublasLtHandle:
    """A descriptor of the library, destroyed with this object; `kind` names its type."""

    def __init__(self, kind: str, *arguments: Any) -> None:
        self.kind, handle = kind, c_void_p()
        check(getattr(library(), f"cublasLt{kind}Create")(byref(handle), *arguments), kind)
        self.value, self.destroy = handle.value, getattr(library(), f"cublasLt{kind}Destroy")

    def set(self, attribute: int, value: Any) -> None:
        """Set an attribute to a ctypes number."""
        function = getattr(library(), f"cublasLt{self.kind}SetAttribute")
        size = ctypes.sizeof(value)
        check(function(self.value, attribute, byref(value), size), f"{self.kind} {attribute}")

    def __del__(self) -> None:
        if hasattr(self, "destroy"):
            self.destroy(self.value)


class MatmulProblem(NamedTuple):
    """c = a b, plus bias, then relu: the shapes of arrays, and whether a and b are transposed."""

    dtype: str
    turns: tuple[bool, bool]
    a: Sizes
    b: Sizes
    c: Sizes
    bias: bool
    relu: bool
    tf32: bool

    @property
    def lead(self) -> tuple[int, int, int]:
        """The number of matrices in a, b and c."""
        a, b, c = (math.prod(shape[:-2]) for shape in (self.a, self.b, self.c))
        return a, b, c

    @property
    def shares_right_operand(self) -> bool:
        """Whether one b serves all of a: the rows of all matrices of a then form one matrix."""
        a, b, c = self.lead
        return b == 1 and a == c and not self.turns[0]


class MatmulDescriptors:
    """The library's descriptors of a product; creating them needs no GPU."""

    def __init__(self, problem: MatmulProblem, aligned: int, max_workspace: int) -> None:
        wide = problem.dtype == "float64"
        compute = DOUBLE if wide else TF32 if problem.tf32 and problem.dtype == "float32" else FLOAT
        self.product = CublasLtHandle(
            "MatmulDesc", compute, TYPES["float64" if wide else "float32"]
        )
        for name, turned in ((OF_A, problem.turns[1]), (OF_B, problem.turns[0])):
            self.product.set(name, c_int32(turned))
        ends = (WITH_BIAS_RELU if problem.relu else WITH_BIAS) if problem.bias else PLAIN
        self.product.set(EPILOGUE, c_int32(ends))
        if problem.bias:
            self.product.set(BIAS, c_void_p(aligned))  # any address of this alignment
        self.a, self.b, self.c = map(_layout, (problem,) * 3, (problem.a, problem.b, problem.c))
        self.preference = CublasLtHandle("MatmulPreference")
        self.preference.set(WORKSPACE, c_uint64(max_workspace))
        self.preference.set(REDUCTION, c_uint32(IN_COMPUTE_TYPE))
        for name in ALIGNMENTS:
            self.preference.set(name, c_uint32(aligned))


def _layout(problem: MatmulProblem, shape: Sizes) -> CublasLtHandle:
    """The column-major layout of row-major matrices; a broadcast matrix has stride 0."""
    rows, columns = shape[-2:]
    batch, count = math.prod(shape[:-2]), problem.lead[2]
    if problem.shares_right_operand:
        rows, batch, count = rows * batch, 1, 1
    layout = CublasLtHandle("MatrixLayout", TYPES[problem.dtype], columns, rows, columns)
    layout.set(BATCH, c_int32(count))
    layout.set(STRIDE, c_int64(rows * columns if batch == count else 0))
    return layout


class MatmulPlan:
    """A product and the algorithm that the library chooses for arrays of this alignment."""

    def __init__(
        self,
        problem: MatmulProblem,
        aligned: int = ALIGNED,
        max_workspace: int = MAX_WORKSPACE_BYTES,
    ) -> None:
        self.descriptors = d = MatmulDescriptors(problem, aligned, max_workspace)
        self.problem, self.lock = problem, threading.Lock()
        number = ctypes.c_double if problem.dtype == "float64" else ctypes.c_float
        self.alpha, self.beta = number(1), number(0)
        heuristic, count = _HeuristicResult(), c_int()
        status = library().cublasLtMatmulAlgoGetHeuristic(
            context(), d.product.value, d.b.value, d.a.value, d.c.value, d.c.value,
            d.preference.value, 1, byref(heuristic), byref(count),
        )  # fmt: skip
        check(status or heuristic.state, "the choice of an algorithm")
        if not count.value:
            raise KernelError("cuBLASLt: it has no algorithm for it")
        self.algorithm, self.bytes = heuristic.algorithm, heuristic.workspace

    def run(self, stream: int, workspace: int, a: int, b: int, c: int, bias: int = 0) -> None:
        """Launch it on arrays at these addresses; `workspace` is an address."""
        d = self.descriptors
        with self.lock:
            if self.problem.bias:
                d.product.set(BIAS, c_void_p(bias))
            status = library().cublasLtMatmul(
                context(), d.product.value, byref(self.alpha), b, d.b.value, a, d.a.value,
                byref(self.beta), c, d.c.value, c, d.c.value, byref(self.algorithm),
                workspace or None, self.bytes, stream,
            )  # fmt: skip
        check(status, "a product")

    @functools.cached_property
    def keeps_nan(self) -> bool:
        """Whether the relu epilogue maps NaN to NaN."""
        of = self.problem
        return cuda_provider.keeps_nan(of.dtype, (of.a, of.b, of.c), self.bytes, self.run)


@functools.lru_cache(maxsize=4096)
def planned(problem: MatmulProblem) -> MatmulPlan | str:
    """The plan of a product, or the reason why the library has none."""
    try:
        return MatmulPlan(problem)
    except KernelError as error:
        return error.message


# -- kernels


def _product(node: KernelNode) -> MatmulProblem:
    attrs, dtype = node.attrs, node.inputs[0].dtype.name
    a, b, c = (tuple(s.shape) for s in (*node.inputs[:2], node.outputs[0]))
    turns = attrs["transpose_a"], attrs["transpose_b"]
    bias, relu = node.type == "MatMulBias", attrs.get("relu", False)
    return MatmulProblem(dtype, turns, a, b, c, bias, relu, node.tf32)


def _refuses(node: KernelNode) -> str:
    if why := cuda_provider.unsupported_reason((*node.inputs[:2], node.outputs[0]), TYPES):
        return why
    of = _product(node)
    if not {of.lead[0], of.lead[1]} <= {1, of.lead[2]}:
        return "its matrices are broadcast along some axes"
    return cuda_provider.refusal(planned(of), of.relu)


def _plan(node: KernelNode) -> MatmulPlan:
    return cuda_provider.plan_or_error(planned(_product(node)))


def _scratch(node: KernelNode) -> list[tuple[Any, Sizes]]:
    nbytes = _plan(node).bytes
    return [(np.uint8, (nbytes,))] if nbytes else []


def _row(type: str) -> None:
    @fast(NAME, type, "out", on="gpu", refuses=_refuses, scratch=_scratch)
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        of, usual = _product(node), _plan(node)

        @functools.cache
        def odd() -> MatmulPlan:
            """The plan for arrays of any alignment, as slices; it needs no more workspace."""
            return MatmulPlan(of, np.dtype(node.inputs[0].dtype).itemsize, usual.bytes)

        def run(*arrays: Any, room: Any = ()) -> None:
            a, b, *bias, c = cuda_provider.dense(xp, *arrays)
            places = [x.data.ptr for x in (a, b, c, *bias)]
            plan = odd() if any(place % ALIGNED for place in places) else usual
            address, _held = cuda_provider.workspace(xp, plan.bytes, room[0] if room else None)
            plan.run(cuda_provider.stream(xp), address, *places)

        return run


_row("MatMul")
_row("MatMulBias")
