"""Training steps of the measured networks: the losses are PyTorch's from the same weights.

tests/programs/curves.json holds what PyTorch had, written by curves.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import hpcflow as hf
from tests.programs import curves

TWINS: dict[str, list[float]] = json.loads(curves.RESULTS.read_text())["losses"]
NEAR, APART = 1e-4, 1e-2  # relative
GROWING = ("mlp_adam", "lenet")  # where rounding grows from step to step, in PyTorch as well


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, sizes in curves.SMALLER.items():
        for key, size in sizes.items():
            monkeypatch.setitem(vars(curves.spec)[name], key, size)
    with hf.Graph().as_default():
        yield


@pytest.mark.slow
@pytest.mark.parametrize("net", curves.spec.NETS)
def test_losses_are_those_of_pytorch(net: str) -> None:
    from nets import of_hpcflow

    ours, theirs = curves.losses(of_hpcflow, net), TWINS[net]
    assert ours[0] == pytest.approx(theirs[0], rel=NEAR)
    assert ours == pytest.approx(theirs, rel=APART if net in GROWING else NEAR)
