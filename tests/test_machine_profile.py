"""The file of a machine's profile: what is added stays, and no fault of it fails a job."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcflow.errors import HpcflowError
from hpcflow.kernels.machine_facts import machine_facts
from hpcflow.platform import file_locks, machine_profile
from hpcflow.platform.machine_profile import MachineProfile, ProfileFile, profile_file
from hpcflow.platform.measured_costs import (
    OTHER_NODE,
    SAME_NODE,
    CollectiveCost,
    CollectiveKey,
    LinkCost,
    OperationCost,
    OperationKey,
    SampleSummary,
)
from hpcflow.platform.measured_step_costs import CountedOperation, StepCost, StepFeatures, StepKey
from hpcflow.platform.measured_waits import OWN_CORE, SHARED_CORES, WaitCost, WaitKey

ROOT = Path(__file__).parents[1]
MACHINE = {"cpu": "a", "cores": "2"}
EVIL = "\x1b[31mred\r"
WRITER = """
import sys, time
from pathlib import Path
from tests.test_machine_profile import MACHINE, operation, step, wait
from hpcflow.platform.machine_profile import MachineProfile, ProfileFile
folder, me, known = Path(sys.argv[1]), int(sys.argv[2]), ProfileFile.read_or_warn
def slowly(file, otherwise):
    found = known(file, otherwise)
    time.sleep(0.01)  # in which the other may write
    return found
ProfileFile.read_or_warn = slowly
file = ProfileFile(folder, MACHINE)
(folder / f"ready{me}").touch()
while not (folder / f"ready{1 - me}").exists():
    time.sleep(0.001)
for i in range(20):
    rows = operation(7, [1e-3 * (me + 1)]), operation(1000 * (me + 1) + i, [1e-3])
    waits = wait(2000), wait(10**6 * (me + 1) + i)
    assert file.add(MachineProfile(rows, steps=(step("same"), step(f"{me} {i}")), waits=waits))
"""


def operation(flops: int, samples: list[float], type: str = "MatMul", updated: int = 1):
    key = OperationKey(type, ("float32",), "numpy", 1, "cpu", flops, 8)
    return OperationCost(key, SampleSummary.of(samples), updated)


def step(plan: str, milliseconds: float = 2.0, updated: int = 1) -> StepCost:
    known = CountedOperation("product", "MatMul", ("float32",), "cpu", True, 9, 8, 1e-6, 3)
    unknown = CountedOperation("other", EVIL, (), "gpu", False, 0, 0, 2e-6, 1)
    features = StepFeatures((known, unknown), *range(1, 7))
    work, whole = (SampleSummary.of([1e-3 * milliseconds * n]) for n in (1, 2))
    return StepCost(StepKey(plan, 4, 2, 2, 8), "train.py", features, work, whole, updated)


def wait(waited_us: int, policy: str = OWN_CORE) -> WaitCost:
    return WaitCost(WaitKey(policy, waited_us), SampleSummary.of([3e-5, 5e-5, 7e-5]))


def full() -> MachineProfile:
    """A profile with a row in each table."""
    some = SampleSummary.of([1e-6, 2e-6, 4e-6])
    collective = CollectiveCost(CollectiveKey("all_reduce", 1 << 20, 4, 2), some)
    links = LinkCost(SAME_NODE, some, SampleSummary.of([1e9])), LinkCost(OTHER_NODE, some, some)
    waits = wait(2000), wait(2000, SHARED_CORES)
    return MachineProfile((operation(5, [1e-3]),), links, (collective,), (step("digest"),), waits)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = ProfileFile(tmp_path / "new", MACHINE)
    assert file.read() == MachineProfile()
    assert file.add(full()) and file.read() == full()
    assert file.path.stat().st_mode & 0o077 == 0
    assert file.clear() and not file.clear() and file.read() == MachineProfile()


def test_unlike_nodes_have_a_file_each(tmp_path: Path) -> None:
    files = [ProfileFile(tmp_path, {**MACHINE, "cores": n}) for n in ("2", "64")]
    assert files[0].add(full())
    assert files[1].read() == MachineProfile() and files[0].path != files[1].path
    files[0].path.rename(files[1].path)
    with pytest.raises(HpcflowError, match="another version or machine"):
        files[1].read()


def test_the_facts_of_this_machine_do_not_change() -> None:
    facts = machine_facts()
    assert facts == machine_facts() and facts["cpu"] and facts["numpy"] == np.__version__
    assert facts["cores"] == str(os.cpu_count())
    assert all(isinstance(value, str) for value in facts.values())


def test_two_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    """Rows of the same key are merged, those of other keys stay; each adds forty rows."""
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(me)], cwd=ROOT)
        for me in range(2)
    ]
    assert [writer.wait(100) for writer in writers] == [0, 0]
    profile = ProfileFile(tmp_path, MACHINE).read()
    steps = {row.key.plan: row.work.count for row in profile.steps}
    assert steps == {"same": 40} | {f"{me} {i}": 1 for me in range(2) for i in range(20)}
    rows = {row.key.flops: row for row in profile.operations}
    assert rows.keys() == {7, *range(1000, 1020), *range(2000, 2020)}
    assert rows[7].seconds.count == 40 and rows[7].seconds.mean == pytest.approx(1.5e-3)
    assert rows[7].seconds.variance == pytest.approx(0.5e-3**2)
    waits = {row.key.waited_us: row.seconds.count for row in profile.waits}
    mine = {10**6 * (me + 1) + i: 3 for me in range(2) for i in range(20)}
    assert waits == {2000: 3 * 40} | mine


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"\xff\xfe", b"[]", b"[" * 100_000, b'{"format": "hpcflow-costs-9"}'),
        *("no rows", "a text for a number", "a NaN", "a negative time", "a link of no kind"),
        *("a step of no operations", "an operation of no kind", "a step of negative bytes"),
        *("too many operations", "a short operation", "a wait of no policy", "a wait of no time"),
    ],
    ids=str,
)
def test_a_damaged_file_is_told_in_a_line_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | str
) -> None:
    file = ProfileFile(tmp_path, MACHINE)
    assert file.add(full())
    if isinstance(content, str):
        data = json.loads(file.path.read_text())
        row, operations = data["operations"][0], data["steps"][0]["operations"]
        changes = {
            "no rows": lambda: data.pop("operations"),
            "a text for a number": lambda: row.update(flops=EVIL),
            "a NaN": lambda: row["seconds"].update(mean=float("nan")),
            "a negative time": lambda: row["seconds"].update(points=[[-1.0, 1]]),
            "a link of no kind": lambda: data["links"][0].update(kind=EVIL),
            "a wait of no policy": lambda: data["waits"][0].update(policy=EVIL),
            "a wait of no time": lambda: data["waits"][0].update(waited_us=0),
            "a step of no operations": lambda: data["steps"][0].pop("operations"),
            "an operation of no kind": lambda: operations[0].__setitem__(0, EVIL),
            "a step of negative bytes": lambda: data["steps"][0].update(fed_bytes=-1),
            "too many operations": lambda: operations.extend(operations * 256),
            "a short operation": lambda: operations[0].pop(),
        }
        changes[content]()
        content = json.dumps(data).encode()
    file.path.write_bytes(content)
    with pytest.raises(HpcflowError, match="cannot be read"):
        file.read()
    with caplog.at_level(logging.WARNING, logger="hpcflow"):
        assert file.add(full())
    (line,) = [record.getMessage() for record in caplog.records]
    assert "\n" not in line and line.isprintable() and str(file.path) in line
    assert file.read() == full()


def test_a_folder_that_cannot_be_written_is_told_and_fails_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """/proc stands for a home that is read-only, for root too."""
    (tmp_path / "file").write_text("")
    for folder in (Path("/proc/hpcflow"), tmp_path / "file" / "folder"):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="hpcflow"):
            assert not ProfileFile(folder, MACHINE).add(full())
        (line,) = [record.getMessage() for record in caplog.records]
        assert "are not kept in" in line and "\n" not in line


def test_a_process_that_keeps_the_lock_does_not_stop_a_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_profile, "PATIENCE_S", 0.2)
    file = ProfileFile(tmp_path, MACHINE)
    assert file.add(full())
    (lock,) = tmp_path.glob(".*.lock")
    with file_locks.exclusive(lock, "a test"):
        with caplog.at_level(logging.WARNING, logger="hpcflow"):
            assert not file.add(full())
    assert f"process {os.getpid()}" in caplog.text and "has the lock" in caplog.text
    assert file.read() == full()


def test_the_rows_that_were_not_measured_for_the_longest_time_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_profile, "MOST_ROWS", 3)
    file = ProfileFile(tmp_path, MACHINE)
    assert file.add(MachineProfile(tuple(operation(i, [1e-3], updated=i) for i in range(3))))
    assert file.add(MachineProfile((operation(9, [1e-3], updated=9),)))
    assert {row.key.flops for row in file.read().operations} == {1, 2, 9}


def test_the_steps_of_a_plan_are_one_row_and_the_oldest_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_profile, "MOST_STEPS", 2)
    file = ProfileFile(tmp_path, MACHINE)
    assert file.add(MachineProfile(steps=(step("a", 1.0, 1), step("b", 1.0, 2))))
    assert file.add(MachineProfile(steps=(step("c", 1.0, 3), step("b", 3.0, 4))))
    rows = {row.key.plan: row for row in file.read().steps}
    assert rows.keys() == {"b", "c"} and rows["b"].updated == 4
    assert (rows["b"].work.count, rows["b"].work.mean) == (2, pytest.approx(2e-3))
    assert rows["b"].step.mean == pytest.approx(4e-3)


@pytest.mark.parametrize("tables", [("waits",), ("steps", "waits")])
def test_a_profile_from_before_there_was_a_table_is_read(
    tmp_path: Path, tables: tuple[str, ...]
) -> None:
    file = ProfileFile(tmp_path, MACHINE)
    assert file.add(full())
    data = json.loads(file.path.read_text())
    for name in tables:
        del data[name]
    file.path.write_text(json.dumps(data))
    without = dict.fromkeys(tables, ())
    assert file.read() == dataclasses.replace(full(), **without)
    assert file.add(MachineProfile(waits=(wait(7),)))
    assert file.read().waits == (*dataclasses.replace(full(), **without).waits, wait(7))


def test_none_keeps_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HPCFLOW_COST_CACHE", str(tmp_path))
    file = profile_file(MACHINE)
    assert file is not None and file.path.parent == tmp_path
    assert profile_file(MACHINE, "none") is None
    monkeypatch.delenv("HPCFLOW_COST_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = profile_file(MACHINE)
    assert file is not None and file.path.parent == tmp_path / "hpcflow" / "costs"


def test_a_summary_of_merged_samples_is_that_of_all() -> None:
    draw = np.random.default_rng(2)
    samples = np.exp(draw.standard_normal(1000)) * 1e-4
    summary = SampleSummary.of(list(samples[:10]))
    for start in range(10, 1000, 90):
        summary = summary.merged(SampleSummary.of(list(samples[start : start + 90])))
    assert summary.count == 1000 and len(summary.points) <= 24
    assert summary.mean == pytest.approx(samples.mean(), rel=1e-9)
    assert summary.variance == pytest.approx(samples.var(), rel=1e-9)
    for share in (0.1, 0.5, 0.9):
        assert summary.quantile(share) == pytest.approx(np.quantile(samples, share), rel=0.15)
    assert SampleSummary.of([1.0, 2.0, 4.0]).median == 2.0
    assert SampleSummary.of([1.0, 2.0]).median == 1.5
    assert SampleSummary.from_data(summary.as_data()) == summary
