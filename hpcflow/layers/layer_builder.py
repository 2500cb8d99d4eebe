"""Base classes of layers: functions generated from classes, static sizes, activation, bias."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

from hpcflow.errors import GraphError, ShapeError
from hpcflow.graph.graph import Tensor, convert_to_tensor, user_line
from hpcflow.graph.static_shape import as_shape, shape_text
from hpcflow.graph.tensor_shape import Dimension
from hpcflow.layers.activation_names import activation_of
from hpcflow.ops.nn import nn_ops
from hpcflow.ops.nn.layer_objects import Layer
from hpcflow.ops.shape_inference import rename_function
from hpcflow.ops.variables.initializer_objects import Zeros
from hpcflow.platform.exception_translation import value_text

Function = Callable[..., Any]
_FACTS = ("initializer", "regularizer", "constraint")


class OfTensor(Layer):
    """A layer with one input tensor; the input is converted, also from lists."""

    what: str  # name of the function that creates such a layer and calls it

    def _convert_inputs(self, inputs: Any) -> Tensor:
        return convert_to_tensor(inputs)

    def _store_weight_options(self, **weights: tuple[Any, Any, Any]) -> None:
        """Store the initializer, regularizer and constraint of each of these weights."""
        for name, facts in weights.items():
            for kind, fact in zip(_FACTS, facts, strict=True):
                setattr(self, f"{name}_{kind}", fact)

    def _weight(self, name: str, shape: Any, start: Any = None, dtype: Any = None) -> Any:
        """Create the weight `name` with the arguments of the constructor.

        `start` is the initializer by default.
        """
        prefix = name.removesuffix("_kernel")
        facts = {kind: getattr(self, f"{prefix}_{kind}") for kind in _FACTS}
        if facts["initializer"] is None:
            facts["initializer"] = start
        return self.add_weight(name, shape, dtype, **facts)


class Weighted(OfTensor):
    """A layer with an activation and, if `use_bias`, a bias."""

    def __init__(
        self,
        activation: Function | str | None,
        use_bias: bool,
        activity_regularizer: Function | None,
        trainable: bool,
        name: str | None,
        kwargs: dict[str, Any],
    ) -> None:
        super().__init__(trainable, name, activity_regularizer=activity_regularizer, **kwargs)
        self.activation, self.use_bias, self.bias = activation_of(activation), use_bias, None

    def _count(self, name: str, value: Any) -> Any:
        """The argument `name`, a number of outputs. Errors: GraphError."""
        try:
            is_count = not isinstance(value, bool) and operator.index(value) > 0
        except TypeError:
            is_count = False
        if not is_count and not isinstance(value, Dimension):
            layer = type(self).__name__
            is_text = isinstance(value, str) and value.strip().isdecimal()
            raise GraphError(
                f"{layer}: {name}={value_text(value)} is not a number of {name}",
                hint=f"write {layer}({int(value)}, ...)" if is_text else "give 1 or more",
            )
        return value

    def _add_bias(self, size: int) -> None:
        """If `use_bias`, create the bias with `size` elements, by default zeros."""
        if self.use_bias:
            self.bias = self._weight("bias", [size], Zeros())

    def _finished(self, y: Tensor, form: str | None = None) -> Tensor:
        """`y` with bias and activation."""
        return self._activated(y if self.bias is None else nn_ops.bias_add(y, self.bias, form))

    def _activated(self, y: Tensor) -> Tensor:
        return y if self.activation is None else self.activation(y)


def function(cls: type[OfTensor], reuse: bool = True) -> Function:
    """A function that creates a layer of `cls` in the scope `name` and calls it.

    Its parameters are the inputs, those of the constructor, those of `call`, and `reuse`.
    """
    extra = list(inspect.signature(cls.call).parameters.values())[2:]
    called = [p.name for p in extra]
    parameters = list(inspect.signature(cls).parameters.values())
    parameters = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
    at = next(i for i, p in enumerate(parameters) if p.name in ("trainable", "name"))
    parameters[at:at] = extra
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    if reuse:
        at = next(i for i, p in enumerate(parameters) if p.name == "name") + 1
        parameters.insert(at, inspect.Parameter("reuse", kind, default=None))
    signature = inspect.Signature([inspect.Parameter("inputs", kind), *parameters])

    def layer(*args: Any, **kwargs: Any) -> Tensor:
        arguments = signature.bind(*args, **kwargs).arguments
        inputs, reuse_scope = arguments.pop("inputs"), arguments.pop("reuse", None)
        how = {key: arguments.pop(key) for key in called if key in arguments}
        scope = {"_scope": arguments.get("name"), "_reuse": reuse_scope} if reuse else {}
        return cls(**arguments, **scope)(inputs, **how)

    layer.__signature__ = signature  # type: ignore[attr-defined]
    return rename_function(layer, cls.what, cls.__doc__)


def known_size(x: Any, axis: int, label: str) -> int:
    """The static size of a tensor or shape along `axis`, which shapes variables.

    Errors: ShapeError if it is unknown.
    """
    sizes = x.shape if isinstance(x, Tensor) else as_shape(x)
    size = None if sizes is None or len(sizes) <= abs(axis + (axis < 0)) else sizes[axis]
    if size is None:
        raise ShapeError(
            f"{label} needs a known size along axis {axis}, not shape {shape_text(sizes)}",
            op=x.op.name if isinstance(x, Tensor) else None,
            line=user_line(),
            hint="give what is known by x.set_shape([...])",
        )
    return size


def of_rank(x: Tensor, rank: int, label: str) -> Tensor:
    """`x` itself.

    Errors: ShapeError unless its rank is `rank`.
    """
    if x.shape is None or len(x.shape) != rank:
        raise ShapeError(
            f"{label} takes rank {rank}, not shape {shape_text(x.shape)}",
            op=x.op.name,
            line=user_line(),
        )
    return x


def sizes_of(value: Any, rank: int, label: str) -> list[int]:
    """A list of `rank` ints, from a list or from one int for all axes."""
    sizes = [value] * rank if isinstance(value, int) else list(value)
    if len(sizes) != rank or not all(isinstance(n, int) and n > 0 for n in sizes):
        raise ShapeError(f"{label} must be {rank} positive ints, not {value!r}", line=user_line())
    return sizes


def format_of(data_format: str, rank: int) -> str:
    """The format name ("NHWC", ...) for `rank` spatial axes and channels_last or channels_first."""
    axes = {1: "W", 2: "HW", 3: "DHW"}[rank]
    if data_format not in ("channels_last", "channels_first"):
        raise ShapeError(
            f"data_format {data_format!r} is not 'channels_last' or 'channels_first'",
            line=user_line(),
        )
    return f"NC{axes}" if data_format == "channels_first" else f"N{axes}C"


def drops(rate: Any) -> bool:
    """Whether a dropout rate, a number or a tensor, can drop something."""
    return not isinstance(rate, (int, float)) or rate != 0
