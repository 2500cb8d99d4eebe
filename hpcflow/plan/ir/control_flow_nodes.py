"""Control-flow nodes: loops and branches of the graph as nodes that hold programs.

A *Loop* node has attrs `cond` and `body` (programs), a *Branch* node `then` and `else`. Its slots
are the loop variables, followed by the captures of the programs. `cond_feeds`, `body_feeds`,
`then_feeds` and `else_feeds` give the slot of each feed of a program. The inputs of a Loop are its
slots without the last `empty` loop variables, which begin as empty lists. The inputs of a Branch
are the predicate and the slots. `made` holds dtypes and shapes of the outputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from hpcflow.graph.dtypes import resource
from hpcflow.graph.function_body import (
    Function,
    captured_tensors,
    live_loop_variables,
    used_functions,
)
from hpcflow.graph.graph import Operation, Tensor
from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.static_shape import Spec, common_spec, merge_shapes
from hpcflow.plan.ir.program import Node, Partition, Program, Ref

PROGRAMS = ("cond", "body", "then", "else")
TRIPS = "trips"  # the attr of a Loop with its number of iterations, if it is known


def nested_programs(node: Node) -> Iterator[tuple[str, Program | Partition]]:
    """Yield the programs that a node holds with their keys; after partitioning, the partitions."""
    if node.row.control_flow:
        for key in PROGRAMS:
            if key in node.attrs:
                yield key, node.attrs[key]


def passes_of(node: Node, key: str) -> int:
    """How often a node runs the program `key` that it holds; once where that is unknown."""
    trips = node.attrs.get(TRIPS, 1)
    return trips + (key == "cond") if node.row.control_flow == "loop" else 1


def runs_of(node: Node, costs: Mapping[str, float]) -> dict[str, int]:
    """How often a loop or branch runs each of its programs, which have `costs` by key.

    A loop runs its programs as often as the plan knows, else once. A branch counts as one run of
    the program that costs most.
    """
    if node.row.control_flow == "loop":
        return {key: passes_of(node, key) for key in costs}
    return {max(costs, key=costs.__getitem__): 1} if costs else {}


def map_nested_programs(program: Program, change: Callable[[Program], Program]) -> Program:
    """Return `program` with `change` applied to the programs that its nodes hold."""
    nodes = {
        name: node.but(attrs={**node.attrs, **{k: change(p) for k, p in nested_programs(node)}})  # type: ignore[arg-type]
        if node.row.control_flow
        else node
        for name, node in program.nodes.items()
    }
    return program.but(nodes=nodes)


def node_with_nested(node: Node) -> Iterator[Node]:
    """Yield a node and all nodes in the programs that it holds, at any depth."""
    yield node
    yield from nested_nodes({node.name: node})


def nested_nodes(nodes: Mapping[str, Node]) -> Iterator[Node]:
    """Yield all nodes in the programs that `nodes` hold, at any depth."""
    for node in nodes.values():
        for _, program in nested_programs(node):
            yield from program.nodes.values()
            yield from nested_nodes(program.nodes)


# -- from functions to programs


Build = Callable[[Function, Mapping[Tensor, Spec], Sequence[Tensor]], Program]


@dataclasses.dataclass
class FramedNode:
    """A node built from an If or While, and the indices of the outputs that it has."""

    node: Node
    outputs: list[int]


_Frame = tuple[str, tuple[Ref, ...], dict, list[int], tuple[Spec, ...]]


class FrameBuilder:
    """Builds Loop and Branch nodes; `build` builds the program of a function.

    `spec` and `ref` give the spec and the reference of an outer tensor.
    """

    def __init__(
        self, build: Build, spec: Callable[[Tensor], Spec], ref: Callable[[Tensor], Ref]
    ) -> None:
        self.build, self.spec, self.ref = build, spec, ref

    def frame(self, op: Operation, used_outputs: set[int], control: tuple[str, ...]) -> FramedNode:
        """Return the node for `op`, with only the outputs in `used_outputs`."""
        is_loop = lookup_op(op.type).control_flow == "loop"
        frame_node = self._loop(op, used_outputs) if is_loop else self._branch(op, used_outputs)
        kind, inputs, attrs, outputs, specs = frame_node
        node = Node(
            op.name, kind, inputs, control, attrs, specs, op.device, op.colocate, line=op.line
        )
        return FramedNode(node, outputs)

    def _loop(self, op: Operation, used_outputs: set[int]) -> _Frame:
        test, step = op.attrs["cond"], op.attrs["body"]
        begin = len(step.params) - op.attrs["lists"]
        living = live_loop_variables(op, used_outputs)
        inits = {i: op.inputs[i] for i in living if i < begin}
        capture_specs = {
            o: Spec(*self.spec(o))
            for f, r in used_functions(op, used_outputs)
            for o in captured_tensors(f, r)
        }
        specs = {i: step.params[i].spec._replace(elements=()) for i in living}
        for i, init in inits.items():
            first = self.spec(init)
            shape = merge_shapes(first.shape, step.params[i].shape)
            specs[i] = Spec(init.dtype, shape, elements=first.elements)
        results = [step.results[i] for i in living]
        while True:  # repeat: what differs between iterations becomes unknown
            param_specs = {step.params[i]: s for i, s in specs.items()}
            body = self.build(step, {**param_specs, **_captured(step, capture_specs)}, results)
            ends = [body.spec(ref) for ref in body.fetches]
            wider = {i: common_spec(s, e) for (i, s), e in zip(specs.items(), ends, strict=True)}
            if wider == specs:
                break
            specs = wider
        param_specs = {p: specs[i] for i, p in enumerate(test.params) if i in specs}
        cond = self.build(test, {**param_specs, **_captured(test, capture_specs)}, test.results)
        slots: dict[Tensor, int] = {step.params[i]: k for k, i in enumerate(living)}
        slots.update(
            {p: k for k, i in enumerate(living) if i < len(test.params) for p in [test.params[i]]}
        )
        outside = self._captured_inputs([(test, cond), (step, body)], slots, len(living))
        attrs = {
            "cond": cond,
            "cond_feeds": _positions(cond, slots),
            "body": body,
            "body_feeds": _positions(body, slots),
            "empty": len(living) - len(inits),
            "made": tuple((s.dtype, s.shape) for s in specs.values()),
        }
        refs = (*(self.ref(t) for t in inits.values()), *(self.ref(t) for t in outside))
        return "Loop", refs, attrs, living, tuple(specs.values())

    def _branch(self, op: Operation, used_outputs: set[int]) -> _Frame:
        outputs = sorted(used_outputs)
        slots: dict[Tensor, int] = {}
        built: list[tuple[Function, Program]] = []
        for side in ("then", "else"):
            f = op.attrs[side]
            capture_specs = {o: Spec(*self.spec(o)) for o in captured_tensors(f, outputs)}
            results = [f.results[i] for i in outputs]
            built.append((f, self.build(f, _captured(f, capture_specs), results)))
        outside = self._captured_inputs(built, slots, 0)
        (_, then), (_, orelse) = built
        ends = zip(then.fetches, orelse.fetches, strict=True)
        specs = tuple(common_spec(then.spec(a), orelse.spec(b)) for a, b in ends)
        attrs = {
            "then": then,
            "then_feeds": _positions(then, slots),
            "else": orelse,
            "else_feeds": _positions(orelse, slots),
            "made": tuple((s.dtype, s.shape) for s in specs),
        }
        return "Branch", (self.ref(op.inputs[0]), *map(self.ref, outside)), attrs, outputs, specs

    def _captured_inputs(
        self, built: Sequence[tuple[Function, Program]], slots: dict[Tensor, int], first: int
    ) -> list[Tensor]:
        """Return the outer tensors that the programs capture, each once.

        The slots of their parameters are added to `slots`.
        """
        input_index: dict[Tensor, int] = {}
        for f, program in built:
            for outer, param in f.captures:
                if param.op.name in program.feeds:
                    slots[param] = input_index.setdefault(outer, first + len(input_index))
        return list(input_index)


def _captured(f: Function, capture_specs: Mapping[Tensor, Spec]) -> dict[Tensor, Spec]:
    pairs = [(o, p) for o, p in f.captures if o in capture_specs and o.dtype != resource]
    return {param: capture_specs[outer] for outer, param in pairs}


def _positions(program: Program, slots: Mapping[Tensor, int]) -> tuple[int, ...]:
    by_name = {param.op.name: slot for param, slot in slots.items()}
    return tuple(by_name[name] for name in program.feeds)
