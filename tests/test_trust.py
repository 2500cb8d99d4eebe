"""What hpcflow's own source never does: unpickle, run text, start a shell, listen."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcflow.lowering.kernel_metadata import KernelInfo
from hpcflow.lowering.python_codegen import generate_code
from hpcflow.plan.ir.program import Cluster
from hpcflow.plan.serialization.partition_codec import decode_partition, encode_partition
from tests.plan.model import Net

ROOT = Path(__file__).parent.parent
MODULES = "pickle cPickle _pickle dill cloudpickle joblib shelve marshal yaml runpy code codeop "
MODULES += "socket socketserver asyncio http xmlrpc ssl multiprocessing"
CALLS = "eval exec compile __import__ os.system os.popen os.execvp os.execv np.load np.fromfile "
CALLS += "np.memmap np.fromregex"
ALLOWED = {
    # (file, what): why
    ("cli/pack.py", "marshal"): "code of this installation, packed and read by its own user",
    (
        "platform/pack_importer.py",
        "marshal",
    ): "the pack that HPCFLOW_PACK_FILE or PYTHONPATH names, as any module would be",
    ("platform/pack_importer.py", "exec"): "the same",
    (
        "cli/job_feasibility.py",
        "compile",
    ): "whether the user's script is Python; its code is not run",
    ("cli/run.py", "runpy"): "the user's script, which is trusted",
    ("ps/script_rules.py", "runpy"): "the same script, imported for its synchronization rule",
    (
        "launch/host_failure_tolerance.py",
        "socket",
    ): "mpirun's supervisor and its ranks, who show its token; a port",
    ("launch/ssh_relay.py", "socket"): "a port in place of mpirun's, for the daemon of one host",
    (
        "monitoring/srun_rank_supervisor.py",
        "socket",
    ): "a pair of sockets between a process and its child; no port",
    ("cli/graph_argument.py", "runpy"): "the file that --model names, as a script",
    ("notebook/rank_program.py", "pickle"): "a function of the user's own notebook, mode 0700",
    ("notebook/rank_program.py", "cloudpickle"): "the same, which it pickles",
    ("notebook/run_function.py", "pickle"): "what that function returned, from the same folder",
    (
        "runtime/step/planned_step.py",
        "compile",
    ): "the shell of a step: hpcflow's own text, with numbers in it",
    ("runtime/step/planned_step.py", "exec"): "the same",
    (
        "runtime/step/control_flow_execution.py",
        "compile",
    ): "a loop: hpcflow's own text, with numbers in it",
    ("runtime/step/control_flow_execution.py", "exec"): "the same",
    (
        "runtime/step/step_instance.py",
        "compile",
    ): "code made of a plan; names of a plan stand in it quoted",
    ("runtime/step/step_instance.py", "exec"): "the same",
    (
        "runtime/device/cuda_graph_regions.py",
        "compile",
    ): "the same code, with regions as functions of their own",
    ("runtime/device/cuda_graph_regions.py", "exec"): "the same",
    (
        "runtime/profile/timed_code.py",
        "compile",
    ): "the same code, with a clock between its statements",
    ("runtime/profile/timed_code.py", "exec"): "the same",
}


def parsed() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted((ROOT / "hpcflow").rglob("*.py")):
        yield file.relative_to(ROOT / "hpcflow").as_posix(), ast.parse(file.read_text())


def uses(tree: ast.AST) -> Iterator[str]:
    """Forbidden modules and calls of a file, `shell=True` and `allow_pickle`."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(f"{node.module}.{name}" for name in names)]
            for name in names:
                if name.split(".")[0] in MODULES.split():
                    yield name.split(".")[0]
        elif isinstance(node, ast.Call):
            if (called := ast.unparse(node.func)) in CALLS.split():
                yield called
            for keyword in node.keywords:
                if keyword.arg in ("allow_pickle", "shell"):
                    yield f"{keyword.arg}="


@pytest.mark.slow
def test_no_file_unpickles_runs_text_or_listens() -> None:
    found = {(name, use) for name, tree in parsed() for use in uses(tree)}
    assert found == set(ALLOWED)


PICKLING = {
    *("send", "recv", "isend", "irecv", "ssend", "issend", "bsend", "sendrecv", "bcast", "gather"),
    *("scatter", "allgather", "alltoall", "reduce", "allreduce", "scan", "exscan", "mprobe"),
    *("improbe", "ibcast"),
}


def test_the_files_that_know_mpi_call_nothing_that_pickles() -> None:
    """mpi4py's methods with small letters pickle what they send, and unpickle what comes."""
    for name in ("comm/mpi_communicator.py", "comm/mpi_library.py", "comm/mpi_requests.py"):
        tree = ast.parse((ROOT / "hpcflow" / name).read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                ours = ast.unparse(node.func.value) in ("self", "self._owner")
                assert ours or node.func.attr not in PICKLING, ast.unparse(node)


EVIL = "x\"\"\"'''\n\n    import os; os.system('touch evil')\n#{evil}\\"


def test_names_in_a_plan_are_never_text_of_its_code() -> None:
    """A part whose nodes are called like statements compiles to the same code, but for texts."""
    data = encode_partition(Net().step(Cluster()).parts["/job:worker/task:0"])
    size = int.from_bytes(data[8:16], "little")
    told, blobs = json.loads(data[16 : 16 + size]), data[16 + size + -(16 + size) % 64 :]
    names = {node["name"] for node in told["nodes"]}

    def renamed(value: Any) -> Any:
        if isinstance(value, list):
            return [renamed(v) for v in value]
        if isinstance(value, dict):
            return {key: v if key == "type" else renamed(v) for key, v in value.items()}
        return value + EVIL if value in names else value

    text = json.dumps(renamed(told)).encode()
    start = data[:8] + len(text).to_bytes(8, "little") + text
    evil = start + bytes(-len(start) % 64) + blobs
    info = KernelInfo("new", (), False)
    sources = [
        generate_code(decode_partition(one), lambda node: info, check_numerics=True).source
        for one in (data, evil)
    ]
    kinds = [[type(node) for node in ast.walk(ast.parse(source))] for source in sources]
    assert kinds[0] == kinds[1] and len(kinds[0]) > 100
    assert repr(EVIL)[1:-1] in sources[1]  # it stands there, as a text
