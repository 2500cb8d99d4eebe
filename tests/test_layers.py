"""Imports go one way between packages; inside functions too. See docs/architecture.md."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.syntax_trees import PACKAGE, syntax_trees

LEAVES = {"errors", "settings", "platform", "launch", "sync_rules"}  # standard library only
MONITORING = LEAVES | {"monitoring"}
GRAPH = LEAVES | {"graph"}
OPS = GRAPH | {"ops"}
PLAN = OPS | {"autodiff", "codegen", "plan", "lowering", "placement"}
RUNTIME = PLAN | {"kernels", "comm", "monitoring", "runtime"}
OF_GRAPH = {  # all that they may know of the graph; rows of ops name the modules of their kernels
    "kernels": {"hpcflow.graph.dtypes", "hpcflow.graph.op_registry"},
    "comm": {"hpcflow.graph.dtypes"},
}
MAY_KNOW = {
    **dict.fromkeys(LEAVES, LEAVES),
    "monitoring": MONITORING,
    "graph": GRAPH,
    "ops": OPS,
    "namespaces": LEAVES,
    "layers": OPS | {"layers"},
    "logging": LEAVES | {"logging"},
    "gfile": LEAVES | {"gfile"},
    "autodiff": OPS | {"autodiff"},
    "placement": LEAVES | {"placement"},
    "plan": PLAN,
    "lowering": PLAN,
    "codegen": LEAVES | {"codegen"},
    "kernels": LEAVES | {"codegen", "kernels"},
    "comm": MONITORING | {"comm"},
    "runtime": RUNTIME,
    **{package: RUNTIME | {package} for package in ("ps", "checkpoint", "data")},
    "doctor": MONITORING | {"comm", "doctor", "kernels"},
    "sweep": MONITORING | {"train", "report", "sweep"},
    "report": MONITORING | {"graph", "placement", "plan", "train", "report"},
    "train": RUNTIME | {"checkpoint", "train"},
    "tf1": RUNTIME | {"checkpoint", "train", "tf1"},
    "summary": RUNTIME | {"train"},
    "flags": RUNTIME,
    "app": RUNTIME | {"flags"},
    "test": RUNTIME | {"checkpoint", "train", "tf1", "test"},
    "model": RUNTIME | {"checkpoint", "data", "train", "model"},
    "onnx": RUNTIME | {"onnx"},
    "notebook": LEAVES | {"monitoring", "notebook"},
    **dict.fromkeys(("cli", "__main__", "__init__")),  # know all
}
ONE_FILE_ONLY = ("mpi4py", "cupy.cuda.nccl", "cudnn", "h5py", "libdnnl")


SYNC_RULES = {  # plain data, which settings and plans name
    f"hpcflow.ps.{name}"
    for name in ("sync_rule", "sync_rules", "script_rules", "backup_workers", "bounded_staleness")
}


def name_of(file: Path) -> str:
    return ".".join(("hpcflow", *file.with_suffix("").parts)).removesuffix(".__init__")


@functools.cache
def modules() -> dict[str, ast.Module]:
    """The syntax tree of each module."""
    return {name_of(file): tree for file, tree in syntax_trees().items()}


PACKAGES = {name_of(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("__init__.py")}


def targets(module: str, node: ast.AST) -> Iterator[str]:
    """The modules that one statement names; `from package import module` names the module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parents = module.split(".") if module in PACKAGES else module.split(".")[:-1]
        near = parents[: len(parents) - node.level + 1] if node.level else []
        base = ".".join([*near, *([node.module] if node.module else [])])
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func) and node.args:
        if isinstance(node.args[0], ast.Constant):
            yield str(node.args[0].value)


def known(name: str) -> str:
    """`hpcflow.graph.graph.Tensor` is something of the module `hpcflow.graph.graph`."""
    while name and name not in modules():
        name = name.rpartition(".")[0]
    return name


def imports(module: str, nodes: Iterator[ast.AST]) -> list[str]:
    return [target for node in nodes for target in targets(module, node)]


def names() -> list[str]:
    """All modules, without reading them."""
    return sorted(name_of(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py"))


def layer_of(module: str) -> str:
    """The package of a module; beside ops are their kernels, `*_kernels`, and exports, `*_onnx`."""
    if module.startswith("hpcflow.ops.") and module.endswith(("_kernels", "_onnx")):
        return module.rpartition("_")[2]
    if module in SYNC_RULES:
        return "sync_rules"
    return module.split(".")[1] if "." in module else "__init__"


@pytest.mark.parametrize("layer", sorted({layer_of(module) for module in names()}))
def test_the_modules_of_a_layer_import_only_what_they_may(layer: str) -> None:
    assert layer in MAY_KNOW, "a new package needs a row in MAY_KNOW"
    for module in names():
        if layer_of(module) == layer:
            check_imports(module, layer, MAY_KNOW[layer])


def check_imports(module: str, layer: str, allowed: set[str] | None) -> None:
    for target in imports(module, ast.walk(modules()[module])):
        if layer in LEAVES and target.split(".")[0] != "hpcflow":
            top = target.split(".")[0]
            assert top in sys.stdlib_module_names, f"{module} is a leaf and imports {target}"
        if target.split(".")[0] != "hpcflow" or allowed is None:
            continue
        if known(target) in OF_GRAPH.get(layer, ()):
            continue
        assert target != "hpcflow", f"{module} imports all of hpcflow: name the module it needs"
        other = layer_of(known(target) or target)
        assert other in allowed, f"{layer} may not import {other}: {module}"


@pytest.mark.slow
def test_modules_do_not_import_each_other_in_a_ring() -> None:
    """In functions and for type checkers neither."""
    edges = {
        module: {known(t) for t in imports(module, ast.walk(tree))} - {"", module, *PACKAGES}
        for module, tree in modules().items()
    }
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        pytest.fail(f"a ring of imports: {' -> '.join(error.args[1])}")


@pytest.mark.slow(first=False)
@pytest.mark.parametrize("library", ONE_FILE_ONLY)
def test_one_file_alone_imports_a_library(library: str) -> None:
    users = set()
    for module, tree in modules().items():
        found = imports(module, ast.walk(tree))
        texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
        loaded = [t for t in texts if library == "libdnnl" and str(t).startswith("libdnnl.so")]
        if loaded or any(f"{name}.".startswith(f"{library}.") for name in found):
            users.add(module)
    assert len(users) <= 1, f"{library} is imported by {sorted(users)}; one wrapper is enough"


def test_no_private_name_of_another_module_is_used() -> None:
    """Neither imported nor as an attribute of a module."""
    used = []
    for module, tree in modules().items():
        imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
        aliases = [a for n in imports if (n.module or "").startswith("hpcflow") for a in n.names]
        used += [f"{module}: {a.name}" for a in aliases if is_private(a.name)]
        whole = {a.asname or a.name for a in aliases if a.name.islower()}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and is_private(node.attr):
                if isinstance(node.value, ast.Name) and node.value.id in whole:
                    used.append(f"{module}: {ast.unparse(node)}")
    assert not used


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.slow
def test_functions_fit_a_screen() -> None:
    """At most 50 lines, signature and docstring included."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    lines = {
        f"{path}:{node.lineno} {node.name}": node.end_lineno - node.lineno + 1
        for path, tree in syntax_trees().items()
        for node in ast.walk(tree)
        if isinstance(node, kinds) and node.end_lineno is not None
    }
    assert {name: count for name, count in lines.items() if count > 50} == {}
