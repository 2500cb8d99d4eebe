"""CUDA graph regions: runs of statements in generated code that only launch work on a GPU.

Each region becomes a function of its own. An object is called in place of its statements; it runs
them, or launches a CUDA graph of what they launched. The feeds are copied to the GPU together,
before everything else. Consecutive copies to the host become one. Line numbers do not change.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from hpcflow.lowering.kernel_metadata import Code
from hpcflow.plan.ir.program import Node, Part

LEAST = 2  # least kernels of a region: launching a graph costs as much as one kernel
PLACES = frozenset(
    "kernel loop plain const buffer room viewof var empty bucket_in bucket_out".split()
)
CALLED = frozenset("kernel loop empty".split())
AROUND = frozenset("hold let_go".split())  # hooks around updates: they defer SIGINT (Ctrl-C)
JOINS = frozenset("Concat Pack Parcel AllReduce".split())
STATES = frozenset("read write assign begin end".split())
INPUTS, OUTPUTS, REGION = "_inputs", "_outputs", "_region"


@dataclasses.dataclass
class Region:
    """One run of statements: its nodes, kernels and variables.

    `given` says for each argument of the region its index in `Cut.feeds`; None if it is no feed.
    """

    nodes: list[str]
    kernels: list[str]  # names in the code that are bound to them
    read: list[str]  # names of variables
    written: list[str]
    given: list[int | None]


@dataclasses.dataclass
class Cut:
    """The code of a partition with its regions.

    `make` takes the values that the code is bound to, then the objects for inputs, outputs and
    regions in the order of `names`.
    """

    make: Callable[..., Any]
    regions: list[Region]
    feeds: list[Node]  # copies of feeds to the GPU, in the order of the arguments of `_inputs`
    outputs: list[list[Node]]  # copies to the host that are made together
    names: list[str]


class Cutter:
    """Cuts the code of one partition into regions.

    `why(node)` is the reason against capturing the kernel of a node, "" if there is none.
    `on(node)` is whether the node is on the GPU.
    """

    def __init__(
        self, code: Code, part: Part, why: Callable[[Node], str], on: Callable[[Node], bool]
    ) -> None:
        self.code, self.part, self.why, self.on = code, part, why, on

    def cut(self, file: str) -> Cut:
        """The code with regions, compiled with file name `file`."""
        tree = ast.parse(self.code.source)
        make = tree.body[0]
        assert isinstance(make, ast.FunctionDef)
        self.regions: list[Region] = []
        self.feeds: list[Node] = []
        self.outputs: list[list[Node]] = []
        body: list[ast.stmt] = []
        for strand in make.body:
            if isinstance(strand, ast.FunctionDef) and strand.name != "release":
                body += self._strand(strand)
            body.append(strand)
        make.body = body
        names = [INPUTS] if self.feeds or any(self._draws(0)) else []
        names += [f"{OUTPUTS}{i}" for i in range(len(self.outputs))]
        names += [f"{REGION}{i}" for i in range(len(self.regions))]
        make.args.args += [ast.arg(name) for name in names]
        ast.fix_missing_locations(tree)
        scope: dict[str, Any] = {}
        exec(compile(tree, file, "exec"), scope)
        return Cut(scope["make"], self.regions, self.feeds, self.outputs, names)

    def _strand(self, strand: ast.FunctionDef) -> Iterator[ast.stmt]:
        """Cut a segment in place; yields the functions of its regions."""
        first = strand.name == "s0"
        old = strand.body
        fed = [s for s in old if first and self._is_feed(s)]
        kept = [s for s in old if s not in fed]
        start = 1 if isinstance(kept[0], ast.Nonlocal) else 0
        shared = set(kept[0].names) if isinstance(kept[0], ast.Nonlocal) else set()
        new = [*kept[:start], *self._inputs(fed, first)]
        functions: list[ast.stmt] = []
        at = start
        while at < len(kept):
            run = self._run(kept, at, self._holds)
            copies = self._run(kept, at, self._is_output)
            if sum(len([*self._kernels(s)]) for s in run) >= LEAST:
                later = _loaded(kept[at + len(run) :]) | shared
                function, call = self._region(run, later, fed)
                functions.append(function)
                new.append(call)
            elif copies:
                run = copies
                new.append(self._copied(copies))
            else:
                run = kept[at : at + max(len(run), 1)]
                new += run
            at += len(run)
        strand.body = new
        yield from functions

    @staticmethod
    def _run(body: list[ast.stmt], at: int, fits: Callable[[ast.stmt], bool]) -> list[ast.stmt]:
        end = at
        while end < len(body) and fits(body[end]):
            end += 1
        return body[at:end]

    # -- classification of statements

    def _node(self, statement: ast.stmt) -> Node | None:
        return self.part.nodes.get(self.code.lines[statement.lineno - 1])

    def _call(self, statement: ast.stmt) -> ast.Call | None:
        if isinstance(statement, (ast.Expr, ast.Assign)):
            return statement.value if isinstance(statement.value, ast.Call) else None
        return None

    def _kind(self, name: str) -> str:
        return self.code.binds.get(name, ("",))[0]

    def _copy(self, statement: ast.stmt) -> Node | None:
        """The node of a statement that copies a value of known size between devices."""
        call, node = self._call(statement), self._node(statement)
        if node is None or call is None or not isinstance(call.func, ast.Name):
            return None
        return node if self._kind(call.func.id) == "copy" and node.specs[0].sized else None

    def _is_feed(self, statement: ast.stmt) -> bool:
        node = self._copy(statement)
        if node is None or not self.on(node) or node.inputs[0].node not in self.part.feeds:
            return False
        return self.part.nodes[node.inputs[0].node].kind == "cpu"

    def _is_output(self, statement: ast.stmt) -> bool:
        node = self._copy(statement)
        if node is None or node.kind != "cpu":
            return False
        return self.on(self.part.nodes[node.inputs[0].node])

    def _kernels(self, statement: ast.stmt) -> Iterator[str]:
        """The names of the kernels that a statement calls."""
        for part in ast.walk(statement):
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
                if self._kind(part.func.id) in ("kernel", "loop"):
                    yield part.func.id

    def _holds(self, statement: ast.stmt) -> bool:
        """Whether a CUDA graph can hold what a statement does."""
        if isinstance(statement, (ast.If, ast.Try)):  # around an update of many elements
            if isinstance(statement, ast.If) and any(map(_is_call, ast.walk(statement.test))):
                return False
            inside = [*statement.body, *statement.orelse, *getattr(statement, "finalbody", [])]
            return all(self._is_around(one) or self._holds(one) for one in inside)
        node = self._node(statement)
        if node is None or not self.on(node) or not isinstance(statement, (ast.Expr, ast.Assign)):
            return False
        part = self.part
        if not all(part.nodes[r.node].is_state or part.spec(r).sized for r in node.inputs):
            return False  # a graph has the sizes of its capture
        binds = {self._kind(name) for name in _loaded([statement]) if name in self.code.binds}
        if not binds <= PLACES or self.why(node):
            return False
        methods = {a.attr for a in ast.walk(statement) if isinstance(a, ast.Attribute)}
        call = self._call(statement)
        if call is not None:
            called = self._kind(call.func.id) if isinstance(call.func, ast.Name) else ""
            return methods <= STATES and (not called or called in CALLED)
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if isinstance(target, ast.Subscript):
            return node.type in JOINS
        return isinstance(target, ast.Name) and isinstance(statement.value, ast.Name)

    def _is_around(self, statement: ast.stmt) -> bool:
        call = self._call(statement)
        if call is None or not isinstance(call.func, ast.Name):
            return False
        return self.code.binds.get(call.func.id, ("", ""))[:2] in {("hook", h) for h in AROUND}

    # -- replacements of statements

    def _draws(self, strand: int) -> Iterator[str]:
        """The names of the nodes of a segment that may draw random numbers: they have a key."""
        for name in self.code.strands[strand].nodes:
            if "key" in self.part.nodes[name].attrs:
                yield name

    def _inputs(self, fed: list[ast.stmt], first: bool) -> list[ast.stmt]:
        if not fed and not (first and any(self._draws(0))):
            return []
        self.feeds = [node for s in fed if (node := self._node(s)) is not None]
        targets, args = [], []
        for statement in fed:
            call = self._call(statement)
            assert isinstance(statement, ast.Assign) and call is not None
            targets.append(ast.unparse(statement.targets[0]))
            args.append(ast.unparse(call.args[0]))
        left = "".join(f"{name}, " for name in targets)
        at = fed[0].lineno if fed else 1
        return [_parsed(f"{left and f'({left}) = '}{INPUTS}({', '.join(args)})", at)]

    def _copied(self, copies: list[ast.stmt]) -> ast.stmt:
        name = f"{OUTPUTS}{len(self.outputs)}"
        self.outputs.append([node for s in copies if (node := self._node(s)) is not None])
        calls = [self._call(s) for s in copies]
        targets = [ast.unparse(s.targets[0]) for s in copies if isinstance(s, ast.Assign)]
        args = ", ".join(ast.unparse(call.args[0]) for call in calls if call is not None)
        return _parsed(f"({', '.join(targets)},) = {name}({args})", copies[0].lineno)

    def _region(
        self, run: list[ast.stmt], later: set[str], fed: list[ast.stmt]
    ) -> tuple[ast.stmt, ast.stmt]:
        """The function of a region, and the call that replaces its statements."""
        number = len(self.regions)
        assigned: set[str] = set()
        given: dict[str, None] = {}
        for statement in run:
            for used in sorted(_loaded([statement])):
                if used not in self.code.binds and used not in assigned:
                    given[used] = None
            assigned |= _stored(statement)
        made = sorted(assigned & later)
        feeds = {ast.unparse(s.targets[0]): i for i, s in enumerate(fed)
                 if isinstance(s, ast.Assign)}  # fmt: skip
        read, written = self._states(run)
        nodes = [self.code.lines[s.lineno - 1] for s in run]
        kernels = [name for s in run for name in self._kernels(s)]
        self.regions.append(Region(nodes, kernels, read, written, [feeds.get(n) for n in given]))
        inside = f"{REGION}_run{number}"
        function = _parsed(f"def {inside}({', '.join(given)}): return", run[0].lineno)
        assert isinstance(function, ast.FunctionDef)
        values = _parsed(f"return ({''.join(f'{name}, ' for name in made)})", run[-1].lineno, True)
        function.body = [*run, values]
        left = f"({', '.join(made)},) = " if made else ""
        args = ", ".join([inside, *given])
        return function, _parsed(f"{left}{REGION}{number}({args})", run[0].lineno)

    def _states(self, run: list[ast.stmt]) -> tuple[list[str], list[str]]:
        """The variables that the statements only read, and those that they write."""
        read: set[str] = set()
        written: set[str] = set()
        for part in (p for statement in run for p in ast.walk(statement)):
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                (read if part.attr == "read" else written).add(part.value.id)
        return sorted(read - written), sorted(written)


def _is_call(part: ast.AST) -> bool:
    return isinstance(part, ast.Call)


def _loaded(statements: list[ast.stmt]) -> set[str]:
    """The names that the statements load."""
    parts = (part for statement in statements for part in ast.walk(statement))
    return {p.id for p in parts if isinstance(p, ast.Name) and isinstance(p.ctx, ast.Load)}


def _stored(statement: ast.stmt) -> set[str]:
    return {
        p.id
        for p in ast.walk(statement)
        if isinstance(p, ast.Name) and isinstance(p.ctx, ast.Store)
    }


def _parsed(text: str, line: int, inside: bool = False) -> ast.stmt:
    """A statement parsed from `text`, at line `line`; `inside` a function."""
    tree = ast.parse(f"def f():\n {text}" if inside else text).body[0]
    new = tree.body[0] if inside and isinstance(tree, ast.FunctionDef) else tree
    for part in ast.walk(new):
        if "lineno" in part._attributes:
            part.lineno = part.end_lineno = line  # type: ignore[attr-defined]
    return new
