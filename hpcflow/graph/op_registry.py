"""Op registry: one row an op, with its shape function and its gradient function."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from hpcflow.errors import MALFORMED, GraphError, HpcflowError, ShapeError
from hpcflow.graph.dtypes import name_of
from hpcflow.graph.static_shape import Spec, check_sizes, shape_text
from hpcflow.platform.exception_translation import is_own_error, value_text

Infer = Callable[[Sequence[Spec], dict[str, Any]], Sequence[Spec]]
Gradient = Callable[..., Sequence[Any]]  # tensors, functions that return one, or None


class CostNode(Protocol):
    """What a cost formula needs of a node: its attributes and the specs of its outputs."""

    @property
    def attrs(self) -> dict[str, Any]: ...  # noqa: D102
    @property
    def specs(self) -> Sequence[Spec]: ...  # noqa: D102


class MatmulSize(NamedTuple):
    """Matrix products, each of [rows, summed] by [summed, columns]."""

    products: int
    rows: int
    summed: int
    columns: int


Count = Callable[[CostNode, Sequence[Spec]], float]  # of a node and the specs of its inputs
ControlFlow = Literal["", "loop", "branch"]
MessageRole = Literal["", "send", "receive", "copy", "pack", "unpack"]
VariableRole = Literal["", "handle", "read", "read_rows", "assign", "is_initialized", "wait"]
Source = Literal["", "constant", "fill", "feed", "placeholder", "parameter"]
View = Literal["", "same_order", "strided"]
Identity = Literal["", "always", "if_specs_equal"]
Joins = Literal["", "concat", "stack"]
Splits = Literal["", "split", "unstack"]
Combines = Literal["", "sum", "rows", "first"]
Work = Literal["", "nothing", "start", "move", "pick"]


@dataclasses.dataclass(frozen=True)
class NoGrad:
    """Why there is no gradient, in place of a gradient function or of one input's gradient.

    Using it is a GradientError, or gives None if `none`, as in TensorFlow 1.
    """

    reason: str
    none: bool = False


class OpDef:
    """One row of the op registry.

    `infer(inputs, attrs)` gives the specs of the outputs, or raises ShapeError or DTypeError.
    `grad(op, *gradients_of_outputs)` gives the gradient of each input: a tensor, None if it has
    none, a `NoGrad`, or a function of no arguments, which is called only if that gradient is
    needed. The other attributes are facts that passes ask; the defaults are safe for any op. A row
    does not change. It is no dataclass, whose constructor would assign all facts of all rows.

    Errors: TypeError for a fact that there is not.
    """

    name: str
    infer: Infer
    grad: Gradient | NoGrad
    reads: tuple[int, ...] = ()  # inputs that are handles whose value is read
    writes: tuple[int, ...] = ()  # inputs that are handles whose value is updated
    stateful: bool = False  # never folded, merged with an equal op, or assumed repeatable
    collective: bool = False  # every rank of its group runs it
    waits: bool = False  # finishes later than it starts: what depends on it is in another segment
    script: bool = False  # only ranks that run the script have its Python function
    patient: bool = False  # a wait for other steps, without a time limit
    owner: bool = False  # runs functions, its attributes: it depends only on the inputs these use
    device: str = ""  # the kind of device it runs on, if only one kind has a kernel: "cpu"
    slices: bool = False  # its gradient function accepts IndexedSlices; others get dense tensors
    by_rows: bool = False  # uses rows of a variable: input 1 has indices, its kernel checks sizes
    kernels: tuple[str, ...] = ()  # modules with its kernels; `op` takes names, see there
    doc: str = ""

    # control flow
    control_flow: ControlFlow = ""  # its attributes hold programs
    across_tasks: bool = False  # control flow whose programs run on several tasks
    order_only: bool = False  # computes nothing; others are ordered by it

    # where values come from and go to
    source: Source = ""  # its value is an attribute, or given by the caller of the step
    stands_for_feed: bool = False  # its feed takes over its name, also in control edges
    message: MessageRole = ""  # moves a value between devices or tasks, or packs a message
    shape_input: bool = False  # its last input has the shape that attribute `shape` does not know
    fills_with: int | None = None  # the number that fills the shape of its only input
    no_kernel: bool = False  # generated code does its work without a kernel
    generated: bool = False  # an attribute holds the source of its kernel

    # variables and replicas
    variable: VariableRole = ""  # its part in the life of a variable
    overwrites: bool = False  # writes new values without reading the old ones
    tiled: bool = False  # updates a variable; its plain kernel computes any part of it by itself
    whole_variable: bool = False  # cannot use a variable that is sharded by rows
    combines: Combines = ""  # how it joins the values of replicas
    lowers_to: str = ""  # the collective that replaces it in collective mode

    # how elements of the output depend on elements of the inputs
    elementwise: bool = False  # each from the elements at its position in broadcast operands
    update_formula: bool = False  # elementwise; computed for each shard and tile of an update
    initial_formula: bool = False  # elementwise; computed for each shard of an initial value
    identity: Identity = ""  # its outputs are its first inputs
    view: View = ""  # its outputs are views of its input: all in the same order, or strided
    contiguous_view: bool = False  # a view that is contiguous if its input is
    keeps: int | None = None  # the input that its object holds: its kernel copies it if not "owned"
    lends: bool = False  # its value is one that an object holds: a fetched one is copied
    makes_contiguous: bool = False  # its values are C-contiguous arrays, those of numbers
    joins: Joins = ""  # joins its inputs along an axis, present or new
    splits: Splits = ""  # splits its input along an axis, which goes with "unstack"
    checks_shape: bool = False  # inputs behind the first tell the shape; its kernel compares it
    reduction: bool = False  # reduces the axes in `axis`, which stay with `keepdims`
    sums: bool = False  # adds elements along axes
    spreads: bool = False  # repeats elements along axes
    draws_rows: bool = False  # random; any rows can be drawn by themselves

    # cost
    # "nothing": no kernel starts; "start": its kernel moves no bytes; "move": it only moves bytes;
    # "pick": it reads only as many bytes of its first input as it outputs
    work: Work = ""
    flops: Count | None = None  # None: none with `work`, else one per element of the largest value
    nbytes: Count | None = None  # None: inputs are read once, outputs written once
    # as matrix products
    contraction: Callable[[CostNode, Sequence[Spec]], MatmulSize] | None = None
    uses_blas: bool = False  # its plain kernel calls BLAS

    def __init__(self, name: str, infer: Infer, grad: Gradient | NoGrad, **facts: Any) -> None:
        wrong = facts.keys() - OpDef.__annotations__.keys()
        if wrong:
            raise TypeError(f"an op has no fact {', '.join(sorted(wrong))}")
        self.__dict__.update(facts, name=name, infer=infer, grad=grad)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a row does not change: {name}")

    def with_gradient(self, grad: Gradient | NoGrad) -> OpDef:
        """Return the row with another gradient."""
        return OpDef(**{**self.__dict__, "grad": grad})

    @property
    def pure(self) -> bool:
        """True if equal inputs give equal outputs and there are no side effects."""
        return not (self.reads or self.writes or self.stateful or self.collective or self.waits)


VOCABULARY = "hpcflow.ops.load_all_ops"  # the module that imports all modules with ops
OPS: dict[str, OpDef] = {}  # the ops of the modules imported so far


def op(
    name: str, *, infer: Infer, grad: Gradient | NoGrad, kernels: str = "", **facts: Any
) -> OpDef:
    """Register an op; its kernels are found by the name of the module that is being imported.

    A module `foo_ops` has its kernels beside it in `foo_kernels`, if there is one. `kernels` names
    other modules, separated by spaces: beside it, or with a dot, below `hpcflow`.
    """
    if name in OPS:
        raise GraphError(f"op {name!r} is already in the table")
    facts["kernels"] = _kernel_modules(kernels)
    OPS[name] = row = OpDef(name, _with_size_checks(name, infer), grad, **facts)
    return row


def _kernel_modules(names: str) -> tuple[str, ...]:
    """The full names of the modules with the kernels of an op whose row is being registered."""
    frame = sys._getframe(2)
    while frame.f_code.co_name != "<module>" and frame.f_back:  # helpers of other modules
        frame = frame.f_back
    package, _, module = str(frame.f_globals.get("__name__", "")).rpartition(".")
    if not package.startswith("hpcflow."):  # an op of the user
        if names:
            raise TypeError("`kernels` is for built-in ops: a script registers its own kernels")
        return ()
    names = names or f"{module.removesuffix('_ops')}_kernels"
    return tuple(f"{'hpcflow' if '.' in n else package}.{n}" for n in names.split())


def _with_size_checks(name: str, infer: Infer) -> Infer:
    """A shape function that also checks sizes, and raises ShapeError in place of raw Python errors.

    Errors of a user's shape function pass unchanged.
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
            if not is_own_error(error):
                raise
            input_texts = ", ".join(f"{name_of(s.dtype)} {shape_text(s.shape)}" for s in inputs)
            attr_texts = ", ".join(f"{key} {value_text(value)}" for key, value in attrs.items())
            raise ShapeError(
                f"{name} does not take ({input_texts}) with {attr_texts}: {error}"
            ) from error

    return rule


def lookup_op(name: str) -> OpDef:
    """The row of an op; GraphError if there is none."""
    row = OPS.get(name) or all_ops().get(name)
    if row is None:
        raise GraphError(f"there is no op {name!r}", hint="`hpcflow help ops` lists them")
    return row


def all_ops() -> dict[str, OpDef]:
    """The whole op registry, including modules that are not yet imported."""
    importlib.import_module(VOCABULARY)
    return OPS
