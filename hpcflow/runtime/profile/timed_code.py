"""Timed code: rewrites the generated code of a partition so that each working statement is timed.

Line numbers do not change, so errors still name their operation.
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from hpcflow.lowering.kernel_metadata import Code

CLOCK, NOTE, PULLED = "_clock", "_note", "_pulled"
_alone = threading.Lock()  # CPython 3.11 shares the AST recursion depth between threads
Note = Callable[[int, int], None]  # (place, clock at its start)
MESSAGES = frozenset("send send_sized send_loose begin poll lend take".split())


def timed(code: Code, file: str, scope: dict[str, Any], clock: Callable[[], int], note: Note,
          place: Callable[[int, str], int]) -> Callable[..., Any]:  # fmt: skip
    """The function `make` of `code`; its segments call `note(place, start)` after each statement.

    `place(line, kind)` returns the number of a place. Kinds: "op", "messages", "results", "frame"
    (a loop or branch, whose own statements are timed too), "python".
    """

    def pulled(number: int, tiles: Iterator[None]) -> Iterator[None]:
        """Time each turn of an iterator that yields between tiles; not what runs in between."""
        while True:
            start = clock()
            try:
                next(tiles)
            except StopIteration:
                note(number, start)
                return
            note(number, start)
            yield

    given = {**scope, CLOCK: clock, NOTE: note, PULLED: pulled}
    with _alone:
        exec(_compiled(code, file, place), given)
    made: Callable[..., Any] = given["make"]
    return made


def _compiled(code: Code, file: str, place: Callable[[int, str], int]) -> CodeType:
    tree = ast.parse(code.source)
    make = tree.body[0]
    assert isinstance(make, ast.FunctionDef)
    for strand in make.body:
        if isinstance(strand, ast.FunctionDef) and strand.name != "release":
            strand.body = _Rewriting(code, place).block(strand.body)
    ast.fix_missing_locations(tree)
    return compile(tree, file, "exec")


class _Rewriting:
    def __init__(self, code: Code, place: Callable[[int, str], int]) -> None:
        self.code, self.place = code, place

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return [new for statement in body for new in self.statement(statement)]

    def statement(self, old: ast.stmt) -> list[ast.stmt]:
        if isinstance(old, ast.Return) and old.value is not None and _works(old.value):
            number = self.place(old.lineno, "results")
            kept = _parsed("_r = None", old)
            assert isinstance(kept, ast.Assign)
            kept.value = old.value
            return [*self._noted(number, kept, old), _parsed("return _r", old)]
        if isinstance(old, ast.For) and not _calls(old.iter, "range"):
            number = self.place(old.lineno, self._kind(old.lineno, None))
            whole = _parsed(f"for _ in {PULLED}({number}, None): yield", old)
            assert isinstance(whole, ast.For) and isinstance(whole.iter, ast.Call)
            whole.iter.args[1] = ast.Call(ast.Name("iter", ast.Load()), [old.iter], [])
            return [whole]
        if isinstance(old, (ast.For, ast.If, ast.Try)):
            for field in ("body", "orelse", "finalbody"):
                setattr(old, field, self.block(getattr(old, field, [])))
            return [old]
        if isinstance(old, (ast.Expr, ast.Assign)) and _works(old):
            return self._noted(self.place(old.lineno, self._kind(old.lineno, old)), old, old)
        return [old]

    def _noted(self, number: int, work: ast.stmt, at: ast.stmt) -> list[ast.stmt]:
        before, after = _parsed(f"_t = {CLOCK}()", at), _parsed(f"{NOTE}({number}, _t)", at)
        return [before, work, after]

    def _kind(self, line: int, statement: ast.Expr | ast.Assign | None) -> str:
        call = statement.value if statement is not None else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            what = self.code.binds.get(call.func.id, ("", ""))
            if what[0] == "hook":
                return "messages" if what[1] in MESSAGES else "python"
            if what[0] in ("frame", "own"):
                return {"frame": "frame", "own": "results"}[what[0]]
        return "op"


def _works(node: ast.AST) -> bool:
    """Whether a statement calls a function or writes into an array; others cost no time."""
    if isinstance(node, ast.Expr) and isinstance(node.value, (ast.Yield, ast.Constant)):
        return False
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            return True
        if isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Store):
            return True
    return False


def _calls(node: ast.expr, name: str) -> bool:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return is_call and node.func.id == name  # type: ignore[attr-defined]


def _parsed(text: str, at: ast.stmt) -> ast.stmt:
    """Parse a statement, with the line number of `at`."""
    new = ast.parse(text).body[0]
    for part in ast.walk(new):
        if "lineno" in part._attributes:
            ast.copy_location(part, at)
    return new
