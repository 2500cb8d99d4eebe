"""What is loaded when: nothing slow, optional or forbidden on login nodes, nothing not named."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tools.stubs import LATER, page, path

FORBIDDEN = {
    *("mpi4py", "h5py", "cupy", "numba", "scipy", "sklearn", "matplotlib", "onnx"),
    *("multiprocessing", "subprocess", "asyncio", "unittest", "concurrent"),
}
MOST_MODULES = 20  # of the standard library, beyond those that numpy loads
ROOT = Path(__file__).parent.parent


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_graph_loads_numpy_and_little_else() -> None:
    assert "numpy" not in loaded_by("import hpcflow")
    ours = loaded_by("import hpcflow as hf; hf.matmul(hf.zeros([2, 3]), hf.zeros([3, 2]))")
    assert "numpy" in ours
    more = ours - loaded_by("import numpy")
    assert not {name.split(".")[0] for name in more} & FORBIDDEN
    others = {name for name in more if name.split(".")[0] != "hpcflow"}
    assert len(others) < MOST_MODULES, sorted(others)


def test_operators_need_no_family_but_those_that_come_with_a_graph() -> None:
    made = "x = hf.constant([6]); y = hf.Variable([3]); (x & y, 1 | y, ~x, x[None] @ y[:, None])"
    assert "hpcflow.ops.load_all_ops" not in loaded_by(f"import hpcflow as hf; {made}")


@pytest.mark.parametrize("made", ["hf.convert_to_tensor([1])", "hf.Graph().as_graph_def()"])
def test_graphs_come_with_their_operators(made: str) -> None:
    loaded_by(f"import hpcflow as hf; {made}")


def test_the_command_starts_light() -> None:
    more = loaded_by("import hpcflow.cli.main, hpcflow.cli.run") - loaded_by("import numpy")
    assert not {name.split(".")[0] for name in more} & FORBIDDEN


def test_a_rank_that_trains_loads_no_page_before_it_writes_one() -> None:
    ours = {name for name in loaded_by("import hpcflow.report.live_page") if "report" in name}
    assert ours == {"hpcflow.report", "hpcflow.report.live_page"}


def test_a_rank_loads_no_packages_of_mail_nor_of_secrets() -> None:
    """They come with `importlib.metadata` and `secrets`, and cost a tenth of what ranks load."""
    more = loaded_by("import hpcflow.runtime.job.job_membership") - loaded_by("import numpy")
    assert not more & {"email", "importlib.metadata", "secrets", "hmac"}


def test_a_name_loads_its_family_alone() -> None:
    made = "hf.nn.softmax(hf.zeros([4])); hf.fft(hf.placeholder(hf.complex64, [4]))"
    ours = loaded_by(f"import hpcflow as hf; {made}")
    assert {"hpcflow.ops.linalg.fft_ops", "hpcflow.ops.nn.nn_ops"} <= ours
    assert (
        not {
            "hpcflow.ops.load_all_ops",
            "hpcflow.ops.nn.ctc_ops",
            "hpcflow.ops.rnn.static_rnn",
            "hpcflow.train",
        }
        & ours
    )


@pytest.mark.slow
def test_no_module_of_ops_has_rows_that_the_op_table_misses() -> None:
    script = """
import importlib, pkgutil
import hpcflow.ops
from hpcflow.graph.op_registry import all_ops
found = set(all_ops())
for module in pkgutil.walk_packages(hpcflow.ops.__path__, "hpcflow.ops."):
    if not module.name.endswith("_onnx"):
        importlib.import_module(module.name)
assert len(found) > 300 and found == set(all_ops()), set(all_ops()) - found
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_row_of_the_op_table_is_found_whoever_made_its_operation() -> None:
    find = (
        "from hpcflow.graph.op_registry import lookup_op; assert lookup_op('CTCLoss').name == "
        "'CTCLoss'"
    )
    loaded = loaded_by(find)
    assert "hpcflow.ops.load_all_ops" in loaded
    assert not [name for name in loaded if name.endswith(("_kernels", "_onnx"))]


@pytest.mark.parametrize("name", LATER)
def test_names_that_are_loaded_later_are_all_there(name: str) -> None:
    module = importlib.import_module(name)
    assert set(module.__all__) <= set(dir(module)) and "nonsense" not in dir(module)
    assert [each for each in module.__all__ if not hasattr(module, each)] == []
    with pytest.raises(AttributeError, match=f"'{name}' has no attribute 'nonsense'"):
        module.nonsense  # noqa: B018
    told = path(name).read_text(encoding="utf-8")
    assert told == page(name), "run: python tools/stubs.py"


def test_a_rank_without_a_gpu_loads_no_generator_for_gpus() -> None:
    """Training through ops that have generated kernels on GPUs."""
    training = """
import hpcflow as hf
x = hf.Variable(hf.ones([2, 8, 8, 1]))
table = hf.Variable(hf.ones([5, 8]))
y = hf.nn.max_pool2d(hf.nn.conv2d(x, hf.Variable(hf.ones([3, 3, 1, 4])), 1, "SAME"), 2, 2, "VALID")
z = hf.nn.relu(hf.reduce_mean(y, [1, 2])) + hf.reduce_sum(hf.gather(table, [0, 3]))
z += hf.reduce_sum(hf.nn.embedding_lookup(table, [1, 1]))
train = hf.train.AdamOptimizer(0.1).minimize(hf.reduce_sum(z))
session = hf.Session()
session.run(hf.global_variables_initializer())
session.run(train)
"""
    loaded = loaded_by(f"exec({training!r})")
    assert "hpcflow.kernels.llvm_max_pooling" in loaded
    assert not [name for name in loaded if ".ptx_" in name or name.endswith(".unrolling")]
