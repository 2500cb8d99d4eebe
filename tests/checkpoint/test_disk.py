"""Writes that fail anywhere in a save: a clear error, earlier checkpoints and training unharmed."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.checkpoint import checkpoint_directory
from hpcflow.checkpoint.verify_checkpoint import verify_checkpoint
from hpcflow.errors import CheckpointError
from tests.checkpoint.jobs import equal, load_some, save_some
from tests.runtime.nets import data, net
from tests.runtime.ranks import run_ranks

PLACES = {
    "alone": dict(ranks=1, form="sharded"),
    "one file": dict(ranks=1, form="parallel"),
    "sums": dict(ranks=3, form="sharded"),
    "servers": dict(ranks=3, ps=1, form="sharded"),
}
CALLS = ("pwrite", "fsync", "replace", "mkdir", "rename")


class Failing:
    """The system's calls of a save, counted; from `at` on each fails with `number`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self.at, self.number = 0, 1 << 60, 0
        for name in CALLS:
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls >= self.at:
                raise OSError(self.number, os.strerror(self.number))
            return real(*args, **options)

        return call

    @contextlib.contextmanager
    def inside(self, at: int, number: int) -> Any:
        self.calls, self.at, self.number = 0, at, number
        try:
            yield
        finally:
            self.at = 1 << 60


def names(where: Path) -> list[str]:
    return sorted(p.name for p in where.iterdir())


WORDS = {errno.EDQUOT: "quota", errno.ENOSPC: "free some space", errno.EIO: "another folder"}


@pytest.mark.slow
@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
def test_a_save_that_fails_at_any_call_leaves_what_there_was(tmp_path, places, monkeypatch):
    """Also where nothing more can be done from then on, as on a disk that is full or has died."""
    failing = Failing(monkeypatch)
    older = save_some(tmp_path, 1, seed=1, rows=20, **places)
    save_some(tmp_path / "more", 1, rows=20, **places)
    with failing.inside(1 << 60, 0):
        save_some(tmp_path / "more", 2, seed=2, rows=20, **places)
        named = failing.calls - 4  # the draft has its name; what follows is the folder and `latest`
    step = max(named // 4, 1)
    for i, at in enumerate(range(1, named + 1, step)):
        number = list(WORDS)[i % len(WORDS)]
        with failing.inside(at, number), pytest.raises(CheckpointError) as caught:
            save_some(tmp_path, 2, seed=2, rows=20, **places)
        assert os.strerror(number) in caught.value.message
        assert WORDS[number] in caught.value.hint and "earlier checkpoints" in caught.value.hint
        (one,) = [one for one in checkpoint_directory.find_checkpoints(tmp_path) if one.step == 1]
        assert not verify_checkpoint(one).faults
    assert equal(load_some(tmp_path, ranks=1, rows=20), older)
    newer = save_some(tmp_path, 3, seed=3, rows=20, **places)
    assert equal(load_some(tmp_path, ranks=1, rows=20), newer)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["sharded", "parallel"])
def test_a_limit_of_a_files_size_is_told(tmp_path, form):
    older = save_some(tmp_path, 1, ranks=1, seed=1, rows=20, form=form)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, hard))
    try:
        with pytest.raises(CheckpointError, match="File too large") as caught:
            save_some(tmp_path, 2, ranks=1, seed=2, rows=2000, form=form)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "ulimit -f" in str(caught.value.hint)
    assert names(tmp_path) == ["latest", "step-1" if form == "sharded" else "step-1.h5"]
    assert equal(load_some(tmp_path, ranks=1, rows=20), older)


@pytest.mark.parametrize("places", [dict(ranks=1), dict(ranks=2), dict(ranks=3, ps=1)], ids=str)
def test_training_goes_on_as_if_the_save_had_not_been_tried(tmp_path, places, monkeypatch):
    failing = Failing(monkeypatch)
    places = dict(places)
    ranks = places.pop("ranks")

    def body(context: Any, fails: bool) -> Any:
        features, labels = data(24)
        x, y, _, step, variables = net()
        dataset = hf.data.Dataset({x: features, y: labels}, batch=8, seed=4, context=context)
        saver, told = hf.train.Saver(form="sharded"), 0
        with hf.train.TrainingSession(context=context) as session:

            def save() -> None:
                nonlocal told
                try:
                    saver.save(session, tmp_path, session.steps)
                except CheckpointError:
                    told += 1

            if fails:
                session.every(1, save)
            for batch in dataset.epochs(2):
                session.step(step, batch)
            session.wait()
            return session.run(variables), told

    plain = run_ranks(ranks, lambda c: body(c, False), **places)
    with failing.inside(9, errno.EDQUOT):
        tried = run_ranks(ranks, lambda c: body(c, True), **places)
    assert all(told > 0 for _, told in tried)
    if len(plain) == 1 or "ps" not in places:  # several asynchronous workers are never alike
        for (mine, _), (theirs, _) in zip(tried, plain, strict=True):
            for one, other in zip(mine, theirs, strict=True):
                np.testing.assert_array_equal(one, other)
