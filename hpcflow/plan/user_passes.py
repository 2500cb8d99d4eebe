"""Passes that users register: the registry, the checks of their results, and their identity."""

from __future__ import annotations

import builtins
import functools
import hashlib
import sys
import threading
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcflow.errors import VerifyError
from hpcflow.graph.static_shape import shape_text
from hpcflow.plan.ir.program import Program
from hpcflow.plan.ir.program_rewriting import sorted_program
from hpcflow.plan.pass_row import Form, Pass
from hpcflow.plan.verification.effect_verifier import check_effects

RULE = "registered-pass"
COVERED_PACKAGES = {
    "hpcflow",
    "numpy",
    *sys.stdlib_module_names,
}  # packages that a plan's key covers
_lock = threading.Lock()
_registered: dict[str, UserPass] = {}


class UserPass(NamedTuple):
    """A function from program to program, and the pass before or after which it runs."""

    name: str
    function: Callable[[Program], Program]
    before: str
    after: str
    line: str

    def __str__(self) -> str:
        return f"pass {self.name!r} (registered at {self.line})"


def register(user_pass: UserPass) -> None:
    """Add a pass; one of the same name takes the place of the earlier one."""
    with _lock:
        _registered[user_pass.name] = user_pass


def unregister(name: str) -> None:
    """Remove a pass, if it is registered."""
    with _lock:
        _registered.pop(name, None)


def registered() -> tuple[UserPass, ...]:
    """Return the registered passes in the order of their registration."""
    with _lock:
        return tuple(_registered.values())


def with_registered(rows: Sequence[Pass], passes: Iterable[UserPass]) -> tuple[Pass, ...]:
    """Return the rows with these passes at their places."""
    before: dict[str, list[UserPass]] = {}
    after: dict[str, list[UserPass]] = {}
    for one in passes:
        (before if one.before else after).setdefault(one.before or one.after, []).append(one)
    merged: list[Pass] = []
    for row in rows:
        merged += [_row(one, row) for one in before.get(row.name, ())]
        merged.append(row)
        merged += [_row(one, row) for one in after.get(row.name, ())]
    return tuple(merged)


def form_at(row: Pass, before: bool) -> Form:
    """Return the form of what a pass before or after `row` takes."""
    return row.takes if before else row.gives


def _row(user_pass: UserPass, beside: Pass) -> Pass:
    form = form_at(beside, bool(user_pass.before))
    return Pass(
        *(user_pass.name, beside.phase, form, form),
        next(iter((user_pass.function.__doc__ or "").strip().splitlines()), "")
        or "A pass of the user.",
        "No update, order or fetch was lost.",
        lambda program, of: _run(user_pass, program, form is Form.PLACED),
        in_bodies=beside.in_bodies,
        line=user_pass.line,
    )


# -- checks


def _run(user_pass: UserPass, program: Program, placed: bool) -> Program:
    """Run a pass and check its result.

    Errors: VerifyError that names the pass and the line where it was registered.
    """
    try:
        new = user_pass.function(program)
    except Exception as error:
        raise _error(user_pass, f"raised {type(error).__name__}: {error}") from error
    if new is program:
        return program
    _check_form(user_pass, program, new, placed)
    try:
        new = sorted_program(new)
        check_effects(user_pass.name, program, new)
    except VerifyError as error:
        message = error.message.removeprefix("effects-kept: ").removeprefix(f"{user_pass.name}: ")
        hint = "a pass keeps each update, wait, check and fetch, and the order of effects"
        text = f"{user_pass}: {message}"
        raise VerifyError(RULE, text, op=error.op, line=error.line, hint=hint) from error
    return new


def _check_form(user_pass: UserPass, old: Program, new: Any, placed: bool) -> None:
    """Check that the result is a program whose nodes, feeds and fetches exist."""
    if not isinstance(new, Program):
        raise _error(user_pass, f"returned {type(new).__name__}, not a Program")
    if new.feeds != old.feeds or not all(_is_feed(new, name) for name in old.feeds):
        raise _error(user_pass, "changed the feeds of the program")
    for key, node in new.nodes.items():
        if key != node.name:
            raise _error(user_pass, f"has the node {node.name!r} under the name {key!r}")
        for ref in node.inputs:
            if not _exists(new, ref):
                raise _error(user_pass, f"left {key!r} with the input {ref}, which does not exist")
        for name in node.control:
            if name not in new.nodes:
                raise _error(user_pass, f"left {key!r} behind {name!r}, which does not exist")
        if placed and not node.device:
            raise _error(user_pass, f"made {key!r} without a device, after device placement")
    for name in new.targets:
        if name not in new.nodes:
            raise _error(user_pass, f"removed {name!r}, which is fetched")
    for before, after in zip(old.fetches, new.fetches, strict=False):
        if not _exists(new, after):
            raise _error(user_pass, f"left the fetch {after}, which does not exist")
        a, b = old.spec(before), new.spec(after)
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            how = f"{a.dtype} {shape_text(a.shape)}, now {b.dtype} {shape_text(b.shape)}"
            raise _error(user_pass, f"changed the type of the fetch {before}: {how}")


def _is_feed(program: Program, name: str) -> bool:
    return name in program.nodes and program.nodes[name].row.source == "feed"


def _exists(program: Program, ref: Any) -> bool:
    return ref.node in program.nodes and ref.index < len(program.nodes[ref.node].specs)


def _error(user_pass: UserPass, problem: str) -> VerifyError:
    return VerifyError(RULE, f"{user_pass} {problem}", line=user_pass.line)


# -- identity


def digests() -> list[list[str]] | None:
    """Return names, places and digests of the registered passes; None if one has no digest."""
    entries = []
    for one in registered():
        digest = function_digest(one.function)
        if digest is None:
            return None
        entries.append([one.name, one.before, one.after, digest])
    return entries


def facts() -> list[tuple[str, str, str, str]]:
    """Return what replicas compare of the registered passes: name, kind, line and digest."""
    return [
        (
            one.name,
            "registered pass",
            one.line,
            repr([one.before, one.after, function_digest(one.function)]),
        )
        for one in registered()
    ]


def function_digest(function: Any) -> str | None:
    """Return a digest of a function's code and of all that it uses; None if that is not known.

    It covers constants, defaults, closures, and the user's functions that it calls by name. It is
    None if the function uses an object, class or module of the user, which may change unseen.
    """
    try:
        facts = repr(_facts(function, set()))
    except _UnknownError:
        return None
    return hashlib.sha256(facts.encode()).hexdigest()


class _UnknownError(Exception):
    """A value that has no digest."""


def _facts(value: Any, visited: set[int]) -> Any:
    """Return plain data that is equal for equal values."""
    if value is None or value is ... or isinstance(value, (bool, int, float, complex, str, bytes)):
        return [type(value).__name__, repr(value)]
    if isinstance(value, (tuple, list)):
        return [type(value).__name__, *(_facts(each, visited) for each in value)]
    if isinstance(value, (set, frozenset)):
        return [type(value).__name__, *sorted(repr(_facts(each, visited)) for each in value)]
    if isinstance(value, Mapping):
        return [
            "map",
            *([_facts(key, visited), _facts(each, visited)] for key, each in value.items()),
        ]
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return ["array", str(value.dtype), value.shape, value.tobytes().hex()]
    if isinstance(value, types.CodeType):
        consts = [_facts(const, visited) for const in value.co_consts]
        names = value.co_names, value.co_varnames, value.co_freevars
        return ["code", value.co_code.hex(), names, consts]
    if isinstance(value, functools.partial):
        return ["partial", *(_facts(p, visited) for p in (value.func, value.args, value.keywords))]
    return _named_facts(value, visited)


def _named_facts(value: Any, visited: set[int]) -> Any:
    """Return the facts of a function, class or module."""
    is_module = isinstance(value, types.ModuleType)
    home = value.__name__ if is_module else getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", value.__class__.__qualname__)
    if home == builtins.__name__ or str(home).partition(".")[0] in COVERED_PACKAGES - {"__main__"}:
        if is_module or isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            return ["named", home, name]
    if not isinstance(value, types.FunctionType):
        raise _UnknownError
    if id(value) in visited:
        return ["again", name]
    visited.add(id(value))
    used = {n: value.__globals__[n] for n in _names(value.__code__) if n in value.__globals__}
    try:
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
    except ValueError:  # not assigned yet
        raise _UnknownError from None
    parts = (value.__code__, value.__defaults__, value.__kwdefaults__, cells, used)
    return ["function", name, *(_facts(part, visited) for part in parts)]


def _names(code: types.CodeType) -> list[str]:
    """Return the global names that a function's code uses, with the functions inside it."""
    names = dict.fromkeys(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names.update(dict.fromkeys(_names(const)))
    return list(names)
