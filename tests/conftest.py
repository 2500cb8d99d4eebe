"""Guards for every test: nothing hangs, no rank keeps the others waiting, CI skips nothing idly.

A phase of a test that outlasts its limit prints all stacks and ends the process, so that mpirun
ends the job. After each test under mpirun the ranks meet: when one has failed and the others do not
come, it has already printed why, and aborts them all.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import logging
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Generator
from typing import Any

import hypothesis
import pytest

# How long an example takes says more of the machine than of the program.
hypothesis.settings.register_profile(
    "hpcflow", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("hpcflow")

HANDLER = pytest.StashKey[Any]()  # of SIGTERM, before the test

# Kernels that one process of the tests has compiled the others load; nothing goes to the home.
os.environ.setdefault(
    "HPCFLOW_KERNEL_CACHE", os.path.join(tempfile.gettempdir(), f"hpcflow-tests-{os.geteuid()}")
)

os.environ.setdefault("HPCFLOW_PACK_CACHE", os.environ["HPCFLOW_KERNEL_CACHE"])
os.environ.setdefault("HPCFLOW_PLAN_CACHE", "none")  # what a test changes no plan is to remember

os.environ.setdefault("HPCFLOW_COST_CACHE", "none")

# Several processes share the cores: threads of OpenMP that wait leave them to the others.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

LIMIT_S = 480.0  # for each of set-up, call and clean-up of a test; `@pytest.mark.limit(s)` for more
MEET_S = 10.0  # how long a rank whose test has failed waits for the others

# Why a test may be skipped in CI, and how to see that this machine really cannot run it.
MAY_SKIP = {
    r"needs? (a|two|\d+) GPUs?|sees no GPU": lambda: not os.path.exists("/dev/nvidia0"),
    r"cupy is here": lambda: os.path.exists("/dev/nvidia0"),  # the test of its absence
    r"needs Linux": lambda: sys.platform != "linux",
    r"needs root": lambda: os.geteuid() != 0 or not shutil.which("ip"),
    r"needs network namespaces": lambda: os.geteuid() != 0 or not shutil.which("ip"),
    r"needs groff": lambda: not shutil.which("groff"),
    r"needs strace": lambda: not shutil.which("strace"),
    r"needs a package index": lambda: True,  # the test has asked it
    r"needs an ordinary user": lambda: os.geteuid() == 0,
    r"needs SLURM": lambda: os.geteuid() != 0 or not shutil.which("apt-get"),
    r"needs shellcheck": lambda: not shutil.which("shellcheck") and os.geteuid() != 0,
    r"needs an h5py built with MPI": lambda: not sys.prefix.endswith("-mpio"),  # `make mpio`
    r"needs Open MPI 5": lambda: "mpich" in sys.prefix,
    r"needs h5dump": lambda: not shutil.which("apt-get") or os.geteuid() != 0,
    r"needs 12 GiB of free memory": lambda: True,  # the test has asked the machine
    r"needs nbclient": lambda: importlib.util.find_spec("nbclient") is None,
    r"needs llvmlite": lambda: os.uname().machine not in ("x86_64", "aarch64", "arm64"),
    r"needs cuBLASLt": lambda: True,  # the test has looked for it
    r"needs oneDNN": lambda: os.uname().machine != "x86_64",
    r"figures are of the text of Python": lambda: True,  # the test has compared the texts
    r"a job cannot start jobs": lambda: ranks.comm is not None,
    r"need --with-mpi option to run": lambda: True,  # the runs under mpirun have it
    r"requires [234] MPI processes": lambda: True,  # one of the runs has as many
    # Cases of a parametrized test that mean nothing, on any machine.
    r"does not apply|MPI's own turns|two ranks are enough": lambda: True,
}

failed = pytest.StashKey[bool]()
wrong_skips: list[str] = []
draws: dict[str, Any] = {}  # module -> the state of its generator before its first test


class Ranks:
    """The world under mpirun, through a communicator of its own; alone without `--with-mpi`."""

    def __init__(self, with_mpi: bool) -> None:
        self.comm = None
        if with_mpi:
            from mpi4py import MPI

            self.comm = MPI.COMM_WORLD.Dup() if MPI.COMM_WORLD.size > 1 else None

    def say(self, text: str) -> None:
        if self.comm is not None:
            os.write(stderr_fd, f"\n[rank {self.comm.rank}] {text}\n".encode())

    def meet(self, has_failed: bool) -> None:
        """Wait for the other ranks; a rank that has failed aborts the job if they do not come."""
        if self.comm is None:
            return
        request, start = self.comm.Ibarrier(), time.monotonic()
        while not request.Test():
            time.sleep(0.001)
            if has_failed and time.monotonic() - start > MEET_S:
                self.say(f"failed (above), and the others do not come in {MEET_S:.0f} s: aborting")
                self.comm.Abort(1)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    global stderr_fd, ranks
    stderr_fd = os.dup(sys.stderr.fileno())  # pytest captures the usual one
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell has it so in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    ranks = Ranks(bool(config.getoption("--with-mpi", False)))
    if ranks.comm is not None and ranks.comm.rank > 0:  # rank 0 tells the story, all tell failures
        config.get_terminal_writer()._file = open(os.devnull, "w")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow",
        choices=["without", "only"],
        help="slow tests, but for the first case of each that is parametrized: without, only those",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select by `--slow`; slow tests begin first, so that no process is left alone with one."""
    slow = slow_items(items)
    choice = config.getoption("--slow")
    if choice is not None:
        dropped = [item for item in items if (item in slow) is (choice == "without")]
        items[:] = [item for item in items if (item in slow) is (choice == "only")]
        config.hook.pytest_deselected(items=dropped)
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def slow_items(items: list[pytest.Item]) -> set[pytest.Item]:
    """The tests marked `slow`, without the first case of each that is parametrized.

    With `slow(first=False)` the first case is one of them.
    """
    marks = {item: item.get_closest_marker("slow") for item in items}
    marked = [item for item, mark in marks.items() if mark is not None]
    first = {item.nodeid.partition("[")[0]: item for item in reversed(marked)}
    quick = {
        item
        for name, item in first.items()
        if item.nodeid != name and marks[item].kwargs.get("first", True)
    }
    return set(marked) - quick


def arm(item: pytest.Item) -> None:
    mark = item.get_closest_marker("limit")
    seconds = float(mark.args[0]) if mark is not None else LIMIT_S
    faulthandler.dump_traceback_later(seconds, exit=True, file=stderr_fd)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item):  # type: ignore[no-untyped-def]
    """Limits, the meeting of ranks, and a logger that keeps nothing of the test: no handler on a
    stream that pytest closes, nothing that was said once."""
    item.stash[failed] = False
    logger = logging.getLogger("hpcflow")
    before = list(logger.handlers), logger.level, logger.propagate
    try:
        result = yield
        if ranks.comm is not None:
            arm(item)
            ranks.meet(item.stash[failed])
        else:
            sweep_mpirun()
        return result
    finally:
        faulthandler.cancel_dump_traceback_later()
        logger.handlers[:], logger.propagate = before[0], before[2]
        logger.setLevel(before[1])
        if logs := sys.modules.get("hpcflow.platform.rank_logging"):
            logs._said.clear()


def sweep_mpirun() -> None:
    """Remove what killed mpiruns left: one that gets the number of such a process will not start.

    Open MPI 5 keeps `ompi.PID` where temporary files are
    (hpcflow.launch.launcher_detection.Start.become).
    """
    for path in pathlib.Path(tempfile.gettempdir()).glob("ompi.*"):
        pid = path.suffix[1:]
        if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            shutil.rmtree(path, ignore_errors=True)


# Armed for each phase anew, because pytest disarms the timer when a phase fails.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    arm(item)
    item.stash[HANDLER] = signal.getsignal(signal.SIGTERM)
    reset_draws(getattr(item, "module", None))
    if item.get_closest_marker("gpu") is not None and not has_gpu():
        pytest.skip("needs a GPU")


def reset_draws(module: Any) -> None:
    """Reset the generator `RNG` of a module: a test draws the same whatever ran before it."""
    generator = getattr(module, "RNG", None)
    if generator is not None:
        begin = draws.setdefault(module.__name__, generator.bit_generator.state)
        generator.bit_generator.state = begin


def has_gpu() -> bool:
    from hpcflow.runtime.device.device import device_names

    return device_names(False, 0)[0].startswith("gpu")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    arm(item)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    arm(item)
    yield
    leave_no_defaults()
    leave_no_handler(item.stash[HANDLER])


def leave_no_handler(before: Any) -> None:
    """Fail a test that leaves a handler of SIGTERM: it would take the signals of later tests."""
    left = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)
    assert left == before, "the test leaves a handler of SIGTERM, as an open training session has"


def leave_no_defaults() -> None:
    """Fail a test that leaves a default graph or session to the tests after it."""
    left = []
    for name in ("hpcflow.graph.graph", "hpcflow.graph.default_session"):
        stack = sys.modules[name]._stack() if name in sys.modules else []
        left += stack
        stack.clear()
    assert not left, f"the test leaves {left} as the thread's default"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):  # type: ignore[no-untyped-def]
    report = yield
    if report.failed:
        item.stash[failed] = True
        ranks.say(f"{report.nodeid} failed in {report.when}\n{report.longreprtext}")
    if report.passed and report.when == "call":
        note_verified(item)
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Where several processes share the tests, the one that started them hears of all."""
    if report.skipped and not hasattr(report, "wasxfail"):
        note_skip(report.nodeid, report.longrepr)


def note_verified(item: pytest.Item) -> None:
    """Record what this test has shown to work, and which MPI has run it."""
    size = ranks.comm.size if ranks.comm is not None else 1
    if (ranks.comm is not None and ranks.comm.rank > 0) or not os.environ.get("HPCFLOW_RECORDS"):
        return
    from tests import records

    if size > 1:
        records.write(records.mpi_name(), size, {})
    for mark in item.iter_markers("verifies"):
        shown = mark.kwargs.get("ranks", size)
        if shown >= mark.kwargs.get("least", 1):
            records.write(mark.args[0], shown, {})


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        note_skip(report.nodeid, report.longrepr)


def note_skip(nodeid: str, longrepr: object) -> None:
    reason = str(longrepr[2] if isinstance(longrepr, (tuple, list)) else longrepr)
    if not any(re.search(words, reason) and cannot() for words, cannot in MAY_SKIP.items()):
        wrong_skips.append(f"{nodeid}: {reason}")


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if in_ci() and wrong_skips and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if in_ci() and wrong_skips:
        terminalreporter.section("skipped in CI without need (tests/conftest.py: MAY_SKIP)")
        for line in wrong_skips:
            terminalreporter.write_line(line)
