"""The kernel table: plain kernels that always serve, and faster ones by provider.

A plain `xp` kernel serves NumPy and CuPy; a device's own plain kernel overrides it. Beside it there
may be one from each *provider* (a library, generated code), which serves only where it says so.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any, Literal, NamedTuple

from hpcflow.errors import DeviceError, HpcflowError
from hpcflow.kernels.cuda_graph_restrictions import REASONS
from hpcflow.kernels.half_precision import widened
from hpcflow.kernels.kernel_modules import FAMILIES, PROVIDERS

Form = Literal["ufunc", "out", "new", "view", "update"]
# ufunc   f(*inputs, out=o), or f(*inputs) -> a new value: NumPy's convention, no wrapper between
# out     f(*inputs, *outs) writes all outputs: C-contiguous, of the inferred shapes and dtypes
# new     f(*inputs) -> value (a tuple if several outputs); for data-dependent shapes
# view    f(input) -> an alias of its first input; never copies unless it must (then a new value)
# update  f(*arrays): arrays of the written handles (changed in place, in order), then the others


@dataclasses.dataclass(frozen=True)
class Node:
    """What a kernel may know when it is made for one operation: attributes, dtypes and shapes.

    `inputs` and `outputs` have `.dtype` and `.shape` (None for unknown sizes), as graph.shape.Spec.
    `tf32`: a GPU may round float32 before it multiplies (setting allow_tf32).
    """

    type: str
    attrs: dict[str, Any]
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    tf32: bool = False


Make = Callable[[Any, Node], Callable[..., Any]]
Scratch = Callable[[Node], Sequence[tuple[Any, tuple[int, ...]]]]
PLAIN = "plain"  # the provider of kernels that always serve


def _never(node: Node) -> str:
    return ""


def _none(node: Node) -> Sequence[tuple[Any, tuple[int, ...]]]:
    return ()


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One row: `make(xp, node)` returns the function that computes the node, called as `form` says.

    `inplace` lists inputs whose memory output 0 may share (same shape and dtype, read elementwise
    before written). `tiles`: `make` returns a `Tiled` where there are no floats of 16 bits.
    `refuses(node)` says why the kernel of a provider does not serve a node, "" if it does; `exact`:
    its results are those of the plain kernel, to the last bit. `scratch(node)`, asked where all
    sizes are known, is dtype and shape of each array that it uses while it runs: the step hands
    them over as `room=(...)`, of values that nobody needs; without, it makes them itself.
    `uncaptured(node)` says why a CUDA graph cannot hold what the kernel launches, "" if it can:
    it neither looks at values nor keeps anything on the host from call to call, but for an object
    that draws random numbers: it counts them in `draws.made` and, while its `counter` is an array
    (one uint64 on the device), reads there how many were made before.
    """

    form: Form
    make: Make
    inplace: tuple[int, ...] = ()
    tiles: bool = False
    provider: str = PLAIN
    refuses: Callable[[Node], str] = _never
    exact: bool = False
    scratch: Scratch = _none
    uncaptured: Callable[[Node], str] = _never


class Wish(NamedTuple):
    """Which kernels a user wants: of these providers, the best first; the others as settings."""

    providers: tuple[str, ...]
    exact: bool = False
    tf32: bool = False


class Choice(NamedTuple):
    """The kernel that serves a node, and why those of better providers do not: (name, reason)."""

    kernel: Kernel
    refused: tuple[tuple[str, str], ...] = ()


class Tiled:
    """An update that can stop between tiles: `tiles(*arrays)` yields there, a call does not."""

    def __init__(self, tiles: Callable[..., Iterator[None]]) -> None:
        self.tiles = tiles

    def __call__(self, *arrays: Any) -> None:
        """Do all tiles."""
        for _ in self.tiles(*arrays):
            pass


_TABLE: dict[tuple[str, str], Kernel] = {}  # plain kernels
_FAST: dict[tuple[str, str], dict[str, Kernel]] = {}  # (op, kind) -> provider -> kernel
_HOMES: dict[str, list[str]] = {}  # op -> modules that have its kernels
for _family, _ops in FAMILIES.items():
    for _op in _ops.split():
        _HOMES.setdefault(_op, []).append(f"hpcflow.{_family}")
_OWN: set[tuple[str, str]] = set()  # ops with kernels of a user's, and for which kind of device
ANY = "xp"  # the kind of device of kernels written against the array module `xp`


def _load(type: str) -> None:
    """Import what has kernels of an op."""
    for module in _HOMES.get(type, ()):
        importlib.import_module(module)


def _absent(name: str) -> str:
    return importlib.import_module(PROVIDERS[name]).absent()


# name -> why it is absent, "" if it is there
_PROVIDERS: dict[str, Callable[[], str]] = {
    name: functools.partial(_absent, name) for name in PROVIDERS
}


def are_own(types: Iterable[str], kinds: Iterable[str]) -> bool:
    """Whether a user has given kernels to some of these ops, on some of these kinds of devices."""
    return not _OWN.isdisjoint(product(types, (ANY, *kinds)))


def versions(wanted: Wish) -> list[tuple[str, str]]:
    """The providers that are wanted, each with which library it is, or why it is absent."""
    modules = {name: importlib.import_module(PROVIDERS[name]) for name in wanted.providers}
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
) -> Callable[
    [Callable[[Any, Node], Callable[..., Any]]], Callable[[Any, Node], Callable[..., Any]]
]:
    """Decorator: `make(xp, node)` is the plain kernel of op `type` on devices of kind `on`.

    Floats of 16 bits reach it as float32 and its results are rounded, so that sums have 32 bits.
    Not so those of ufuncs, which do it themselves, and of a kernel that only `moves` elements.
    Of a user's own kernel for GPUs, `captured` says that a CUDA graph may hold what it launches.
    """

    def add(make: Callable[[Any, Node], Callable[..., Any]]) -> Any:
        why = REASONS.get(type, "")
        if make.__module__ not in _HOMES.get(type, ()):
            _load(type)  # what a user's own kernel replaces
            _OWN.add((type, on))
            why = "" if captured else "it is a kernel of one's own, not said to be captured=True"
        direct = moves or form in ("ufunc", "view")
        made = make if direct else widened(form, make)
        row = Kernel(form, made, inplace, tiles, scratch=scratch, uncaptured=lambda node: why)
        _TABLE[type, on] = row
        return make

    return add


def fast(
    provider: str,
    type: str,
    form: Form,
    *,
    on: str,
    refuses: Callable[[Node], str] = _never,
    inplace: tuple[int, ...] = (),
    tiles: bool = False,
    exact: bool = False,
    scratch: Scratch = _none,
    uncaptured: Callable[[Node], str] = _never,
) -> Callable[
    [Callable[[Any, Node], Callable[..., Any]]], Callable[[Any, Node], Callable[..., Any]]
]:
    """Decorator: `make(xp, node)` is the kernel of op `type` that `provider` has; see `Kernel`.

    It serves nodes that it does not refuse, of any dtype that it does not refuse.
    """

    def add(make: Callable[[Any, Node], Callable[..., Any]]) -> Any:
        row = Kernel(form, make, inplace, tiles, provider, refuses, exact, scratch, uncaptured)
        _FAST.setdefault((type, on), {})[provider] = row
        return make

    return add


def wish(kernels: str = "auto", exact: bool = False, tf32: bool = False) -> Wish:
    """What the settings of kernels ask for: `kernels` is "auto", "plain", or names and commas.

    Errors: HpcflowError if there is no such provider.
    """
    if kernels in ("auto", PLAIN):
        return Wish(tuple(_PROVIDERS) if kernels == "auto" else (), exact, tf32)
    names = tuple(name.strip() for name in kernels.split(","))
    for name in names:
        if name not in _PROVIDERS:
            raise HpcflowError(
                f"setting kernels={kernels!r}: there is no provider {name!r}",
                hint=f"known: auto, {PLAIN}, {', '.join(_PROVIDERS)}",
            )
    return Wish(names, exact, tf32)


def choose(node: Node, kind: str, wanted: Wish, xp: bool = True) -> Choice:
    """The best kernel that serves `node` on a device of kind `kind`; with `xp` as of `find`."""
    _load(node.type)
    refused: list[tuple[str, str]] = []
    rows = _FAST.get((node.type, kind), {})
    for name in wanted.providers:
        row = rows.get(name)
        if row is None:
            continue
        why = _PROVIDERS[name]() or row.refuses(node)
        if not why and wanted.exact and not row.exact:
            why = "it may round differently (setting exact)"
        if not why:
            return Choice(row, tuple(refused))
        refused.append((name, why))
    return Choice(find(node.type, kind, xp), tuple(refused))


def find(type: str, kind: str, xp: bool = True) -> Kernel:
    """The plain kernel of `type` on a device of kind `kind`; with `xp`, the general one serves."""
    _load(type)
    row = _TABLE.get((type, kind)) or (_TABLE.get((type, ANY)) if xp else None)
    if row is None:
        raise DeviceError(
            f"there is no kernel for {type} on {kind}",
            hint=f"place it elsewhere with hf.device, or add kernel({type!r}, ..., on={kind!r})",
        )
    return row


def names() -> set[str]:
    """Ops that have a kernel for NumPy."""
    for type in _HOMES:
        _load(type)
    return {type for type, on in _TABLE if on in (ANY, "cpu")}
