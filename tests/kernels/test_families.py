"""Kernels are imported when a plan first names their ops."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import hpcflow as hf
from hpcflow.graph.op_registry import OPS, all_ops

WATCH = """
import importlib, json, pkgutil, sys
import hpcflow.kernels
import hpcflow.ops
from hpcflow.kernels import kernel_registry

found = {}

def watched(add, at):
    def added(*args, **kwargs):
        frame = sys._getframe(1)
        while frame.f_code.co_name != "<module>":
            frame = frame.f_back
        found.setdefault(args[at], set()).add(frame.f_globals["__name__"])
        return add(*args, **kwargs)
    return added

kernel_registry.kernel = watched(kernel_registry.kernel, 0)
kernel_registry.fast = watched(kernel_registry.fast, 1)
names = [m.name for m in pkgutil.iter_modules(hpcflow.kernels.__path__, "hpcflow.kernels.")]
ops = pkgutil.walk_packages(hpcflow.ops.__path__, "hpcflow.ops.")
for module in [*names, *(m.name for m in ops if m.name.endswith("_kernels"))]:
    importlib.import_module(module)
print(json.dumps({op: sorted(names) for op, names in found.items()}))
"""
NET = """
import numpy as np, sys
import hpcflow as hf
x = hf.placeholder(hf.float32, [None, 3])
y = hf.nn.relu(hf.matmul(x, hf.Variable(np.ones((3, 2), np.float32))))
with hf.Session() as session:
    session.run(hf.global_variables_initializer())
    session.run(y, {x: np.ones((4, 3), "f4")})
    print(*[m for m in sys.modules if m.endswith("_kernels")])
    session.run(hf.cumsum(y), {x: np.ones((4, 3), "f4")})
    print(*[m for m in sys.modules if m.endswith("_kernels")])
"""
OWN = """
import hpcflow as hf
@hf.kernel("Digamma", "out")
def mine(xp, node):
    return lambda x, out: out.fill(7)
with hf.Session() as session:
    print(session.run(hf.digamma(1.0)), round(float(session.run(hf.lgamma(3.0))), 4))
"""


def lines_of(script: str) -> list[str]:
    """What a fresh process prints."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_row_names_the_modules_that_register_kernels_of_its_op() -> None:
    (line,) = lines_of(WATCH)
    found = json.loads(line)
    assert len(found) > 300
    rows = all_ops()
    assert {op: sorted(rows[op].kernels) for op in found} == found


def test_rows_name_other_modules_than_those_of_the_convention() -> None:
    rows = all_ops()
    assert rows["Cumsum"].kernels == ("hpcflow.ops.array.cumulative_kernels",)
    assert rows["Erf"].kernels == ("hpcflow.ops.math.special_function_kernels",)  # by a helper
    assert rows["Einsum"].kernels == (
        "hpcflow.ops.linalg.einsum_kernels",
        "hpcflow.kernels.llvm_einsum",
    )


def test_an_op_of_the_user_names_no_modules() -> None:
    hf.op("TestFamiliesOwn")
    try:
        assert all_ops()["TestFamiliesOwn"].kernels == ()
    finally:
        OPS.pop("TestFamiliesOwn")
    with pytest.raises(TypeError, match="script"):
        hf.op("TestFamiliesOther", kernels="somewhere")


def test_a_plan_imports_the_kernels_of_its_ops() -> None:
    first, second = ({m.rpartition(".")[2] for m in line.split()} for line in lines_of(NET))
    others = {"convolution_kernels", "fft_kernels", "ctc_kernels"}
    assert {"arithmetic_kernels", "nn_kernels"} <= first
    assert not {"cumulative_kernels", *others} & first
    assert "cumulative_kernels" in second and not others & second


def test_a_kernel_of_ones_own_replaces_ours_whenever_it_is_imported() -> None:
    assert lines_of(OWN) == ["7.0 0.6931"]
