"""What `import hpcflow` loads: numpy, and nothing slow, optional or forbidden on login nodes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def test_importing_hpcflow_loads_numpy_and_little_else() -> None:
    ours = loaded_by("import hpcflow, hpcflow.graph.graph")
    assert "numpy" in ours
    more = ours - loaded_by("import numpy")
    assert not {name.split(".")[0] for name in more} & FORBIDDEN
    others = {name for name in more if name.split(".")[0] != "hpcflow"}
    assert len(others) < MOST_MODULES, sorted(others)


def test_the_command_starts_light() -> None:
    more = loaded_by("import hpcflow.cli.main, hpcflow.cli.run") - loaded_by("import numpy")
    assert not {name.split(".")[0] for name in more} & FORBIDDEN
