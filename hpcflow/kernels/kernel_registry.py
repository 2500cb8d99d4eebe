"""Kernel registry: plain kernels that serve every node, and faster kernels by provider.

A plain `xp` kernel serves NumPy and CuPy; a plain kernel of one kind of device overrides it. Each
*provider* (a library, or generated code) may add a kernel, which serves the nodes it does not
refuse.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any, Literal, NamedTuple

from hpcflow.errors import DeviceError, HpcflowError
from hpcflow.graph.op_registry import OPS, all_ops
from hpcflow.kernels.cuda_graph_restrictions import USER_KERNEL
from hpcflow.kernels.half_precision import has_half, wide_node, widened

Form = Literal["ufunc", "out", "new", "view", "update"]
# ufunc   f(*inputs, out=o), or f(*inputs) -> a new value: a NumPy ufunc, without a wrapper
# out     f(*inputs, *outs) writes all outputs: C-contiguous, of the inferred shapes and dtypes
# new     f(*inputs) -> value (a tuple if several outputs); for data-dependent shapes
# view    f(input) -> an alias of its first input; a new value only where it must copy
# update  f(*arrays): arrays of the written handles (updated in place, in order), then the others


@dataclasses.dataclass(frozen=True)
class KernelNode:
    """The facts of an operation that a kernel is created for: attributes, dtypes and shapes.

    `inputs` and `outputs` have `.dtype` and `.shape` (None for unknown sizes), as
    `graph.static_shape.Spec`. `tf32`: a GPU may round float32 before it multiplies (setting
    allow_tf32).
    """

    type: str
    attrs: dict[str, Any]
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    tf32: bool = False


Make = Callable[[Any, KernelNode], Callable[..., Any]]
Scratch = Callable[[KernelNode], Sequence[tuple[Any, tuple[int, ...]]]]
PLAIN = "plain"  # the provider of kernels that always serve


def _no_reason(node: KernelNode) -> str:
    return ""


def _none(node: KernelNode) -> Sequence[tuple[Any, tuple[int, ...]]]:
    return ()


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One row: `make(xp, node)` returns the function that computes the node, called as `form` says.

    `inplace` lists inputs whose memory output 0 may share (same shape and dtype, read elementwise
    before it is written). `tiles`: `make` returns a `TiledUpdate`, unless there are 16-bit floats.

    `refuses(node)` says why a provider's kernel does not serve a node, "" if it does. `exact`: its
    results are bitwise equal to those of the plain kernel. `scratch(node)`, called only if all
    sizes are known, gives dtype and shape of each workspace array: the step passes them as
    `room=(...)`, with undefined contents; without `room` the kernel allocates them.

    `uncaptured(node)` says why a CUDA graph cannot capture the kernel, "" if it can. A kernel that
    can be captured neither reads values on the host nor keeps state there between calls. The
    exception is a random generator object: it counts its draws in `draws.total` and, while its
    `counter` is an array (one uint64 on the device), reads the number of earlier draws there.
    """

    form: Form
    make: Make
    inplace: tuple[int, ...] = ()
    tiles: bool = False
    provider: str = PLAIN
    refuses: Callable[[KernelNode], str] = _no_reason
    exact: bool = False
    scratch: Scratch = _none
    uncaptured: Callable[[KernelNode], str] = _no_reason


class KernelPreferences(NamedTuple):
    """The kernels that a user wants: of `providers`, the best first; and settings."""

    providers: tuple[str, ...]
    exact: bool = False
    tf32: bool = False


class KernelChoice(NamedTuple):
    """The kernel that serves a node, and the better providers that refused: (name, reason)."""

    kernel: Kernel
    refused: tuple[tuple[str, str], ...] = ()


class TiledUpdate:
    """An update that can pause: `tiles(*arrays)` yields between tiles, a call does not."""

    def __init__(self, tiles: Callable[..., Iterator[None]]) -> None:
        self.tiles = tiles

    def __call__(self, *arrays: Any) -> None:
        """Run all tiles."""
        for _ in self.tiles(*arrays):
            pass


_TABLE: dict[tuple[str, str], Kernel] = {}  # plain kernels
_FAST: dict[tuple[str, str], dict[str, Kernel]] = {}  # (op, kind) -> provider -> kernel
_OWN: set[tuple[str, str]] = set()  # (op, device kind) of user-defined kernels
PROVIDERS = {  # provider, the better first -> its module; `absent()` says why it is unavailable
    "llvm": "hpcflow.codegen.llvm_cpu_compiler",
    "onednn": "hpcflow.kernels.onednn_library",
    "cublaslt": "hpcflow.kernels.cublaslt_matmul",
    "cudnn": "hpcflow.kernels.cudnn_convolution",
}
ANY = "xp"  # the kind of device of kernels written against the array module `xp`


FOR_GPUS = ("ptx_", "cublaslt_", "cudnn_")  # beginnings of names of modules of GPU kernels


def _load(type: str, kind: str) -> None:
    """Import the modules that register kernels of an op on a kind of device; its row names them."""
    row = OPS.get(type) or all_ops().get(type)
    for module in row.kernels if row else ():
        if kind != "cpu" or not module.rpartition(".")[2].startswith(FOR_GPUS):
            _import_if_there(module)


@functools.cache
def _import_if_there(module: str) -> None:
    """Some families of ops have no kernels."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise


def _absent(name: str) -> str:
    return importlib.import_module(PROVIDERS[name]).absent()


# name -> why the provider is absent, "" if it is available
_PROVIDERS: dict[str, Callable[[], str]] = {
    name: functools.partial(_absent, name) for name in PROVIDERS
}


def are_own(types: Iterable[str], kinds: Iterable[str]) -> bool:
    """Whether some of these ops have user-defined kernels on some of these kinds of devices."""
    return not _OWN.isdisjoint(product(types, (ANY, *kinds)))


def versions(preferences: KernelPreferences) -> list[tuple[str, str]]:
    """The wanted providers, each with its library's version, or why it is absent."""
    modules = {name: importlib.import_module(PROVIDERS[name]) for name in preferences.providers}
    return [(name, module.absent() or module.version()) for name, module in modules.items()]


def kernel(
    type: str,
    form: Form,
    *,
    on: str = ANY,
    inplace: tuple[int, ...] = (),
    moves: bool = False,
    tiles: bool = False,
    scratch: Scratch = _none,
    captured: bool = False,
    uncaptured: str = "",
) -> Callable[
    [Callable[[Any, KernelNode], Callable[..., Any]]],
    Callable[[Any, KernelNode], Callable[..., Any]],
]:
    """Decorator: `make(xp, node)` is the plain kernel of op `type` on devices of kind `on`.

    Inputs of 16-bit floats are converted to float32 and results are rounded, so that sums are in
    float32. Exceptions are ufuncs, which do so themselves, and kernels that only `moves` elements.
    `uncaptured` says why no CUDA graph can capture the kernel, "" if one can. A user-defined kernel
    for GPUs is captured only with `captured`.
    """

    def add(make: Callable[[Any, KernelNode], Callable[..., Any]]) -> Any:
        why = uncaptured
        if str(make.__module__).startswith("hpcflow."):
            if (type, on) in _OWN:
                return make  # a user-defined kernel was registered before: it replaces this one
        else:
            _OWN.add((type, on))
            why = uncaptured or ("" if captured else USER_KERNEL)
        direct = moves or form in ("ufunc", "view")
        factory = make if direct else widened(form, make)
        row = Kernel(form, factory, inplace, tiles, scratch=scratch, uncaptured=lambda node: why)
        _TABLE[type, on] = row
        return make

    return add


def fast(
    provider: str,
    type: str,
    form: Form,
    *,
    on: str,
    refuses: Callable[[KernelNode], str] = _no_reason,
    inplace: tuple[int, ...] = (),
    tiles: bool = False,
    exact: bool = False,
    scratch: Scratch = _none,
    uncaptured: Callable[[KernelNode], str] = _no_reason,
) -> Callable[
    [Callable[[Any, KernelNode], Callable[..., Any]]],
    Callable[[Any, KernelNode], Callable[..., Any]],
]:
    """Decorator: `make(xp, node)` is the kernel of `provider` for op `type`; see `Kernel`.

    It serves the nodes, of any dtype, that it does not refuse.
    """

    def add(make: Callable[[Any, KernelNode], Callable[..., Any]]) -> Any:
        row = Kernel(form, make, inplace, tiles, provider, refuses, exact, scratch, uncaptured)
        _FAST.setdefault((type, on), {})[provider] = row
        return make

    return add


def kernel_preferences(
    kernels: str = "auto", exact: bool = False, tf32: bool = False
) -> KernelPreferences:
    """The `KernelPreferences` of the settings; `kernels` is "auto", "plain", or names separated by
    commas.

    Errors: HpcflowError for an unknown provider.
    """
    if kernels in ("auto", PLAIN):
        return KernelPreferences(tuple(_PROVIDERS) if kernels == "auto" else (), exact, tf32)
    names = tuple(name.strip() for name in kernels.split(","))
    for name in names:
        if name not in _PROVIDERS:
            raise HpcflowError(
                f"setting kernels={kernels!r}: there is no provider {name!r}",
                hint=f"known: auto, {PLAIN}, {', '.join(_PROVIDERS)}",
            )
    return KernelPreferences(names, exact, tf32)


def choose_kernel(
    node: KernelNode, kind: str, preferences: KernelPreferences, xp: bool = True
) -> KernelChoice:
    """The best kernel that serves `node` on a device of kind `kind`; `xp` as in `find`.

    A user-defined kernel comes before those of providers.
    """
    _load(node.type, kind)
    if are_own([node.type], [kind]):
        return KernelChoice(find_plain_kernel(node.type, kind, xp))
    refused: list[tuple[str, str]] = []
    rows = _FAST.get((node.type, kind), {})
    for name in preferences.providers:
        row = rows.get(name)
        if row is None:
            continue
        absent = _PROVIDERS[name]()
        if not absent and kind == "cpu" and _serves_in_float32(row, node):
            row = _in_float32(row)
        why = absent or row.refuses(node)
        if not why and preferences.exact and not row.exact:
            why = "it may round differently (setting exact)"
        if not why:
            return KernelChoice(row, tuple(refused))
        refused.append((name, why))
    return KernelChoice(find_plain_kernel(node.type, kind, xp), tuple(refused))


def _serves_in_float32(row: Kernel, node: KernelNode) -> bool:
    """Whether a kernel refuses the 16-bit floats of a node, but not float32 in their place."""
    if row.form != "out" or not has_half(node):
        return False
    return bool(row.refuses(node)) and not row.refuses(wide_node(node))


def _in_float32(row: Kernel) -> Kernel:
    """The kernel for 16-bit floats, which it computes in float32 and rounds."""
    make = widened(row.form, row.make)
    return dataclasses.replace(row, make=make, refuses=_no_reason, inplace=(), scratch=_none)


def find_plain_kernel(type: str, kind: str, xp: bool = True) -> Kernel:
    """The plain kernel of `type` on a device of kind `kind`; with `xp`, else the `xp` kernel."""
    _load(type, kind)
    row = _TABLE.get((type, kind)) or (_TABLE.get((type, ANY)) if xp else None)
    if row is None:
        raise DeviceError(
            f"there is no kernel for {type} on {kind}",
            hint=f"place it elsewhere with hf.device, or add kernel({type!r}, ..., on={kind!r})",
        )
    return row


def names() -> set[str]:
    """Ops that have a kernel for NumPy."""
    for type in all_ops():
        _load(type, ANY)
    return {type for type, on in _TABLE if on in (ANY, "cpu")}
