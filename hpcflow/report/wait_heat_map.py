"""Heat map of a run: for each worker and time, the share of a step that it waited for others."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

MOST_WORKERS, MOST_TIMES = 256, 512  # cells of the map
LOW, HIGH = np.array([230, 240, 250]), np.array([192, 60, 10])  # no waiting, nothing but waiting
NOTHING = 255  # palette index of a cell without data


class HeatMap(NamedTuple):
    """Shares of waiting, [workers, times], NaN where nothing is known; and what the cells mean."""

    waiting: np.ndarray
    seconds: float  # of the whole map
    workers_in_a_row: float


def heat_map(rows: Sequence[Mapping[str, float]]) -> HeatMap | None:
    """The map of the rows of `paces.csv`; None without rows."""
    needed = ("seconds", "worker", "work", "wait")
    usable = [row for row in rows if all(name in row for name in needed)]
    if not usable:
        return None
    table = np.array([[row[name] for name in needed] for row in usable])
    table = table[np.isfinite(table).all(1) & (table >= 0).all(1)]
    if not len(table):
        return None
    seconds, workers = max(table[:, 0].max(), 1e-9), int(table[:, 1].max()) + 1
    high, wide = min(workers, MOST_WORKERS), min(MOST_TIMES, max(1, len(table) // workers))
    down = (table[:, 1] * high / workers).astype(int)
    across = np.clip(np.ceil(table[:, 0] / seconds * wide).astype(int) - 1, 0, wide - 1)
    sums = np.zeros((2, high, wide))
    for k, values in enumerate((table[:, 2], table[:, 3])):
        np.add.at(sums[k], (down, across), values)
    with np.errstate(invalid="ignore", divide="ignore"):
        waiting = sums[1] / (sums[0] + sums[1])
    return HeatMap(_filled(waiting), float(seconds), workers / high)


def _filled(cells: np.ndarray) -> np.ndarray:
    """Cells without a row of their own have the value after them: a row tells of steps before."""
    filled = cells.copy()
    for column in range(filled.shape[1] - 2, -1, -1):
        empty = np.isnan(filled[:, column])
        filled[empty, column] = filled[empty, column + 1]
    return filled


def png_uri(cells: np.ndarray) -> str:
    """Shares from 0 to 1 as a `data:` URI of a PNG with a pixel for each cell."""
    indices = np.where(np.isnan(cells), NOTHING, np.clip(cells, 0, 1) * 254).astype(np.uint8)
    shades = LOW + (HIGH - LOW) * np.linspace(0, 1, 255)[:, None]
    palette = np.vstack([shades, [[255, 255, 255]]]).astype(np.uint8)
    height, width = indices.shape
    lines = b"".join(b"\0" + row.tobytes() for row in indices)
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", palette.tobytes()),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    ]
    picture = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return "data:image/png;base64," + base64.b64encode(picture).decode("ascii")
