"""The ONNX project's own backend tests, unchanged, for all that hpcflow.onnx does not decline.

What is declined stands with its reason in hpcflow/onnx/unsupported_operators.py and in
docs/onnx.md. Tests that
are declined, and those of devices that are not here, are taken out: they would all be skipped.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import onnx

from hpcflow.onnx.backend import HpcflowBackend
from hpcflow.onnx.unsupported_operators import is_unsupported_model, why_not

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the suite's own data overflow
    from onnx.backend.test import BackendTest
    from onnx.backend.test.loader import load_model_tests

    suite = BackendTest(HpcflowBackend, __name__)
    nodes = {test.name: test.model for test in load_model_tests(kind="node")}
    stored = {
        test.name: test.model or onnx.load(Path(test.model_dir, "model.onnx"))
        for kind in ("simple", "pytorch-converted", "pytorch-operator")
        for test in load_model_tests(kind=kind)
    }

LEAST = 0.85  # of the node tests of operators that are not outside


def declined(name: str) -> bool:
    """True for a test of what is outside, or declined."""
    if name in stored and not HpcflowBackend.is_compatible(stored[name]):
        return True
    if name not in nodes:
        return bool(why_not("", name))
    base = nodes.get(re.sub(r"_expanded.*", "", name), nodes[name])
    return is_unsupported_model(nodes[name]) or bool(why_not(base.graph.node[0].op_type, name))


def runs_here(item: str) -> bool:
    """True for a test of a device that is here, and not declined."""
    name, _, device = item.rpartition("_")
    return HpcflowBackend.supports_device(device.upper()) and not declined(name)


for _case, _class in suite.test_cases.items():
    for _item in [item for item in vars(_class) if item.startswith("test_")]:
        if not runs_here(_item):
            delattr(_class, _item)
    globals()[_case] = _class


def test_most_node_tests_are_run() -> None:
    inside = [name for name, model in nodes.items() if not is_unsupported_model(model)]
    run = [name for name in inside if not declined(name)]
    assert len(run) >= LEAST * len(inside), f"{len(run)} of {len(inside)}"
