"""Code generator: compiles a task's partition to instructions, one function per segment.

The instructions name what they need (kernels, buffers, variables, channels), and
`GeneratedCode.binds` says
what each name stands for. The runtime binds the names once per step instance, so a step does no
lookups.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from hpcflow.graph.dtypes import OPAQUE, is_floating
from hpcflow.graph.static_shape import is_known
from hpcflow.lowering.buffer_assignment import BufferAssignment
from hpcflow.lowering.codegen_stages import STAGES, Generation, Segmented
from hpcflow.lowering.fusion.update_fusion import UpdateLoopFactory
from hpcflow.lowering.generated_update_loop import UpdateLoop
from hpcflow.lowering.instructions import (
    HOOKS,
    RELEASE,
    Access,
    Binding,
    BindingKind,
    CodeFunction,
    Instruction,
    Opcode,
    Use,
)
from hpcflow.lowering.kernel_metadata import GeneratedCode, KernelInfo, SendInfo
from hpcflow.lowering.segments_between_waits import Segment
from hpcflow.lowering.tiled_update_loop import TileLoop
from hpcflow.lowering.update_tiling import TileGroup
from hpcflow.plan.ir.program import Node, Partition, Ref
from hpcflow.plan.pass_row import Form, Pass, Watch, run_passes

POLL_EVERY_S = 200e-6  # predicted time between polls; MPI makes progress only when polled
COPIED_SEND_BYTES = 64 << 10  # larger values without a fixed buffer are sent in place, uncopied
LONG_S = 2e-3  # kernels predicted to take longer lend the progress lock to the helper thread
KEYWORD_OUT = {"Maximum", "Minimum"}  # NumPy deprecates their positional `out`, at 2 us a call


def generate_code(
    part: Partition,
    info: Callable[[Node], KernelInfo],
    seconds: Callable[[Node], float] = lambda node: 0.0,
    check_numerics: bool = False,
    owned_feeds: frozenset[str] = frozenset(),
    writes: UpdateLoopFactory | None = None,
    watch: Watch | None = None,
    subject: str = "",
) -> GeneratedCode:
    """Generate the code of `part`.

    `info` gives the metadata of a node's kernel, `seconds` predicts its time. Feeds in
    `owned_feeds` are not copied when they are returned as results. `writes` says for which nodes
    update loops are generated. `watch` is called after each pass over `subject`.
    """
    generation = Generation(info, seconds, check_numerics, owned_feeds, writes, watch, subject)
    code: GeneratedCode = run_passes(CODE_PASSES, part, generation)
    return code


class _CodeGenerator:
    def __init__(self, segmented: Segmented, generation: Generation) -> None:
        self.info, self.seconds, self.owned_feeds = (
            generation.info,
            generation.seconds,
            generation.owned_feeds,
        )
        self.part, self.segments = segmented.part, segmented.segments
        # a replica with an empty shard computes the mean of no elements, which is NaN
        part = self.part
        empty = any(0 in (part.nodes[feed].specs[0].shape or ()) for feed in part.feeds)
        self.check = generation.check_numerics and not empty
        self.groups: Mapping[str, TileGroup] = segmented.groups
        # collectives of several plans may take turns with one storage; the first segment of a loop
        # or branch that waits runs inside the segment that contains it
        nodes = part.nodes.values()
        self.yields = not any(n.row.collective or n.row.across_tasks for n in nodes)
        self.tiled: set[int] = set()
        self.now = 0  # the segment that is being written
        assert segmented.store is not None
        self.store: BufferAssignment = segmented.store
        self.binds = self.store.binds
        self.sends: list[SendInfo] = []
        self.body: list[Instruction] = []  # of the segment, or of the block in it
        self.shared: set[str] = set()  # names shared by segments
        self.is_single_segment = len(self.segments) == 1 and not any(
            n.row.message in ("send", "receive") or n.row.waits for n in part.nodes.values()
        )
        self.pins: list[Instruction] = []  # they end the pins that a step still holds
        self.since_poll = 0.0

    # -- instructions

    def add(
        self,
        opcode: Opcode,
        node: str = "",
        targets: tuple[str, ...] = (),
        operands: tuple[Use, ...] = (),
        callee: str = "",
        numbers: tuple[int, ...] = (),
    ) -> None:
        """Append an instruction."""
        if opcode in HOOKS:
            name = HOOKS[opcode]
            self.binds[name] = Binding(BindingKind.HOOK, text=name)
        self.body.append(Instruction(opcode, node, targets, operands, callee, numbers))

    @contextlib.contextmanager
    def block(self, opcode: Opcode, node: str, *numbers: int) -> Iterator[None]:
        """Append an instruction whose body consists of those that are added inside."""
        outer, self.body = self.body, []
        yield
        inner, self.body = tuple(self.body), outer
        self.body.append(Instruction(opcode, node, numbers=numbers, body=inner))

    def kernel(self, node: Node) -> str:
        name = f"k{self.store.number[node.name]}"
        self.binds[name] = Binding(BindingKind.KERNEL, node.name)
        return name

    def write(self) -> GeneratedCode:
        functions = [self.function_of(i, s) for i, s in enumerate(self.segments)]
        functions.append(self.release())
        return GeneratedCode(
            tuple(functions),
            tuple(sorted(self.shared)),
            self.binds,
            self.store.blocks,
            self.store.arenas,
            self.segments,
            self.sends,
            self.is_single_segment,
            self.versions(),
            frozenset(self.tiled),
        )

    def versions(self) -> frozenset[str]:
        """Variables of which a version is pinned, or sent in place."""
        loose = {s.node for s in self.sends if s.mode == "loose"}
        reads = {*self.store.pinned, *(self.part.nodes[s].inputs[0].node for s in loose)}
        read_nodes = (self.part.nodes[name] for name in reads)
        return frozenset(n.inputs[0].node for n in read_nodes if n.row.variable == "read")

    def function_of(self, index: int, segment: Segment) -> CodeFunction:
        feeds = tuple(f"f{i}" for i in range(len(self.part.feeds))) if index == 0 else ()
        shared_before = self.store.shared
        nonlocals: set[str] = set()
        self.now, self.body = index, []
        if index == 0 and self.check and self.is_single_segment:  # the executor counts other steps
            self.add(Opcode.COUNT_STEP)
        for i, name in enumerate(feeds):
            kept_feed = f"g{i}"
            if kept_feed in shared_before:
                nonlocals.add(kept_feed)
                self.add(Opcode.KEEP_FEED, "", (kept_feed,), (Use(name),))
        for name in segment.nodes:
            if name not in self.groups:
                self.node(self.part.nodes[name])
            elif name == self.groups[name].last:
                self.group(self.groups[name])
            nonlocals.update(v for v in self.store.assigned.get(name, ()) if v in shared_before)
        results = [self.result(i) for i in segment.fetches]
        if self.is_single_segment:
            self.add(Opcode.RETURN, "", (), tuple(results))
        else:
            for i, result in zip(segment.fetches, results, strict=True):
                nonlocals.add(f"r{i}")
                self.add(Opcode.KEEP_RESULT, "", (f"r{i}",), (result,))
        self.shared |= nonlocals
        return CodeFunction(f"s{index}", feeds, tuple(sorted(nonlocals)), tuple(self.body), True)

    def release(self) -> CodeFunction:
        """The last function: it returns the results and releases what the step held."""
        self.body = [*self.pins]
        results = (
            () if self.is_single_segment else tuple(f"r{i}" for i in range(len(self.part.fetches)))
        )
        for box in self.store.box_names:
            self.add(Opcode.EMPTY_BOX, "", (), (Use(box, Access.BOXED),))
        self.add(Opcode.PACK_RESULTS, "", ("_",), tuple(map(Use, results)))
        shared = tuple(sorted(self.shared))
        if shared:
            self.add(Opcode.FORGET, "", shared)
        self.add(Opcode.RETURN, "", (), (Use("_"),))
        return CodeFunction(RELEASE, (), shared, tuple(self.body))

    # -- nodes

    def node(self, node: Node) -> None:
        special = getattr(self, "do_" + node.type, None)
        if special is not None:
            special(node)
        elif node.is_state:
            self.emit_nothing(node)
        elif node.row.waits:
            self.wait(node)
        elif node.name in self.store.joined_nodes:
            self.join(node)
        else:
            self.emit_compute(node)
        self.body += self.store.after.get(node.name, ())

    def group(self, group: TileGroup) -> None:
        """Add the nodes of a group as one loop."""
        seconds = sum(self.seconds(self.part.nodes[name]) for name in group.nodes)
        last = self.part.nodes[group.last]
        yields = last.kind == "cpu" and self.may_yield(seconds)  # launches do not block
        long = not yields and self.is_long(last, seconds)
        if long:
            self.add(Opcode.UNLOCK, group.last)
        if group.loop is None:
            TileLoop(self, group, yields).write()
        else:
            UpdateLoop(self, group, group.loop, yields).write()
        if long:
            self.add(Opcode.LOCK, group.last)
        for name in group.nodes:
            self.body += self.store.after.get(name, ())

    def may_yield(self, seconds: float) -> bool:
        """Whether the segment yields between the tiles of an update predicted to take `seconds`."""
        long = not self.is_single_segment and self.yields and seconds > LONG_S
        if long:
            self.tiled.add(self.now)
            self.since_poll = 0.0
        return long

    def emit_nothing(self, node: Node) -> None:
        """A node that needs no code: a constant, a feed, a handle, a control dependency."""

    do_Const = do_Feed = do_NoOp = emit_nothing

    def do_ReadVariable(self, node: Node) -> None:
        var = self.store.variable(node.inputs[0])
        target = self.store.expressions[Ref(node.name)].name
        opcode, read = Opcode.READ_VARIABLE, Use(var, Access.READ)
        if Ref(node.name) in self.store.caller_owned:
            read = read._replace(through=f"y{target}")
            self.binds[read.through] = Binding(BindingKind.OWN_COPY, node.name)
        elif node.name in self.store.pinned:
            opcode, read = Opcode.PIN_VERSION, Use(var, Access.PINNED)
            pin = (Use(var, Access.STATE), Use(target))
            self.pins.append(Instruction(Opcode.UNPIN_IF_HELD, "", (), pin))
        self.add(opcode, node.name, (target,), (read,))

    def do_Assign(self, node: Node) -> None:
        var = Use(self.store.variable(node.inputs[0]), Access.UPDATED)
        self.check_operand_shapes(node)
        value = self.store.expressions[node.inputs[1]]
        if self.store.owned.get(node.inputs[1]) == node.name:
            self.add(Opcode.ADOPT_ARRAY, node.name, (), (var, value))
            return
        is_counted = not (node.attrs.get("initial") or node.attrs.get("uncounted"))
        uncounted = () if is_counted else (1,)
        self.add(Opcode.ASSIGN_VARIABLE, node.name, (), (var, value), "", uncounted)

    def check_operand_shapes(self, node: Node) -> None:
        """Check operands of an update whose sizes only the step knows: NumPy broadcasts."""
        if node.row.by_rows:
            return
        for i, ref in enumerate(node.inputs):
            spec = self.part.spec(ref)
            if i not in node.row.writes and not is_known(spec.shape):
                var = Use(self.store.variable(node.inputs[0]), Access.STATE)
                self.add(Opcode.CHECK_SHAPE, node.name, (), (var, self.store.expressions[ref]))

    def do_Send(self, node: Node) -> None:
        numbers = (len(self.sends),)
        if not node.inputs:
            self.sends.append(SendInfo(node.name, "copied", self.stage(node)))
            self.add(Opcode.SEND, node.name, numbers=numbers)
            return
        ref = node.inputs[0]
        spec, value = self.part.spec(ref), self.store.expressions[ref]
        if not spec.sized:
            self.sends.append(SendInfo(node.name, "sized"))
            self.add(Opcode.SEND_SIZED, node.name, (), (value,), "", numbers)
        elif self.store.fixed(ref):
            self.sends.append(SendInfo(node.name, "fixed", value.name))
            self.add(Opcode.SEND, node.name, numbers=numbers)
        elif spec.nbytes <= COPIED_SEND_BYTES:
            stage = self.stage(node)
            self.sends.append(SendInfo(node.name, "copied", stage))
            self.copy_into(node, stage, value)
            self.add(Opcode.SEND, node.name, numbers=numbers)
        else:
            var = self.store.variable_behind(ref)
            behind = (Use(var, Access.STATE),) if var else ()
            self.sends.append(SendInfo(node.name, "loose"))
            self.add(Opcode.SEND_IN_PLACE, node.name, (), (value, *behind), "", numbers)

    def stage(self, node: Node) -> str:
        name = f"q{self.store.number[node.name]}"
        self.binds[name] = Binding(BindingKind.SEND_BUFFER, node.name)
        return name

    def copy_into(self, node: Node, name: str, value: Use) -> None:
        """Copy a value into the memory `name`."""
        self.add(Opcode.COPY_INTO, node.name, (), (Use(name, Access.FILLED), value))

    def do_Parcel(self, node: Node) -> None:
        """Copy in the values that were not computed in the Parcel."""
        for i, ref in enumerate(node.inputs):
            slot = self.store.slot(node, i)
            if self.store.expressions[ref] != Use(slot):
                self.copy_into(node, slot, self.store.expressions[ref])

    def join(self, node: Node) -> None:
        """Copy in the values that were not computed in their slot."""
        for i, ref in enumerate(node.inputs):
            slot = self.store.concat_slot(node, i)
            if self.store.expressions[ref] != Use(slot):
                self.copy_into(node, slot, self.store.expressions[ref])

    def do_Copy(self, node: Node) -> None:
        name = f"k{self.store.number[node.name]}"
        self.binds[name] = Binding(BindingKind.DEVICE_COPY, node.name)
        target, value = (
            self.store.expressions[Ref(node.name)].name,
            self.store.expressions[node.inputs[0]],
        )
        self.add(Opcode.COPY_DEVICE, node.name, (target,), (value,), name)

    def do_Loop(self, node: Node) -> None:
        """Call a loop or branch that never waits."""
        name = f"k{self.store.number[node.name]}"
        self.binds[name] = Binding(BindingKind.BODY, node.name)
        targets = tuple(
            self.store.expressions[Ref(node.name, i)].name for i in range(len(node.specs))
        )
        operands = tuple(self.store.expressions[ref] for ref in node.inputs)
        self.add(Opcode.CALL_BODY, node.name, targets, operands, name)

    do_Branch = do_Loop

    def wait(self, node: Node) -> None:
        """Start a node that finishes later: a collective, or a wait that fills boxes."""
        args: tuple[Use, ...] = ()
        if node.row.collective:
            for i, ref in enumerate(node.inputs):
                target, value = self.store.bucket_input(node.name, i), self.store.expressions[ref]
                if node.row.combines == "rows":  # the number of rows is known only in the step
                    self.binds[target] = Binding(BindingKind.BUCKET_INPUT, node.name, i)
                    rows = (Use(target, Access.BOXED), value)
                    self.add(Opcode.COPY_ROWS, node.name, (), rows)
                elif value != Use(target):
                    self.binds[target] = Binding(BindingKind.BUCKET_INPUT, node.name, i)
                    self.copy_into(node, target, value)
        else:
            args = tuple(map(self.wait_operand, node.inputs))
        self.add(Opcode.START_ASYNC, node.name, (), args)

    def wait_operand(self, ref: Ref) -> Use:
        """An input of a wait: a value, or the state of a handle."""
        if self.part.nodes[ref.node].is_state:
            return Use(self.store.variable(ref), Access.STATE)
        return self.store.expressions[ref]

    def emit_compute(self, node: Node) -> None:
        info = self.info(node)
        args = [self.argument(node, i, ref) for i, ref in enumerate(node.inputs)]
        name = self.kernel(node)
        if info.tiles and self.may_yield(self.seconds(node)):
            self.update_in_tiles(node, name, args)
            return
        long = self.is_long(node, self.seconds(node))
        if long:
            self.add(Opcode.UNLOCK, node.name)
        if info.form == "update":
            self.check_operand_shapes(node)
            self.add(Opcode.CALL_KERNEL, node.name, (), self.handles_first(node, args), name)
        else:
            self.call(node, info, name, args)
        if long:
            self.add(Opcode.LOCK, node.name)
        self.poll(node)

    def is_long(self, node: Node, seconds: float) -> bool:
        """Whether the progress lock is lent during a kernel. Launches on a GPU return at once."""
        return not self.is_single_segment and node.kind != "gpu" and seconds > LONG_S

    @staticmethod
    def handles_first(node: Node, args: list[Use]) -> tuple[Use, ...]:
        """The arguments of an update: the variables it writes, then the others."""
        others = [i for i in range(len(args)) if i not in node.row.writes]
        return tuple(args[i] for i in (*node.row.writes, *others))

    def update_in_tiles(self, node: Node, name: str, args: list[Use]) -> None:
        """Add an update whose kernel yields between its tiles."""
        self.binds[name] = Binding(BindingKind.TILED_KERNEL, node.name)
        self.check_operand_shapes(node)
        for i in node.row.writes:
            variable = Use(self.store.variable(node.inputs[i]), Access.UPDATED)
            self.add(Opcode.RENEW_IN_TILES, node.name, (), (variable,))
        self.add(Opcode.UPDATE_IN_TILES, node.name, (), self.handles_first(node, args), name)

    def argument(self, node: Node, index: int, ref: Ref) -> Use:
        if index in node.row.writes:
            return Use(self.store.variable(ref), Access.WRITTEN)
        if node.row.variable == "is_initialized":
            return Use(self.store.variable(ref), Access.ARRAY)  # None until it has a value
        if index in node.row.reads:
            return Use(self.store.variable(ref), Access.READ)
        return self.store.expressions[ref]

    def call(self, node: Node, info: KernelInfo, name: str, args: list[Use]) -> None:
        refs = [Ref(node.name, i) for i in range(len(node.specs))]
        outs = tuple(self.store.expressions[ref].name for ref in refs)
        if info.form == "view" and outs[0] in self.store.binds:
            return  # a view of a fixed buffer is created when the instance is bound
        static = self.store.static(node)
        if info.form in ("ufunc", "out") and static:
            fresh = [r for r in refs if r in self.store.caller_owned]
            if info.form == "ufunc" and fresh and refs[0] not in self.store.owned:
                self.add(Opcode.CALL_KERNEL, node.name, outs[:1], tuple(args), name)
            else:
                self.call_into(node, fresh, name, args)
        else:
            if not static and info.form != "view":
                self.binds[name] = Binding(BindingKind.DYNAMIC_KERNEL, node.name)
            self.add(Opcode.CALL_KERNEL, node.name, outs, tuple(args), name)
        if self.check:
            for ref in refs:
                if is_floating(node.specs[ref.index].dtype):
                    self.add(Opcode.CHECK_FINITE, node.name, (), (self.store.expressions[ref],))

    def call_into(self, node: Node, fresh: list[Ref], name: str, args: list[Use]) -> None:
        """Call a kernel that fills its outputs; those in `fresh` are allocated first."""
        for ref in fresh:
            target = self.store.expressions[ref].name
            self.add(Opcode.ALLOCATE, node.name, (target,), (), self.empty(node, ref))
        filled = self.filled(node)
        outs = [self.store.expressions[Ref(node.name, i)].name for i in range(len(node.specs))]
        room = f"h{self.store.number[node.name]}"
        rooms = [Use(room, Access.WORKSPACE)] if room in self.binds else []
        operands = (*args, *(Use(out, filled) for out in outs), *rooms)
        self.add(Opcode.CALL_KERNEL, node.name, (), operands, name)

    def filled(self, node: Node) -> Access:
        """How a kernel takes an output: by keyword if it is a ufunc of `KEYWORD_OUT`."""
        by_keyword = node.type in KEYWORD_OUT and self.info(node).form == "ufunc"
        return Access.KEYWORD if by_keyword else Access.FILLED

    def empty(self, node: Node, ref: Ref) -> str:
        name = f"e{self.store.number[node.name]}_{ref.index}"
        self.binds[name] = Binding(BindingKind.ALLOCATOR, node.name, ref.index)
        return name

    def poll(self, node: Node) -> None:
        if self.is_single_segment or node.kind == "gpu":  # launches return at once
            return
        self.since_poll += self.seconds(node)
        if self.since_poll >= POLL_EVERY_S:
            self.add(Opcode.POLL, node.name)
            self.since_poll = 0.0

    def result(self, index: int) -> Use:
        ref = self.part.fetches[index]
        value = self.store.expressions[ref]
        node = self.part.nodes[ref.node]
        if node.specs[ref.index].dtype in OPAQUE or ref.node in self.owned_feeds:
            return value
        is_owned = "/cpu:" in node.device and not node.row.lends
        if is_owned and ref in self.store.caller_owned and self.part.fetches.index(ref) == index:
            return value
        self.binds[f"c{index}"] = Binding(BindingKind.OWN_COPY, ref.node, ref.index)
        return value._replace(through=f"c{index}")


CODE_PASSES = (
    *STAGES,
    Pass(
        *("python_codegen", "code", Form.BUFFERS, Form.CODE),
        "A step runs straight Python code without an interpreter of nodes.",
        "Instructions compute each node once, in its segment; printers make Python of them.",
        lambda segmented, generation: _CodeGenerator(segmented, generation).write(),
    ),
)
