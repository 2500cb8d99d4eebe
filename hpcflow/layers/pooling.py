"""Pooling layers: the names of TensorFlow's `tf.layers`."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import Tensor
from hpcflow.layers.layer_builder import Function, OfTensor, format_of, function, of_rank, sizes_of
from hpcflow.ops.nn.pooling_ops import pool


class _Pooling(OfTensor):
    kind: str
    rank: int

    def __init__(
        self,
        pool_size: Any = 2,
        strides: Any = None,
        padding: str = "valid",
        data_format: str = "channels_last",
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.pool_size = pool_size
        self.strides = pool_size if strides is None else strides
        self.padding, self.data_format = padding, data_format

    def call(self, inputs: Tensor) -> Tensor:
        """The maximum or mean of each window."""
        x = of_rank(inputs, self.rank + 2, self.what)
        sizes = sizes_of(self.pool_size, self.rank, "pool_size")
        steps = sizes_of(self.strides, self.rank, "strides")
        form = format_of(self.data_format, self.rank)
        return pool(x, sizes, self.kind, self.padding, None, steps, None, form)


def _pooling(kind: str, rank: int) -> tuple[type[_Pooling], Function]:
    """The class and the function of a pooling layer."""
    word, noun = ("max", "largest element") if kind == "MAX" else ("average", "mean")
    axes = {1: "w", 2: "h, w", 3: "d, h, w"}[rank]
    doc = f"""The {noun} of each window of `pool_size` elements; `strides` are by default its sizes.

    Shapes: [n, {axes}, channels], or [n, channels, {axes}] with channels_first.
    """
    facts = {"kind": kind, "rank": rank, "what": f"{word}_pooling{rank}d", "__doc__": doc}
    cls = type(f"{word.title()}Pooling{rank}D", (_Pooling,), {**facts, "__module__": __name__})
    return cls, function(cls, reuse=False)


MaxPooling1D, max_pooling1d = _pooling("MAX", 1)
MaxPooling2D, max_pooling2d = _pooling("MAX", 2)
MaxPooling3D, max_pooling3d = _pooling("MAX", 3)
AveragePooling1D, average_pooling1d = _pooling("AVG", 1)
AveragePooling2D, average_pooling2d = _pooling("AVG", 2)
AveragePooling3D, average_pooling3d = _pooling("AVG", 3)
