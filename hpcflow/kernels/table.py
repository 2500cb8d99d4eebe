"""The kernel table: `xp` kernels serve NumPy and CuPy; a device's own kernel overrides them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from hpcflow.errors import DeviceError
from hpcflow.kernels.half import widened

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
    """

    type: str
    attrs: dict[str, Any]
    inputs: Sequence[Any]
    outputs: Sequence[Any]


Make = Callable[[Any, Node], Callable[..., Any]]


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One row: `make(xp, node)` returns the function that computes the node, called as `form` says.

    `inplace` lists inputs whose memory output 0 may share (same shape and dtype, read elementwise
    before written). `tiles`: `make` returns a `Tiled` where there are no floats of 16 bits.
    """

    form: Form
    make: Make
    inplace: tuple[int, ...] = ()
    tiles: bool = False


class Tiled:
    """An update that can stop between tiles: `tiles(*arrays)` yields there, a call does not."""

    def __init__(self, tiles: Callable[..., Iterator[None]]) -> None:
        self.tiles = tiles

    def __call__(self, *arrays: Any) -> None:
        """Do all tiles."""
        for _ in self.tiles(*arrays):
            pass


_TABLE: dict[tuple[str, str], Kernel] = {}
ANY = "xp"  # the kind of device of kernels written against the array module `xp`


def kernel(
    type: str,
    form: Form,
    *,
    on: str = ANY,
    inplace: tuple[int, ...] = (),
    moves: bool = False,
    tiles: bool = False,
) -> Callable[
    [Callable[[Any, Node], Callable[..., Any]]], Callable[[Any, Node], Callable[..., Any]]
]:
    """Decorator: `make(xp, node)` is the kernel of op `type` on devices of kind `on`.

    Floats of 16 bits reach it as float32 and its results are rounded, so that sums have 32 bits.
    Not so those of ufuncs, which do it themselves, and of a kernel that only `moves` elements.
    """

    def add(make: Callable[[Any, Node], Callable[..., Any]]) -> Any:
        direct = moves or form in ("ufunc", "view")
        _TABLE[type, on] = Kernel(form, make if direct else widened(form, make), inplace, tiles)
        return make

    return add


def find(type: str, kind: str, xp: bool = True) -> Kernel:
    """The kernel of `type` on a device of kind `kind`; with `xp`, the general one serves too."""
    row = _TABLE.get((type, kind)) or (_TABLE.get((type, ANY)) if xp else None)
    if row is None:
        raise DeviceError(
            f"there is no kernel for {type} on {kind}",
            hint=f"place it elsewhere with hf.device, or add kernel({type!r}, ..., on={kind!r})",
        )
    return row


def names() -> set[str]:
    """Ops that have a kernel for NumPy."""
    return {type for type, on in _TABLE if on in (ANY, "cpu")}
