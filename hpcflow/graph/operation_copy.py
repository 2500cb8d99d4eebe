"""Copies of operations in their graph with other inputs; loops and branches with their bodies."""

from __future__ import annotations

from typing import Any

from hpcflow.errors import GraphError
from hpcflow.graph.function_body import Function, FunctionBody
from hpcflow.graph.graph import Graph, Operation, Tensor


class OperationCopier:
    """Copies operations in order of creation; what has no copy is shared.

    `tensors` and `operations` map what is replaced to what replaces it.
    """

    def __init__(self) -> None:
        self.tensors: dict[Tensor, Tensor] = {}
        self.operations: dict[Operation, Operation] = {}

    def replace(self, t: Tensor, by: Tensor) -> None:
        """Let copies take `by` in place of `t`, and run after its operation."""
        self.tensors[t], self.operations[t.op] = by, by.op

    def copy(self, op: Operation) -> None:
        """Copy an operation: name, attributes and placement are those of `op`.

        Errors: GraphError for a part of a gradient of a loop or a branch.
        """
        if "extends" in op.attrs or "of" in op.attrs:
            raise GraphError(
                f"{op.name!r} is part of a gradient of a loop or a branch: it cannot be copied",
                op=op.name,
                line=op.line,
            )
        self._copy(op, op.graph, op.name)

    def _copy(self, op: Operation, graph: Graph, name: str) -> None:
        """Copy `op` into `graph`, the default one: its own, or the copy of its body."""
        after = [self.operations.get(c, c) for c in op.control_inputs]
        with graph.control_dependencies(None), graph.control_dependencies(after), graph.beside(op):
            copied: dict[FunctionBody, FunctionBody] = {}
            attrs: dict[str, Any] = {
                key: self._function(value, graph, copied) if isinstance(value, Function) else value
                for key, value in op.attrs.items()
            }
            inputs = [self.tensors.get(t, t) for t in op.inputs]
            made = graph.create_op(op.type, inputs, attrs, name)
        self.operations[op] = made
        for old, new in zip(op.outputs, made.outputs, strict=True):
            new.set_shape(old.shape)
            self.tensors[old] = new

    def _function(
        self, f: Function, outer: Graph, copied: dict[FunctionBody, FunctionBody]
    ) -> Function:
        """A function with a body of its own; functions of one operation may share a body."""
        if f.body not in copied:
            copied[f.body] = self._body(f.body, outer)
        tensors, operations = self.tensors, self.operations
        return Function(
            copied[f.body],
            tuple(tensors[t] for t in f.params),
            tuple((tensors.get(outside, outside), tensors[p]) for outside, p in f.captures),
            tuple(tensors[t] for t in f.results),
            tuple(operations[t] for t in f.targets),
        )

    def _body(self, body: FunctionBody, outer: Graph) -> FunctionBody:
        copy = FunctionBody(outer, body.prefix[:-1])
        for op in body.get_operations():
            with copy.inside():
                self._copy(op, copy, op.name.removeprefix(body.prefix))
            for t in op.outputs:
                outside = body.origin(t)
                if outside is not None:
                    copy.capture(self.tensors.get(outside, outside), self.tensors[t])
        return copy
