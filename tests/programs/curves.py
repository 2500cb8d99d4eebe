"""The losses of 50 steps of the eight networks of benchmarks/nets: in PyTorch, and in hpcflow.

python tests/programs/curves.py       in an environment with torch; writes curves.json beside it

The test compares ours with what it wrote, so that it needs no PyTorch. The networks are those that
are measured, with fewer words and smaller batches.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1] / "benchmarks"))

from nets import spec  # noqa: E402

RESULTS = HERE / "curves.json"
STEPS = 50
SMALLER: dict[str, dict[str, int]] = {
    "LENET": {"batch": 16},
    "ALEXNET": {"batch": 1},
    "LSTM": {"batch": 16, "steps": 6, "hidden": 128, "vocabulary": 1000, "sampled": 64},
    "WORD2VEC": {"batch": 256, "vocabulary": 5000},
    "TRANSFORMER": {"batch": 2},
}


def smaller() -> None:
    """Make the networks those of the recorded losses."""
    for name, sizes in SMALLER.items():
        vars(spec)[name].update(sizes)


def losses(module: Any, net: str, mode: str = "") -> list[float]:
    """Of each step; a network whose gradients are not used makes the first one only."""
    step = module.step(net, mode)
    return [step() for _ in range(1 if spec.OPTIMIZERS[net].kind == "none" else STEPS)]


def main() -> None:
    import torch
    from nets import of_torch

    torch.set_num_threads(1)
    smaller()
    found = {net: losses(of_torch, net, "eager") for net in spec.NETS}
    told = {"torch": torch.__version__, "losses": found}
    RESULTS.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
