"""Host callback ops: py_func, Print, Assert, numeric checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcflow.errors import GraphError
from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.dtypes import as_dtype, bool_, kind_of
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, get_default_graph
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec
from hpcflow.ops.control_flow.control_dependencies import group, no_op
from hpcflow.ops.math.arithmetic_ops import check_numerics
from hpcflow.ops.shape_inference import (
    Attrs,
    first_output,
    integer_argument,
    make,
    require,
    several,
)

_UNKNOWN = NoGrad(
    "hpcflow cannot see into a Python function; hf.custom_gradient gives it one", none=True
)
SUMMARY = 3  # default number of elements shown per tensor


# -- Python functions


def _py_func(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [Spec(dtype, None) for dtype in attrs["dtypes"]]


op("PyFunc", infer=_py_func, grad=_UNKNOWN, stateful=True, script=True, device="cpu")
op("PyFuncThread", infer=_py_func, grad=_UNKNOWN, waits=True, script=True, device="cpu")
op("PyFuncStateless", infer=_py_func, grad=_UNKNOWN, script=True, device="cpu")


def py_func(
    func: Callable[..., Any],
    inp: Sequence[Any],
    Tout: Any,
    stateful: bool = True,
    name: str | None = None,
) -> Any:
    """`func(*arrays)`, a Python function of NumPy arrays, as an operation of the graph.

    It runs on a CPU of a rank that runs the script, since other ranks do not have the function.
    `Tout` is a dtype, or a list of dtypes for a list of results. `stateful=False` promises that
    equal inputs give equal results without side effects, so that calls may be merged. Functions
    that are not ordered by the graph may run concurrently in threads; a call longer than 0.1 s does
    not block the next one.

    Shapes:   unknown to the graph; use `set_shape`.
    Errors:   PlacementError when placed on another rank; KernelError when `func` raises; DTypeError
              when the result does not match `Tout`.
    """
    if not callable(func):
        raise GraphError(f"py_func needs a function, not {func!r}")
    many = isinstance(Tout, (list, tuple))
    dtypes = tuple(as_dtype(t) for t in (Tout if many else [Tout]))
    type = "PyFunc" if stateful else "PyFuncStateless"
    tensors = [convert_to_tensor(t) for t in several(inp, "py_func")]
    operation = make(type, tensors, {"function": func, "dtypes": dtypes}, name or "PyFunc")
    if not dtypes:
        return operation
    return list(operation.outputs) if many else operation.outputs[0]


# -- printing and assertions: data is tensors and texts


def _layout(data: Any, op_name: str) -> tuple[list[Tensor], tuple[str | None, ...]]:
    """The tensors of `data`, and its texts with None for each tensor."""
    if isinstance(data, (str, Tensor)) or not isinstance(data, (list, tuple)):
        raise GraphError(f"{op_name} takes a list of tensors and strings, not {data!r}")
    layout = tuple(d if isinstance(d, str) else None for d in data)
    return [convert_to_tensor(d) for d in data if not isinstance(d, str)], layout


def _element_limit(summarize: int | None) -> int:
    """The number of elements shown per tensor."""
    return SUMMARY if summarize is None else integer_argument(summarize, "summarize")


def _print(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [Spec(inputs[0].dtype, inputs[0].shape)]


def _assert(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("Assert's condition", inputs[0], "b")
    return []


op(
    "Print",
    infer=_print,
    grad=lambda op, g: [g, *[None] * (len(op.inputs) - 1)],
    stateful=True,
)
op("Assert", infer=_assert, grad=NoGrad("it has no outputs"), stateful=True)


def Print(
    input_: Any,
    data: Sequence[Any],
    message: str | None = None,
    first_n: int | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> Tensor:
    """`input_` itself; at run time prints a line with `message` and `data` to stderr.

    It shows the first `summarize` elements of each tensor (None: 3, -1: all), and prints only in
    the first `first_n` runs, if given.
    """
    tensors, layout = _layout(data, "Print")
    attrs: Attrs = {"layout": layout, "message": message or "", "first_n": first_n}
    attrs["summarize"] = _element_limit(summarize)
    return first_output("Print", [convert_to_tensor(input_), *tensors], attrs, name)


def Assert(
    condition: Any, data: Sequence[Any], summarize: int | None = None, name: str | None = None
) -> Operation:
    """An operation that fails unless all of `condition` is true, showing `data`.

    Make dependent operations follow it: `with hf.control_dependencies([hf.Assert(...)])`.
    Errors: AssertError at run time, with the data, the operation, its line and the rank.
    """
    tensors, layout = _layout(data, "Assert")
    attrs: Attrs = {"layout": layout, "summarize": _element_limit(summarize)}
    return make("Assert", [convert_to_tensor(condition, bool_), *tensors], attrs, name)


# -- numeric checks


@accepts_aliases(x="t", message="msg")
def verify_tensor_all_finite(t: Any, msg: str, name: str | None = None) -> Tensor:
    """`t` itself, checked at run time; NumericError with `msg` for a NaN or an infinity."""
    return check_numerics(t, msg, name)


def add_check_numerics_ops() -> Operation:
    """One operation that checks all floating-point tensors created so far in the default graph.

    They are checked in order of creation, so that the first invalid one is named. Run it with a
    step; the setting `check_numerics` does the same without operations.
    """
    graph = get_default_graph()
    checks: list[Tensor] = []
    for operation in graph.get_operations():
        for t in operation.outputs:
            if kind_of(t.dtype) != "f" or operation.type == "CheckNumerics":
                continue
            with graph.control_dependencies([checks[-1].op] if checks else []):
                checks.append(check_numerics(t, t.name))
    return group(*checks) if checks else no_op()
