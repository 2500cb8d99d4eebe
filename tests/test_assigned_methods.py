"""No method of another object is ever replaced: who wants to see a step observes it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.syntax_trees import syntax_trees

ROOT = Path(__file__).parent.parent
SET_BY_NAME = {  # file -> why it sets attributes by name on what is not `self`
    "cli/run.py": "an action of argparse stores a value under the name of its option",
    "codegen/thread_team.py": "fields of a structure that C code reads",
    "model/model_graph.py": "`super().__setattr__` of a class that refuses one name",
    "platform/exception_translation.py": "a class decorator wraps the methods of its class",
    "platform/lazy_imports.py": "a module that loads its names when they are first used",
}
MEANT = {
    "mpi4py.rc",
    "namespace.set",  # of argparse, the values of `--set`
    "sys.excepthook",
    "_sys.excepthook",
}  # made to be assigned: all of an owner, or one name


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


@functools.cache
def names_of_methods() -> set[str]:
    """The names of methods that are not an attribute with a value in some class."""
    methods, values = set(), set()
    for tree in syntax_trees().values():
        for cls in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            for part in cls.body:
                if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    is_value = any("property" in ast.unparse(d) for d in part.decorator_list)
                    (values if is_value else methods).add(part.name)
                targets = getattr(part, "targets", [getattr(part, "target", None)])
                names = {t.id for t in targets if isinstance(t, ast.Name)}
                if "__slots__" in names:
                    names |= {c.value for c in ast.walk(part) if isinstance(c, ast.Constant)}
                values |= names
            for node in ast.walk(cls):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    values |= {node.attr} if is_self(node.value) else set()
    return methods - values


def modules_of(tree: ast.Module) -> set[str]:
    """The names by which a file knows modules that it imports whole."""
    statements = (node for node in ast.walk(tree) if isinstance(node, ast.Import))
    return {(a.asname or a.name).split(".")[0] for node in statements for a in node.names}


def replaced(tree: ast.Module, methods: set[str]) -> Iterator[tuple[int, str]]:
    """The lines that assign to a method of another object, or to a name of a module."""
    modules = modules_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            owner = ast.unparse(node.value)
            is_module = owner.split(".")[0] in modules and owner.replace(".", "").isidentifier()
            is_meant = owner == "self" or not MEANT.isdisjoint((owner, f"{owner}.{node.attr}"))
            if not is_meant and (is_module or node.attr in methods):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
            owner = ast.unparse(node.value)
            is_dict = owner.endswith(".__dict__") and owner != "self.__dict__"
            if is_dict or (owner.startswith("vars(") and owner != "vars(self)"):
                yield node.lineno, owner


def set_by_name(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The calls of `setattr` and `delattr` on other objects than `self`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in (
            *("setattr", "delattr", "__setattr__", "__delattr__"),
        ):
            if ast.unparse(node.args[0]) != "self":
                yield node.lineno, ast.unparse(node)


@pytest.mark.slow
def test_no_method_of_another_object_is_assigned() -> None:
    methods = names_of_methods()
    found = {file: list(replaced(tree, methods)) for file, tree in syntax_trees().items()}
    assert not {file: lines for file, lines in found.items() if lines}


def test_mypy_is_not_told_to_overlook_one() -> None:
    files = [str(f) for f in (ROOT / "hpcflow").rglob("*.py") if "method-assign" in f.read_text()]
    assert not files


@pytest.mark.slow
def test_attributes_are_set_by_name_only_where_there_is_a_reason() -> None:
    found = {str(file): list(set_by_name(tree)) for file, tree in syntax_trees().items()}
    assert {file for file, lines in found.items() if lines} == set(SET_BY_NAME)


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("engine.run_segment = record.run_segment", True),
        ("self.engine.run_slice = self.run_slice", True),
        ("instance.begin, x = begin_watched, 1", True),
        ("import os\nos.pwrite = self.pwrite", True),
        ("engine.__dict__['poll'] = polled", True),
        ("vars(engine)['poll'] = polled", True),
        ("del engine.wait_for", True),
        ("self.run_segment = x", False),
        ("instance.error = error", False),
    ],
)
def test_what_is_found(line: str, is_found: bool) -> None:
    methods = {"run_segment", "run_slice", "begin", "wait_for"}
    assert bool(list(replaced(ast.parse(line), methods))) == is_found


def test_the_methods_of_the_executor_are_among_those_looked_for() -> None:
    looked_for = {"run_segment", "run_slice", "wait_for", "step_begin", "bind_segments"}
    assert looked_for <= names_of_methods()
