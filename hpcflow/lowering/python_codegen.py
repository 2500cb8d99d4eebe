"""Code generator: compiles a task's partition to Python source, one function per segment.

The source names what it needs (kernels, buffers, variables, channels), and `Code.binds` says what
each name stands for. The runtime binds the names once per step instance, so a step does no lookups.
"""

from __future__ import annotations

from collections.abc import Callable

from hpcflow.graph.dtypes import OPAQUE, is_floating
from hpcflow.graph.static_shape import is_known
from hpcflow.lowering.buffer_assignment import Storage, assign
from hpcflow.lowering.fusion.update_fusion import Writer
from hpcflow.lowering.generated_update_loop import UpdateLoop
from hpcflow.lowering.kernel_metadata import Code, KernelInfo, SendInfo
from hpcflow.lowering.segments_between_waits import Strand, cut
from hpcflow.lowering.tiled_update_loop import TileLoop
from hpcflow.lowering.update_tiling import Group, arranged
from hpcflow.plan.ir.program import Node, Part, Ref

POLL_EVERY_S = 200e-6  # predicted time between polls; MPI makes progress only when polled
COPIED_SEND_BYTES = 64 << 10  # larger values without a fixed buffer are sent in place, uncopied
LONG_S = 2e-3  # kernels predicted to take longer lend the progress lock to the helper thread
KEYWORD_OUT = {"Maximum", "Minimum"}  # NumPy deprecates their positional `out`, at 2 us a call


def generate(
    part: Part,
    info: Callable[[Node], KernelInfo],
    seconds: Callable[[Node], float] = lambda node: 0.0,
    check_numerics: bool = False,
    kept: frozenset[str] = frozenset(),
    writes: Writer | None = None,
) -> Code:
    """Generate the code of `part`.

    `info` gives the metadata of a node's kernel, `seconds` predicts its time. Feeds in `kept` are
    not copied when they are returned as results. `writes` says for which nodes update loops are
    generated.
    """
    return _Writer(part, info, seconds, check_numerics, kept, writes).write()


class _Writer:
    def __init__(
        self,
        part: Part,
        info: Callable[[Node], KernelInfo],
        seconds: Callable[[Node], float],
        check_numerics: bool,
        kept: frozenset[str],
        writes: Writer | None,
    ) -> None:
        self.info, self.seconds, self.kept = info, seconds, kept
        # a replica with an empty shard computes the mean of no elements, which is NaN
        empty = any(0 in (part.nodes[feed].specs[0].shape or ()) for feed in part.feeds)
        self.check = check_numerics and not empty
        self.part, self.strands = part, cut(part)
        self.groups: dict[str, Group] = {}
        if not check_numerics:  # check_numerics needs each value in memory
            self.part, self.strands, self.groups = arranged(part, self.strands, info, writes)
        # collectives of several plans may take turns with one storage; the first segment of a loop
        # or branch that waits runs inside the segment that contains it
        nodes = part.nodes.values()
        self.yields = not any(n.row.collective or n.row.across_tasks for n in nodes)
        self.tiled: set[int] = set()
        self.now = 0  # the segment that is being written
        self.store: Storage = assign(self.part, self.strands, info, self.groups)
        self.binds = self.store.binds
        self.sends: list[SendInfo] = []
        self.out: list[str] = []
        self.lines: list[str] = []
        self.shared: set[str] = set()  # names shared by segments
        self.simple = len(self.strands) == 1 and not any(
            n.type in ("Send", "Recv") or n.row.waits for n in part.nodes.values()
        )
        self.pins: list[str] = []  # statements that end the pins a step still holds
        self.since_poll = 0.0

    # -- text

    def emit(self, text: str, node: str = "", depth: int = 2) -> None:
        self.out.append("    " * depth + text)
        self.lines.append(node)

    def hook(self, name: str) -> str:
        self.binds[name] = ("hook", name)
        return name

    def kernel(self, node: Node) -> str:
        name = f"k{self.store.number[node.name]}"
        self.binds[name] = ("kernel", node.name)
        return name

    def write(self) -> Code:
        self.emit("", depth=0)  # replaced by `def make(...)` once all names are known
        at = len(self.out)
        bodies = [self.strand(i, s) for i, s in enumerate(self.strands)]
        self.release()
        if self.shared:
            self.out.insert(at, "    " + " = ".join(sorted(self.shared)) + " = None")
            self.lines.insert(at, "")
        self.emit(f"return ({', '.join(bodies)},), release", depth=1)
        self.out[0] = f"def make({', '.join(self.binds)}):"
        return Code(
            "\n".join(self.out) + "\n",
            self.binds,
            self.store.blocks,
            self.store.arenas,
            self.strands,
            self.sends,
            self.lines,
            self.simple,
            self.versions(),
            frozenset(self.tiled),
        )

    def versions(self) -> frozenset[str]:
        """Variables of which a version is pinned, or sent in place."""
        loose = {s.node for s in self.sends if s.how == "loose"}
        reads = {*self.store.pinned, *(self.part.nodes[s].inputs[0].node for s in loose)}
        found = (self.part.nodes[name] for name in reads)
        return frozenset(n.inputs[0].node for n in found if n.type == "ReadVariable")

    def strand(self, index: int, strand: Strand) -> str:
        feeds = [f"f{i}" for i in range(len(self.part.feeds))] if index == 0 else []
        self.emit(f"def s{index}({', '.join(feeds)}):", depth=1)
        at = len(self.out)
        shared_before = self.store.shared
        mine: set[str] = set()
        self.now = index
        if index == 0 and self.check and self.simple:  # the executor counts other steps
            self.emit(f"{self.hook('tick')}()")
        for i, name in enumerate(feeds):
            held = f"g{i}"
            if held in shared_before:
                mine.add(held)
                self.emit(f"{held} = {name}")
        for name in strand.nodes:
            if name not in self.groups:
                self.node(self.part.nodes[name])
            elif name == self.groups[name].last:
                self.group(self.groups[name])
            mine.update(v for v in self.store.assigned.get(name, ()) if v in shared_before)
        results = [self.result(i) for i in strand.fetches]
        if self.simple:
            self.emit("return " + (results[0] if len(results) == 1 else f"({', '.join(results)})"))
        else:
            for i, text in zip(strand.fetches, results, strict=True):
                mine.add(f"r{i}")
                self.emit(f"r{i} = {text}")
        if mine:
            self.out.insert(at, "        nonlocal " + ", ".join(sorted(mine)))
            self.lines.insert(at, "")
        if len(self.out) == at:
            self.emit("pass")
        self.shared |= mine
        return f"s{index}"

    def release(self) -> None:
        """Emit the last function: it returns the results and releases what the step held."""
        self.emit("def release():", depth=1)
        at = len(self.out)
        results = [] if self.simple else [f"r{i}, " for i in range(len(self.part.fetches))]
        for text in self.pins:
            self.emit(text)
        for box in self.store.boxes:
            self.emit(f"{box} = None")
        self.emit(f"_ = ({''.join(results)})")
        if self.shared:
            self.emit(" = ".join(sorted(self.shared)) + " = None")
            self.out.insert(at, "        nonlocal " + ", ".join(sorted(self.shared)))
            self.lines.insert(at, "")
        self.emit("return _")

    # -- nodes

    def node(self, node: Node) -> None:
        special = getattr(self, "do_" + node.type, None)
        if special is not None:
            special(node)
        elif node.is_state:
            self.nothing(node)
        elif node.row.waits:
            self.wait(node)
        elif node.name in self.store.joins:
            self.join(node)
        else:
            self.compute(node)
        for text in self.store.after.get(node.name, ()):
            self.emit(text, node.name)

    def group(self, group: Group) -> None:
        """Emit the nodes of a group as one loop."""
        seconds = sum(self.seconds(self.part.nodes[name]) for name in group.nodes)
        last = self.part.nodes[group.last]
        yields = last.kind == "cpu" and self.may_yield(seconds)  # launches do not block
        long = not yields and self.is_long(last, seconds)
        if long:
            self.emit(f"{self.hook('lend')}()", group.last)
        if group.loop is None:
            TileLoop(self, group, yields).write()
        else:
            UpdateLoop(self, group, group.loop, yields).write()
        if long:
            self.emit(f"{self.hook('take')}()", group.last)
        for name in group.nodes:
            for text in self.store.after.get(name, ()):
                self.emit(text, name)

    def may_yield(self, seconds: float) -> bool:
        """Whether the segment yields between the tiles of an update predicted to take `seconds`."""
        long = not self.simple and self.yields and seconds > LONG_S
        if long:
            self.tiled.add(self.now)
            self.since_poll = 0.0
        return long

    def nothing(self, node: Node) -> None:
        """A node that needs no code: a constant, a feed, a handle, a control dependency."""

    do_Const = do_Feed = do_NoOp = nothing

    def do_ReadVariable(self, node: Node) -> None:
        var = self.store.variable(node.inputs[0])
        target = self.store.expr[Ref(node.name)]
        if Ref(node.name) in self.store.fresh:
            self.binds[f"y{target}"] = ("own", node.name, 0)
            self.emit(f"{target} = y{target}({var}.read())", node.name)
            return
        how = "pin" if node.name in self.store.pinned else "read"
        self.emit(f"{target} = {var}.{how}()", node.name)
        if node.name in self.store.pinned:
            self.pins.append(f"if {target} is not None: {var}.unpin({target})")

    def do_Assign(self, node: Node) -> None:
        var = self.store.variable(node.inputs[0])
        self.fit(node)
        if self.store.owned.get(node.inputs[1]) == node.name:
            self.emit(f"{var}.adopt({self.store.expr[node.inputs[1]]})", node.name)
            return
        initial = ", True" if node.attrs.get("initial") else ""
        self.emit(f"{var}.assign({self.store.expr[node.inputs[1]]}{initial})", node.name)

    def fit(self, node: Node) -> None:
        """Check operands of an update whose sizes only the step knows: NumPy broadcasts."""
        if node.row.by_rows:
            return
        for i, ref in enumerate(node.inputs):
            spec = self.part.spec(ref)
            if i not in node.row.writes and not is_known(spec.shape):
                var = self.store.variable(node.inputs[0])
                self.emit(f"{var}.fit({self.store.expr[ref]})", node.name)

    def do_Send(self, node: Node) -> None:
        number = len(self.sends)
        if not node.inputs:
            self.sends.append(SendInfo(node.name, "copied", self.stage(node)))
            self.emit(f"{self.hook('send')}({number})", node.name)
            return
        ref = node.inputs[0]
        spec, text = self.part.spec(ref), self.store.expr[ref]
        if not spec.sized:
            self.sends.append(SendInfo(node.name, "sized"))
            self.emit(f"{self.hook('send_sized')}({number}, {text})", node.name)
        elif self.store.fixed(ref):
            self.sends.append(SendInfo(node.name, "fixed", text))
            self.emit(f"{self.hook('send')}({number})", node.name)
        elif spec.nbytes <= COPIED_SEND_BYTES:
            stage = self.stage(node)
            self.sends.append(SendInfo(node.name, "copied", stage))
            self.emit(f"{stage}[...] = {text}", node.name)
            self.emit(f"{self.hook('send')}({number})", node.name)
        else:
            var = self.store.variable_behind(ref)
            self.sends.append(SendInfo(node.name, "loose"))
            self.emit(f"{self.hook('send_loose')}({number}, {text}, {var})", node.name)

    def stage(self, node: Node) -> str:
        name = f"q{self.store.number[node.name]}"
        self.binds[name] = ("stage", node.name)
        return name

    def do_Parcel(self, node: Node) -> None:
        """Copy in the values that were not computed in the Parcel."""
        for i, ref in enumerate(node.inputs):
            slot = self.store.slot(node, i)
            if self.store.expr[ref] != slot:
                self.emit(f"{slot}[...] = {self.store.expr[ref]}", node.name)

    def join(self, node: Node) -> None:
        """Copy in the values that were not computed in their slot."""
        for i, ref in enumerate(node.inputs):
            slot = self.store.joined(node, i)
            if self.store.expr[ref] != slot:
                self.emit(f"{slot}[...] = {self.store.expr[ref]}", node.name)

    def do_Copy(self, node: Node) -> None:
        name = f"k{self.store.number[node.name]}"
        self.binds[name] = ("copy", node.name)
        self.emit(
            f"{self.store.expr[Ref(node.name)]} = {name}({self.store.expr[node.inputs[0]]})",
            node.name,
        )

    def do_Loop(self, node: Node) -> None:
        """Emit a loop or branch that never waits as one call."""
        name = f"k{self.store.number[node.name]}"
        self.binds[name] = ("frame", node.name)
        outs = ", ".join(self.store.expr[Ref(node.name, i)] for i in range(len(node.specs)))
        args = ", ".join(self.store.expr[ref] for ref in node.inputs)
        self.emit(f"{outs + ' = ' if outs else ''}{name}({args})", node.name)

    do_Branch = do_Loop

    def wait(self, node: Node) -> None:
        """Start a node that finishes later: a collective, or a wait that fills boxes."""
        given = ""
        if node.row.collective:
            for i, ref in enumerate(node.inputs):
                target = self.store.bucket_input(node.name, i)
                if node.type == "AllGather":  # the number of rows is known only in the step
                    self.binds[target] = ("bucket_in", node.name, i)
                    self.emit(f"{target}[0] = {self.store.expr[ref]}.copy()", node.name)
                    continue
                if self.store.expr[ref] != target:
                    self.binds[target] = ("bucket_in", node.name, i)
                    self.emit(f"{target}[...] = {self.store.expr[ref]}", node.name)
        else:
            given = "".join(f", {self.given(ref)}" for ref in node.inputs)
        self.emit(f"{self.hook('begin')}({node.name!r}{given})", node.name)

    def given(self, ref: Ref) -> str:
        """An input of a wait: a value, or the state of a handle."""
        is_handle = self.part.nodes[ref.node].is_state
        return self.store.variable(ref) if is_handle else self.store.expr[ref]

    def compute(self, node: Node) -> None:
        info = self.info(node)
        args = [self.argument(node, i, ref) for i, ref in enumerate(node.inputs)]
        name = self.kernel(node)
        if info.tiles and self.may_yield(self.seconds(node)):
            self.update_in_tiles(node, name, args)
            return
        long = self.is_long(node, self.seconds(node))
        if long:
            self.emit(f"{self.hook('lend')}()", node.name)
        if info.form == "update":
            self.fit(node)
            self.emit(f"{name}({self.handles_first(node, args)})", node.name)
        else:
            self.call(node, info, name, args)
        if long:
            self.emit(f"{self.hook('take')}()", node.name)
        self.poll(node)

    def is_long(self, node: Node, seconds: float) -> bool:
        """Whether the progress lock is lent during a kernel. Launches on a GPU return at once."""
        return not self.simple and node.kind != "gpu" and seconds > LONG_S

    @staticmethod
    def handles_first(node: Node, args: list[str]) -> str:
        """The arguments of an update: the variables it writes, then the others."""
        others = [i for i in range(len(args)) if i not in node.row.writes]
        return ", ".join(args[i] for i in (*node.row.writes, *others))

    def update_in_tiles(self, node: Node, name: str, args: list[str]) -> None:
        """Emit an update whose kernel yields between its tiles."""
        self.binds[name] = ("tiles", node.name)
        self.fit(node)
        for i in node.row.writes:
            variable = self.store.variable(node.inputs[i])
            self.emit(f"for _ in {variable}.renew(): yield", node.name)
        self.emit(f"for _ in {name}({self.handles_first(node, args)}): yield", node.name)

    def argument(self, node: Node, index: int, ref: Ref) -> str:
        if index in node.row.writes:
            return f"{self.store.variable(ref)}.write()"
        if node.type == "IsVariableInitialized":
            return f"{self.store.variable(ref)}.array"  # None until it has a value
        if index in node.row.reads:
            return f"{self.store.variable(ref)}.read()"
        return self.store.expr[ref]

    def call(self, node: Node, info: KernelInfo, name: str, args: list[str]) -> None:
        refs = [Ref(node.name, i) for i in range(len(node.specs))]
        outs = [self.store.expr[r] for r in refs]
        if info.form == "view" and outs[0] in self.store.binds:
            return  # a view of a fixed buffer is created when the instance is bound
        static = self.store.static(node)
        if info.form in ("ufunc", "out") and static:
            fresh = [r for r in refs if r in self.store.fresh]
            if info.form == "ufunc" and fresh and refs[0] not in self.store.owned:
                self.emit(f"{outs[0]} = {name}({', '.join(args)})", node.name)
            else:
                for ref in fresh:
                    self.emit(f"{self.store.expr[ref]} = {self.empty(node, ref)}()", node.name)
                keyword = self.keyword(node)
                room = f"h{self.store.number[node.name]}"
                rooms = [f"room={room}"] if room in self.binds else []
                text = ", ".join([*args, *(keyword + o for o in outs), *rooms])
                self.emit(f"{name}({text})", node.name)
        else:
            self.binds[name] = ("kernel" if static or info.form == "view" else "dynamic", node.name)
            left = f"{', '.join(outs)} = " if outs else ""
            self.emit(f"{left}{name}({', '.join(args)})", node.name)
        if self.check:
            for ref, text in zip(refs, outs, strict=True):
                if is_floating(node.specs[ref.index].dtype):
                    self.emit(f"{self.hook('check')}({text}, {node.name!r})", node.name)

    def keyword(self, node: Node) -> str:
        """The prefix of an output argument: "out=" for ufuncs of `KEYWORD_OUT`, else ""."""
        named = node.type in KEYWORD_OUT and self.info(node).form == "ufunc"
        return "out=" if named else ""

    def empty(self, node: Node, ref: Ref) -> str:
        name = f"e{self.store.number[node.name]}_{ref.index}"
        self.binds[name] = ("empty", node.name, ref.index)
        return name

    def poll(self, node: Node) -> None:
        if self.simple or node.kind == "gpu":  # launches return at once
            return
        self.since_poll += self.seconds(node)
        if self.since_poll >= POLL_EVERY_S:
            self.emit(f"{self.hook('poll')}()", node.name)
            self.since_poll = 0.0

    def result(self, index: int) -> str:
        ref = self.part.fetches[index]
        text = self.store.expr[ref]
        node = self.part.nodes[ref.node]
        if node.specs[ref.index].dtype in OPAQUE or ref.node in self.kept:
            return text
        on_host = "/cpu:" in node.device
        if on_host and ref in self.store.fresh and self.part.fetches.index(ref) == index:
            return text
        self.binds[f"c{index}"] = ("own", ref.node, ref.index)
        return f"c{index}({text})"
