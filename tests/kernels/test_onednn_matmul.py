"""oneDNN's matrix products against NumPy's, and where they serve."""

import os
import subprocess
import sys

import numpy as np
import pytest

from hpcflow.graph.static_shape import Spec
from hpcflow.kernels import onednn_library, onednn_matmul
from hpcflow.kernels.kernel_registry import KernelNode
from tests.kernels.against_plain import both, chosen, close

pytestmark = pytest.mark.skipif(
    bool(onednn_library.absent()), reason=f"oneDNN: {onednn_library.absent()}"
)
TURNS = [(False, False), (False, True), (True, False), (True, True)]


def matrices(lead, rows, summed, columns, turns):
    """Attributes, a and b as they are given."""
    rng = np.random.default_rng(0)
    shapes = [(rows, summed), (summed, columns)]
    shapes = [s[::-1] if turn else s for s, turn in zip(shapes, turns, strict=True)]
    a, b = (rng.standard_normal((*lead, *s)).astype(np.float32) for s in shapes)
    return dict(transpose_a=turns[0], transpose_b=turns[1]), [a, b]


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize(
    "sizes",
    [((), 32, 300, 200), ((), 700, 7, 400), ((6,), 40, 50, 130), ((2, 3), 64, 33, 128)],
    ids=str,
)
def test_products_equal_those_of_numpy(sizes, turns):
    attrs, inputs = matrices(*sizes, turns)
    provider, fast, plain = both("MatMul", attrs, inputs)
    assert provider == "onednn"
    close(fast, plain)


@pytest.mark.parametrize("turns", TURNS[:3])
@pytest.mark.parametrize("sizes", [((), 260, 270, 280), ((), 600, 300, 300)], ids=str)
def test_large_products_of_two_matrices_equal_those_of_numpy(sizes, turns, monkeypatch):
    monkeypatch.setattr(onednn_library, "several", lambda: False)
    provider, fast, plain = both("MatMul", *matrices(*sizes, turns))
    assert provider == "onednn"
    close(fast, plain)


def test_matrices_that_are_views():
    attrs, (a, b) = matrices((), 64, 300, 200, TURNS[0])
    views = [np.repeat(a, 2, 1)[:, ::2], b.T.copy().T]
    assert not any(v.flags.c_contiguous for v in views)
    provider, fast, plain = both("MatMul", attrs, views)
    assert provider == "onednn"
    close(fast, plain)


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        (((), 8, 8, 8), "small"),
        (((), 1, 4096, 4096), "small"),
        (((2,), 300, 300, 300), "large"),
        (((), 64, 0, 64), "empty"),
    ],
    ids=str,
)
def test_what_numpy_does_as_well_is_left_to_it(sizes, why, monkeypatch):
    monkeypatch.setattr(onednn_library, "several", lambda: False)
    choice, _ = chosen("MatMul", *matrices(*sizes, TURNS[0]))
    assert choice.kernel.provider == "plain" and why in dict(choice.refused)["onednn"]


def test_a_product_of_unknown_or_broadcast_size_is_left_to_numpy():
    attrs, (a, b) = matrices((4,), 64, 300, 200, TURNS[0])
    for inputs, unknown in (([a, b[0]], ()), ([a, b], (0, 1))):
        choice, _ = chosen("MatMul", attrs, inputs, unknown)
        assert choice.kernel.provider == "plain"
    _, fast, plain = both("MatMul", attrs, [a, b[0]])
    assert np.array_equal(fast, plain)


POOLS = """
import numpy as np
import hpcflow as hf
from threadpoolctl import threadpool_info

x = hf.placeholder(hf.float32, [512, 512])
given = np.random.default_rng(1).standard_normal((512, 512)).astype("f4")
found = hf.Session().run(hf.matmul(x, x), {x: given})
assert np.allclose(found, given @ given, atol=1e-2)
found = {pool["user_api"]: pool["num_threads"] for pool in threadpool_info()}
print(found["blas"], found["openmp"])
"""


@pytest.mark.parametrize(("number", "wanted"), [(1, "1 1"), (2, "1 2")])
def test_one_pool_has_all_threads(number: int, wanted: str) -> None:
    env = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    env |= {"HPCFLOW_THREADS": str(number), "OMP_NUM_THREADS": str(number)}
    made = subprocess.run(
        [sys.executable, "-c", POOLS], env=env, capture_output=True, text=True, timeout=400
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout.split("\n")[-2] == wanted


def test_large_products_are_onednns_if_there_are_several_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = Spec(np.dtype("f4"), (2, 512, 512))
    node = KernelNode("MatMul", {"transpose_a": False, "transpose_b": False}, [sizes] * 2, [sizes])
    monkeypatch.setattr(onednn_library, "several", lambda: False)
    assert "so large" in onednn_matmul.refuses(node)
    monkeypatch.setattr(onednn_library, "several", lambda: True)
    assert onednn_matmul.refuses(node) == ""
