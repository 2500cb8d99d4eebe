"""What listens to a step hears its events in order, and replaces nothing of other objects."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from hpcflow.runtime.profile.chrome_trace import ChromeTrace
from tests.runtime.nets import plain, trained
from tests.runtime.ranks import run_ranks

MODES = {"sums": (2, {}), "server": (2, {"ps": 1}), "spread": (3, {"tasks_per_replica": 3})}


def spans_nest(events):
    """Whether complete events lie inside or beside each other."""
    ends = []
    for start, end in sorted(((e["ts"], e["ts"] + e["dur"]) for e in events), key=lambda s: s[0]):
        while ends and ends[-1] <= start:
            ends.pop()
        if ends and end > ends[-1]:
            return False
        ends.append(end)
    return True


@pytest.mark.parametrize("mode", MODES)
def test_a_trace_has_the_segments_and_waits_of_each_rank(tmp_path, mode):
    size, settings = MODES[mode]
    cut = mode == "spread"

    def body(context):
        values = trained(cut=cut)
        assert isinstance(context.engine.observer, ChromeTrace)
        context.engine.observer.write()
        return values

    found = run_ranks(size, body, trace=str(tmp_path / "t"), **settings)
    for mine, theirs in zip(found[0], plain(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)
    events = json.loads((tmp_path / "t.0.json").read_text())["traceEvents"]
    kinds = Counter(e["ph"] for e in events)
    assert kinds["X"] and kinds["b"] and kinds["b"] - kinds["e"] <= 4, "a few waits are pending"
    begun = {e["id"]: e for e in events if e["ph"] == "b"}
    for end in (e for e in events if e["ph"] == "e"):
        begin = begun.pop(end["id"])
        assert (begin["name"], begin["args"]) == (end["name"], end["args"])
        assert begin["ts"] <= end["ts"]
    segments = [e for e in events if e["ph"] == "X"]
    assert spans_nest(segments) and all(e["name"].startswith("strand ") for e in segments)
    if mode == "sums":
        assert {"replicas/bucket_0"} <= {e["name"] for e in events if e["cat"] == "wait"}
