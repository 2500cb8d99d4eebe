"""Equal feeds of replicas are warned of; feeds that may be equal in a correct program are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hpcflow.train.equal_feeds_warning import STEPS, EqualFeeds

DRAWN = np.random.default_rng(5)
BATCHES = [DRAWN.uniform(size=(4, 2)) for _ in range(STEPS)]


def warned(folder: Path, caplog: pytest.LogCaptureFixture, *replicas: list[object]) -> bool:
    """Whether replicas that are fed these batches are warned."""
    caplog.clear()
    for batches in replicas:
        feeds = EqualFeeds(folder)
        for batch in batches:
            if not feeds.step({"x": batch, "rate": 0.1}):
                break
    return "were fed the same" in caplog.text


def test_equal_batches_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    copies = [batch.copy() for batch in BATCHES]
    assert warned(tmp_path, caplog, list(BATCHES), list(copies))


@pytest.mark.parametrize(
    "other",
    [
        [*BATCHES[:-1], BATCHES[-1] + 1e-9],  # one differs
        BATCHES[::-1],  # in another order
        BATCHES[:-1],  # too few steps
        [batch.astype(np.float32) for batch in BATCHES],
        [batch.reshape(2, 4) for batch in BATCHES],
    ],
)
def test_other_batches_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, other: list[object]
) -> None:
    assert not warned(tmp_path, caplog, list(BATCHES), other)


@pytest.mark.parametrize(
    "batch", [np.ones((4, 2)), 0.5, np.zeros((0, 2)), np.array([[1.0, 2.0]]), np.array(["a", "b"])]
)
def test_what_is_no_batch_of_samples_may_be_equal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, batch: object
) -> None:
    assert not warned(tmp_path, caplog, [batch] * STEPS, [batch] * STEPS)
