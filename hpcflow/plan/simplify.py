"""Third pass: fewer nodes that compute the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hpcflow.graph.shape import Spec
from hpcflow.plan.attrs import canonical
from hpcflow.plan.ir import Node, Program, Ref, shape_is_told
from hpcflow.plan.nested import whole
from hpcflow.plan.rewrite import bypass, constant, live, substitute

Evaluate = Callable[[Node, Sequence[Any]], Sequence[Any]]
FOLDED_BYTES = 1 << 16  # a folded constant is kept in the plan: no more than this
MADE_BYTES = 1 << 10  # what has no inputs (Fill) is cheap to make: only small ones are kept
NOOP_EDGES = 256  # a NoOp is dropped unless that makes more control edges than this
ALWAYS_SAME = ("Identity", "IdentityN", "StopGradient", "PlaceholderWithDefault")
SAME_IF_SPECS_ARE = ("Reshape", "SumToShape", "BroadcastTo", "Squeeze", "Cast")


def simplify(
    program: Program, evaluate: Evaluate | None = None, fold_floats: bool = True
) -> Program:
    """The same values and effects from fewer nodes.

    `evaluate` computes pure nodes of constants; `fold_floats=False` leaves floats to the device
    that would have computed them, to the last bit.
    """
    for_values = [name for name in _used(program) if _only_reads(program.nodes[name])]
    program = drop_identities(program)
    program = known_values(program)
    if evaluate is not None:
        program = fold(live(program), evaluate, fold_floats)
    program = drop_reads(live(program), for_values)
    return live(drop_noops(merge_equal(program)))


def drop_identities(program: Program) -> Program:
    """Without nodes whose outputs are their inputs; those with wishes or control inputs stay."""
    program = without_rules(program)
    return bypass(program, [n.name for n in program.nodes.values() if _is_identity(n, program)])


def without_rules(program: Program) -> Program:
    """Gradients are made: what has one of its own is a plain identity, which any rank may run."""
    nodes = {
        n.name: n.but(type="IdentityN", inputs=n.inputs[: n.attrs["outputs"]], attrs={})
        for n in program.nodes.values()
        if n.type == "CustomGradient"
    }
    return program.but(nodes={**program.nodes, **nodes})


def _is_identity(node: Node, program: Program) -> bool:
    if node.control or node.device or node.colocate:
        return False
    if node.type in ALWAYS_SAME:
        return True
    if node.type not in SAME_IF_SPECS_ARE or shape_is_told(node, program.spec):
        return False
    given, made = program.spec(node.inputs[0]), node.specs[0]
    return made.known and given[:2] == made[:2]


def known_values(program: Program) -> Program:
    """Constants in place of nodes whose value the shapes already told.

    Not behind an update or a collective: nobody else may need it, and what shapes are known differs
    from run to run and from replica to replica.
    """
    kept = _anchors(program) | _behind_effects(program)
    nodes = dict(program.nodes)
    for node in program.nodes.values():
        if node.type != "Const" and _may_fold(node, kept) and len(node.specs) == 1:
            value = node.specs[0].value
            if value is not None:
                nodes[node.name] = constant(node, value)
    return program.but(nodes=nodes)


def fold(program: Program, evaluate: Evaluate, floats: bool = True) -> Program:
    """Constants in place of pure nodes that have only constants as inputs, if they are small."""
    anchors = _anchors(program)
    known: dict[Ref, np.ndarray] = {}
    nodes: dict[str, Node] = {}
    values: dict[Ref, Ref] = {}
    for node in program.nodes.values():
        if node.type == "Const" and not node.control:
            known[Ref(node.name)] = node.attrs["value"]
        ready = node.type != "Const" and all(ref in known for ref in node.inputs)
        if not (ready and _may_fold(node, anchors) and _small(node, floats)):
            nodes[node.name] = node
            continue
        with np.errstate(all="ignore"):  # as in a run: NaN and infinity are values
            arrays = evaluate(node, [known[ref] for ref in node.inputs])
        for i, array in enumerate(arrays):
            name = node.name if len(node.specs) == 1 else f"{node.name}/folded_{i}"
            made = constant(node.but(name=name), np.asarray(array))
            nodes[name], known[Ref(node.name, i)] = made, made.attrs["value"]
            if name != node.name:
                values[Ref(node.name, i)] = Ref(name)
    return substitute(program.but(nodes=nodes), values)


def _anchors(program: Program) -> set[str]:
    """Nodes that others follow by name: their order counts, not only their value."""
    return {*program.targets, *(c for node in program.nodes.values() for c in node.control)}


def _behind_effects(program: Program) -> set[str]:
    """Updates and collectives, and all nodes that follow one, however remotely."""
    found: set[str] = set()
    for node in program.nodes.values():
        acts = any(n.row.writes or n.row.collective for n in whole(node))
        if acts or not found.isdisjoint(node.before()):
            found.add(node.name)
    return found


def _may_fold(node: Node, anchors: set[str]) -> bool:
    return bool(node.row.pure and node.specs and not node.control and node.name not in anchors)


def _small(node: Node, floats: bool) -> bool:
    limit = FOLDED_BYTES if node.inputs else MADE_BYTES
    return all(
        s.known and s.nbytes <= limit and (floats or s.dtype.kind in "iub") for s in node.specs
    )


def _used(program: Program) -> set[str]:
    """The nodes of which a value is used or fetched."""
    refs = (ref for node in program.nodes.values() for ref in node.inputs)
    return {ref.node for ref in (*refs, *program.fetches)}


def _only_reads(node: Node) -> bool:
    row = node.row
    return bool(row.reads) and not (row.writes or row.stateful or row.collective or row.waits)


def drop_reads(program: Program, names: Iterable[str]) -> Program:
    """Without those reads among `names` whose value nobody uses any longer.

    Updates follow a read so that it sees the value before them. What followed such a read follows
    what the read followed, but for pure nodes and for what is there before the step.
    """
    used = _used(program) | set(program.targets)
    gone = {name for name in names if name in program.nodes and name not in used}
    order = {name: tuple(_acting(program, program.nodes[name].before())) for name in gone}
    return substitute(program, {}, order)


def _acting(program: Program, names: Iterable[str]) -> Iterator[str]:
    """The named nodes, in place of pure ones those that they follow."""
    stack, seen = list(names), set(names)
    while stack:
        node = program.nodes[stack.pop()]
        if all(n.row.pure for n in whole(node)):
            new = [b for b in dict.fromkeys(node.before()) if b not in seen]
            stack += new
            seen.update(new)
        elif node.type not in ("Feed", "Variable"):
            yield node.name


def merge_equal(program: Program) -> Program:
    """One node for all pure ones, and reads of one variable, of the same type, inputs and order.

    Reads may be merged because they have the same control inputs: what comes between them in the
    graph comes before neither.
    """
    values: dict[Ref, Ref] = {}
    order: dict[str, tuple[str, ...]] = {}
    like: dict[Hashable, Node] = {}
    seen: dict[Hashable, Node] = {}
    for node in program.nodes.values():
        if not (node.row.pure or node.type == "ReadVariable") or not node.specs:
            continue
        key = _key(node, values, order)
        other = like.setdefault(key, node)
        if other is node:
            continue
        seen.setdefault((key, _attrs(other)), other)
        first = seen.setdefault((key, _attrs(node)), node)
        if first is not node and _specs(first) == _specs(node):
            order[node.name] = (first.name,)
            values.update({Ref(node.name, i): Ref(first.name, i) for i in range(len(node.specs))})
    return substitute(program, values, order)


def _key(node: Node, values: dict[Ref, Ref], order: dict[str, tuple[str, ...]]) -> Hashable:
    """What equal nodes have in common, but for attributes: few have so much."""
    inputs = tuple([values.get(ref, ref) for ref in node.inputs])
    control = frozenset([order.get(c, (c,))[0] for c in node.control])
    return node.type, inputs, control, node.device, frozenset(node.colocate)


def _attrs(node: Node) -> Hashable:
    return tuple(sorted((k, _attr(v)) for k, v in node.attrs.items()))


def _attr(value: Any) -> Hashable:
    if isinstance(value, np.ndarray) and value.nbytes > FOLDED_BYTES:
        return "array", id(value)  # reading it all would cost more than a second copy
    return canonical(value)


def _specs(node: Node) -> list[Spec]:
    return [Spec(s.dtype, s.shape) for s in node.specs]


def drop_noops(program: Program) -> Program:
    """Without NoOps: what follows one follows what it follows. Those with a wish stay."""
    followers = dict.fromkeys(program.nodes, 0)
    for node in program.nodes.values():
        for before in node.control:
            followers[before] += 1
    gone = {
        n.name: n.control
        for n in program.nodes.values()
        if n.type == "NoOp"
        and not (n.device or n.colocate)
        and len(n.control) * followers[n.name] <= NOOP_EDGES
    }
    return substitute(program, {}, gone)
