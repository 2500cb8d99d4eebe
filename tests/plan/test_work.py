"""Operations and bytes of ops, against counts by hand and by a loop that counts as it computes."""

from __future__ import annotations

import math

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.graph.op_registry import all_ops, lookup_op
from hpcflow.graph.static_shape import Spec
from hpcflow.plan.cost.op_flops_and_bytes import NodeCost, cost_input_specs, matmul_size, node_cost
from hpcflow.plan.ir.program import Node

F4, I8 = np.dtype("f4"), np.dtype("i8")


def spec(*shape, dtype=F4):
    return Spec(dtype, shape)


def node(type, *outs, **attrs):
    return Node("n", type, attrs=attrs, specs=outs)


def test_a_row_says_one_thing_of_its_flops():
    assert [row.name for row in all_ops().values() if row.work and row.flops] == []
    assert sum(bool(row.work) for row in all_ops().values()) > 60


def test_every_product_and_convolution_has_a_row():
    heavy = [name for name in all_ops() if name.startswith(("MatMul", "Conv"))]
    assert len(heavy) > 3 and [name for name in heavy if not all_ops()[name].contraction] == []


@pytest.mark.parametrize(
    ("made", "inputs", "flops", "nbytes"),
    [
        # 15 outputs, each of 7 products and 7 sums; 35, 21 and 15 floats
        (node("MatMul", spec(5, 3)), [spec(5, 7), spec(7, 3)], 210, 4 * 71),
        (node("MatMul", spec(5, 3), transpose_a=True), [spec(7, 5), spec(7, 3)], 210, 4 * 71),
        (node("MatMul", spec(2, 5, 3)), [spec(2, 5, 7), spec(7, 3)], 420, 4 * (70 + 21 + 30)),
        (node("Add", spec(4, 6)), [spec(4, 6), spec(6)], 24, 4 * (24 + 6 + 24)),
        (node("Sum", spec(4)), [spec(4, 6)], 24, 4 * 28),
        (node("AddN", spec(10)), [spec(10)] * 3, 20, 4 * 40),
        (node("Softmax", spec(2, 3)), [spec(2, 3)], 30, 4 * 12),
        # a window of 9 for each of 2 x 4 x 4 x 5 outputs
        (node("MaxPool", spec(2, 4, 4, 5), window=(3, 3)), [spec(2, 8, 8, 5)], 1440, 4 * 800),
        (node("Transpose", spec(3, 2)), [spec(2, 3)], 0, 4 * 12),
        (node("Reshape", spec(6)), [spec(2, 3)], 0, 0),
        # 5 rows of a table of a million are read and written
        (node("Gather", spec(5, 8)), [spec(10**6, 8), spec(5, dtype=I8)], 0, 4 * 80 + 40),
        (node("Fft", spec(2, 8, dtype=np.dtype("c8")), rank=1), [spec(2, 8)], 240, 64 + 128),
        (node("Cholesky", spec(2, 6, 6)), [spec(2, 6, 6)], 144, 4 * 144),
        (node("MatrixTriangularSolve", spec(4, 2)), [spec(4, 4), spec(4, 2)], 32, 4 * 32),
        (node("Einsum", spec(3, 5), equation="ik,jk->ij"), [spec(3, 4), spec(5, 4)], 120, 4 * 47),
        (node("Einsum", spec(3, 5), equation="i,j->ij"), [spec(3), spec(5)], 15, 4 * 23),
    ],
)
def test_counts_by_hand(made, inputs, flops, nbytes):
    assert node_cost(made, inputs) == NodeCost(flops, nbytes)


def test_updates_read_and_write_their_variables():
    handles = [spec(10), spec(10), spec(10), spec(dtype=I8)]  # var, m, v and the count
    scalars = [spec()] * 4
    made = Node("n", "ApplyAdam", attrs={"dtype": F4, "shape": (10,)})
    assert node_cost(made, [*handles, *scalars, spec(10)]) == NodeCost(120, 2 * (120 + 8) + 16 + 40)
    assign = Node("n", "Assign", attrs={"dtype": F4, "shape": (10,)})
    assert node_cost(assign, [spec(10), spec(10)]) == NodeCost(0, 80)
    added = Node("n", "AssignAdd", attrs={"dtype": F4, "shape": (10,)})
    assert node_cost(added, [spec(10), spec(10)]) == NodeCost(10, 120)
    rows = Node("n", "ScatterAdd", attrs={"dtype": F4, "shape": (10**6, 8)})
    inputs = [spec(10**6, 8), spec(3, dtype=I8), spec(3, 8)]
    assert node_cost(rows, inputs) == NodeCost(24, 24 + 3 * 96)
    written = Node("n", "ScatterUpdate", attrs={"dtype": F4, "shape": (10**6, 8)})
    assert node_cost(written, inputs) == NodeCost(0, 24 + 2 * 96)


def counted_convolution(n, k, outs, stride, dilation, before):
    """Products along one axis of windows with elements that are there, as a loop meets them."""
    places = (o * stride + t * dilation - before for o in range(outs) for t in range(k))
    return sum(0 <= place < n for place in places)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation", "padding", "outs", "before"),
    [
        (9, 3, 1, 1, "SAME", 9, 1),
        (9, 3, 2, 1, "SAME", 5, 1),
        (8, 3, 2, 1, "SAME", 4, 0),
        (9, 3, 2, 2, "VALID", 3, 0),
        (6, 5, 1, 1, ((3, 1), (3, 1)), 6, 3),
        (4, 1, 3, 1, ((2, 2), (2, 2)), 3, 2),
    ],
)
def test_convolutions_in_three_directions(
    size, kernel, stride, dilation, padding, outs, before, first
):
    def image(channels, n):
        return spec(2, channels, n, n) if first else spec(2, n, n, channels)

    # two groups: filters of 3 of 6 channels each
    sizes = {"x": image(6, size), "w": spec(kernel, kernel, 3, 8), "y": image(8, outs)}
    attrs = {"strides": (stride,) * 2, "dilations": (dilation,) * 2, "padding": padding}
    attrs |= {"first": first, "groups": 2}
    each = counted_convolution(size, kernel, outs, stride, dilation, before)
    flops = 2 * 2 * 3 * 8 * each**2
    nbytes = 4 * sum(math.prod(one.shape) for one in sizes.values())
    for type, inputs, out in [
        ("Conv", "xw", "y"),
        ("ConvInputGrad", "yw", "x"),
        ("ConvFilterGrad", "xy", "w"),
    ]:
        made = node(type, sizes[out], **attrs)
        assert node_cost(made, [sizes[i] for i in inputs]) == NodeCost(flops, nbytes)
    assert lookup_op("Conv").infer([sizes["x"], sizes["w"]], attrs)[0].shape == sizes["y"].shape


@pytest.mark.parametrize(
    ("made", "inputs", "expected"),
    [
        (node("MatMul", spec(5, 3)), [spec(5, 7), spec(7, 3)], (1, 5, 7, 3)),
        (node("MatMul", spec(5, 3), transpose_a=True), [spec(7, 5), spec(7, 3)], (1, 5, 7, 3)),
        (node("MatMul", spec(2, 4, 5, 3)), [spec(2, 4, 5, 7), spec(7, 3)], (8, 5, 7, 3)),
        (node("MatMul", spec(5, 3)), [spec(5, None), spec(None, 3)], None),
        (node("Add", spec(5, 3)), [spec(5, 3)] * 2, None),
        # filters of 2 x 2 of 3 of 6 channels, 8 of them, at 4 x 5 places of 7 images
        (node("Conv", spec(7, 4, 5, 8), groups=2, first=False),
         [spec(7, 5, 6, 6), spec(2, 2, 3, 8)],
         (2, 140, 12, 4)),
        (node("ConvInputGrad", spec(7, 5, 6, 6), groups=2, first=False),
         [spec(7, 4, 5, 8), spec(2, 2, 3, 8)],
         (2, 140, 4, 12)),
        (node("ConvFilterGrad", spec(2, 2, 3, 8), groups=2, first=True),
         [spec(7, 6, 5, 6), spec(7, 8, 4, 5)], (2, 12, 140, 4)),
    ],
)  # fmt: skip
def test_what_is_multiplied(made, inputs, expected):
    assert matmul_size(made, inputs) == expected


def test_what_only_the_step_knows_is_not_guessed():
    assert node_cost(node("Neg", spec(None)), [spec(None)]) is None
    assert node_cost(node("Einsum", spec(2, 2), equation="a...,...b->ab"), [spec(2, 2)] * 2) is None


def test_a_step_of_a_graph_has_the_work_of_its_ops():
    with hf.Graph().as_default(), hf.Session() as session:
        x = hf.placeholder(hf.float32, [4, 6])
        v = hf.Variable(np.ones((6, 8), np.float32), name="v")
        train = hf.train.AdamOptimizer(0.1).minimize(hf.reduce_sum(hf.matmul(x, v)))
        plan = session.plan(train, {x: np.ones((4, 6), np.float32)})
    (part,) = plan.parts.values()
    found = {n.type: node_cost(n, cost_input_specs(n, part)) for n in part.nodes.values()}
    products = [
        node_cost(n, cost_input_specs(n, part)) for n in part.nodes.values() if n.type == "MatMul"
    ]
    assert products and all(w is not None and w.flops == 2 * 4 * 6 * 8 for w in products)
    updates = [n for n in part.nodes.values() if n.row.writes]
    assert updates and all(node_cost(n, cost_input_specs(n, part)) is not None for n in updates)
    assert all(w is not None for w in found.values()), found
