"""A reader of traces that checks them after the Trace Event Format and the rules of viewers."""

from __future__ import annotations

import collections
import json
from pathlib import Path

ROUNDING_US = 2e-3  # times have three decimals; a sum of two is rounded


class Trace:
    """A trace that has been checked.

    Errors: AssertionError where it breaks the format.
    """

    def __init__(self, file: Path) -> None:
        data = json.loads(file.read_text())
        self.about, self.events = data["otherData"], data["traceEvents"]
        for event in self.events:
            assert isinstance(event["pid"], int) and isinstance(event["tid"], int), event
            assert event["name"] and isinstance(event["name"], str), event
            assert event["ph"] in "XbeCMsfi", event
            assert event["ph"] == "M" or 0 <= event["ts"] < 1e13, event
        self.slices = collections.defaultdict(list)  # by rank and thread: begin, end, event
        for event in self.of("X"):
            assert event["dur"] >= 0
            ends = event["ts"], event["ts"] + event["dur"], event
            self.slices[event["pid"], event["tid"]].append(ends)
        for track in self.slices.values():
            _check_nesting(sorted(track, key=lambda one: (one[0], -one[1])))
        self._check_names()
        self._check_waits()
        for event in self.of("C"):
            assert all(isinstance(value, int) for value in event["args"].values())
        self.arrows = self._checked_arrows()  # by name: pairs of events

    def of(self, ph):
        """The events of one phase."""
        return [event for event in self.events if event["ph"] == ph]

    def names(self, kind):
        """The names of processes or threads, by rank and thread."""
        found = [e for e in self.of("M") if e["name"] == kind]
        named = {(e["pid"], e["tid"]): e["args"] for e in found}
        assert len(named) == len(found), "each has one name"
        return named

    def _check_names(self):
        threads = self.names("thread_name")
        assert {e["pid"] for e in self.events} == {pid for pid, _ in self.names("process_name")}
        assert {(e["pid"], e["tid"]) for e in self.events} <= set(threads)
        order = self.names("process_sort_index")
        assert all(args["sort_index"] == pid for (pid, _), args in order.items())

    def _check_waits(self):
        begun = {}
        for event in self.of("b"):
            key = event["cat"], event["id"], event["pid"]
            assert key not in begun
            begun[key] = event
        for event in self.of("e"):
            begin = begun.pop((event["cat"], event["id"], event["pid"]))
            assert begin["name"] == event["name"] and begin["ts"] <= event["ts"]
        assert not begun, "each wait has an end"

    def _checked_arrows(self):
        starts = {(e["cat"], e["name"], e["id"]): e for e in self.of("s")}
        ends = {(e["cat"], e["name"], e["id"]): e for e in self.of("f")}
        assert len(starts) == len(self.of("s")) and len(ends) == len(self.of("f"))
        assert starts.keys() == ends.keys()
        assert len({number for _, _, number in starts}) == len(starts)
        assert all(type(number) is int for _, _, number in starts), "as Perfetto reads them"
        arrows = collections.defaultdict(list)
        for key, start in starts.items():
            end = ends[key]
            assert end["bp"] == "e"
            for event in (start, end):
                self.slice_at(event)
            arrows[key[1]].append((start, end))
        return arrows

    def slice_at(self, event):
        """The innermost slice around an event of a flow, which stands before it in the file."""
        track = self.slices[event["pid"], event["tid"]]
        around = [
            one for begin, end, one in track
            if begin - ROUNDING_US <= event["ts"] <= end + ROUNDING_US
        ]  # fmt: skip
        assert around, event
        return min(around, key=lambda one: one["dur"])


def _check_nesting(track):
    ends = []
    for begin, end, event in track:
        while ends and ends[-1] <= begin + ROUNDING_US:
            ends.pop()
        assert not ends or end <= ends[-1] + ROUNDING_US, event
        ends.append(end)
