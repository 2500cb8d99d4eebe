"""What TensorFlow prints when it runs the programs in tests/programs/tf1.

python tests/programs/of_tensorflow.py    in an environment with tensorflow; writes tf1.json there

The programs say `import hpcflow as tf`; here that is TensorFlow 1's API, with the cells and layers
of TensorFlow itself, which Keras 3 has left out. The test compares what hpcflow prints.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROGRAMS = sorted((HERE / "tf1").glob("*.py"))
RESULTS = HERE / "tf1.json"


def printed(program: Path) -> list[str]:
    """The lines that a program prints, run in an empty folder."""
    before, text = os.getcwd(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(text):
        os.chdir(folder)
        try:
            runpy.run_path(str(program), run_name="__main__")
        finally:
            os.chdir(before)
    return text.getvalue().splitlines()


class Joined(types.ModuleType):
    """A module that has the names of several things, the first that has one."""

    def __init__(self, name: str, *parts: Any) -> None:
        super().__init__(name)
        self._parts = parts

    def __getattr__(self, name: str) -> Any:
        for part in self._parts:
            if hasattr(part, name):
                return getattr(part, name)
        raise AttributeError(name)


def tensorflow1() -> Any:
    """TensorFlow 1's API."""
    import tensorflow
    from tensorflow.python.keras.layers.legacy_rnn import rnn_cell_impl, rnn_cell_wrapper_impl
    from tensorflow.python.keras.legacy_tf_layers import base, convolutional, core, pooling

    tf = tensorflow.compat.v1
    tf.disable_v2_behavior()
    tf.enable_resource_variables()
    cells = Joined("rnn_cell", rnn_cell_impl, rnn_cell_wrapper_impl)
    nn = Joined("nn", types.SimpleNamespace(rnn_cell=cells), tf.nn)
    return Joined(
        "tf",
        types.SimpleNamespace(nn=nn, layers=Joined("layers", core, convolutional, pooling, base)),
        tf,
    )


def main() -> None:
    import tensorflow

    tf = sys.modules["hpcflow"] = tensorflow1()
    found = {}
    for program in PROGRAMS:
        tf.reset_default_graph()
        found[program.stem] = printed(program)
    told = {"tensorflow": tensorflow.__version__, "printed": found}
    RESULTS.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
