"""Products and convolutions that end in a bias and a relu: rows that only a part's code has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.graph.registry import NoGrad, lookup, op
from hpcflow.graph.shape import Spec, merge


def _row(type: str, base: str, doc: str) -> None:
    def infer(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
        (made,) = lookup(base).infer(inputs[:2], attrs)
        if made.shape is not None:
            merge(made.shape[-1:], inputs[2].shape)
        return [made]

    grad = NoGrad("made when a part is compiled, after gradients are taken")
    op(type, infer=infer, grad=grad, doc=doc)


_row("MatMulBias", "MatMul", "A product plus a vector along its columns, then, with `relu`, that.")
_row("ConvBias", "Conv", "A convolution plus a vector along its channels, then, with `relu`, that.")
