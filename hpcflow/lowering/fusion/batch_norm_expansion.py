"""Expands batch normalization on GPUs into column sums and elementwise operations.

The fusion that follows then computes the sums in the loop that computes their operand, and the
normalized values in one loop with the scale, offset and relu after them. The variance is a sum of
squared differences from the mean: sums of squares would lose digits where the mean is large.
"""

from __future__ import annotations

import dataclasses
import math
from collections import ChainMap
from typing import Any

import numpy as np

from hpcflow.codegen.fused_loop_ir import ROW
from hpcflow.graph.dtypes import float32, is_half
from hpcflow.graph.static_shape import is_known, normalize_axes, require_known
from hpcflow.lowering.fusion.iteration_space import node_mapping
from hpcflow.plan.ir.program import Node, Partition, Ref
from hpcflow.plan.ir.program_rewriting import infer_specs, replace_nodes, unused_name


def expand_batch_norms(part: Partition, exact: bool) -> Partition:
    """The partition without normalizations over leading axes on GPUs; unchanged if `exact`.

    Those of float64 stay: no sums of float64 are generated for GPUs.
    """
    if exact or not any(_is_candidate(part, node) for node in part.nodes.values()):
        return part
    nodes: dict[str, Node] = {}
    values: dict[Ref, Ref] = {}
    replaced: dict[str, str] = {}  # node -> the last node of its expansion
    for node in part.nodes.values():
        nodes[node.name] = node
        if _is_candidate(part, node):
            work = _Expansion(part, node)
            outputs = work.normalize() if node.type == "Normalize" else work.gradient()
            if work.has_column_sums():
                nodes.update(work.nodes)
                values.update({Ref(node.name, i): ref for i, ref in enumerate(outputs)})
                replaced[node.name] = outputs[0].node
    return replace_nodes(dataclasses.replace(part, nodes=nodes), {}, values, replaced)


def _is_candidate(part: Partition, node: Node) -> bool:
    if node.type not in ("Normalize", "NormalizeGrad") or node.kind != "gpu":
        return False
    spec = node.specs[0]
    return is_known(spec.shape) and (spec.dtype == float32 or is_half(spec.dtype))


class _Expansion:
    """The nodes in place of one normalization; they compute in float32."""

    def __init__(self, part: Partition, node: Node) -> None:
        self.part, self.node = part, node
        self.nodes: dict[str, Node] = {}
        self.behind: tuple[str, ...] = ()  # so that no loop of a sum computes and stores the nodes
        shape = require_known(node.specs[0].shape)
        self.axes = normalize_axes(node.attrs["axis"], len(shape))
        reduced = math.prod(shape[i] for i in self.axes)
        self.count = self.add("Const", value=np.float32(reduced))
        self.epsilon = self.add("Const", value=np.float32(node.attrs["epsilon"]))

    def has_column_sums(self) -> bool:
        """Whether all its sums are column sums of a generated kernel."""
        part = dataclasses.replace(self.part, nodes={**self.part.nodes, **self.nodes})
        sums = [node_mapping(part, node, False) for node in self.nodes.values() if node.row.sums]
        return all(mapping is not None and mapping.outputs == (ROW,) for mapping in sums)

    def normalize(self) -> tuple[Ref, ...]:
        """The normalized values, the mean and the variance."""
        (x,) = self.node.inputs
        mean = self.mean(self.wide(x))
        self.behind = (mean.node,)
        variance = self.mean(self.add("Square", self.add("Sub", self.wide(x), mean)))
        scale = self.scale(variance)
        self.behind = (scale.node,)
        centered = self.add("Sub", self.wide(x), mean)
        return self.stored(self.add("Mul", centered, scale)), mean, variance

    def gradient(self) -> tuple[Ref, ...]:
        """The gradient r (g - mean(g) - y mean(g y)), where r is 1 / sqrt(variance + epsilon)."""
        g, y, variance = self.node.inputs
        g_sum, y_sum = self.wide(g), self.wide(y)
        mean, along = self.mean(g_sum), self.mean(self.add("Mul", g_sum, y_sum))
        scale = self.scale(variance)
        self.behind = (mean.node, along.node)
        centered = self.add("Sub", self.wide(g), mean)
        centered = self.add("Sub", centered, self.add("Mul", self.wide(y), along))
        return (self.stored(self.add("Mul", centered, scale)),)

    def mean(self, value: Ref) -> Ref:
        """The mean over the leading axes, which keep size 1."""
        total = self.add("Sum", value, axis=self.axes, keepdims=True)
        return self.add("RealDiv", total, self.count)

    def scale(self, variance: Ref) -> Ref:
        """1 / sqrt(variance + epsilon)."""
        return self.add("Rsqrt", self.add("Add", variance, self.epsilon))

    def wide(self, value: Ref) -> Ref:
        """A value as float32; each loop over a 16-bit array converts it itself, in registers."""
        return value if self.spec(value).dtype == float32 else self.cast(value, float32)

    def stored(self, value: Ref) -> Ref:
        """A float32 value in the dtype of the normalization."""
        dtype = self.node.specs[0].dtype
        return value if dtype == float32 else self.cast(value, dtype)

    def cast(self, value: Ref, dtype: Any) -> Ref:
        """A value in another dtype."""
        return self.add("Cast", value, dtype=dtype)

    def spec(self, value: Ref) -> Any:
        """The spec of a value of the partition or of the expansion."""
        return (self.nodes.get(value.node) or self.part.nodes[value.node]).specs[value.index]

    def add(self, type: str, *inputs: Ref, **attrs: Any) -> Ref:
        """Add a node; it runs after the control inputs of the normalization and `behind`."""
        node, stem = self.node, f"{self.node.name}/{type}"
        name = unused_name(stem, ChainMap(self.nodes, self.part.nodes))
        specs = infer_specs(
            type, [self.spec(ref) for ref in inputs], attrs, op=node.name, line=node.line
        )
        first = self.nodes.keys().isdisjoint(ref.node for ref in inputs)
        control = (*(node.control if first else ()), *self.behind)
        self.nodes[name] = node.but(
            name=name, type=type, inputs=inputs, attrs=attrs, specs=specs, control=control
        )
        return Ref(name)
