"""Buffer assignment: the memory of each value of a partition.

A value lies in a reused arena block, a gradient bucket, a message buffer, or a fresh allocation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from hpcflow.graph.static_shape import Spec, is_known, size_of
from hpcflow.lowering import arena_allocation, update_tiling
from hpcflow.lowering.arena_allocation import Lifetime, MemoryBlock
from hpcflow.lowering.concat_in_place import concat_slots
from hpcflow.lowering.instructions import (
    Access,
    Binding,
    BindingKind,
    BufferView,
    Instruction,
    Opcode,
    Use,
)
from hpcflow.lowering.kept_values import owned_values
from hpcflow.lowering.segments_between_waits import (
    Segment,
    finished_before,
    segment_by_node,
    value_consumers,
)
from hpcflow.lowering.update_tiling import TileGroup
from hpcflow.ops.replicas.replica_ops import parcel_layout
from hpcflow.plan.ir.control_flow_nodes import nested_nodes
from hpcflow.plan.ir.program import Node, Partition, Ref, has_runtime_shape

FIXED = frozenset({BindingKind.BUFFER, BindingKind.RECEIVE_BUFFER, BindingKind.VIEW})


@dataclasses.dataclass
class BufferAssignment:
    """The result of `assign`: where each value is, and the bindings of its names."""

    part: Partition
    number: dict[str, int]
    expressions: dict[Ref, Use] = dataclasses.field(default_factory=dict)
    binds: dict[str, Binding] = dataclasses.field(default_factory=dict)
    blocks: list[MemoryBlock] = dataclasses.field(default_factory=list)
    arenas: dict[str, int] = dataclasses.field(default_factory=dict)  # device -> bytes
    caller_owned: set[Ref] = dataclasses.field(default_factory=set)  # allocated in every step
    shared: set[str] = dataclasses.field(default_factory=set)  # names used by several segments
    assigned: dict[str, list[str]] = dataclasses.field(
        default_factory=dict
    )  # node -> names it sets
    pinned: dict[str, str] = dataclasses.field(
        default_factory=dict
    )  # read -> until "use" or "step"
    after: dict[str, list[Instruction]] = dataclasses.field(default_factory=dict)  # of a node

    # initial values whose memory becomes that of a variable -> the Assign that adopts them
    owned: dict[Ref, str] = dataclasses.field(default_factory=dict)
    box_names: list[str] = dataclasses.field(default_factory=list)  # names of the outputs of waits
    parcels: dict[str, int] = dataclasses.field(default_factory=dict)  # Parcel -> its block
    joined_nodes: dict[str, int] = dataclasses.field(
        default_factory=dict
    )  # Concat, Pack -> its block
    slot_of_input: dict[str, list[tuple[Spec, int]]] = dataclasses.field(default_factory=dict)

    def variable(self, ref: Ref) -> str:
        """The name bound to the variable, or other state, of a handle."""
        name = f"v{self.number[ref.node]}"
        self.binds[name] = Binding(BindingKind.VARIABLE, ref.node)
        return name

    def variable_behind(self, ref: Ref) -> str:
        """The name of the variable whose memory a value is, "" if it is of no variable."""
        node = self.part.nodes[ref.node]
        return self.variable(node.inputs[0]) if node.row.variable == "read" else ""

    def fixed(self, ref: Ref) -> bool:
        """True if the value has a fixed address in the step instance, in a buffer of its own."""
        binding = self.binds.get(self.expressions[ref].name)
        return binding is not None and binding.kind in FIXED

    def static(self, node: Node) -> bool:
        """True if the sizes of all outputs are known before the step."""
        return all(is_known(spec.shape) for spec in node.specs)

    def parcel(self, node: Node) -> int:
        """The block of a Parcel, unshared: its inputs are written there before its turn."""
        if node.name not in self.parcels:
            self.parcels[node.name] = len(self.blocks)
            life = Lifetime(node.specs[0].nbytes, 0, -1, None)
            self.blocks.append(MemoryBlock(node.device, life, [Ref(node.name)]))
        return self.parcels[node.name]

    def slot(self, node: Node, index: int) -> str:
        """The name of the slot of input `index` in a Parcel."""
        name, (spec, start) = f"p{self.number[node.name]}_{index}", self._places(node)[index]
        block = self.parcel(node)
        self.binds[name] = in_block(node, block, spec, start)
        return name

    def concat_slot(self, node: Node, index: int) -> str:
        """The name of the slot of input `index` in a Concat or Pack."""
        name, (spec, start) = f"j{self.number[node.name]}_{index}", self._places(node)[index]
        block = self.joined_nodes[node.name]
        self.binds[name] = in_block(node, block, spec, start)
        return name

    def _places(self, node: Node) -> list[tuple[Spec, int]]:
        """The spec and the byte offset of each input of a Parcel, Concat or Pack."""
        if node.name not in self.slot_of_input:
            specs = [self.part.spec(ref) for ref in node.inputs]
            if node.row.message == "pack":
                starts = parcel_layout(specs)[0]
            else:
                starts = list(accumulate((spec.nbytes for spec in specs[:-1]), initial=0))
            self.slot_of_input[node.name] = list(zip(specs, starts, strict=True))
        return self.slot_of_input[node.name]

    def bucket_input(self, node: str, index: int) -> str:
        """The name of the slot of input `index` of a collective in its bucket."""
        return f"w{self.number[node]}_{index}"


def assign_buffers(
    part: Partition,
    segments: list[Segment],
    info: Callable[[Node], Any],
    groups: Mapping[str, TileGroup] | None = None,
) -> BufferAssignment:
    """Assign memory to every value of `part`.

    `groups` maps a node to its group, if it has one. The scratch values of a group have the size of
    one tile.
    """
    return _BufferAssigner(part, segments, info, groups or {}).run()


def in_block(node: Node, block: int, spec: Spec, start: int = 0) -> Binding:
    """The binding of a value of `node` in a block of the arena of its device."""
    view = BufferView(node.device, block, spec.dtype, spec.shape, start)
    return Binding(BindingKind.BUFFER, node.name, buffers=(view,))


def has_kernel(node: Node) -> bool:
    """True if a kernel computes the outputs of the node."""
    computes = not node.row.no_kernel and not node.row.control_flow
    return computes and not node.row.waits and not node.is_state


class _BufferAssigner:
    def __init__(
        self,
        part: Partition,
        segments: list[Segment],
        info: Callable[[Node], Any],
        groups: Mapping[str, TileGroup],
    ) -> None:
        self.part, self.segments, self.info, self.groups = part, segments, info, groups
        self.scratch = {ref for group in groups.values() for ref in group.scratch}
        loops = [group for group in groups.values() if group.loop is not None]
        self.no_segments = {ref for group in loops for ref in group.scratch}
        self.segment_by_node = segment_by_node(segments)
        self.users = value_consumers(part)
        # allocated in every step, for the caller or for a tensor list or array
        self.lasting = {*part.fetches, *owned_values(part)}
        self.written_inside = {
            node.name: {n.inputs[i].node for n in nested_nodes({"": node}) for i in n.row.writes}
            for node in part.nodes.values()
            if node.row.control_flow
        }
        self.store = BufferAssignment(part, {name: i for i, name in enumerate(part.nodes)})
        self.root: dict[Ref, Ref] = {}  # value -> the value whose memory it lies in
        self.block_of: dict[Ref, int] = {}

    def run(self) -> BufferAssignment:
        for node in self.part.nodes.values():
            self.find_initial(node)
        self.slots = concat_slots(self.part, self.is_whole, self.fits_slot)
        for node in self.part.nodes.values():
            self.find_roots(node)
        self.ends = self.find_ends()
        for node in self.part.nodes.values():
            self.assign(node)
        self.lay_out()
        return self.store

    def lay_out(self) -> None:
        """Assign each block its offset in the arena of its device."""
        before = finished_before(self.part, self.segments)
        for device in sorted({block.device for block in self.store.blocks}):
            blocks = [block for block in self.store.blocks if block.device == device]
            starts, self.store.arenas[device] = arena_allocation.place_blocks(
                [b.life for b in blocks], before
            )
            for block, start in zip(blocks, starts, strict=True):
                block.start = start

    # -- aliasing and lifetimes

    def find_roots(self, node: Node) -> None:
        for ref in (Ref(node.name, i) for i in range(len(node.specs))):
            slot = self.slots.get(ref)
            self.root[ref] = ref if slot is None else Ref(slot.node)
        if has_kernel(node) and self.info(node).form == "view":
            self.root[Ref(node.name)] = self.root[node.inputs[0]]

    def find_initial(self, node: Node) -> None:
        """Make an initial value that nothing else uses the memory of its variable.

        It is computed in memory of its own. A chain of operations that make it run in place there.
        """
        if node.row.variable != "assign" or not node.attrs.get("initial"):
            return
        ref: Ref | None = node.inputs[1]
        while ref is not None and self.only_copies_remain(node, ref) and ref not in self.lasting:
            maker = self.part.nodes[ref.node]
            if not has_kernel(maker) or not self.store.static(maker) or ref.index:
                return
            if (maker.device, self.segment_by_node[maker.name]) != (
                node.device,
                self.segment_by_node[node.name],
            ):
                return
            info = self.info(maker)
            if info.form not in ("ufunc", "out"):
                return
            self.store.owned[ref] = node.name
            spec, node = maker.specs[0], maker
            sources = [maker.inputs[i] for i in info.inplace[: len(maker.inputs)]]
            sources = [r for r in sources if self.part.spec(r)[:2] == spec[:2]]
            ref = sources[0] if sources and maker.inputs.count(sources[0]) == 1 else None

    def only_copies_remain(self, node: Node, ref: Ref) -> bool:
        """Whether all other users of a value only copy it as an initial value."""
        *others, last = self.users[ref]
        copies = (self.part.nodes[name] for name in others)
        return last == node.name and all(
            n.row.variable == "assign"
            and n.attrs.get("initial")
            and self.segment_by_node[n.name] == self.segment_by_node[last]
            for n in copies
        )

    def find_ends(self) -> dict[Ref, dict[int, int] | None]:
        """For each root, the position in each segment of the last use of its memory.

        None: the memory is in use until the end of the step.
        """
        last_uses: dict[Ref, dict[int, int] | None] = {}
        for ref, root in self.root.items():
            names = self.users.get(ref, [])
            pending = any(self.uses_after_start(self.part.nodes[n]) for n in names)
            inside = all(n in self.segment_by_node for n in (*names, ref.node))
            if pending or not inside or self.part.nodes[root.node].row.waits or ref in self.lasting:
                last_uses[root] = None
            if (ends := last_uses.setdefault(root, {})) is None:
                continue
            for name in (*names, ref.node):
                segment, place = (
                    self.segment_by_node[name],
                    self.store.number[self.until(name, root)],
                )
                ends[segment] = max(place, ends.get(segment, 0))
        return last_uses

    def until(self, name: str, root: Ref) -> str:
        """The node after which `name` no longer uses a value: the last one of its group."""
        group = self.groups.get(name)
        return name if group is None or root in self.scratch else group.last

    @staticmethod
    def uses_after_start(node: Node) -> bool:
        """True if the node uses its inputs after it has started: a send or a wait."""
        return node.row.message == "send" or (node.row.waits and not node.row.collective)

    # -- placing

    def assign(self, node: Node) -> None:
        store, n = self.store, self.store.number[node.name]
        if node.row.source == "constant":
            self.bind(Ref(node.name), f"c_{n}", Binding(BindingKind.CONSTANT, node.name))
        elif node.row.source == "feed":
            index = self.part.feeds.index(node.name)
            far = any(self.segment_by_node[u] != 0 for u in self.users.get(Ref(node.name), []))
            store.expressions[Ref(node.name)] = Use(f"g{index}" if far else f"f{index}")
            if far:
                store.shared.add(f"g{index}")
        elif node.row.message == "pack":
            block = self.store.parcel(node)
            spec = node.specs[0]
            self.bind(Ref(node.name), f"p{n}", in_block(node, block, spec))
        elif node.row.message == "receive" and node.specs[0].sized:
            self.bind(Ref(node.name), f"i{n}", Binding(BindingKind.RECEIVE_BUFFER, node.name))
        elif node.row.collective:
            for i in range(len(node.specs)):
                # the rows of an AllGather are allocated in every step
                access = Access.BOXED if node.row.combines == "rows" else Access.VALUE
                binding = Binding(BindingKind.BUCKET_OUTPUT, node.name, i)
                self.bind(Ref(node.name, i), f"o{n}_{i}", binding, access)
        elif node.row.variable == "read" or node.row.message == "copy":
            self.name(node, Ref(node.name))
            if node.row.message == "copy" or self.is_fetched_view(node):
                self.store.caller_owned.add(
                    Ref(node.name)
                )  # a fetched variable is copied at the read
            else:
                self.pin(node)
        elif node.row.waits:
            self.place_awaited(node, n)
        elif node.row.control_flow:
            for ref in (Ref(node.name, i) for i in range(len(node.specs))):
                self.name(node, ref)
                self.store.caller_owned.add(ref)
        elif has_kernel(node):
            self.place_computed(node)

    def place_awaited(self, node: Node, n: int) -> None:
        """Box the outputs of a wait or of a message of unknown size, set when it finishes."""
        for i in range(len(node.specs)):
            box = Binding(BindingKind.BOX, node.name, i)
            self.bind(Ref(node.name, i), f"i{n}_{i}", box, Access.BOXED)
            self.store.box_names.append(f"i{n}_{i}")

    def bind(self, ref: Ref, name: str, binding: Binding, access: Access = Access.VALUE) -> None:
        self.store.expressions[ref] = Use(name, access)
        self.store.binds[name] = binding

    def name(self, node: Node, ref: Ref) -> None:
        """Bind a value to a Python name that the code of the segment assigns."""
        text = f"x{self.store.number[node.name]}" + (f"_{ref.index}" if ref.index else "")
        self.store.expressions[ref] = Use(text)
        self.store.assigned.setdefault(node.name, []).append(text)
        if any(
            self.segment_by_node[u] != self.segment_by_node[node.name]
            for u in self.users.get(ref, [])
        ):
            self.store.shared.add(text)

    def place_computed(self, node: Node) -> None:
        info = self.info(node)
        if info.form == "view":
            self.place_view(node)
            return
        for i in range(len(node.specs)):
            ref = Ref(node.name, i)
            if ref in self.no_segments:
                continue
            bucket = self.bucket_for(ref)
            static = self.store.static(node) and node.specs[i].sized
            if info.form not in ("ufunc", "out") or not static:
                self.name(node, ref)
                self.store.caller_owned.add(ref)
            elif ref in self.store.owned:
                self.place_owned(node, ref, info)
            elif ref in self.lasting:
                self.name(node, ref)
                self.store.caller_owned.add(ref)
            elif bucket:
                binding = Binding(BindingKind.BUCKET_INPUT, *bucket)
                self.bind(ref, self.store.bucket_input(*bucket), binding)
            elif parcel := self.parcel_for(ref):
                self.store.expressions[ref] = Use(self.store.slot(*parcel))
            elif slot := self.slots.get(ref):
                joining = self.part.nodes[slot.node]
                self.allocate_concat(joining)
                self.store.expressions[ref] = Use(self.store.concat_slot(joining, slot.input_index))
            else:
                self.place_in_block(node, ref, info)
        if info.form == "out" and self.store.static(node) and node.name not in self.groups:
            self.place_scratch(node, info.scratch)

    def place_scratch(self, node: Node, specs: Sequence[Spec]) -> None:
        """Allocate the workspace of a kernel, which is live only while the kernel runs."""
        place = self.store.number[node.name]
        segment, buffers = self.segment_by_node[node.name], []
        for spec in specs:
            buffers.append(BufferView(node.device, len(self.store.blocks), *spec[:2], 0))
            life = Lifetime(spec.nbytes, segment, place, {segment: place})
            self.store.blocks.append(MemoryBlock(node.device, life, []))
        if buffers:
            room = Binding(BindingKind.WORKSPACE, node.name, buffers=tuple(buffers))
            self.store.binds[f"h{place}"] = room

    def place_owned(self, node: Node, ref: Ref, info: Any) -> None:
        """Place an initial value in the memory of an input that is one, else in a new array."""
        sources = [node.inputs[i] for i in info.inplace[: len(node.inputs)]]
        owned = next((r for r in sources if r in self.store.owned), None)
        if owned is None:
            self.name(node, ref)
            self.store.caller_owned.add(ref)
        else:
            self.store.expressions[ref] = self.store.expressions[owned]

    def place_view(self, node: Node) -> None:
        ref, source = Ref(node.name), self.store.expressions[node.inputs[0]]
        runtime_shape = has_runtime_shape(node, self.part.spec)
        bound = source.access == Access.VALUE and source.name in self.store.binds
        if bound and is_known(node.specs[0].shape) and not runtime_shape:
            n = self.store.number[node.name]
            self.bind(ref, f"b{n}", Binding(BindingKind.VIEW, node.name, 0, source.name))
        else:
            self.name(node, ref)

    def bucket_for(self, ref: Ref) -> tuple[str, int] | None:
        """The collective that is the only user of a value, which can be computed in its bucket."""
        names = self.users.get(ref, [])
        if len(names) != 1 or not self.part.nodes[names[0]].row.collective:
            return None
        node = self.part.nodes[names[0]]
        if node.row.combines == "rows" or node.inputs.count(ref) != 1:
            return None
        if node.device != self.part.nodes[ref.node].device:
            return None
        return node.name, node.inputs.index(ref)

    def parcel_for(self, ref: Ref) -> tuple[Node, int] | None:
        """The Parcel that sends a value, if the value can be computed in it."""
        for name in self.users.get(ref, []):
            node = self.part.nodes[name]
            if node.row.message == "pack" and node.device == self.part.nodes[ref.node].device:
                return node, node.inputs.index(ref)
        return None

    def is_whole(self, node: Node) -> bool:
        """Whether the only output of a node has a block of its own."""
        ref, info = Ref(node.name), self.info(node)
        if info.form != "out" or not self.store.static(node) or not node.specs[0].sized:
            return False
        elsewhere = ref in self.lasting or ref in self.store.owned or node.name in self.groups
        return not (elsewhere or self.bucket_for(ref) or self.parcel_for(ref))

    def fits_slot(self, ref: Ref, node: Node) -> bool:
        """Whether a value can be computed in its slot of the joining `node`."""
        maker = self.part.nodes[ref.node]
        if not has_kernel(maker) or self.info(maker).form not in ("ufunc", "out"):
            return False
        if not self.store.static(maker) or not maker.specs[ref.index].sized:
            return False
        if (maker.device, self.segment_by_node[maker.name]) != (
            node.device,
            self.segment_by_node[node.name],
        ):
            return False
        elsewhere = ref in self.lasting or ref in self.store.owned or ref in self.scratch
        return not (elsewhere or self.bucket_for(ref) or self.parcel_for(ref))

    def allocate_concat(self, node: Node) -> None:
        """Allocate the block of a Concat or Pack, live from the first value computed in it."""
        if node.name not in self.store.joined_nodes:
            ref, makers = Ref(node.name), [r.node for r in node.inputs if r in self.slots]
            start = min(self.first_write(self.part.nodes[name], False) for name in makers)
            life = Lifetime(
                node.specs[0].nbytes, self.segment_by_node[node.name], start, self.ends[ref]
            )
            self.block_of[ref] = self.store.joined_nodes[node.name] = len(self.store.blocks)
            self.store.blocks.append(MemoryBlock(node.device, life, [ref]))

    def place_in_block(self, node: Node, ref: Ref, info: Any) -> None:
        if node.name in self.store.joined_nodes:
            joined_spec, joined = node.specs[0], self.store.joined_nodes[node.name]
            binding = in_block(node, joined, joined_spec)
            self.bind(ref, f"b{self.store.number[node.name]}", binding)
            return
        spec, tile = node.specs[ref.index], ref in self.scratch
        if tile:
            spec = Spec(spec.dtype, (update_tiling.TILE,))
        block = self.reusable_block(node, ref, info)
        life = Lifetime(
            spec.nbytes,
            self.segment_by_node[node.name],
            self.first_write(node, tile),
            self.ends[ref],
        )
        if block is None:
            block = len(self.store.blocks)
            self.store.blocks.append(MemoryBlock(node.device, life, [ref]))
        else:
            self.store.blocks[block].values.append(ref)
            self.store.blocks[block].life = self.store.blocks[block].life.then(life.ends)
        self.block_of[ref] = block
        name = f"b{self.store.number[node.name]}" + (f"_{ref.index}" if ref.index else "")
        self.bind(ref, name, in_block(node, block, spec))

    def first_write(self, node: Node, tile: bool) -> int:
        """The first position at which an output of `node` is written.

        A group writes the outputs of all its nodes from its first node on.
        """
        group = self.groups.get(node.name)
        return self.store.number[node.name if group is None or tile else group.nodes[0]]

    def reusable_block(self, node: Node, ref: Ref, info: Any) -> int | None:
        """The block of an input that ends its life at `node` and can be overwritten in place."""
        if ref.index or size_of(node.specs[ref.index].shape) == 1:
            return None  # NumPy in place on a single element is three times slower
        here = {self.segment_by_node[node.name]: self.store.number[node.name]}
        for i in info.inplace[: len(node.inputs)]:
            source = node.inputs[i]
            root, spec = self.root[source], self.part.spec(source)
            out_spec = node.specs[ref.index]
            same_size = self.part.spec(root).nbytes == out_spec.nbytes
            same = spec.dtype == out_spec.dtype and spec.shape == out_spec.shape and same_size
            same = same and (ref in self.scratch) == (root in self.scratch)
            if same and self.ends[root] == here and root in self.block_of:
                if sum(self.root[r] == root for r in node.inputs) == 1:
                    return self.block_of.pop(root)
        return None

    # -- pins

    def pin(self, node: Node) -> None:
        """Pin the version that a read returns, unless no update can precede its last use."""
        ref = Ref(node.name)
        text, var = self.store.expressions[ref].name, self.store.variable(node.inputs[0])
        number = self.store.number
        uses = [u for r in self.views(ref) for u in self.users.get(r, [])]
        direct_users = self.users.get(ref, [])  # a Send of the read pins the version itself
        pending = [self.part.nodes[u] for u in uses]
        pending = [u for u in pending if self.uses_after_start(u)]
        pending = [u for u in pending if u.row.message != "send" or u.name not in direct_users]
        if pending or any(self.segment_by_node[u] != self.segment_by_node[node.name] for u in uses):
            self.store.pinned[node.name] = "step"
            self.store.shared.add(text)
        elif uses:
            last = max(uses, key=number.__getitem__)
            writes = self.later_writes(node)
            overwritten = number[last] in writes and self.may_mix_versions(
                self.part.nodes[last], ref
            )
            if overwritten or any(w < number[last] for w in writes):
                self.store.pinned[node.name] = "use"
                self.store.shared.add(text)  # a step that fails before the last use unpins it
                pin = (Use(var, Access.STATE), Use(text))
                ends = [
                    Instruction(Opcode.UNPIN_VERSION, last, (), pin),
                    Instruction(Opcode.FORGET, last, (text,)),
                ]
                self.store.after.setdefault(last, []).extend(ends)

    def may_mix_versions(self, update: Node, ref: Ref) -> bool:
        """Whether an update may read elements of the read value `ref` after changing them."""
        if update.row.control_flow or update.row.by_rows:
            return True
        return any(r != ref and self.root.get(r) == ref for r in update.inputs)

    def views(self, ref: Ref) -> list[Ref]:
        """The values that lie in the memory of `ref`, including `ref`."""
        return [r for r, root in self.root.items() if root == ref]

    def is_fetched_view(self, node: Node) -> bool:
        """True if a read is fetched, or a view of it that a later update would change."""
        ref = Ref(node.name)
        if ref in self.lasting:
            return True
        return bool(self.later_writes(node) and not self.lasting.isdisjoint(self.views(ref)))

    def later_writes(self, read: Node) -> list[int]:
        """The numbers of the updates of a variable that follow a read of it."""
        handle, number = read.inputs[0], self.store.number
        writes = []
        for name in self.users.get(handle, []):
            node = self.part.nodes[name]
            if number[name] > number[read.name]:
                writes += [number[name] for i in node.row.writes if node.inputs[i] == handle]
        for name, written in self.written_inside.items():
            if handle.node in written and number[name] > number[read.name]:
                writes.append(number[name])
        return writes
