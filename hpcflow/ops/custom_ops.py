"""User-defined gradients and ops: custom_gradient, RegisterGradient, hf.op."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from hpcflow.errors import GradientError, GraphError
from hpcflow.graph.dtypes import resource
from hpcflow.graph.function_body import variable_operation
from hpcflow.graph.graph import (
    Graph,
    Operation,
    Tensor,
    convert_to_tensor,
    get_default_graph,
)
from hpcflow.graph.op_registry import OPS, Gradient, Infer, NoGrad, all_ops, lookup_op
from hpcflow.graph.op_registry import op as row
from hpcflow.graph.static_shape import Spec
from hpcflow.ops.array.broadcast_ops import zeros_like
from hpcflow.ops.shape_inference import Attrs, make, several

# -- identity with a user-defined gradient


def _identity_n(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return list(inputs)


def _custom(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return list(inputs[: attrs["outputs"]])


def _custom_back(op: Operation, *grads: Any) -> list[Any]:
    """The gradients by the attribute `rule` for the inputs after the outputs."""
    outputs = op.attrs["outputs"]
    filled = [zeros_like(y) if g is None else g for y, g in zip(op.outputs, grads, strict=True)]
    input_grads = op.attrs["rule"](op, *filled)
    return [None] * outputs + list(input_grads)


row(
    "IdentityN",
    infer=_identity_n,
    grad=lambda op, *grads: list(grads),
    identity="always",
    kernels="ops.control_flow.host_callback_kernels",
)
row(
    "CustomGradient",
    infer=_custom,
    grad=_custom_back,
    kernels="ops.control_flow.host_callback_kernels",
)


def identity_n(input: Sequence[Any], name: str | None = None) -> list[Tensor]:
    """The same values under new names, in one operation."""
    tensors = [convert_to_tensor(t) for t in several(input, "identity_n")]
    return list(make("IdentityN", tensors, {}, name).outputs)


def with_gradient(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    rule: Callable[..., Sequence[Any]],
    name: str | None = None,
) -> list[Tensor]:
    """`outputs` with gradients for `inputs` by `rule(op, *gradients_of_outputs)`.

    The operations that compute `outputs` are not differentiated.
    """
    attrs: Attrs = {"outputs": len(outputs), "rule": rule}
    return list(make("CustomGradient", [*outputs, *inputs], attrs, name).outputs)


def custom_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: `f(*tensors)` returns its result (a tensor or several) and its gradient function.

    The gradient function takes the gradient of each result and returns that of each argument of
    `f`. If `f` uses trainable variables, the gradient function also takes their list as
    `variables=`, and returns (gradients of the arguments, gradients of the variables).

    Errors: GradientError if the numbers of gradients do not match.
    """

    @functools.wraps(f)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        inputs = [convert_to_tensor(a) for a in args]
        graph = get_default_graph()
        since = graph.version
        returned = f(*inputs, **kwargs)
        if not (isinstance(returned, tuple) and len(returned) == 2 and callable(returned[1])):
            raise GradientError(
                f"{f.__name__} under custom_gradient returned {returned!r}",
                hint="return (result, gradient_function)",
            )
        result, grad = returned
        several = isinstance(result, (list, tuple))
        outputs = [convert_to_tensor(y) for y in (result if several else [result])]
        variables = _variables_used(graph, since)
        rule = _user_rule(f.__name__, grad, len(inputs), variables)
        values = [v.value() for v in variables]
        wrapped = with_gradient(outputs, [*inputs, *values], rule, f"{f.__name__.strip('<>_')}")
        return type(result)(wrapped) if several else wrapped[0]

    return decorated


def _variables_used(graph: Graph, since: int) -> list[Any]:
    """The trainable variables read by operations created after the first `since`."""
    handles = [t for op in graph.get_operations()[since:] for t in op.inputs if t.dtype == resource]
    used = {variable_operation(handle) for handle in handles}
    return [v for v in graph.get_collection("trainable_variables") if v.op in used]


def _user_rule(
    name: str, grad: Callable[..., Any], inputs: int, variables: Sequence[Any]
) -> Callable[..., list[Any]]:
    def rule(op: Operation, *gradients: Tensor) -> list[Any]:
        if variables:
            of_arguments, of_variables = grad(*gradients, variables=list(variables))
        else:
            of_arguments, of_variables = grad(*gradients), []
        listed = list(of_arguments) if isinstance(of_arguments, (list, tuple)) else [of_arguments]
        for kind, got, expected in (
            ("arguments", len(listed), inputs),
            ("variables", len(of_variables), len(variables)),
        ):
            if got != expected:
                raise GradientError(
                    f"the gradient function of {name} gives {got} gradients for {expected} {kind}",
                    op=op.name,
                    line=op.line,
                )
        return [None if g is None else convert_to_tensor(g) for g in (*listed, *of_variables)]

    return rule


# -- user-defined ops

_TO_COME = NoGrad("none is registered; hf.RegisterGradient adds one")


def own_op(
    name: str,
    *,
    infer: Infer | None = None,
    grad: Gradient | NoGrad = _TO_COME,
    **facts: Any,
) -> Callable[..., Any]:
    """Define an op; returns the function that creates its operations.

    `infer(inputs, attrs)` returns a Spec (dtype, shape) for each output; by default there is one
    output, like the first input. `grad(op, *gradients_of_outputs)` returns the gradient of each
    input (None: no dependence). `hf.kernel` adds the kernel. The function takes tensors, then
    attributes by name, and `name`. Operations run on ranks that run the script, since only these
    know the op. `facts`: see `hpcflow.graph.op_registry.OpDef`.
    """
    all_ops()  # built-in names are taken
    row(name, infer=infer or _like_first, grad=grad, **{"script": True, **facts})

    def function(*inputs: Any, name: str | None = None, **attrs: Any) -> Any:
        operation = make(kind, [convert_to_tensor(x) for x in inputs], attrs, name)
        if not operation.outputs:
            return operation
        return operation.outputs[0] if len(operation.outputs) == 1 else list(operation.outputs)

    kind = name
    function.__name__ = function.__qualname__ = name
    return function


def _like_first(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [Spec(inputs[0].dtype, inputs[0].shape)]


class RegisterGradient:
    """Decorator: the function `f(op, *gradients)` becomes the gradient of an op that has none.

    Errors: GraphError if the op does not exist, or has a gradient already.
    """

    def __init__(self, op_type: str) -> None:
        self.type = op_type

    def __call__(self, f: Gradient) -> Gradient:
        """Set the gradient in the op's row."""

        def rule(op: Operation, *gradients: Any) -> Sequence[Any]:
            grads = f(op, *gradients)
            return grads if isinstance(grads, (list, tuple)) else [grads]

        _put(self.type, rule)
        return f


def NotDifferentiable(op_type: str) -> None:
    """Declare that a user-defined op has no gradient."""
    _put(op_type, NoGrad("it is declared as not differentiable", none=True))


NoGradient = NotDifferentiable


def _put(type: str, grad: Gradient | NoGrad) -> None:
    op_def = lookup_op(type)
    if op_def.grad is not _TO_COME:
        raise GraphError(
            f"op {type!r} has a gradient rule already, or a reason for none",
            hint="hf.custom_gradient changes the gradient of a function",
        )
    OPS[type] = op_def.with_gradient(grad)
