"""Identity elimination: removes NoOps and nodes whose outputs equal their inputs."""

from __future__ import annotations

from hpcflow.plan.ir.program import Node, Program, has_runtime_shape
from hpcflow.plan.ir.program_rewriting import bypass_nodes, substitute_values

NOOP_EDGES = 256  # a NoOp stays if its removal would add more control edges than this


def eliminate_identities(program: Program) -> Program:
    """Remove nodes whose outputs equal their inputs.

    A node with a device, a colocation or control inputs stays.
    """
    program = drop_gradient_rules(program)
    return bypass_nodes(
        program, [n.name for n in program.nodes.values() if _is_identity(n, program)]
    )


def drop_gradient_rules(program: Program) -> Program:
    """Replace CustomGradient with IdentityN, which any rank can run.

    The gradients exist already, so the custom gradient function is not needed any more.
    """
    nodes = {
        n.name: n.but(type="IdentityN", inputs=n.inputs[: n.attrs["outputs"]], attrs={})
        for n in program.nodes.values()
        if n.type == "CustomGradient"
    }
    return program.but(nodes={**program.nodes, **nodes})


def _is_identity(node: Node, program: Program) -> bool:
    if node.control or node.device or node.colocate:
        return False
    if node.row.identity == "always":
        return True
    if node.row.identity != "if_specs_equal" or has_runtime_shape(node, program.spec):
        return False
    input_spec, output_spec = program.spec(node.inputs[0]), node.specs[0]
    return output_spec.known and input_spec[:2] == output_spec[:2]


def eliminate_noops(program: Program) -> Program:
    """Remove NoOps: their successors follow their predecessors.

    A NoOp with a device or a colocation stays.
    """
    followers = dict.fromkeys(program.nodes, 0)
    for node in program.nodes.values():
        for before in node.control:
            followers[before] += 1
    gone = {
        n.name: n.control
        for n in program.nodes.values()
        if n.row.order_only
        and not (n.device or n.colocate)
        and len(n.control) * followers[n.name] <= NOOP_EDGES
    }
    return substitute_values(program, {}, gone)
