"""Roofline peaks of this rank's machine, measured: FLOP/s of matrix products, bytes/s of copies.

They are the two lines of a roofline: a kernel that reaches one of them is as fast as the machine
allows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

LONG_ENOUGH_S = 20e-3  # of one product, so that launch overhead does not count
LARGEST = 8192  # rows of a matrix
LEAST_ARRAY, MOST_ARRAY = 16 << 20, 256 << 20  # bytes
CACHES = 4  # times the last-level cache: the next copy finds nothing of the arrays in it
DTYPES = ("float32", "float64")
Product = Callable[[int, str], Callable[[], object]]  # of a size and dtype: one multiplication


@dataclasses.dataclass(frozen=True)
class RooflinePeaks:
    """FLOP/s of matrix products by dtype; bytes/s, reads and writes."""

    flops: dict[str, float]
    nbytes: float
    threads: int
    device: str = "cpu"

    def share(self, flops: float, nbytes: float, seconds: float, dtype: str) -> float:
        """The fraction of the nearer peak that this work in this time reaches."""
        peak = self.flops.get(dtype) or max(self.flops.values())  # 16 bits: computed as float32
        return max(flops / peak, nbytes / self.nbytes) / seconds if seconds > 0 else 0.0

    def text(self) -> str:
        """`98.1 GFLOP/s float32, 49.0 float64, 12.3 GB/s (1 thread)`."""
        rates = [f"{rate / 1e9:.3g} GFLOP/s {dtype}" for dtype, rate in self.flops.items()]
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        hardware = threads if self.device == "cpu" else self.device
        return f"{', '.join(rates)}, {self.nbytes / 1e9:.3g} GB/s ({hardware})"


def measure(
    threads: int = 1,
    xp: Any = np,
    wait: Callable[[], object] = lambda: None,
    dtypes: Sequence[str] = DTYPES,
    seconds: float = 1.0,
    device: str = "cpu",
    sharing: int = 1,
    products: Sequence[Product] = (),
) -> RooflinePeaks:
    """Measure for about `seconds`; `wait` blocks until the work that `xp` has launched is done.

    `sharing` processes measure at once on this node; `products` are other ways to multiply than
    `xp.matmul`: each makes the multiplication of two matrices of a size and dtype.
    """
    each = seconds / (len(dtypes) + 1)
    ways = [_by_numpy(xp), *products]
    flops = {
        dtype: max(_products(way, dtype, wait, each / len(ways)) for way in ways)
        for dtype in dtypes
    }
    return RooflinePeaks(flops, _copies(xp, threads, wait, each, sharing), threads, device)


def cached_peaks(file: Path, make: Callable[[], RooflinePeaks]) -> RooflinePeaks:
    """The peaks cached in `file`; if it cannot be read, they are measured and written there."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        cached = RooflinePeaks(**json.loads(file.read_text()))
        if cached.flops and min(cached.nbytes, cached.threads, *cached.flops.values()) > 0:
            return cached
    peaks = make()
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}.{threading.get_ident()}")
    draft.write_text(json.dumps(dataclasses.asdict(peaks)))
    draft.replace(file)
    return peaks


def _products(
    make_product: Product, dtype: str, wait: Callable[[], object], seconds: float
) -> float:
    """FLOP/s of products of square matrices, large enough to be timed."""
    n, took, best = 128, 0.0, 0.0
    while took < LONG_ENOUGH_S and n < LARGEST:
        n *= 2
        multiply = make_product(n, dtype)
        took = _fastest(multiply, wait, 2)
        best = max(best, 2 * n**3 / took)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        best = max(best, 2 * n**3 / _fastest(multiply, wait, 1))
    return best


def _by_numpy(xp: Any) -> Product:
    def make(n: int, dtype: str) -> Callable[[], object]:
        a, b, c = (xp.ones((n, n), dtype) for _ in range(3))
        return lambda: xp.matmul(a, b, out=c)

    return make


def _copies(
    xp: Any, threads: int, wait: Callable[[], object], seconds: float, sharing: int
) -> float:
    """Bytes/s, read and written, of copies of a large array by all threads."""
    size = min(max(LEAST_ARRAY, CACHES * last_cache() // sharing), MOST_ARRAY)
    source, target = xp.ones(size // 4, "float32"), xp.ones(size // 4, "float32")
    threads = threads if xp is np else 1
    edges = [size // 4 * i // threads for i in range(threads + 1)]
    pieces = [(target[i:j], source[i:j]) for i, j in itertools.pairwise(edges)]
    with ThreadPoolExecutor(threads) as pool:

        def copy() -> None:
            if threads == 1:
                xp.copyto(target, source)
            else:  # NumPy releases the GIL while it copies
                list(pool.map(lambda piece: xp.copyto(*piece), pieces))

        until, took = time.perf_counter() + seconds, _fastest(copy, wait, 2)
        while time.perf_counter() < until:
            took = min(took, _fastest(copy, wait, 1))
    return 2 * size / took


def _fastest(run: Callable[[], object], wait: Callable[[], object], times: int) -> float:
    took = []
    for _ in range(times):
        wait()
        start = time.perf_counter()
        run()
        wait()
        took.append(time.perf_counter() - start)
    return max(min(took), 1e-9)


def last_cache(folder: str = "/sys/devices/system/cpu/cpu0/cache") -> int:
    """Bytes of the largest CPU cache; 0 where the system does not report it."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = [0]
    for file in Path(folder).glob("index*/size"):
        try:
            text = file.read_text().strip()
            sizes.append(int(text.rstrip("KMG")) * units.get(text[-1:], 1))
        except (OSError, ValueError):
            continue
    return max(sizes)
