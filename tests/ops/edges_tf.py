"""Where TensorFlow's gradients are NaN at the edges; writes edges_tf.json beside it.

python -m tests.ops.edges_tf       in an environment with TensorFlow

The tests compare with what it wrote, so that they need no TensorFlow.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tensorflow

from tests.ops.edges import ONE, TWO, where_nan

HALF_MISSING = {"Lgamma", "Digamma", "Igamma", "Igammac"}


def main() -> None:
    """Write the file."""
    tf = tensorflow.compat.v1
    tf.disable_v2_behavior()
    lines = [f'"tensorflow": "{tensorflow.__version__}"']
    for dtype in ("float16", "float32"):
        types = [t for t in (*ONE, *TWO) if dtype != "float16" or t not in HALF_MISSING]
        rows = [f'  "{t}": {json.dumps(where_nan(tf, t, np.dtype(dtype)))}' for t in types]
        lines.append(f'"{dtype}": {{\n' + ",\n".join(rows) + "\n }")
    Path(__file__).with_suffix(".json").write_text("{\n " + ",\n ".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
