"""A new built-in op takes a row and a kernel, as CONTRIBUTING.md says: no list names it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
LOADED = """
import sys
from hpcflow.kernels.kernel_registry import find_plain_kernel
find_plain_kernel("Cube", "cpu")
print(*sorted(name.rpartition(".")[2] for name in sys.modules if name.endswith("_kernels")))
"""
USE = """
import numpy as np
import hpcflow as hf
from hpcflow.ops.math.{module}_ops import cube
x = hf.placeholder(hf.float64, [None])
y = cube(x + 1)
with hf.Session() as session:
    print(*(v.tolist() for v in session.run([y, hf.gradients(y, x)[0]], {{x: [0.0, 1.0]}})))
"""
OPS_HEAD = """from typing import Any
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor
from hpcflow.graph.op_registry import op
from hpcflow.ops.math.arithmetic_ops import multiply, square
from hpcflow.ops.shape_inference import elementwise_shape, first_output
"""
KERNELS_HEAD = """from collections.abc import Callable
from typing import Any
from hpcflow.kernels.kernel_registry import KernelNode, kernel
"""


def snippets() -> list[str]:
    """The row and the kernel in CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    part = text[text.index("**Adding a built-in op**") :]
    return re.findall(r"```python\n(.*?)```", part, re.S)[:2]


def output_of(script: str, copy: Path) -> str:
    """What a fresh process prints that uses the copy of hpcflow in a folder."""
    where = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=where, cwd=copy, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def append(file: Path, text: str, head: str) -> None:
    """Add text to a file, which starts with `head` if it is new."""
    had = file.read_text() if file.exists() else head
    file.write_text(f"{had}\n\n{text}")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with a copy of hpcflow."""
    without = shutil.ignore_patterns("__pycache__")  # other processes write there meanwhile
    shutil.copytree(ROOT / "hpcflow", tmp_path / "hpcflow", ignore=without)
    return tmp_path


def test_they_are_short() -> None:
    lines = [line for text in snippets() for line in text.splitlines() if line.strip()]
    assert 0 < len(lines) <= 10


@pytest.mark.parametrize(
    ("module", "loaded"),
    [
        ("elementwise_math", "arithmetic_kernels elementwise_math_kernels"),
        ("cube", "cube_kernels"),  # new files
    ],
)
def test_a_row_and_a_kernel_are_a_built_in_op(copy: Path, module: str, loaded: str) -> None:
    row, kernel = snippets()
    family = copy / "hpcflow" / "ops" / "math"
    append(family / f"{module}_ops.py", row, OPS_HEAD)
    append(family / f"{module}_kernels.py", kernel, KERNELS_HEAD)
    assert output_of(LOADED, copy) == loaded
    assert output_of(USE.format(module=module), copy) == "[1.0, 8.0] [3.0, 12.0]"
