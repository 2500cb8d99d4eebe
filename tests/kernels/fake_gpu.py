"""Doubles of CuPy, cuBLASLt and cuDNN's frontend, which compute as documented, in host memory.

They read and write by address alone, and take layouts, strides and attributes at their word, so
that wrong ones give wrong numbers. What passes with them says that the calls are right, not that a
GPU was used.
"""

from __future__ import annotations

import ctypes
import itertools
import types

import ml_dtypes
import numpy as np

STREAM = 4711  # CuPy's current one
GARBAGE = 0xA5  # what is left in scratch memory


class FakeArray(np.ndarray):
    data = property(lambda self: types.SimpleNamespace(ptr=self.ctypes.data))

    def get(self):
        return np.array(self)


class FakeCupy:
    """NumPy's functions, whose results are the GPU's; `made` tells which have allocated."""

    def __init__(self):
        self.made = []
        self.is_available = lambda: True
        runtime = types.SimpleNamespace(runtimeGetVersion=lambda: 13000)
        self.cuda = types.SimpleNamespace(
            get_current_stream=lambda: types.SimpleNamespace(ptr=STREAM),
            runtime=runtime,
            Device=lambda: types.SimpleNamespace(compute_capability="90"),
        )

    def __getattr__(self, name):
        of_numpy = getattr(np, name)

        def function(*args, **kwargs):
            found = of_numpy(*args, **kwargs)
            if isinstance(found, np.ndarray):
                self.made.append(name)
                return found.view(FakeArray)
            return found

        return function


def at(place, dtype, sizes, strides):
    """The elements at an address, `strides` elements apart, as the library sees them."""
    assert place, "an address is missing"
    last = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    memory = (ctypes.c_char * ((last + 1) * dtype.itemsize)).from_address(place)
    flat = np.frombuffer(memory, dtype)
    steps = [s * dtype.itemsize for s in strides]
    return np.lib.stride_tricks.as_strided(flat, sizes, steps)


def spoil(place, nbytes):
    if nbytes:
        assert place, "the workspace is missing"
        ctypes.memset(place, GARBAGE, nbytes)


def relu(x, keeps_nan):
    return np.maximum(x, 0) if keeps_nan else np.fmax(x, 0)


# -- cuBLASLt

ELEMENTS = {0: "f4", 1: "f8", 2: "f2", 14: ml_dtypes.bfloat16}
OF_FLOAT, OF_DOUBLE, TF32 = 68, 70, 77
INT, UINT, LONG, ULONG, POINTER = (
    *(ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64, ctypes.c_uint64),
    ctypes.c_void_p,
)
ATTRIBUTES = {  # their types, and what they are when nobody has set them
    "MatmulDesc": {3: (INT, 0), 4: (INT, 0), 7: (INT, 1), 8: (POINTER, None)},
    "MatrixLayout": {5: (INT, 1), 6: (LONG, 0)},
    "MatmulPreference": {
        **{1: (ULONG, 0), 3: (UINT, 7)},
        **dict.fromkeys((5, 6, 7, 8), (UINT, 256)),
    },
}
NONE, INVALID, UNSUPPORTED = 0, 7, 15


class Launches:
    """What runs at once, on CuPy's stream; a test may let it wait on streams of its own."""

    def launch(self, work):
        work()

    def stream(self):
        return STREAM


class FakeLt(Launches):
    """The library: its algorithms need `workspace` bytes; `seen` are those of the products run."""

    def __init__(self, workspace=96, keeps_nan=True, algorithms=1):
        self.workspace, self.keeps_nan, self.algorithms = workspace, keeps_nan, algorithms
        self.objects, self.numbers, self.seen = {}, itertools.count(1000), []
        for kind in ATTRIBUTES:
            setattr(self, f"cublasLt{kind}Create", self._create(kind))
            setattr(self, f"cublasLt{kind}SetAttribute", self._setter(kind))
            setattr(self, f"cublasLt{kind}Destroy", self._destroy)

    def cublasLtGetVersion(self):
        return 130000

    def cublasLtGetStatusString(self, status):
        return b"status %d" % status

    def cublasLtCreate(self, made):
        made._obj.value = 5
        return NONE

    def _create(self, kind):
        def create(made, *arguments):
            made._obj.value = number = next(self.numbers)
            usual = {name: value for name, (_, value) in ATTRIBUTES[kind].items()}
            self.objects[number] = types.SimpleNamespace(kind=kind, given=arguments, has=usual)
            return NONE

        return create

    def _setter(self, kind):
        def set_attribute(number, name, value, size):
            made, (type, _) = self.objects[number], ATTRIBUTES[kind][name]
            if made.kind != kind or size != ctypes.sizeof(type):
                return INVALID
            made.has[name] = value._obj.value
            return NONE

        return set_attribute

    def _destroy(self, number):
        del self.objects[number]

    def cublasLtMatmulAlgoGetHeuristic(self, context, product, a, b, c, d, preference, *more):
        assert context == 5 and c == d
        most, found, count = more
        wants = self.objects[preference].has
        assert most == 1 and len({wants[name] for name in (5, 6, 7, 8)}) == 1
        if not self._fits(product, a, b, c):
            return INVALID
        if wants[1] >= self.workspace:
            found._obj.workspace = self.workspace
        found._obj.algorithm.data[0] = wants[5]
        found._obj.algorithm.data[1] = product
        count._obj.value = self.algorithms
        return NONE

    def _fits(self, product, a, b, c):
        """Whether op(a) is m x k, op(b) is k x n and c is m x n, and compute and types agree."""
        sizes = []
        for number, turned in ((a, 3), (b, 4), (c, None)):
            made = self.objects[number]
            dtype, rows, columns, ld = made.given
            if ld < rows or dtype != self.objects[c].given[0]:
                return False
            turn = turned is not None and self.objects[product].has[turned]
            sizes.append((columns, rows) if turn else (rows, columns))
            if made.has[5] != self.objects[c].has[5]:
                return False
        compute, scale = self.objects[product].given
        wide = dtype == 1
        if (compute, scale) not in ([(OF_DOUBLE, 1)] if wide else [(OF_FLOAT, 0), (TF32, 0)]):
            return False
        (m, k), (also_k, n), last = sizes
        return k == also_k and last == (m, n)

    def _matrices(self, place, number):
        made = self.objects[number]
        code, rows, columns, ld = made.given
        count, stride = made.has[5], made.has[6]
        dtype = np.dtype(ELEMENTS[code])
        return at(place, dtype, (count, rows, columns), (stride, 1, ld))

    def cublasLtMatmul(
        self, context, product, alpha, a, of_a, b, of_b, beta, c, of_c, d, of_d, *more
    ):
        algorithm, room, nbytes, stream = more
        aligned, made_for = algorithm._obj.data[:2]
        assert context == 5 and stream == self.stream() and made_for == product
        has, (compute, _) = dict(self.objects[product].has), self.objects[product].given
        if any(place % aligned for place in (a, b, c, d, has[8] or 0)):
            return INVALID
        x, y, before, out = map(self._matrices, (a, b, c, d), (of_a, of_b, of_c, of_d))
        wide = np.float64 if compute == OF_DOUBLE else np.float32
        times, plus = alpha._obj.value, beta._obj.value

        def work():
            spoil(room, nbytes)
            left, right = (
                (m.swapaxes(1, 2) if turn else m).astype(wide)
                for m, turn in ((x, has[3]), (y, has[4]))
            )
            made = times * (left @ right)
            if plus:
                made = made + plus * before
            if has[7] & 4:
                made = made + at(has[8], out.dtype, (out.shape[1], 1), (1, 0)).astype(wide)
            if has[7] & 2:
                made = relu(made, self.keeps_nan)
            out[...] = made.astype(out.dtype)

        self.launch(work)
        self.seen.append({"compute": compute, "epilogue": has[7], "aligned": aligned})
        return NONE


# -- cuDNN's frontend


class NotSupported(Exception):
    pass


class Tensor:
    def __init__(self, dim=None, stride=None, data_type=None):
        self.dim, self.stride, self.dtype, self.uid, self.value = dim, stride, data_type, None, None

    def _set(name):
        def setter(self, value):
            setattr(self, name, value)
            return self

        return setter

    set_uid, set_dim, set_stride = _set("uid"), _set("dim"), _set("stride")
    set_data_type, set_output = _set("dtype"), _set("output")


class FakeCudnn(Launches):
    """The module `cudnn`; `refuses` is why it has no plans, `graphs` those that were made."""

    __version__ = "1.23.0"
    cudnnGraphNotSupportedError = NotSupported

    def __init__(self, workspace=160, keeps_nan=True, refuses=""):
        self.workspace, self.keeps_nan, self.refuses = workspace, keeps_nan, refuses
        self.graphs, self.streams, self.numbers = [], {}, itertools.count(1)
        kinds = {"FLOAT": "f4", "DOUBLE": "f8", "HALF": "f2", "BFLOAT16": ml_dtypes.bfloat16}
        self.data_type = types.SimpleNamespace(**{k: np.dtype(v) for k, v in kinds.items()})
        self.heur_mode = types.SimpleNamespace(A="A", FALLBACK="FALLBACK")
        notes = ("TENSOR_CORE", "DOWN_CONVERT_INPUTS", "NONDETERMINISTIC")
        notes = (*notes, "REDUCED_PRECISION_REDUCTION")
        self.numerical_note = types.SimpleNamespace(**{note: note for note in notes})

    def backend_version(self):
        return 91900

    def create_handle(self):
        return next(self.numbers)

    def set_stream(self, handle, stream):
        self.streams[handle] = stream

    def pygraph(self, **options):
        self.graphs.append(Graph(self, **options))
        return self.graphs[-1]


class Graph:
    def __init__(self, lib, io_data_type, intermediate_data_type, compute_data_type, handle):
        self.lib, self.wide, self.handle = lib, compute_data_type, handle
        assert intermediate_data_type == compute_data_type
        self.given, self.steps, self.without, self.state = {}, [], [], "described"

    def tensor(self, name, dim, stride, data_type):
        made = Tensor(dim, stride, data_type)
        self.given[name] = made
        return made

    def _step(self, compute, *inputs):
        out = Tensor()
        self.steps.append((compute, inputs, out))
        return out

    def conv_fprop(self, image, weight, **moves):
        return self._step(lambda out, x, w: forward(x, w, moves), image, weight)

    def conv_dgrad(self, loss, filter, **moves):
        return self._step(lambda out, y, w: to_input(y, w, out.dim, moves), loss, filter)

    def conv_wgrad(self, image, loss, **moves):
        return self._step(lambda out, x, y: to_filters(x, y, out.dim, moves), image, loss)

    def bias(self, input, bias):
        return self._step(lambda out, x, b: x + b, input, bias)

    def relu(self, input):
        return self._step(lambda out, x: relu(x, self.lib.keeps_nan), input)

    def validate(self):
        self.state = "valid"

    def build_operation_graph(self):
        assert self.state == "valid"

    def create_execution_plans(self, modes):
        assert modes == ["A", "FALLBACK"]
        self.state = "planned"

    def deselect_numeric_notes(self, notes):
        assert self.state == "planned"
        self.without = notes

    def deselect_workspace_greater_than(self, nbytes):
        assert self.state == "planned" and nbytes >= self.lib.workspace

    def check_support(self):
        if self.lib.refuses:
            raise NotSupported(self.lib.refuses)
        self.state = "supported"

    def build_plans(self):
        assert self.state == "supported"
        self.state = "built"

    def get_workspace_size(self):
        return self.lib.workspace

    def execute(self, places, room, handle):
        assert self.state == "built" and self.lib.streams[handle] == self.lib.stream()
        self.lib.launch(lambda: self._run(places, room))

    def _run(self, places, room):
        spoil(room, self.lib.workspace)
        for tensor in self.given.values():
            tensor.value = at(places[tensor.uid], tensor.dtype, tensor.dim, tensor.stride)
            tensor.value = tensor.value.astype(self.wide)
        for compute, inputs, out in self.steps:
            out.value = compute(out, *(tensor.value for tensor in inputs))
        last = self.steps[-1][2]
        assert last.output and list(last.value.shape) == list(last.dim)
        at(places[last.uid], last.dtype, last.dim, last.stride)[...] = last.value.astype(last.dtype)


def windows(x, w_dim, y_dim, moves):
    """For each element of the window and each group: where it lies in padded x, filters, y."""
    before, after, steps, gaps = (
        moves[name] for name in ("pre_padding", "post_padding", "stride", "dilation")
    )
    whole = np.pad(x, [(0, 0), (0, 0), *zip(before, after, strict=True)])
    space = zip(whole.shape[2:], w_dim[2:], y_dim[2:], steps, gaps, strict=True)
    for n, k, p, s, d in space:
        assert p == (n - (k - 1) * d - 1) // s + 1, "sizes and padding do not fit"
    each = w_dim[1]
    groups = x.shape[1] // each
    filters = w_dim[0] // groups
    taps = []
    for tap in itertools.product(*(range(k) for k in w_dim[2:])):
        inside = tuple(
            slice(t * d, t * d + (p - 1) * s + 1, s)
            for t, d, p, s in zip(tap, gaps, y_dim[2:], steps, strict=True)
        )
        for g in range(groups):
            of_x = (slice(None), slice(g * each, (g + 1) * each), *inside)
            of_y = slice(g * filters, (g + 1) * filters)
            taps.append((of_x, (of_y, slice(None), *tap), (slice(None), of_y)))
    inner = tuple(slice(b, b + n) for b, n in zip(before, x.shape[2:], strict=True))
    return whole, taps, (slice(None), slice(None), *inner)


def forward(x, w, moves):
    names = ("pre_padding", "post_padding", "stride", "dilation")
    rows = zip(x.shape[2:], w.shape[2:], *(moves[name] for name in names), strict=True)
    space = [(n + a + b - (k - 1) * d - 1) // s + 1 for n, k, a, b, s, d in rows]
    y = np.zeros((x.shape[0], w.shape[0], *space), x.dtype)
    whole, taps, _ = windows(x, w.shape, y.shape, moves)
    for of_x, of_w, of_y in taps:
        y[of_y] += np.einsum("nc...,kc->nk...", whole[of_x], w[of_w])
    return y


def to_input(y, w, dim, moves):
    whole, taps, inner = windows(np.zeros(dim, y.dtype), w.shape, y.shape, moves)
    for of_x, of_w, of_y in taps:
        whole[of_x] += np.einsum("nk...,kc->nc...", y[of_y], w[of_w])
    return whole[inner]


def to_filters(x, y, dim, moves):
    whole, taps, _ = windows(x, tuple(dim), y.shape, moves)
    w = np.zeros(dim, x.dtype)
    for of_x, of_w, of_y in taps:
        a, b = (m.reshape(*m.shape[:2], -1) for m in (whole[of_x], y[of_y]))
        w[of_w] += np.einsum("ncp,nkp->kc", a, b)
    return w
