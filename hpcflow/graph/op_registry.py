"""The op table: one row an op, with its shape rule and its gradient side by side."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from hpcflow.errors import MALFORMED, GraphError, HpcflowError, ShapeError
from hpcflow.graph.dtypes import name_of
from hpcflow.graph.static_shape import Spec, check_sizes, show
from hpcflow.platform.exception_translation import ours, shown

Infer = Callable[[Sequence[Spec], dict[str, Any]], Sequence[Spec]]
Gradient = Callable[..., Sequence[Any]]  # of tensors, functions that make one, or None


@dataclasses.dataclass(frozen=True)
class NoGrad:
    """In place of a gradient rule, or of the gradient of one input: why there is none.

    Asking for it is a GradientError, or gives None if `none`, as in TensorFlow 1.
    """

    reason: str
    none: bool = False


@dataclasses.dataclass(frozen=True)
class OpDef:
    """One row of the op table.

    `infer(inputs, attrs)` gives the outputs' specs or raises ShapeError/DTypeError.
    `grad(op, *gradients_of_outputs)` gives the gradient of each input, None where it has none, or
    why it cannot be given; a function of no arguments is called only if that gradient is needed.
    """

    name: str
    infer: Infer
    grad: Gradient | NoGrad
    reads: tuple[int, ...] = ()  # inputs that are handles whose value is read
    writes: tuple[int, ...] = ()  # inputs that are handles whose value is updated
    stateful: bool = False  # never folded, merged with an equal op, or assumed repeatable
    collective: bool = False  # every rank of its group runs it
    waits: bool = False  # finishes later than it starts: what follows it is another strand
    script: bool = False  # only ranks that run the script know what it does
    patient: bool = False  # a wait for what other steps do, which may take as long as it likes
    owner: bool = False  # runs functions, its attributes: it needs of its inputs what these use
    device: str = ""  # the kind of device it runs on, if only one kind has a kernel: "cpu"
    slices: bool = False  # its gradient rule takes IndexedSlices as they come, others dense tensors
    by_rows: bool = False  # uses rows of a variable: inputs 1 are indices, its kernel checks sizes
    doc: str = ""

    @property
    def pure(self) -> bool:
        """True if equal inputs give equal outputs and nothing else happens."""
        return not (self.reads or self.writes or self.stateful or self.collective or self.waits)


VOCABULARY = "hpcflow.ops.load_all_ops"  # the module that imports every family of ops
OPS: dict[str, OpDef] = {}  # of the families that are imported


def op(name: str, *, infer: Infer, grad: Gradient | NoGrad, **facts: Any) -> OpDef:
    """Add a row to the op table."""
    if name in OPS:
        raise GraphError(f"op {name!r} is already in the table")
    OPS[name] = row = OpDef(name, _refusing(name, infer), grad, **facts)
    return row


def _refusing(name: str, infer: Infer) -> Infer:
    """A shape rule that refuses sizes no tensor has, and whose raw Python errors are ShapeErrors.

    What a user's rule raises passes.
    """

    @functools.wraps(infer)
    def rule(inputs: Sequence[Spec], attrs: dict[str, Any]) -> Sequence[Spec]:
        try:
            specs = infer(inputs, attrs)
            for spec in specs:
                check_sizes(spec.shape, spec.dtype.itemsize)
            return specs
        except HpcflowError:
            raise
        except MALFORMED as error:
            if not ours(error):
                raise
            given = ", ".join(f"{name_of(s.dtype)} {show(s.shape)}" for s in inputs)
            told = ", ".join(f"{key} {shown(value)}" for key, value in attrs.items())
            raise ShapeError(f"{name} does not take ({given}) with {told}: {error}") from error

    return rule


def lookup(name: str) -> OpDef:
    """The row of an op; GraphError if there is none."""
    row = OPS.get(name) or rows().get(name)
    if row is None:
        raise GraphError(f"there is no op {name!r}", hint="see docs/ops.md for the table")
    return row


def rows() -> dict[str, OpDef]:
    """The whole op table, also families that nobody here has used yet."""
    importlib.import_module(VOCABULARY)
    return OPS
