"""A session that has run nothing takes its variables from a checkpoint, in every mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.runtime.job.rank_context import RankContext
from tests.runtime.ranks import run_ranks

MODES: dict[str, tuple[int, dict[str, Any]]] = {
    "single": (1, {}),
    "collective": (2, {}),
    "ps": (3, {"ps": 2, "shard_bytes": 64}),  # the first variable is cut over both servers
}


@pytest.mark.parametrize("mode", MODES)
def test_a_new_session_restores_without_initial_values(mode: str, tmp_path: Path) -> None:
    ranks, settings = MODES[mode]
    calls: list[int] = []

    def initial() -> Any:
        calls.append(1)
        return hf.constant(np.zeros((8, 4)))

    def build() -> list[hf.Variable]:
        return [hf.Variable(initial, name="a"), hf.Variable(np.float32(0), name="b")]

    def save(context: RankContext) -> None:
        a, b = build()
        change = [a.assign(np.arange(32.0).reshape(8, 4)), b.assign(np.float32(5))]
        with hf.Session() as session:
            session.run(hf.global_variables_initializer())
            session.run(change)
            hf.train.Saver().save(session, tmp_path, 3)

    def restore(context: RankContext) -> Any:
        a, b = build()
        with hf.Session() as session:
            assert hf.train.Saver().restore(session, tmp_path)["step"] == 3
            return session.run([a, b])

    run_ranks(ranks, save, **settings)
    for a, b in run_ranks(ranks, restore, **settings):
        np.testing.assert_array_equal(a, np.arange(32.0).reshape(8, 4))
        assert b == 5
