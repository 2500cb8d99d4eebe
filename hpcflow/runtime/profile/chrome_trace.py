"""Chrome trace of segments and waits: a file per rank for Perfetto or chrome://tracing.

It is written if the setting `trace` names a file (`HPCFLOW_TRACE=FILE`). Without the setting
nothing here runs, and the executor has no overhead.
"""

from __future__ import annotations

import atexit
import json
import os
import time
from collections.abc import Callable
from typing import Any

from hpcflow.comm.communicator import Request
from hpcflow.runtime.executor.executor import Engine
from hpcflow.runtime.step.step_instance import Instance


def install(engine: Engine, file: str) -> None:
    """Record what `engine` does from now on; `FILE.RANK.json` is written at exit.

    Segments are complete events (`ph: X`), waits are asynchronous ones (`b` and `e`): the wait of a
    collective begins at its start and ends when a poll finds it complete. Times are of the host's
    clock.
    """
    record = _Record(engine, file)
    engine.run_strand = record.run_strand  # type: ignore[method-assign]
    engine.run_slice = record.run_slice  # type: ignore[method-assign]
    engine.await_ = record.await_  # type: ignore[method-assign]
    atexit.register(record.write)


class _Record:
    def __init__(self, engine: Engine, file: str) -> None:
        self.path, self.rank = f"{file}.{engine.rank}.json", engine.rank
        self.events: list[tuple[str, str, str, int, int, int]] = []  # ph, cat, name, step, ns, id
        self._run: Callable[..., None] = engine.run_strand
        self._slice, self._going = engine.run_slice, engine.slices.going
        self._await: Callable[..., None] = engine.await_
        self._waits = 0

    def run_strand(self, instance: Instance, index: int, feeds: tuple = ()) -> None:
        """`Engine.run_strand`, timed."""
        start = time.time_ns()
        self._run(instance, index, feeds)
        took = time.time_ns() - start
        self.events.append(("X", "strand", f"strand {index}", instance.step, start, took))

    def run_slice(self) -> None:
        """`Engine.run_slice`, timed: a segment that yields between tiles has an event per turn."""
        going, start = self._going[0], time.time_ns()
        self._slice()
        took = time.time_ns() - start
        about = (f"strand {going.strand}", going.instance.step, start, took)
        self.events.append(("X", "strand", *about))

    def await_(self, request: Request, instance: Instance | None, what: Any) -> None:
        """`Engine.await_` with a request that records its end."""
        self._waits += 1
        step = instance.step if instance is not None else 0
        watched = Watched(self.events, request, str(what or "send"), step, self._waits)
        self._await(watched, instance, what)

    def write(self) -> None:
        """Write the file atomically."""
        with open(self.path + ".part", "w") as out:
            json.dump({"traceEvents": [self._event(*event) for event in self.events]}, out)
        os.replace(self.path + ".part", self.path)

    def _event(self, ph: str, cat: str, name: str, step: int, ns: int, last: int) -> dict[str, Any]:
        more = {"dur": last / 1e3} if ph == "X" else {"id": last}
        event = {"ph": ph, "cat": cat, "name": name, "pid": self.rank, "tid": 0, "ts": ns / 1e3}
        return event | more | {"args": {"step": step}}


class Watched:
    """Proxy of a request that records its start, on construction, and its end."""

    def __init__(self, events: list, request: Request, name: str, step: int, number: int) -> None:
        self._events, self._request = events, request
        self._about = (name, step, number)
        self._note("b")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def test(self) -> bool:
        """Test the request; record its end."""
        done = self._request.test()
        if done:
            self._note("e")
        return done

    def _note(self, ph: str) -> None:
        name, step, number = self._about
        self._events.append((ph, "wait", name, step, time.time_ns(), number))
