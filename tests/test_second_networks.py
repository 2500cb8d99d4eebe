"""The second set of benchmark networks: hpcflow trains each, and any file that is one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hpcflow as hf

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))

from nets2 import run  # noqa: E402
from nets2.drivers import network, of_hpcflow  # noqa: E402

DIFFERENCES = {"resnet_bfloat16": 1e-2, "transformer_bfloat16": 1e-3}  # relative, of bfloat16
MODULE = """
import numpy as np

OPTIMIZER, TOLERANCE, BATCH_AXES = ("sgd", 0.1), (1e-4, 1e-2), (0,)


def weights(rng):
    return {"w": rng.standard_normal((3, 1)).astype("f4"), "moving_mean": np.zeros((), "f4")}


def batch(rng):
    return (rng.standard_normal((5, 3)).astype("f4"),)


def hpcflow_loss(hf, v, x):
    y = hf.matmul(x, v["w"])
    return hf.reduce_mean(hf.square(y)), {"moving_mean": v["moving_mean"] * 0.9 + 0.1}
"""


def losses(name: str, unknown: bool) -> list[float]:
    with hf.Graph().as_default():
        step = of_hpcflow.step(network.load(run.NETS[name]), unknown=unknown)
        return [step() for _ in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(run.NETS, key=lambda name: name != "message_passing"))
def test_a_network_of_unknown_batch_trains_as_with_a_fixed_one(name: str) -> None:
    fixed, unknown = losses(name, False), losses(name, True)
    assert np.isfinite(fixed).all() and fixed[0] != fixed[1]
    np.testing.assert_allclose(unknown, fixed, rtol=DIFFERENCES.get(name, 1e-5))


def test_a_network_from_elsewhere_is_run(tmp_path: Path) -> None:
    file, result = tmp_path / "little.py", tmp_path / "result.json"
    file.write_text(MODULE)
    options = ["--module", str(file), "--rounds", "1", "--repeats", "1", "--json", str(result)]
    subprocess.run(
        [sys.executable, str(BENCHMARKS / "nets2" / "run.py"), *options],
        check=True,
        capture_output=True,
    )
    record = json.loads(result.read_text())
    assert [(row["case"], row["contender"]) for row in record["rows"]] == [("little", "hpcflow")]
    assert record["absent"]["JAX jit"] == "no --jax PYTHON was given"
    assert record["checks"][0]["value"] is None
