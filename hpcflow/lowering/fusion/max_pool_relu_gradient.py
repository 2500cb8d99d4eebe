"""Fuses the gradients of max pooling, of the relu before it and of the bias before the relu.

The backward pass then goes over memory once: the gradient, which is as large as the input of the
pooling, is neither masked nor summed in a pass of its own.
"""

from __future__ import annotations

from hpcflow.graph.static_shape import normalize_axes
from hpcflow.lowering.fusion.bias_relu_epilogue import Serves
from hpcflow.lowering.segments_between_waits import Segment, segment_by_node, value_consumers
from hpcflow.plan.ir.program import Node, Partition, Ref
from hpcflow.plan.ir.program_rewriting import replace_nodes


def fuse_pool_gradients(part: Partition, segments: list[Segment], serves: Serves) -> Partition:
    """The partition with a MaxPoolReluGrad for a MaxPoolGrad, its ReluGrad and its bias sum.

    Only where no other node uses the value between the first two, all are of one segment and one
    device, and `serves` says that a kernel better than the plain one computes the new node.
    """
    consumers, segment_of = value_consumers(part), segment_by_node(segments)
    fixed = {c for node in part.nodes.values() for c in node.control}
    fixed |= {ref.node for ref in part.fetches}
    fused: dict[str, Node] = {}
    values: dict[Ref, Ref] = {}  # value of a replaced node -> its new value
    for first in part.nodes.values():
        names = consumers.get(Ref(first.name), [])
        if first.type != "MaxPoolGrad" or first.attrs["first"] or len(names) != 1:
            continue
        relu = part.nodes[names[0]]
        masks = relu.type == "ReluGrad" and relu.inputs == (Ref(first.name), first.inputs[0])
        if not masks or first.name in fixed or not _can_run_together(relu, first, segment_of):
            continue
        sums = [part.nodes[name] for name in consumers.get(Ref(relu.name), [])]
        sums = [
            n
            for n in sums
            if _is_bias(n, relu) and n.name not in fixed and _can_run_together(n, first, segment_of)
        ]
        node = relu.but(
            type="MaxPoolReluGrad",
            inputs=first.inputs,
            control=tuple(dict.fromkeys((*first.control, *relu.control))),
            attrs={**first.attrs, "bias": bool(sums)},
            specs=(*relu.specs, *(n.specs[0] for n in sums[:1])),
        )
        if serves(node, [part.spec(ref) for ref in node.inputs]):
            fused[relu.name] = node
            values[Ref(first.name)] = Ref(relu.name)
            values.update({Ref(n.name): Ref(relu.name, 1) for n in sums})
    return replace_nodes(part, fused, values, {old.node: new.node for old, new in values.items()})


def _can_run_together(a: Node, b: Node, segment_of: dict[str, int]) -> bool:
    return a.device == b.device and segment_of[a.name] == segment_of[b.name]


def _is_bias(node: Node, source: Node) -> bool:
    """Whether a node sums a value over all axes but the last."""
    shape = source.specs[0].shape
    if node.type != "Sum" or node.control or node.attrs["keepdims"] or shape is None:
        return False
    rank = len(shape)
    return normalize_axes(node.attrs["axis"], rank) == tuple(range(rank - 1))
