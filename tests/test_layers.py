"""Imports go one way between the rooms; inside functions too. See docs/architecture.md."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LEAVES = {"errors", "settings", "logs", "launch", "threads", "consistency", "faults"}
LEAVES |= {"files", "folders", "guard", "hosts", "job_time", "locks", "mpirun", "names", "owned"}
LEAVES |= {"package", "printable", "relay", "slurm"}
GRAPH = LEAVES | {"graph"}
PLAN = GRAPH | {"ops", "autodiff", "native", "plan"}
RUNTIME = PLAN | {"kernels", "comm", "runtime", "peaks"}
DTYPES = "hpcflow.graph.dtypes"  # all that kernels and comm may know of the graph
MAY_KNOW = {
    **dict.fromkeys(LEAVES, LEAVES),
    "graph": GRAPH,
    "ops": GRAPH | {"ops"},
    **dict.fromkeys(
        (
            *("bitwise", "initializers", "linalg", "losses", "math", "nn", "random"),
            *("bitwise", "initializers", "linalg", "losses", "math", "nn", "strings"),
            *("distributions", "image", "metrics", "rnn_cell", "signal", "spectral"),
        ),
        GRAPH | {"ops", "rnn_cell"},  # re-exports
    ),
    "layers": GRAPH | {"ops", "layers"},
    "logging": LEAVES | {"logging"},
    "gfile": LEAVES | {"gfile"},
    "autodiff": GRAPH | {"ops", "autodiff"},
    "recomputing": GRAPH | {"ops", "autodiff"},
    "plan": PLAN,
    "native": LEAVES | {"native"},
    "kernels": LEAVES | {"native", "kernels"},
    "comm": LEAVES | {"comm"},
    "runtime": RUNTIME,
    **{room: RUNTIME | {room} for room in ("ps", "checkpoint", "data")},
    "peaks": LEAVES | {"peaks"},
    "doctor": LEAVES | {"comm", "doctor", "kernels", "peaks"},
    "report": LEAVES | {"train", "comm", "report"},
    "train": RUNTIME | {"checkpoint", "train"},
    "summary": RUNTIME | {"train"},
    "flags": RUNTIME,
    "app": RUNTIME | {"flags"},
    "test": RUNTIME | {"checkpoint", "train", "test"},
    "onnx": RUNTIME | {"onnx"},
    **dict.fromkeys(("cli", "__main__", "__init__")),  # know all
}
ONE_FILE_ONLY = ("mpi4py", "cupy.cuda.nccl", "cudnn", "h5py", "libdnnl")


def name_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(file): ast.parse(file.read_text()) for file in (ROOT / "hpcflow").rglob("*.py")}
PACKAGES = {name_of(file) for file in (ROOT / "hpcflow").rglob("__init__.py")}


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
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name


def imports(module: str, nodes: Iterator[ast.AST]) -> list[str]:
    return [target for node in nodes for target in targets(module, node)]


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_knows_only_what_its_room_may(module: str) -> None:
    room = room_of(module)
    assert room in MAY_KNOW, f"{module}: a new room needs a row in MAY_KNOW"
    allowed = MAY_KNOW[room]
    for target in imports(module, ast.walk(MODULES[module])):
        if room in LEAVES and target.split(".")[0] != "hpcflow":
            top = target.split(".")[0]
            assert top in sys.stdlib_module_names, f"{module} is a leaf and imports {target}"
        if target.split(".")[0] != "hpcflow" or allowed is None:
            continue
        if room in ("kernels", "comm") and known(target) == DTYPES:
            continue
        assert target != "hpcflow", f"{module} imports all of hpcflow: name the module it needs"
        assert room_of(target) in allowed, f"{room} may not know {room_of(target)}: {module}"


def test_modules_do_not_import_each_other_in_a_ring() -> None:
    """In functions and for type checkers neither."""
    edges = {
        module: {known(t) for t in imports(module, ast.walk(tree))} - {"", module, *PACKAGES}
        for module, tree in MODULES.items()
    }
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        pytest.fail(f"a ring of imports: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("library", ONE_FILE_ONLY)
def test_one_file_alone_imports_a_library(library: str) -> None:
    users = set()
    for module, tree in MODULES.items():
        found = imports(module, ast.walk(tree))
        texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
        loaded = [t for t in texts if library == "libdnnl" and str(t).startswith("libdnnl.so")]
        if loaded or any(f"{name}.".startswith(f"{library}.") for name in found):
            users.add(module)
    assert len(users) <= 1, f"{library} is imported by {sorted(users)}; one wrapper is enough"
