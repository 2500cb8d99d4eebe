"""The peaks of a machine: sensible numbers, shares against them by hand, kept in a file."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from hpcflow.kernels import roofline_peaks
from hpcflow.kernels.roofline_peaks import RooflinePeaks
from tests.runtime.test_gpu import GpuModule


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(roofline_peaks, "LEAST_ARRAY", 1 << 20)
    monkeypatch.setattr(roofline_peaks, "MOST_ARRAY", 1 << 20)
    monkeypatch.setattr(roofline_peaks, "LONG_ENOUGH_S", 1e-3)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_machine_is_not_faster_than_what_it_did(threads, monkeypatch):
    """Each product and copy is timed whole: work over the time of all calls is at most the peak."""
    done = {"products": 0.0, "bytes": 0.0}
    matmul, copyto = np.matmul, np.copyto

    class Counting:
        ones = staticmethod(np.ones)

        def matmul(self, a, b, out):
            done["products"] += 2 * a.shape[0] ** 3
            return matmul(a, b, out=out)

        def copyto(self, a, b):
            done["bytes"] += 2 * a.nbytes
            return copyto(a, b)

    start = time.perf_counter()
    found = roofline_peaks.measure(threads, Counting(), dtypes=("float32",), seconds=0.05)
    took = time.perf_counter() - start
    assert found.flops["float32"] >= done["products"] / took > 0
    assert found.nbytes >= done["bytes"] / took > 0
    assert found.threads == threads


def test_threads_share_a_copy():
    found = roofline_peaks.measure(3, seconds=0.03)
    assert set(found.flops) == {"float32", "float64"} and found.nbytes > 0


def test_the_fastest_way_to_multiply_counts():
    made = []

    def slow(n, dtype):
        return lambda: time.sleep(0.002)

    def fast(n, dtype):  # all is done when it is called
        made.append((n, dtype))
        return lambda: None

    alone = roofline_peaks.measure(1, dtypes=("float32",), seconds=0.02, products=[slow])
    both = roofline_peaks.measure(1, dtypes=("float32",), seconds=0.02, products=[slow, fast])
    assert both.flops["float32"] > 2 * roofline_peaks.LARGEST**3 / 0.002 > alone.flops["float32"]
    assert made[-1] == (roofline_peaks.LARGEST, "float32")


def test_a_gpu_is_waited_for():
    """The double works at once; what it stands for is done when `wait` returns."""
    waits = []
    found = roofline_peaks.measure(
        1, GpuModule(), lambda: waits.append(1), ("float32",), 0.02, "gpu:0"
    )
    assert found.device == "gpu:0" and len(waits) > 4
    assert "gpu:0" in found.text()


def test_a_share_is_that_of_the_nearer_peak():
    found = RooflinePeaks({"float32": 100e9, "float64": 50e9}, 10e9, 2)
    assert found.share(50e9, 1e9, 1.0, "float32") == 0.5  # computes
    assert found.share(1e9, 8e9, 1.0, "float32") == 0.8  # moves
    assert found.share(50e9, 0, 2.0, "float64") == 0.5
    assert found.share(50e9, 0, 1.0, "bfloat16") == 0.5  # computed as float32
    assert found.share(1, 1, 0.0, "float32") == 0.0
    assert found.text() == "100 GFLOP/s float32, 50 GFLOP/s float64, 10 GB/s (2 threads)"


def test_they_are_measured_once(tmp_path):
    file = tmp_path / "profile" / "peaks.json"
    made = RooflinePeaks({"float32": 3.0}, 4.0, 1)
    assert roofline_peaks.cached_peaks(file, lambda: made) == made

    def never():
        raise AssertionError("measured again")

    assert roofline_peaks.cached_peaks(file, never) == made
    facts = {"flops": {"float32": 3.0}, "nbytes": 4.0, "threads": 1, "device": "cpu"}
    wrong = [{"flops": {}}, {"flops": 3.0}, {"flops": {"float32": "3"}}, {"nbytes": 0.0}]
    for i, text in enumerate(["{", "[]", "null", *(json.dumps({**facts, **w}) for w in wrong)]):
        file.write_text(text)
        other = RooflinePeaks({"float32": 5.0 + i}, 6.0, 1)
        assert (
            roofline_peaks.cached_peaks(file, lambda other=other: other)
            == other
            == roofline_peaks.cached_peaks(file, never)
        )
    assert [path.name for path in file.parent.iterdir()] == ["peaks.json"]


def test_the_largest_cache(tmp_path):
    for index, text in enumerate(["32K", "1M", "32768K"]):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(text + "\n")
    assert roofline_peaks.last_cache(str(tmp_path)) == 32 << 20
    assert roofline_peaks.last_cache(str(tmp_path / "none")) == 0
