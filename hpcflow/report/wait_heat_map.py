"""Heat map of a run: the share that each worker waited for others and for input, by time."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hpcflow.report.run_limits import Joint

MOST_WORKERS, MOST_TIMES = 256, 512  # cells of the map
OWN, RANKS, INPUT = np.array([[230, 240, 250], [192, 60, 10], [0, 120, 90]])  # as in page.css
LEVELS = 15  # shades of each kind of waiting
NOTHING = 255  # palette index of a cell without data


class HeatMap(NamedTuple):
    """Shares from 0 to 1, [workers, times], NaN where nothing is known; and what the cells mean."""

    waiting: np.ndarray  # for other ranks
    input: np.ndarray  # for input data; 0 if the rows do not tell it
    seconds: float  # of the whole map
    workers_in_a_row: float
    joint: Joint


def heat_map(rows: Sequence[Mapping[str, float]], seconds: float = 0.0) -> HeatMap | None:
    """The map of the rows of `paces.csv`, of a run of so many seconds; None without rows."""
    needed = ("seconds", "worker", "work", "wait")
    more = ("input", "steps")
    usable = [row for row in rows if all(name in row for name in needed)]
    if not usable:
        return None
    table = np.array([[row[k] for k in needed] + [row.get(k, 0.0) for k in more] for row in usable])
    table = table[np.isfinite(table).all(1) & (table >= 0).all(1)]
    if not len(table):
        return None
    seconds, workers = max(table[:, 0].max(), seconds, 1e-9), int(table[:, 1].max()) + 1
    wide = min(MOST_TIMES, max(1, len(table) // workers))
    edges = np.linspace(0.0, seconds, wide + 1)
    order = np.argsort(table[:, 1], kind="stable")
    table = table[order]
    ends = np.searchsorted(table[:, 1], np.arange(workers + 1))
    cells = np.full((2, workers, wide), np.nan)
    for worker in range(workers):
        cells[:, worker] = _shares(table[ends[worker] : ends[worker + 1]], edges)
    known = cells[0][:, ~np.isnan(cells[0]).any(0)]
    common, mean = known.min(0).sum() * seconds / wide, known.mean(0).sum() * seconds / wide
    high = min(workers, MOST_WORKERS)
    down = np.arange(workers) * high // workers
    shown = [_means(one, down, high) for one in cells]
    return HeatMap(shown[0], shown[1], float(seconds), workers / high, Joint(common, mean - common))


def _shares(rows: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The shares of waiting for others and for input between `edges`, of one worker's rows.

    A row tells of the time since the row before it, the first one of its own steps. NaN where the
    rows tell of less than half of the time.
    """
    each = rows[:, 2] + rows[:, 3]  # seconds of a step
    rows, each = rows[each > 0], each[each > 0]
    if not len(rows):
        return np.full((2, len(edges) - 1), np.nan)
    at = np.maximum.accumulate(rows[:, 0])
    first = max(0.0, at[0] - each[0] * rows[0, 5]) if rows[0, 5] else 0.0
    at = np.concatenate([[first], at])
    spans = np.diff(at)
    told = np.diff(np.clip(edges, at[0], at[-1]))
    shares = [rows[:, 3] / each, np.minimum(rows[:, 4], rows[:, 2]) / each]
    sums = [np.interp(edges, at, np.concatenate([[0.0], np.cumsum(s * spans)])) for s in shares]
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.array([np.diff(one) / told for one in sums])
    found[:, told < 0.5 * np.diff(edges)] = np.nan
    return np.clip(found, 0.0, 1.0)


def _means(cells: np.ndarray, down: np.ndarray, high: int) -> np.ndarray:
    """The means of the workers that share a row of the map."""
    if len(cells) == high:
        return cells
    sums, counts = np.zeros((2, high, cells.shape[1]))
    known = ~np.isnan(cells)
    np.add.at(sums, down, np.where(known, cells, 0.0))
    np.add.at(counts, down, known)
    with np.errstate(invalid="ignore"):
        means: np.ndarray = sums / counts
    return means


def png_uri(waiting: np.ndarray, fed: np.ndarray) -> str:
    """Shares of waiting for others and for input as a `data:` URI of a PNG, a pixel a cell."""
    steps = [np.rint(np.nan_to_num(one) * LEVELS).astype(int) for one in (waiting, fed)]
    indices = steps[0] * (LEVELS + 1) + np.minimum(steps[1], LEVELS - steps[0])
    indices = np.where(np.isnan(waiting), NOTHING, indices).astype(np.uint8)
    height, width = indices.shape
    lines = b"".join(b"\0" + row.tobytes() for row in indices)
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", _palette().tobytes()),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    ]
    picture = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return "data:image/png;base64," + base64.b64encode(picture).decode("ascii")


def _palette() -> np.ndarray:
    """The colours of all pairs of shares; the last pair, which cannot be, is white."""
    ranks, fed = np.divmod(np.arange((LEVELS + 1) ** 2), LEVELS + 1) / np.array([[LEVELS]] * 2)
    own = np.maximum(1 - ranks - fed, 0)
    shades = own[:, None] * OWN + ranks[:, None] * RANKS + fed[:, None] * INPUT
    colors = np.minimum(shades, 255).astype(np.uint8)
    colors[NOTHING] = 255
    return colors
