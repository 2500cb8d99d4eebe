"""ONNX importer table: operator and opset version -> the function that builds it."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable
from typing import Any

FAMILIES = (
    *(
        "depth_to_space",
        "control_flow",
        "convolution_matmul",
        "elementwise_math",
    ),
    *(
        "gather_scatter",
        "normalization",
        "cumulative_topk_nonzero",
        "padding",
    ),
    *(
        "window_pooling",
        "random_numbers",
        "recurrent_networks",
        "reductions",
    ),
    *(
        "image_resizing",
        "grid_sample_roi_align",
        "shape_operators",
        "fourier_mel",
    ),
    *("training_optimizers",),
)
NEWEST = 10**6

Build = Callable[..., Any]  # build(node, *inputs) -> a tensor, or a sequence of outputs


@dataclasses.dataclass(frozen=True)
class ImporterRow:
    """The importer of an operator from opset `since` up to the next row."""

    domain: str
    name: str
    since: int
    build: Build


_TABLE: dict[tuple[str, str], list[ImporterRow]] = {}


def imports(name: str, since: int = 1, domain: str = "") -> Callable[[Build], Build]:
    """Decorator: register the importer of ONNX operator `name` from opset `since`.

    It is called with the node and one tensor per input; None for an omitted input.
    """

    def add(build: Build) -> Build:
        rows = _TABLE.setdefault((domain, name), [])
        rows.append(ImporterRow(domain, name, since, build))
        rows.sort(key=lambda row: row.since)
        return build

    return add


@functools.cache
def _load() -> None:
    for family in FAMILIES:
        importlib.import_module(f"hpcflow.onnx.importers.{family}")


def find_importer(domain: str, name: str, version: int = NEWEST) -> ImporterRow | None:
    """The row of an operator in opset `version`, or None."""
    _load()
    rows = [row for row in _TABLE.get((domain, name), ()) if row.since <= version]
    return rows[-1] if rows else None


def names() -> set[tuple[str, str]]:
    """Domain and name of every operator in the table."""
    _load()
    return set(_TABLE)
