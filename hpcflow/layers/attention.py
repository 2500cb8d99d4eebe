"""Multi-head attention layer."""

from __future__ import annotations

from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.graph import Tensor, convert_to_tensor, user_line
from hpcflow.layers.dense_layers import dense
from hpcflow.layers.layer_builder import drops, known_size, of_rank
from hpcflow.ops.array.array_ops import expand_dims, reshape, shape, transpose
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.nn.attention import scaled_dot_product_attention
from hpcflow.ops.nn.training_calls import call_in_phase
from hpcflow.ops.variables.variable_scope import variable_scope


def multi_head_attention(
    queries: Any,
    keys: Any = None,
    values: Any = None,
    num_heads: int = 8,
    units: int | None = None,
    output_units: int | None = None,
    mask: Any = None,
    causal: bool = False,
    dropout_rate: Any = 0.0,
    training: bool | None = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    seed: int | None = None,
    name: str | None = None,
    reuse: Any = None,
) -> Tensor:
    """Multi-head attention with a projection for each head (Vaswani et al., 2017).

    Without `keys` this is self-attention of `queries`. `values` default to the keys. `units` (the
    total of all heads) and `output_units` default to the number of features of the queries. While
    `training`, by default in `fit` of a model alone, `dropout_rate` of the attention is dropped.

    Shapes:    queries [batch, m, features], keys and values [batch, n, ...]: [batch, m,
               output_units]. A boolean `mask` is broadcast to [batch, m, n], or has a part for each
               head: [batch, heads, m, n]; True where attention is allowed, see
               `hf.nn.scaled_dot_product_attention`.
    Variables: `kernel` and `bias` in `query`, `key`, `value` and `output`.
    """
    q = of_rank(convert_to_tensor(queries), 3, "multi_head_attention")
    k = q if keys is None else of_rank(convert_to_tensor(keys), 3, "multi_head_attention")
    v = k if values is None else of_rank(convert_to_tensor(values), 3, "multi_head_attention")
    width = units or known_size(q, -1, "multi_head_attention")
    if num_heads < 1 or width % num_heads:
        raise ShapeError(
            f"{width} units cannot be divided into {num_heads} heads", line=user_line()
        )
    with variable_scope(name, "multi_head_attention", [q], reuse=reuse):

        def project(x: Tensor, size: int, into: str) -> Tensor:
            return dense(x, size, None, use_bias, kernel_initializer=kernel_initializer, name=into)

        parts = [
            _parted(project(x, width, into), num_heads)
            for x, into in ((q, "query"), (k, "key"), (v, "value"))
        ]
        given = (*parts, None if mask is None else _mask_of_heads(mask))
        heads = _with_dropout(given, dropout_rate, training, causal=causal, seed=seed)
        joined = reshape(transpose(heads, [0, 2, 1, 3]), [*_lead(q), width])
        return project(joined, output_units or known_size(q, -1, "attention"), "output")


def _with_dropout(given: tuple[Any, ...], rate: Any, training: bool | None, **facts: Any) -> Tensor:
    """Attention of (queries, keys, values, mask), with dropout while `training`."""

    def attend(q: Any, k: Any, v: Any, mask: Any, training: Any = False) -> Tensor:
        used = rate if training else 0.0
        return scaled_dot_product_attention(q, k, v, mask, dropout_rate=used, **facts)

    how = {"training": training if drops(rate) else False}
    heads: Tensor = call_in_phase(attend, attend, attend, given, how, "multi_head_attention")
    return heads


def _mask_of_heads(mask: Any) -> Tensor:
    """`mask` [batch, m, n] as [batch, 1, m, n], the same for all heads."""
    mask = convert_to_tensor(mask)
    if mask.shape is None or len(mask.shape) == 3:
        return expand_dims(mask, 1)
    return mask


def _lead(x: Tensor) -> list[Any]:
    """The sizes batch and length of `x`; scalar tensors where unknown."""
    assert x.shape is not None
    return [getitem(shape(x), i) if n is None else n for i, n in enumerate(x.shape[:2])]


def _parted(x: Tensor, heads: int) -> Tensor:
    """Reshape and transpose [batch, length, units] to [batch, heads, length, units / heads]."""
    assert x.shape is not None and x.shape[-1] is not None
    rows = reshape(x, [*_lead(x), heads, x.shape[-1] // heads])
    return transpose(rows, [0, 2, 1, 3])
