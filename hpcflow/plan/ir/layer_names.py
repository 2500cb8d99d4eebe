"""Layer names: the phase of each node of a program, and the scope of its layer.

The names of gradients and updates contain the scope of the forward operations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hpcflow.plan.ir.program import Node, Partition, Program

FORWARD, BACKWARD, UPDATE = range(3)
GRADIENTS = re.compile(r"(?:.*?/)?gradients(?:_\d+)?/(.+)")  # the scope that hf.gradients makes


class LayerNames:
    """Finds the layer of each node of a program; the nodes are asked in their order."""

    def __init__(self, part: Partition | Program) -> None:
        self.part, self.optimizers = part, _optimizer_scopes(part)
        self.layers: dict[str, tuple[str, ...]] = {}

    def of(self, node: Node) -> tuple[int, tuple[str, ...], tuple[str, ...], str]:
        """Return the phase, the layer's scope, the scope of a gradient function, and the name."""
        phase, rest = _phase_and_name(node.name, self.optimizers)
        *scope, name = rest.split("/")
        end = next((i for i, each in enumerate(scope) if each.endswith("_grad")), len(scope))
        layer, inside = tuple(scope[:end]), tuple(scope[end:])
        if phase == BACKWARD and inside:
            forward = "/".join((*layer, inside[0].removesuffix("_grad")))
            layer = self.layers.get(forward, layer)
        elif not layer and phase == FORWARD:
            layer = self._layer_of_variables(node)
        elif not layer:  # a sum of gradients: that of the input nearest to the layer
            layer = self._first_layer([ref.node for ref in reversed(node.inputs)])
        self.layers[node.name] = layer
        return phase, layer, inside, name

    def _first_layer(self, names: Iterable[str]) -> tuple[str, ...]:
        return next((self.layers[name] for name in names if self.layers.get(name)), ())

    def _layer_of_variables(self, node: Node) -> tuple[str, ...]:
        """Return the scope of the first variable that an operation without a scope takes."""
        for ref in node.inputs:
            if self.part.nodes[ref.node].row.variable == "read":
                return self.layers[ref.node][:-1]  # the last component is the variable's
        return ()


def _optimizer_scopes(part: Partition | Program) -> set[str]:
    """Return scopes such as `Adam`: of operations `Adam/VARIABLE/...` that update the variable."""
    scopes = set()
    for node in part.nodes.values():
        for i in node.row.writes:
            before, found, _ = node.name.partition(f"/{node.inputs[i].node}/")
            if found:
                scopes.add(before)
    return scopes


def _phase_and_name(name: str, optimizers: set[str]) -> tuple[int, str]:
    """Return the phase of an operation, and its name without the scope of the phase."""
    if found := GRADIENTS.fullmatch(name):
        return BACKWARD, found[1]
    at = name.find("/")
    while at > 0:
        if name[:at] in optimizers:
            return UPDATE, name[at + 1 :]
        at = name.find("/", at + 1)
    return FORWARD, name
