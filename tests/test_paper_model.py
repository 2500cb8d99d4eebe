"""The model behind the predicted scaling keeps to what is known without it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

FILE = Path(__file__).parent.parent / "benchmarks" / "paper" / "model.py"
spec = importlib.util.spec_from_file_location("paper_model", FILE)
assert spec is not None and spec.loader is not None
model = importlib.util.module_from_spec(spec)
sys.modules["paper_model"] = model  # where its dataclasses look for their module
spec.loader.exec_module(model)


def exponential(mean: float = 1.0):
    rng = np.random.default_rng(7)
    return lambda worker: float(rng.exponential(mean))


def test_one_worker_pays_for_each_part_of_its_step() -> None:
    alone = model.Cluster(1, 4, port=10e6, fixed=0.002, service=0.001)
    steps = model.sync_rounds(alone, 1e6, lambda worker: 0.05, 3)
    np.testing.assert_allclose(steps, 0.002 + 0.001 + 0.1 + 0.05 + 0.1)
    narrow = model.Cluster(1, 2, port=10e6, server_port=2e6)  # two servers send 4 MB/s together
    np.testing.assert_allclose(model.async_steps(narrow, 1e6, model.nothing, 3), 0.5)


@pytest.mark.parametrize("workers, times", [(1, 1), (3, 1), (4, 1), (8, 2), (12, 3)])
def test_ports_limit_from_as_many_workers_as_servers(workers: int, times: float) -> None:
    cluster = model.Cluster(workers, 4, port=10e6)
    steps = model.sync_rounds(cluster, 1e6, model.nothing, 3)
    np.testing.assert_allclose(steps, 0.2 * times)


def test_a_server_serves_one_request_after_the_other() -> None:
    cluster = model.Cluster(5, 2, port=10e6, service=0.01)
    np.testing.assert_allclose(model.sync_rounds(cluster, 0.0, model.nothing, 4), 0.05)


def test_transfers_share_a_port_while_both_last() -> None:
    """1 MB each over 10 MB/s, one 50 ms later: alone 50 ms, shared 100, the other alone 50."""
    delays = {0: iter([0.0, 9.0]), 1: iter([0.05, 9.0])}
    cluster = model.Cluster(2, 1, port=10e6)
    steps = model.async_steps(cluster, 1e6, lambda worker: next(delays[worker]), 2)
    pulled = 0.2  # both together
    np.testing.assert_allclose(steps, [pulled + 0.15, pulled + 0.2])


@pytest.mark.slow
def test_a_synchronous_round_lasts_as_the_slowest_of_exponentials() -> None:
    """The mean of the largest of n is the harmonic number H(n)."""
    cluster = model.Cluster(8, 1, port=1.0)
    steps = model.sync_rounds(cluster, 0.0, exponential(), 4000)
    assert abs(steps.mean() - sum(1 / k for k in range(1, 9))) < 0.08


@pytest.mark.slow
def test_a_backup_worker_that_is_late_is_not_there_at_once() -> None:
    """Two workers, the first gradient counts: after a round one begins and the other is late.

    Each is done first in half of the rounds, after 1/2; if the late one, it begins again and there
    is another 1/2 to wait: 3/4 in all, not the 1/2 of the smaller of two.
    """
    cluster = model.Cluster(2, 1, port=1.0)
    steps = model.sync_rounds(cluster, 0.0, exponential(), 8000, backups=1)
    assert abs(steps.mean() - 0.75) < 0.03


def test_a_straggler_costs_a_round_unless_there_is_a_backup() -> None:
    slow = lambda worker: 10.0 if worker == 2 else 1.0  # noqa: E731
    three = model.Cluster(3, 1, port=1.0)
    np.testing.assert_allclose(model.sync_rounds(three, 0.0, slow, 5), 10.0)
    np.testing.assert_allclose(model.sync_rounds(three, 0.0, slow, 5, backups=1), 1.0)


@pytest.mark.slow
def test_asynchronous_workers_do_not_wait() -> None:
    cluster = model.Cluster(4, 1, port=1.0)
    steps = model.async_steps(cluster, 0.0, exponential(2.0), 8000)
    assert abs(steps.mean() - 2.0) < 0.1


def test_lognormal_delays_have_the_mean_and_deviation_asked_for() -> None:
    draw = model.lognormal(0.1, 0.5, seed=3)
    found = np.array([draw(0) for _ in range(20000)])
    assert abs(found.mean() - 0.1) < 0.002 and abs(np.log(found).std() - 0.5) < 0.01
