"""Profiler: measures the time of each statement of the generated code, in some steps of this rank.

With the setting `profile` each step instance has two versions of its code, plain and timed. A
training plan runs a few warm-up steps. In its next `STEPS` steps, all plans run the timed code.
Then all run the plain code again, and a thread writes the profile to the run directory. A program
that ends earlier writes the steps recorded so far.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcflow.graph.static_shape import Spec
from hpcflow.kernels.roofline_peaks import RooflinePeaks, cached_peaks, measure
from hpcflow.monitoring.stack_dump import OPS
from hpcflow.plan.ir.program import Node
from hpcflow.platform import cpu_threads
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.device.device import Device
from hpcflow.runtime.dynamic_types import Json, KernelFunction, Value
from hpcflow.runtime.profile.profile_events import CodePlace, ProfileWindow
from hpcflow.runtime.profile.timed_code import timed
from hpcflow.runtime.profile.wait_recorder import WaitRecorder
from hpcflow.runtime.step.observer import Segments
from hpcflow.runtime.step.step_instance import CompiledPartition, StepInstance, StepObserver

SKIPPED, STEPS = 5, 30  # warm-up steps, profiled steps
MAX_STEPS_OF_OTHER_PLANS = 20  # steps of a plan that does not train, before it is profiled instead
MOST_EVENTS = 200_000  # limit of a rank; more end the profile early
ONE_WAIT_NS = 20_000  # polls at most this far apart belong to one wait
MOST_RANKS = 64  # limit of profiled ranks, which are evenly spread


class _WindowWaits(WaitRecorder):
    """Records in a window the waits of the executor, and the spans in which nothing runs."""

    def __init__(self, window: ProfileWindow) -> None:
        super().__init__(window.waits)
        self._window, self._from, self._to = window, 0, 0

    def idle(self, start: int, end: int) -> None:
        """Join the span to the current one, or begin another."""
        if start - self._to > ONE_WAIT_NS:
            self.flush()
            self._from = start
        self._from, self._to = min(self._from, start), max(self._to, end)

    def flush(self) -> None:
        """Record the current span."""
        self._window.idle.append((self._from, self._to))


def install_profiler(context: Any) -> Profiler | None:
    """The profile of this rank; None if the rank is not profiled (`MOST_RANKS`)."""
    if context.rank % -(-context.size // MOST_RANKS):
        return None
    return Profiler(context)


class Profiler(StepObserver):
    """The profile of a rank: counts steps, opens and closes the window, writes the files."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.window: ProfileWindow | None = None
        self.is_open = False
        self._writing: threading.Thread | None = None
        self._is_over = False
        self._written: Json | None = None  # the profile, once it is written
        self._runs: dict[str, int] = {}  # label of a plan -> steps begun
        self._waits: _WindowWaits | None = None  # listens while the window is open
        accelerators = [d for d in context.devices.values() if d.kind != "cpu"]
        self.clock: Callable[[], int] = time.perf_counter_ns
        if accelerators:
            self.clock = functools.partial(clock_after_devices, accelerators)
        (self.folder / f"rank-{context.rank}.json").unlink(missing_ok=True)
        self.peaks = self._measured()

    @property
    def folder(self) -> Path:
        """The directory of the profile files."""
        return Path(self.context.settings.run_dir) / "profile"

    def _measured(self) -> dict[str, RooflinePeaks]:
        peaks, here = {}, self.context.hosts[self.context.rank]
        number, ranks = cpu_threads.chosen_threads().threads, self.context.hosts.count(here)
        for name, device in self.context.devices.items():
            if device.xp is None:
                continue
            make = functools.partial(
                measure,
                number,
                device.xp,
                device.finish,
                device=name.split(":")[0],
                sharing=ranks,
                products=[functools.partial(_product_benchmark, device)],
            )
            file = f"peaks-{here}-{name.replace(':', '')}-{number}.json"
            peaks[name] = cached_peaks(self.folder / file, make)
        return peaks

    # -- instances

    def bind_segments(
        self, instance: StepInstance, segments: Segments, objects: Sequence[Value]
    ) -> Segments:
        """Code that runs the plain or the timed segments in each step."""
        both = _SwitchableCode(self, instance, segments, objects)
        if not instance.code.is_single_segment:
            instance.observe(both)
        runs = [functools.partial(both.run, i) for i in range(len(segments[0]))]
        return tuple(runs), both.release

    # -- the window

    def count_step(self, compiled: CompiledPartition) -> None:
        """Count a step of a plan that begins; open or close the window if it is due."""
        label, trains = compiled.label, compiled.trains
        count = self._runs[label] = self._runs.get(label, 0) + 1
        window = self.window
        if self.is_open and window is not None:
            if label == window.label and window.trains == trains:
                if window.steps < 0:  # warm-up is over: the timed code exists now
                    window.restart(self.clock())
                    return
                window.count_step()
                if window.steps >= STEPS or window.is_full:
                    self.close()
                    return
        if count == (SKIPPED if trains else MAX_STEPS_OF_OTHER_PLANS):
            if window is None or (trains and not window.trains):
                start = self.clock()
                self._open_window(
                    ProfileWindow(label, trains, start, offset=time.time_ns() - start)
                )

    def _open_window(self, window: ProfileWindow) -> None:
        self._stop_listening()
        self.window, self.is_open = window, True
        self._waits = _WindowWaits(window)
        self.context.executor.observe(self._waits)

    def close(self, end: int = 0) -> None:
        """Close the window, now or at `end`: return to the plain code, write files by a thread."""
        window = self.window
        assert window is not None
        self.is_open = False
        window.end_at(end or time.perf_counter_ns())
        self._stop_listening()
        for each in (window.events, window.waits):
            if len(each) > MOST_EVENTS:
                window.cut_short()
        self._join_writer()
        self._writing = threading.Thread(target=self._write, args=(window,))
        self._writing.start()

    def _stop_listening(self) -> None:
        if self._waits is not None:
            self.context.executor.ignore(self._waits)
            self._waits.flush()
            self._waits = None

    def finish(self) -> None:
        """Close an open window and wait until the profile is written. Warns if there is none."""
        window = self.window
        if self.is_open and window is not None and window.steps < 0:
            self._stop_listening()
            self.is_open, self.window, window = False, None, None
        if window is None and self.context.is_chief and not self._is_over:
            logger.warning(
                "nothing was profiled: no plan ran more than %d steps that train, or %d others",
                SKIPPED, MAX_STEPS_OF_OTHER_PLANS,
            )  # fmt: skip
        if self.is_open and window is not None:
            window.count_step()  # the last step has ended; steps are counted when the next begins
            self.close(max([end for _, _, end in window.events], default=0))
        self._join_writer()
        self._is_over = True
        self._keep_costs()

    def _keep_costs(self) -> None:
        """Add the measured times to the profile of this machine, once."""
        data, self._written = self._written, None
        if data is not None:
            from hpcflow.runtime.profile import call_costs

            line = call_costs.keep(data, self.context.settings.cost_cache)
            if line and self.context.is_chief:
                logger.info("%s", line)

    def _join_writer(self) -> None:
        """Wait for the writing thread."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None

    def _write(self, window: ProfileWindow) -> None:
        from hpcflow.runtime.profile import profile_summary, profile_text

        rank = self.context.rank
        facts = {"rank": rank, "task": self.context.task_name(rank)}
        facts |= {"host": self.context.hosts[rank], "threads": cpu_threads.chosen_threads().threads}
        data = profile_summary.profile_data(window, facts, self.peaks)
        trace = {"traceEvents": profile_summary.chrome_trace_events(window, facts)}
        window.events.clear()
        self._written = data
        try:
            profile_summary.write_json(self.folder / f"rank-{rank}.json", data)
            profile_summary.write_json(self.folder / f"trace-{rank}.json", trace)
        except OSError as error:
            logger.warning("the profile cannot be written: %s", error)
        if self.context.is_chief:
            logger.info("%s\n%s/ has it", profile_text.profile_text(data), self.folder)

    def ask(self, ranks: Sequence[int]) -> None:
        """Make served ranks write their profiles, by requesting their reports."""
        for rank in ranks:
            if rank not in self.context.world.lost:
                self.context.control.ask_report(rank)

    def report(self) -> None:
        """On the chief, once all have written: merge the profiles, log a line for each rank."""
        context = self.context
        if not context.is_chief:
            return
        from hpcflow.runtime.profile import profile_summary, profile_text

        if context.control is not None:
            self.ask(context.roles.servers)
        files = [self.folder / f"rank-{rank}.json" for rank in range(context.size)]
        ranks = [json.loads(file.read_text()) for file in files if file.is_file()]
        if ranks:
            file = Path(context.settings.run_dir) / "profile.json"
            profile_summary.write_json(file, {"format": profile_summary.FORMAT, "ranks": ranks})
            each = f"\n{profile_text.ranks_table(ranks)}" if len(ranks) > 1 else ""
            logger.info("profiles of %d of %d ranks: %s%s", len(ranks), context.size, file, each)


def _product_benchmark(device: Device, n: int, dtype: str) -> Callable[[], object]:
    """A function that multiplies n x n matrices by the kernel that the device selects."""
    spec = Spec(np.dtype(dtype), (n, n))
    attrs = {"transpose_a": False, "transpose_b": False}
    node = Node("peak", "MatMul", attrs=attrs, specs=(spec,))
    a, b, c = (device.from_host(np.ones((n, n), dtype)) for _ in range(3))
    run = device.kernel(node, [spec, spec])
    if device.info(node, [spec, spec]).form == "new":
        return lambda: run(a, b)
    return lambda: run(a, b, c)


def clock_after_devices(devices: list[Device]) -> int:
    """The clock in nanoseconds, after the devices have completed their work."""
    for device in devices:
        device.finish()
    return time.perf_counter_ns()


def _timed_partition(
    window: ProfileWindow, compiled: CompiledPartition, clock: Callable[[], int]
) -> tuple[KernelFunction, list[int]]:
    """The timed code of a partition, and the places of its segments."""
    places, add, code = window.places, window.events.append, compiled.code

    def place(line: int, kind: str) -> int:
        places.append(CodePlace(compiled, kind, code.lines[line - 1]))
        return len(places) - 1

    def note(number: int, start: int) -> None:
        add((number, start, clock()))

    make = timed(code, compiled.file, {OPS: code.lines}, clock, note, place)
    first_places = []
    for index in range(len(code.segments)):
        first_places.append(len(places))
        places.append(CodePlace(compiled, "strand", segment=index))
        places.append(CodePlace(compiled, "turn", segment=index))
    return make, first_places


@contextlib.contextmanager
def _collection_paused() -> Iterator[None]:
    """Inside, Python's garbage collector does not run.

    The events that are recorded would start it, in the middle of any operation.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _SwitchableCode(StepObserver):
    """The plain and the timed code of an instance; each step runs one of them."""

    def __init__(
        self, profile: Profiler, instance: StepInstance, plain: Segments, objects: Sequence[Value]
    ) -> None:
        self.profile, self.instance, self.plain = profile, instance, plain
        self.objects, self.top = objects, instance.outer is None
        # of the current step; None: it runs the plain code
        self.window: ProfileWindow | None = None
        self.timed: tuple[Any, Any] = ((), None)
        self.timed_window: ProfileWindow | None = None  # the window in which `timed` records
        self.places: list[int] = []  # of the segments; place + 1 is that of a segment's later turns
        self.step_start = 0

    def step_begin(self, instance: StepInstance) -> None:
        """Choose the code of the step."""
        self.choose()

    def choose(self) -> None:
        """Choose the code of a step that begins."""
        profile = self.profile
        if self.top:
            profile.count_step(self.instance.compiled)
        self.window, self.step_start = profile.window if profile.is_open else None, 0
        if self.window is not None:
            if len(self.window.events) > MOST_EVENTS:
                self.window.cut_short()
                self.window = None
            elif self.timed_window is not self.window:
                self._make(self.window)

    def _make(self, window: ProfileWindow) -> None:
        compiled = self.instance.compiled
        if compiled not in window.timed_code:
            window.timed_code[compiled] = _timed_partition(window, compiled, self.profile.clock)
        make, self.places = window.timed_code[compiled]
        self.timed, self.timed_window = make(*self.objects), window

    def run(self, index: int, *feeds: Value) -> Value:
        """Run the segment `index`."""
        if self.instance.code.is_single_segment:
            self.choose()
        window = self.window
        if window is None:
            return self.plain[0][index](*feeds)
        clock = self.profile.clock
        start = clock()
        self.step_start = self.step_start or start
        with _collection_paused() if self.top else contextlib.nullcontext():
            value = self.timed[0][index](*feeds)
        if index in self.instance.code.tiled:
            return self._tiles(window, index, value)
        end = clock()
        window.events.append((self.places[index], start, end))
        if self.top and self.instance.code.is_single_segment:
            window.steps_seen.append((self.instance.compiled.label, start, end))
        return value

    def _tiles(self, window: ProfileWindow, index: int, tiles: Value) -> Value:
        clock, number = self.profile.clock, self.places[index]
        while True:
            start = clock()
            try:
                next(tiles)
            except StopIteration:
                window.events.append((number, start, clock()))
                return
            window.events.append((number, start, clock()))
            number = self.places[index] + 1
            yield

    def release(self) -> Value:
        """Return the results of the step, and record its span."""
        window, release = self.window, (self.plain if self.window is None else self.timed)[1]
        if (
            window is not None
            and self.top
            and self.step_start
            and not self.instance.code.is_single_segment
        ):
            end = time.perf_counter_ns()
            window.steps_seen.append((self.instance.compiled.label, self.step_start, end))
        return release()
