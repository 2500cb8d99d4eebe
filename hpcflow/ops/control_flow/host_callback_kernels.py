"""Host callback kernels: py_func, Print, Assert."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import AssertError, DTypeError
from hpcflow.graph.dtypes import as_strings, string
from hpcflow.kernels.cuda_graph_restrictions import READS_VALUES, RUNS_ON_HOST
from hpcflow.kernels.kernel_registry import KernelNode, kernel
from hpcflow.platform import rank_logging


def on_host(xp: Any, array: Any) -> np.ndarray:
    """`array` of the module `xp` as a NumPy array."""
    return xp.asnumpy(array) if hasattr(xp, "asnumpy") else np.asarray(array)


# -- Python functions


def _py_func(xp: Any, node: KernelNode) -> Callable[..., Any]:
    function, dtypes = node.attrs["function"], node.attrs["dtypes"]

    def run(*inputs: Any) -> Any:
        # Copies: buffers are reused. A scalar is a NumPy scalar or bytes, as in TensorFlow.
        returned = function(*(np.array(x)[()] for x in inputs))
        if not dtypes:
            return None
        several = isinstance(returned, (list, tuple)) and (len(dtypes) > 1 or len(returned) == 1)
        values = list(returned) if several else [returned]
        if len(values) != len(dtypes):
            raise DTypeError(
                f"the function of py_func returned {len(values)} values; Tout says {len(dtypes)}"
            )
        pairs = enumerate(zip(values, dtypes, strict=True))
        arrays = tuple(_returned(i, value, dtype) for i, (value, dtype) in pairs)
        return arrays if len(arrays) > 1 else arrays[0]

    return run


kernel("PyFunc", "new", on="cpu", moves=True)(_py_func)
kernel("PyFuncThread", "new", on="cpu", moves=True)(_py_func)
kernel("PyFuncStateless", "new", on="cpu", moves=True)(_py_func)


def _returned(index: int, value: Any, dtype: np.dtype) -> np.ndarray:
    """A returned value as a new array; Python numbers take the declared dtype."""
    if dtype == string:
        return np.array(as_strings(value))
    array = np.asarray(value)
    is_typed = isinstance(value, (np.ndarray, np.generic))
    fits = array.dtype == dtype if is_typed else np.can_cast(array.dtype, dtype, "same_kind")
    if not fits and (array.size or array.dtype.kind in "OV"):
        raise DTypeError(
            f"value {index} that the function of py_func returned is {array.dtype}; "
            f"Tout says {dtype}",
            hint=f"return value.astype({str(dtype)!r})",
        )
    return np.array(array, dtype)


# -- text output


def summary(array: np.ndarray, limit: int) -> str:
    """The first elements of an array in order: `[1 2 3...]`."""
    flat = array.reshape(-1)
    shown = flat if limit < 0 else flat[:limit]
    text = " ".join(_text(v) for v in shown.tolist())
    return f"[{text}{'...' if shown.size < flat.size else ''}]"


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def described(
    xp: Any, layout: Sequence[str | None], arrays: Sequence[Any], limit: int
) -> list[str]:
    """The texts of `layout` with the values of the tensors between them."""
    remaining = iter(arrays)
    return [
        f"[{text}]" if text is not None else summary(on_host(xp, next(remaining)), limit)
        for text in layout
    ]


@kernel(
    "Print", "out", inplace=(0,), moves=True, uncaptured=RUNS_ON_HOST
)  # not a view: it must run
def _print(xp: Any, node: KernelNode) -> Callable[..., Any]:
    attrs = node.attrs
    remaining = [attrs["first_n"]]

    def run(x: Any, *more: Any) -> None:
        if remaining[0] is None or remaining[0] > 0:
            parts = described(xp, attrs["layout"], more[:-1], attrs["summarize"])
            rank_logging.print_always(attrs["message"] + "".join(parts))
            remaining[0] = None if remaining[0] is None else remaining[0] - 1
        xp.copyto(more[-1], x)

    return run


@kernel("Assert", "out", moves=True, uncaptured=READS_VALUES)
def _assert(xp: Any, node: KernelNode) -> Callable[..., Any]:
    attrs = node.attrs

    def run(condition: Any, *data: Any) -> None:
        if not condition.all():
            parts = described(xp, attrs["layout"], data, attrs["summarize"])
            raise AssertError("assertion failed: " + " ".join(parts))

    return run


# -- checked values


def _copy_inputs(xp: Any, node: KernelNode) -> Callable[..., Any]:
    outputs = len(node.outputs)

    def run(*args: Any) -> None:
        for x, out in zip(args[:outputs], args[-outputs:], strict=True):
            xp.copyto(out, x)

    return run


kernel("IdentityN", "out", moves=True)(_copy_inputs)
kernel("CustomGradient", "out", moves=True)(_copy_inputs)
