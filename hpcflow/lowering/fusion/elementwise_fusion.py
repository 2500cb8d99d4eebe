"""Fusion of elementwise and row-wise operations into one node `Fused`.

Nodes of one segment with one iteration space (`iteration_space.py`: a number of elements, in rows)
are made contiguous where nothing depends on their order (`fusion_clustering.py`). Those that share
values become one node `Fused`. Its attribute `body` says what it computes, `text` is the LLVM IR
that `codegen/llvm_cpu_codegen.py` generates, `names` and `types` are those of its operations in the
graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from hpcflow.codegen import elementwise_formulas
from hpcflow.codegen.fused_loop_ir import (
    COLUMN,
    FULL,
    ONE,
    ROW,
    AxisShift,
    KernelBody,
    KernelOperand,
    column_pieces,
)
from hpcflow.codegen.row_op_decomposition import EXPANSIONS, StepBuilder
from hpcflow.graph.dtypes import float32, is_half
from hpcflow.graph.static_shape import require_known, size_of
from hpcflow.lowering.fusion import kernel_dedup, recompute
from hpcflow.lowering.fusion.fusion_clustering import (
    SegmentItem,
    SegmentItems,
    connected_components,
    ordered_groups,
)
from hpcflow.lowering.fusion.iteration_space import (
    SHAPE_ONLY,
    IterationSpace,
    Lengths,
    NodeMapping,
    append_steps,
    common_lengths,
    node_mapping,
    stored_value,
)
from hpcflow.lowering.fusion.update_fusion import UpdateLoopFactory
from hpcflow.lowering.segments_between_waits import Segment, segment_by_node, value_consumers
from hpcflow.lowering.strided_layout import (
    ShiftedLayout,
    StridedLayout,
    c_order_layout,
    drop_unused_views,
    is_view,
    layout_of_view,
    shifted_layout,
    shifts_of,
)
from hpcflow.lowering.update_tiling import may_be_strided, tile_groups
from hpcflow.plan.ir.program import Node, Partition, Ref
from hpcflow.plan.ir.program_rewriting import replace_nodes, topological_order, unused_name

Infos = Callable[[Partition], Callable[[Node], Any]]
MAX_KERNEL_OPS = 400  # operations of one kernel: compiling more takes long
# operations that are faster as a generated loop even alone
UNFUSED_OPS = frozenset({*elementwise_formulas.LONG, *elementwise_formulas.CLOSE, *EXPANSIONS}) - {
    "Pow"
}
MANY_ELEMENTS = 1 << 11  # elements from which on passes over memory cost more than a call
MAX_WINDOW_RATIO = 4  # a window of at least 1/4 of its array is read in place; the array stays live
MAX_PIECES = 9  # of a row whose columns are shifted: each is a loop of its own in a kernel
SHORTEST = 16  # elements of a row of a window that is read in place
SMALL_BYTES = 1 << 12  # a value that is computed early, and so is kept for longer
LARGE_ELEMENTS = (
    1 << 15
)  # elements: with several threads any operation is faster alone from here on


def _copies(node: Node) -> bool:
    """Whether a node copies to rearrange. Rows is a view, and Identity can be fused."""
    return is_view(node) and node.type not in ("Rows", "Identity")


def fuse_elementwise(
    part: Partition,
    segments: list[Segment],
    infos: Infos,
    exact: bool,
    kinds: Collection[str] = ("cpu",),
    threads: int = 1,
) -> Partition:
    """The partition with its elementwise nodes fused; with `exact` only where no bit changes.

    `infos(part)` gives a function from a node of that partition to the form of its kernel. `kinds`
    are the kinds of devices for which fused kernels can be generated, `threads` those of a rank.
    """
    finder = _FusionFinder(part, segments, infos, exact, kinds, threads)
    if not finder.mappings:
        return part
    fused: list[FusedNode] = []
    gone: dict[str, str] = {}
    orders: list[list[str]] = []
    for segment in segments:
        items = SegmentItems(part, IterationSpace.intersect)
        for name in _small_values_first(part, segment.nodes):
            finder.put(items, part.nodes[name])
        order: list[str] = []
        groups = [group for item in items.items for group in finder.groups(item)]
        for names in finder.with_recomputed_values(groups):
            new = finder.nodes(names)
            gone.update((n, one.node.name) for one in new for n in one.names if n != one.node.name)
            order += [name for name in names if name not in gone]
            fused += new
        orders.append(order)
    part, had = finder.part, {ref.node for ref in finder.users}
    position = {name: i for i, name in enumerate(part.nodes)}
    inside = [pair for order in orders for pair in pairwise(order)]
    values = {old: new for one in fused for old, new in one.values.items()}
    part = replace_nodes(part, {one.node.name: one.node for one in fused}, values, gone)
    names = topological_order(part.nodes, position.__getitem__, inside)
    part = dataclasses.replace(part, nodes={name: part.nodes[name] for name in names})
    return drop_unused_views(part, had)


def _small_values_first(part: Partition, names: Sequence[str]) -> list[str]:
    """The nodes of a segment: small elementwise values and views of sources first.

    A loop may compute the mask of an iteration behind its products. Computed first, the mask is an
    operand of the kernel that computes with these products, and does not split it.
    """
    inside, first = set(names), dict[str, None]()
    for name in names:
        node = part.nodes[name]
        cheap = node.row.pure and (node.row.elementwise or node.row.view)
        small = all(spec.sized and spec.nbytes <= SMALL_BYTES for spec in node.specs)
        known = all(b in first or b not in inside for b in node.before())
        if known and (node.row.source or (cheap and small)):
            first[name] = None
    return [*first, *(name for name in names if name not in first)]


class _FusionFinder:
    """Decides which nodes may be fused."""

    def __init__(
        self,
        part: Partition,
        segments: list[Segment],
        infos: Infos,
        exact: bool,
        kinds: Collection[str],
        threads: int,
    ) -> None:
        self.part, self.infos, self.exact, self.threads = part, infos, exact, threads
        self.info = infos(part)
        self.users, self.home = value_consumers(part), segment_by_node(segments)
        tiled = tile_groups(part, segments, self.info, UpdateLoopFactory(exact, kinds))
        self.mappings: dict[str, NodeMapping] = {}
        for name, node in part.nodes.items():
            if name not in tiled and node.kind in kinds:
                reading = node_mapping(part, node, exact)
                if reading is not None:
                    self.mappings[name] = reading
        # node -> its reading in the domain it was put in
        self.assigned: dict[str, NodeMapping] = {}
        self.domains: dict[str, IterationSpace] = {}

    def put(self, items: SegmentItems, node: Node) -> None:
        """Put a node with others of its domain, or with nodes that compute row values it uses."""
        reading = self.mappings.get(node.name)
        if reading is None:
            items.add(node)
            return
        choices = [*self._with_others(node, reading), (reading, self._domain(node, reading))]
        for choice, domain in choices:
            behind = self._nodes_read_differently(node, choice)
            last = domain is choices[-1][1]
            closes = ROW in choice.outputs
            if last or items.has_joinable_item(node, domain, behind):
                items.add(node, [domain], closes, behind)
                self.assigned[node.name], self.domains[node.name] = choice, domain
                return

    def _domain(self, node: Node, reading: NodeMapping) -> IterationSpace:
        return IterationSpace(reading.size, reading.cols, node.device, self.home[node.name])

    def _with_others(
        self, node: Node, reading: NodeMapping
    ) -> Iterator[tuple[NodeMapping, IterationSpace]]:
        """Readings of the node in the domains of the nodes that compute its COLUMN inputs."""
        for ref in node.inputs:
            if ref.node in self.assigned and self._mapping_of(ref) == COLUMN:
                domain, (cols,) = self.domains[ref.node], self.assigned[ref.node].cols
                for choice in (reading.as_row_values(cols), reading.for_row_length(cols)):
                    if choice is not None and choice.size == domain.size:
                        yield choice, domain._replace(cols=choice.cols)

    def _mapping_of(self, ref: Ref) -> str:
        """How a value maps to the domain that its node was put in."""
        return self.assigned[ref.node].outputs[ref.index] if ref.node in self.assigned else ""

    def _nodes_read_differently(self, node: Node, reading: NodeMapping) -> list[str]:
        """Nodes whose values this node reads in another mapping than their own."""
        pairs = zip(node.inputs, reading.inputs, strict=True)
        return [
            r.node for r, way in pairs if way != SHAPE_ONLY and self._mapping_of(r) not in ("", way)
        ]

    def groups(self, item: SegmentItem) -> Iterator[list[str]]:
        """The nodes of an item in groups, each of which one kernel can compute."""
        if item.first:
            yield item.first
        if item.key is None:
            yield item.nodes
            return
        for i in range(0, len(item.nodes), MAX_KERNEL_OPS):
            yield from ordered_groups(
                self.part, list(_connected_groups(self.part, item.nodes[i : i + MAX_KERNEL_OPS]))
            )

    def with_recomputed_values(self, groups: list[list[str]]) -> list[list[str]]:
        """The groups of a segment; those that become kernels get the nodes that they recompute."""
        places = [k for k, names in enumerate(groups) if self.is_kernel(names)]
        part, new = recompute.recompute_values(
            self.part, [groups[k] for k in places], self.assigned
        )
        if part is not self.part:
            self.part, self.users, self.info = part, value_consumers(part), self.infos(part)
        recomputed = dict(zip(places, new, strict=True))
        return [recomputed.get(k, names) for k, names in enumerate(groups)]

    def is_kernel(self, names: list[str]) -> bool:
        """Whether a connected group of nodes is worth a kernel."""
        if not self.assigned.keys() >= set(names):
            return False
        first, size = self.part.nodes[names[0]], self.assigned[names[0]].size
        sums = first.row.sums  # faster alone for `LARGE` elements
        if len(names) > 1 or (first.type in UNFUSED_OPS and not (sums or first.row.spreads)):
            return True
        if any(is_half(s.dtype) for s in (*map(self.part.spec, first.inputs), *first.specs)):
            return True  # NumPy's loops of these numbers are slow
        if first.row.elementwise and size >= MANY_ELEMENTS:
            broadcasts = not {FULL, ONE}.issuperset(self.assigned[names[0]].inputs)
            if broadcasts or len(first.inputs) > 2 or self.info(first).form != "ufunc":
                return True  # NumPy is slow for short rows, or makes several passes
        if sums and self.assigned[names[0]].cols == (size,):
            return True  # a full sum of few elements, as a loss: ten times faster than NumPy
        if any(
            value.operand.shifts
            for value in self.operands_of([first], self.length(names))[first.name]
        ):
            return True  # it replaces the operations that shift its inputs
        return size >= LARGE_ELEMENTS and (sums or first.row.spreads or self.threads > 1)

    def nodes(self, names: list[str]) -> list[FusedNode]:
        """The node that replaces these.

        Several nodes if its kernel were too large, none if a kernel would not be faster.
        """
        if not self.is_kernel(names):
            return []
        if not any(FULL in self.assigned[n].outputs + self.assigned[n].inputs for n in names):
            for name in names:  # no value is FULL in the larger domain: use their own
                self.assigned[name] = self.mappings[name]
        fused = self.node(names)
        if fused is not None:
            return [fused]
        return [single for name in names if (single := self.node([name])) is not None]

    def node(self, names: list[str]) -> FusedNode | None:
        """The fused node, the nodes that it replaces, and the new references of their values."""
        nodes, group = [self.part.nodes[name] for name in names], set(names)
        cols, on_gpu = self.length(names), nodes[0].kind == "gpu"
        reads = self.operands_of(nodes, cols)
        outside = dict.fromkeys(g for of in reads.values() for g in of if g.ref.node not in group)
        if any(g.operand.limit for of in reads.values() for g in of if g not in outside):
            return None  # labels that are computed in the kernel cannot be checked before it runs
        slots = {g: i for i, g in enumerate(outside)}
        steps = StepBuilder(tuple(g.operand for g in slots), cols)
        value: dict[Ref, int] = {}
        for node in nodes:
            reading = self.assigned[node.name]
            operands = [value[g.ref] if g.ref in value else slots[g] for g in reads[node.name]]
            numbers = append_steps(steps, node, reading, operands)
            value.update({Ref(node.name, i): numbers[i] for i in range(len(numbers))})
        stored = [ref for ref in value if self.must_be_stored(ref, group)]
        if not stored:
            return None
        # the first may overwrite an operand
        stored.sort(key=lambda ref: self._mapping_of(ref) != FULL)
        size = max(self.assigned[name].size for name in names)
        body = self._stored_body(steps, [(value[ref], ref) for ref in stored])
        reads_full = any(g.operand.mapping == FULL and not g.operand.begins for g in slots)
        if not reads_full and FULL not in map(self._mapping_of, stored):
            body = body._replace(size=size)
        gpu, cpu = kernel_dedup.gpu_kernel, kernel_dedup.cpu_kernel
        if (written := gpu(body, size) if on_gpu else cpu(body, self.exact)) is None:
            return None
        inputs = tuple(g.ref for g in slots)
        attrs = {
            "body": body,
            "names": tuple(names),
            "text": written.text,
            "loose": tuple(
                i for i, ref in enumerate(inputs) if may_be_strided(self.part, ref, self.info)
            ),
            "inplace": written.inplace,
            "types": tuple(node.type for node in nodes),
            "size": size,
            "labels": tuple(
                (slots[g], n.name, n.line) for n in nodes for g in reads[n.name] if g.operand.limit
            ),
        }
        control = dict.fromkeys(c for n in nodes for c in n.control if c not in group)
        specs = tuple(self.part.spec(ref) for ref in stored)
        fused = (last := nodes[-1]).but(
            type="Fused", inputs=inputs, control=tuple(control), attrs=attrs, specs=specs
        )
        return FusedNode(fused, names, {ref: Ref(last.name, k) for k, ref in enumerate(stored)})

    def _stored_body(self, steps: StepBuilder, results: Iterable[tuple[int, Ref]]) -> KernelBody:
        """The body that stores these values of the kernel, in the dtypes of their references."""
        stored = [stored_value(steps, v, self.part.spec(ref).dtype) for v, ref in results]
        return steps.body(tuple(stored))

    def length(self, names: list[str]) -> int:
        """The row length of a kernel, 0 if it has no rows.

        It is the longest with which most of the windows that the kernel reads are read in place,
        and there is a row for each thread.
        """
        cols: Lengths | None = ()
        for name in names:
            cols = None if cols is None else common_lengths(cols, self.assigned[name].cols)
        assert cols is not None  # the nodes are of one domain
        if len(cols) == 1:
            return cols[0]
        group, windows = set(names), []
        for node in (self.part.nodes[name] for name in names):
            for ref, mapping in zip(node.inputs, self.assigned[node.name].inputs, strict=True):
                if ref.node not in group and mapping == FULL:
                    root, lay = self.viewed_value(ref, node)
                    windows += [lay] if root != ref else []
        lengths = cols or sorted({lay.run() for lay in windows}, reverse=True)
        size = max(self.assigned[name].size for name in names)
        most = size // self.threads if size >= LARGE_ELEMENTS else size
        usable = [cols for cols in lengths if SHORTEST <= cols <= most] or cols[:1]
        return max(usable, key=lambda c: sum(w.rows(c) is not None for w in windows), default=0)

    def viewed_value(self, ref: Ref, node: Node) -> tuple[Ref, ShiftedLayout]:
        """The value of which `ref` is a window, a permutation or a shift, and its layout there."""
        maker = self.part.nodes[ref.node]
        shifts = shifts_of(maker, self.part.spec(maker.inputs[0]).shape) if maker.inputs else None
        if shifts is not None and node.kind == "cpu" and maker.device == node.device:
            root, lay = self._window(maker.inputs[0], node)
            if self.part.nodes[root.node].row.variable != "read":
                shifted = shifted_layout(lay, require_known(maker.specs[0].shape), shifts)
                if shifted is not None:
                    return root, shifted
        root, lay = self._window(ref, node)
        return root, ShiftedLayout(lay)

    def _window(self, ref: Ref, node: Node) -> tuple[Ref, StridedLayout]:
        """The value of which `ref` is a window or a permutation, and its layout there."""
        root, lay = layout_of_view(self.part, ref, node.device, _copies)
        if (
            lay.is_packed()
            or self.part.nodes[root.node].row.variable == "read"
            or size_of(require_known(self.part.spec(root).shape))
            > MAX_WINDOW_RATIO * size_of(lay.sizes)
        ):
            return ref, c_order_layout(lay.sizes)
        return root, lay

    def operands_of(self, nodes: list[Node], cols: int) -> dict[str, list[KernelValue]]:
        """The inputs of each node as operands of a kernel with rows of length `cols`.

        Columns are shifted only where rows are not reduced, and in few pieces.
        """
        operands = {node.name: list(self.kernel_operands(node, cols, True)) for node in nodes}
        pieces = column_pieces((v.operand for of in operands.values() for v in of), cols)
        reduces = any(
            node.type in EXPANSIONS
            and not node.row.spreads
            and self.assigned[node.name].outputs != (ROW,)
            for node in nodes
        )
        if len(pieces) == 1 or not (reduces or len(pieces) > MAX_PIECES):
            return operands
        return {node.name: list(self.kernel_operands(node, cols, False)) for node in nodes}

    def kernel_operands(
        self, node: Node, cols: int, shifted_columns: bool
    ) -> Iterator[KernelValue]:
        """The inputs of a node as operands of a kernel with rows of length `cols`."""
        reading = self.assigned[node.name]
        checks = node.type == "SparseSoftmaxCrossEntropy" and node.kind != "gpu"
        for i, (ref, (mapping, begins)) in enumerate(
            zip(node.inputs, reading.input_mappings(cols), strict=True)
        ):
            if mapping == SHAPE_ONLY:
                continue
            root, dtype = ref, self.part.spec(ref).dtype
            shifts: tuple[AxisShift, ...] = ()
            if mapping == FULL and cols and not begins:
                window, lay = self.viewed_value(ref, node)
                rows = lay.rows(cols) if window != ref else None
                if rows is not None and (shifted_columns or not lay.has_shifted_columns()):
                    root, (begins, shifts) = window, rows
            limit = reading.cols[0] if checks and i == 1 else 0  # labels
            yield KernelValue(root, KernelOperand(dtype, mapping, limit, begins, shifts))

    def must_be_stored(self, ref: Ref, group: set[str]) -> bool:
        """Whether a value must be stored: used outside the kernel, or of a node without users."""
        outputs = (Ref(ref.node, i) for i in range(len(self.part.nodes[ref.node].specs)))
        if not any(self.users.get(output) for output in outputs):
            return True
        return ref in self.part.fetches or not group.issuperset(self.users.get(ref, ()))


class KernelValue(NamedTuple):
    """A value that a kernel reads or computes, as an operand."""

    ref: Ref
    operand: KernelOperand


class FusedNode(NamedTuple):
    """A fused node, the names of the nodes it replaces, and the new references of their values."""

    node: Node
    names: list[str]
    values: dict[Ref, Ref]


def _connected_groups(part: Partition, names: Sequence[str]) -> Iterator[list[str]]:
    """The names in groups of nodes connected by values."""

    def values(name: str) -> Iterator[Ref]:
        yield from (Ref(name, i) for i in range(len(part.nodes[name].specs)))
        yield from part.nodes[name].inputs

    return connected_components(names, values)


def sum_in_float32(part: Partition, exact: bool, kinds: Collection[str]) -> Partition:
    """The partition with 16-bit sums over leading axes, on devices of these `kinds`, as float32
    sums and a Cast.

    A generated loop adds rows up in its result, which must have the digits of the sum. The Cast
    keeps the name of the sum, and so its users.
    """
    if not any(_is_half_sum(node, kinds) for node in part.nodes.values()):
        return part
    nodes: dict[str, Node] = {}
    names = set(part.nodes)
    for name, node in part.nodes.items():
        if _is_half_sum(node, kinds):
            wide = node.but(
                name=unused_name(f"{name}/float32", names),
                specs=(node.specs[0]._replace(dtype=float32),),
            )
            mapping = node_mapping(part, wide, exact)
            if mapping is not None and mapping.outputs == (ROW,):
                names.add(wide.name)
                nodes[wide.name] = wide
                attrs = {"dtype": node.specs[0].dtype}
                node = node.but(type="Cast", inputs=(Ref(wide.name),), control=(), attrs=attrs)
        nodes[name] = node
    return dataclasses.replace(part, nodes=nodes)


def _is_half_sum(node: Node, kinds: Collection[str]) -> bool:
    return node.row.sums and node.kind in kinds and is_half(node.specs[0].dtype)
