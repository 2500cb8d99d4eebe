"""A pass of one's own: `a + (-b)` becomes `a - b`, the same bits from one operation fewer.

python examples/own_pass.py
hpcflow plan --diff subtractions examples/own_pass.py
"""

from __future__ import annotations

import numpy as np

import hpcflow as hf
from hpcflow.plan.ir.program import Node, Program


def subtractions(program: Program) -> Program:
    """Subtract instead of adding what is negated."""
    nodes = dict(program.nodes)
    for node in program.nodes.values():
        if node.type == "Add":
            nodes[node.name] = subtraction(node, program)
    return program.but(nodes=nodes)


def subtraction(add: Node, program: Program) -> Node:
    """The node in place of `add`; the Neg stays, and is removed if nobody uses it."""
    a, b = add.inputs
    negative = program.nodes[b.node]
    if negative.type != "Neg" or negative.control:
        return add
    return add.but(type="Sub", inputs=(a, negative.inputs[0]))


hf.register_pass(subtractions, before="common_subexpression_elimination")


def main() -> None:
    """Fit a line by steps that are written with a negative rate."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(64, 3)).astype("f4")
    x = hf.placeholder(hf.float32, [None, 3], name="x")
    y = hf.placeholder(hf.float32, [None, 1], name="y")
    w = hf.Variable(np.zeros((3, 1), "f4"), name="w")
    error = hf.matmul(x, w) + (-y)
    loss = hf.reduce_mean(hf.square(error))
    train = hf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        feeds = {x: points, y: points @ np.array([[1], [-2], [3]], "f4")}
        for _ in range(60):
            last = session.run([loss, train], feeds)[0]
        print(f"loss {last:.1e}, weights {session.run(w).ravel().round(2)}")


if __name__ == "__main__":
    main()
