"""Jobs whose ranks are killed at random moments of training go on as if they had not been.

The short ones run always; `make test-chaos` kills 200 times.
"""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from tests.chaos.jobs import (
    MODES,
    SAMPLES,
    command,
    counted,
    finish,
    good,
    killed,
    loss_of,
    same,
    steps_of,
    weights,
)

FEW, MANY = 1, 67  # kills in each mode
EPOCHS = 4


@pytest.mark.slow
@pytest.mark.limit(900)
@pytest.mark.parametrize("mode", MODES)
def test_killed_at_random_moments_the_job_goes_on(tmp_path, mode):
    suffer(tmp_path, mode, FEW, seed=1)


@pytest.mark.chaos
@pytest.mark.limit(3600)
@pytest.mark.parametrize("mode", MODES)
def test_killed_two_hundred_times_the_job_goes_on(tmp_path, mode):
    suffer(tmp_path, mode, MANY, seed=2)


def suffer(tmp_path, mode, kills, seed):
    """Start one job after another, each as often as it takes, until so many ranks were killed.

    Each start takes up the newest checkpoint there is. Synchronous workers end with the weights of
    a job that nobody disturbed, bit by bit. Of asynchronous ones every saved update is in the
    variables once, and they learn as much.
    """
    draw, whole = random.Random(f"{mode} {seed}"), tmp_path / "whole"
    finish(command(whole, *MODES[mode], epochs=EPOCHS))
    jobs = 0
    while kills > 0:
        where = tmp_path / f"killed-{jobs}"
        words = command(where, *MODES[mode], epochs=EPOCHS)
        jobs += 1
        text = ""
        while kills > 0 and "ENDED" not in text:
            newest = good(where)[:1]
            text = killed(words, draw)
            kills -= "ENDED" not in text
            went_on(text, newest)
            check(where, mode)
        if "ENDED" not in text:
            newest = good(where)[:1]
            text = finish(words)
            went_on(text, newest)
        ended(where, whole, mode)


def went_on(text, newest):
    """It began with the newest checkpoint of those that were there."""
    found = re.search(r"resumed step=(\d+) samples=(\d+)", text)
    told = [tuple(map(int, found.groups()))] if found else []
    assert told == [(one.facts["step"], one.facts["samples"]) for one in newest], text


def check(where, mode):
    """What checkpoints say is what is in them."""
    for one in good(where):
        assert counted(one) == {one.facts["step"]}
        if mode != "async":
            assert one.facts["samples"] == 8 * one.facts["step"]


def ended(where, whole, mode):
    """A job that was killed has come as far as one that was not."""
    check(where, mode)
    last, mine, theirs = good(where)[0].facts, weights(where), weights(whole)
    assert last["samples"] == EPOCHS * SAMPLES  # each once an epoch
    if mode == "async":
        assert loss_of(mine) < 1.1 * loss_of(theirs) < 1.1 * np.log(4)
    else:
        assert last["step"] == steps_of(EPOCHS)
        same(mine, theirs)
