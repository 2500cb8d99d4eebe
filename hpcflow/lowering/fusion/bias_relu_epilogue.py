"""Epilogue fusion: a matrix product or convolution takes over the bias and relu after it.

Only where a kernel serves the fused node. The result is then written once, instead of once a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hpcflow.graph.static_shape import Spec
from hpcflow.lowering.segments_between_waits import Segment, segment_by_node, value_consumers
from hpcflow.plan.ir.program import Node, Partition, Ref
from hpcflow.plan.ir.program_rewriting import replace_nodes

EPILOGUE_OPS = {"MatMul": "MatMulBias", "Conv": "ConvBias"}  # op -> the op with an epilogue

Serves = Callable[[Node, list[Spec]], bool]


def fuse_epilogues(part: Partition, segments: list[Segment], serves: Serves) -> Partition:
    """The partition with one node in place of each product or convolution, its bias and its relu.

    Only where no other node uses the values between them, all are of one segment and one device,
    and `serves` says that a kernel better than the plain one computes the new node, given the specs
    of its inputs. Rounding may change.
    """
    consumers, segment_of = value_consumers(part), segment_by_node(segments)
    controlled = {c for node in part.nodes.values() for c in node.control}
    new: dict[str, Node] = {}
    gone: dict[str, str] = {}
    for first in part.nodes.values():
        if first.type not in EPILOGUE_OPS or first.attrs.get("first"):
            continue
        chain = [first]
        for follows in (_bias, _relu):
            node = _only_user(chain[-1], part, consumers)
            if node is None or chain[-1].name in controlled or not follows(node, chain[-1], part):
                break
            if (node.device, segment_of[node.name]) != (first.device, segment_of[first.name]):
                break
            chain.append(node)
        for fused, replaced in _fused_chain(chain):
            if serves(fused, [part.spec(ref) for ref in fused.inputs]):
                new[fused.name] = fused
                gone.update({node.name: fused.name for node in replaced[:-1]})
                break
    return replace_nodes(part, new, {}, gone)


def _only_user(node: Node, part: Partition, consumers: dict[Ref, list[str]]) -> Node | None:
    names = consumers.get(Ref(node.name), [])
    fetched = any(ref.node == node.name for ref in part.fetches)
    return part.nodes[names[0]] if len(names) == 1 and not fetched else None


def _bias(node: Node, before: Node, part: Partition) -> bool:
    """Whether `node` adds a vector along the last axis."""
    if node.type not in ("BiasAdd", "Add") or node.inputs.count(Ref(before.name)) != 1:
        return False
    if node.type == "BiasAdd" and node.inputs[0] != Ref(before.name):
        return False
    value, vector = before.specs[0], part.spec(_other_operand(node, before))
    shapes = value.shape, vector.shape, node.specs[0].shape
    if shapes[0] is None or shapes[1] is None or shapes[2] != shapes[0]:
        return False
    return len(shapes[1]) == 1 and shapes[1] == shapes[0][-1:] and None not in shapes[1]


def _relu(node: Node, before: Node, part: Partition) -> bool:
    return node.type == "Relu"


def _other_operand(node: Node, before: Node) -> Ref:
    return next(ref for ref in node.inputs if ref != Ref(before.name))


def _fused_chain(chain: list[Node]) -> Iterator[tuple[Node, list[Node]]]:
    """The node that computes the chain, and those it replaces; then without the relu."""
    first = chain[0]
    for length in range(len(chain), 1, -1):
        replaced = chain[:length]
        before = {c: None for node in replaced for c in node.control}
        fused = replaced[-1].but(
            type=EPILOGUE_OPS[first.type],
            inputs=(*first.inputs, _other_operand(chain[1], first)),
            control=tuple(before),
            attrs={**first.attrs, "relu": length == 3},
            line=first.line,
        )
        yield fused, replaced
