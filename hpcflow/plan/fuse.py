"""Operations that compute element by element become one, whose values stay in registers.

Nodes of one strand with the same sizes are put side by side where nothing depends on their order,
as for tiles (`plan/tiles.py`). Those of them that have values in common become one node `Fused`;
its attribute `body` says what it computes, `text` how, as `hpcflow.native.loop` writes it, `names`
what its operations are called in the graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from hpcflow.graph.shape import is_known, size_of
from hpcflow.native import formulas
from hpcflow.native.loop import COLUMN, FULL, ONE, ROW, Body, Operand, Step, text
from hpcflow.native.words import TYPES, Lines, Value
from hpcflow.plan.alike import Items
from hpcflow.plan.ir import Node, Part, Ref
from hpcflow.plan.rewrite import topological
from hpcflow.plan.strands import Strand, home, users
from hpcflow.plan.tiles import grouped, is_loose
from hpcflow.plan.updates import Writer

MOST = 400  # operations of one kernel: compiling more takes long
ALONE = frozenset(formulas.CLOSE)  # faster by one loop even if nothing is beside them


def fuse(part: Part, strands: list[Strand], info: Callable[[Node], Any], exact: bool) -> Part:
    """The part with its elementwise nodes fused; with `exact` only what changes no bit."""
    found = _Finder(part, info, exact)
    keys = found.keys(strands)
    if not keys:
        return part
    groups: list[list[str]] = []
    orders: list[list[str]] = []
    for strand in strands:
        items = Items(part)
        for name in strand.nodes:
            items.add(part.nodes[name], [keys[name]] if name in keys else [])
        order: list[str] = []
        for item in items.items:
            order += item.first
            for names in found.groups(item.nodes) if item.key is not None else [item.nodes]:
                if len(names) > 1 or (names[0] in keys and part.nodes[names[0]].type in ALONE):
                    groups.append(names)
                    order.append(names[-1])
                else:
                    order += names
        orders.append(order)
    position = {name: i for i, name in enumerate(part.nodes)}
    inside = [pair for order in orders for pair in pairwise(order)]
    part = _replaced(part, [found.node(names) for names in groups])
    names = topological(part.nodes, position.__getitem__, inside)
    return dataclasses.replace(part, nodes={name: part.nodes[name] for name in names})


class _Finder:
    """What may be fused with what."""

    def __init__(self, part: Part, info: Callable[[Node], Any], exact: bool) -> None:
        self.part, self.info, self.exact = part, info, exact
        self.users = users(part)

    def keys(self, strands: list[Strand]) -> dict[str, tuple[Any, ...]]:
        """The nodes that may be fused, with what all of one kernel have in common."""
        others = grouped(self.part, strands, self.info, Writer(self.exact))
        where = home(strands)
        return {
            name: (node.specs[0].shape, node.device, where[name])
            for name, node in self.part.nodes.items()
            if name not in others and self.fits(node)
        }

    def fits(self, node: Node) -> bool:
        """Whether a node's values can be made element by element."""
        if formulas.find(node.type, self.exact) is None or "/cpu:" not in node.device:
            return False
        spec = node.specs[0]
        if not is_known(spec.shape) or not size_of(spec.shape) or spec.dtype.name not in TYPES:
            return False
        given = [self.part.nodes[ref.node].specs[ref.index] for ref in node.inputs]
        if not all(is_known(s.shape) and s.dtype.name in TYPES for s in given):
            return False
        if None in [way_of(s.shape, spec.shape) for s in given]:
            return False
        values = [Value(f"%x{i}", TYPES[s.dtype.name]) for i, s in enumerate(given)]
        made = formulas.written(Lines(), node.type, values, node.attrs, self.exact)
        return made is not None and made.type == TYPES[spec.dtype.name]

    def groups(self, names: Sequence[str]) -> Iterator[list[str]]:
        """Nodes of one size, side by side, as those that one kernel can make."""
        for alike in self._with_one_split(names):
            yield from _connected(self.part, alike)

    def _with_one_split(self, names: Sequence[str]) -> Iterator[list[str]]:
        """Runs of nodes whose operands repeat along the same axes."""
        run: list[str] = []
        at: int | None = None
        for name in names:
            split = self.split([name])
            other = split == -1 or (None not in (at, split) and at != split)
            if run and (other or len(run) == MOST):
                yield run
                run, at = [], None
            run.append(name)
            at = split if at is None else at
        yield run

    def split(self, names: Sequence[str]) -> int | None:
        """How many axes are rows, None if it does not matter, -1 if it is not the same for all."""
        found = set()
        for name in names:
            node = self.part.nodes[name]
            for ref in node.inputs:
                shape = self.part.nodes[ref.node].specs[ref.index].shape
                way = way_of(shape, node.specs[0].shape)
                assert way is not None
                if way[0] in (ROW, COLUMN):
                    found.add(way[1])
        return None if not found else found.pop() if len(found) == 1 else -1

    def node(self, names: list[str]) -> tuple[Node, list[str], dict[Ref, Ref]]:
        """The node that does what these do, they, and where their values are then."""
        nodes, mine = [self.part.nodes[name] for name in names], set(names)
        inputs = list(dict.fromkeys(r for n in nodes for r in n.inputs if r.node not in mine))
        shape = nodes[0].specs[0].shape
        number = {ref: i for i, ref in enumerate(inputs)}
        steps = []
        for i, node in enumerate(nodes):
            steps.append(Step(node.type, tuple(number[r] for r in node.inputs), node.attrs))
            number[Ref(node.name)] = len(inputs) + i
        kept = [Ref(n.name) for n in nodes if self.leaves(Ref(n.name), mine)]
        operands = []
        for ref in inputs:
            spec = self.part.nodes[ref.node].specs[ref.index]
            way = way_of(spec.shape, shape)
            assert way is not None
            operands.append(Operand(spec.dtype, way[0]))
        split = self.split(names)
        body = Body(
            tuple(operands),
            tuple(steps),
            tuple(number[ref] for ref in kept),
            0 if split is None else split,
        )
        written = text(body, self.exact)
        assert written is not None
        attrs = {
            "body": body,
            "names": tuple(names),
            "text": written,
            "loose": tuple(
                i for i, ref in enumerate(inputs) if is_loose(self.part, ref, self.info)
            ),
            "inplace": tuple(i for i, o in enumerate(operands) if o.way == FULL),
        }
        last = nodes[-1]
        control = dict.fromkeys(c for n in nodes for c in n.control if c not in mine)
        specs = tuple(self.part.nodes[ref.node].specs[0] for ref in kept)
        fused = last.but(
            type="Fused", inputs=tuple(inputs), control=tuple(control), attrs=attrs, specs=specs
        )
        return fused, names, {ref: Ref(last.name, k) for k, ref in enumerate(kept)}

    def leaves(self, ref: Ref, mine: set[str]) -> bool:
        """Whether somebody else needs a value."""
        return ref in self.part.fetches or not mine.issuperset(self.users.get(ref, ()))


def way_of(shape: Any, whole: Any) -> tuple[str, int] | None:
    """How an operand's elements go with those of `whole`, and how many axes are its rows then.

    None: in another way than by rows and columns.
    """
    if size_of(shape) == 1:
        return ONE, 0
    if shape == whole:
        return FULL, 0
    padded = (1,) * (len(whole) - len(shape)) + tuple(shape)
    for k in range(1, len(whole)):
        if size_of(padded[:k]) == 1 and padded[k:] == whole[k:]:
            return ROW, k
        if padded[:k] == whole[:k] and size_of(padded[k:]) == 1:
            return COLUMN, k
    return None


def _connected(part: Part, names: Sequence[str]) -> Iterator[list[str]]:
    """The names in groups, each of nodes that values lead from one to the other."""
    group = {name: {name} for name in names}
    owner: dict[Ref, str] = {Ref(name): name for name in names}
    for name in names:
        for ref in part.nodes[name].inputs:
            mate = owner.setdefault(ref, name)
            if group[mate] is not group[name]:
                group[mate] |= group[name]
                for other in group[name]:
                    group[other] = group[mate]
    done: set[str] = set()
    for name in names:
        if name not in done:
            done |= group[name]
            yield [other for other in names if other in group[name]]


def _replaced(part: Part, made: Sequence[tuple[Node, list[str], dict[Ref, Ref]]]) -> Part:
    """The part with nodes in place of others."""
    values = {old: new for _, _, moved in made for old, new in moved.items()}
    instead = {name: node.name for node, names, _ in made for name in names}
    new = {node.name: node for node, _, _ in made}
    nodes = {}
    for name, old in part.nodes.items():
        if instead.get(name, name) == name:
            node = new.get(name, old)
            inputs = tuple(values.get(ref, ref) for ref in node.inputs)
            control = dict.fromkeys(instead.get(c, c) for c in node.control)
            nodes[name] = node.but(inputs=inputs, control=tuple(control))
    fetches = tuple(values.get(ref, ref) for ref in part.fetches)
    return dataclasses.replace(part, nodes=nodes, fetches=fetches)
