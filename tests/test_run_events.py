"""Events of a run with their times: what the chief records, and what pages and accounting tell."""

from __future__ import annotations

import csv
import functools
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.monitoring.stall_watchdog import append
from hpcflow.platform.rank_logging import logger
from hpcflow.report import job_accounting, run_events, run_page
from hpcflow.report.run_directory_reader import FileFacts
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from hpcflow.train import run_records
from tests.runtime.ranks import run_ranks
from tests.test_page import checked
from tests.test_report import write

HOSTILE = "<script>x</script>\x1b[2J\nsecond"


def rows_of(folder: Path) -> list[dict[str, str]]:
    with open(folder / "events.csv", newline="") as file:
        return list(csv.DictReader(file))


def train(context: RankContext, steps: int) -> None:
    with hf.Graph().as_default():
        x = hf.placeholder(hf.float32, [None, 2])
        w = hf.Variable(hf.zeros([2, 1]))
        step = hf.train.GradientDescentOptimizer(0.1).minimize(hf.reduce_mean(hf.matmul(x, w)))
        data = hf.data.Dataset({x: np.ones((16, 2), "f4")}, batch=4)
        folder = Path(context.settings.run_dir) / "kept"
        with hf.train.TrainingSession(checkpoints=folder, save_every=4, resume=True) as session:
            for batch in data.epochs(steps // 4):
                session.step(step, batch)
            session.wait()
            session.result()


def test_saves_and_resumes_are_recorded_once_by_the_chief(tmp_path: Path) -> None:
    start = time.time()
    for steps in (8, 16):
        run_ranks(2, functools.partial(train, steps=steps), run_dir=str(tmp_path))
    rows = [row for row in rows_of(tmp_path) if row["event"] != "warning"]
    assert [(row["event"], row["step"]) for row in rows] == [
        ("save", "4"), ("save", "8"), ("resume", "8"), ("save", "12"), ("save", "16")]  # fmt: skip
    assert all(start - 1 <= float(row["time"]) <= time.time() for row in rows)
    assert rows[2]["text"] == "from step-8"


def test_a_warning_is_recorded_once_with_its_time(tmp_path: Path) -> None:
    log = run_records.run_log_of(RankContext(Settings(run_dir=str(tmp_path))))
    assert log is not None
    for _ in range(3):
        logger.warning("disk %s is slow", HOSTILE)
    logger.info("no warning")
    log.end()
    logger.warning("after the end")
    (row,) = [row for row in rows_of(tmp_path) if "slow" in row["text"] or "after" in row["text"]]
    assert abs(float(row["time"]) - time.time()) < 60 and row["step"] == ""
    assert "\x1b" not in row["text"] and "\n" not in row["text"]


def test_many_different_warnings_are_cut_off(tmp_path: Path) -> None:
    log = run_records.run_log_of(RankContext(Settings(run_dir=str(tmp_path))))
    assert log is not None
    for number in range(5 * run_records.MOST_WARNINGS):
        logger.warning("number %d", number)
    log.end()
    assert len(rows_of(tmp_path)) == run_records.MOST_WARNINGS


STARTS = {
    "start": "2026-11-29T12:00:00.000+00:00",
    "end": "2026-11-29T13:00:00.000+00:00",
    "nodes": {"a": [0], "b": [1]},
    "earlier": [{"start": "2026-11-29T10:00:00+00:00", "end": "2026-11-29T10:30:00+00:00",
                 "nodes": {"a": [0]}, "finished": False}],
}  # fmt: skip


def eventful(folder: Path, **more: Any) -> Path:
    """A run with two starts, a save, a warning, a stall and a failure."""
    write(folder, 2, 64, 1.0, manifest={**STARTS, **more})
    noon = run_events.time_of(STARTS["start"])
    rows = [f"{noon + 60},100,save,step-100", f'{noon + 90},,warning,"{HOSTILE[:18]} of node17"']
    rows += [f"{noon},1e99,save,x", "nan,1,save,x", f"{noon},1,unknown,x", "9e9,1,save,late"]
    (folder / "events.csv").write_text("time,step,event,text\n" + "\n".join(rows) + "\n")
    told = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(noon + 120))
    append(folder / "stall-7.txt", "StallError: rank 1 waits\n\nranks\n"
           f"  told by rank 1 on node17 at {told}\n")  # fmt: skip
    failure = {"time": "2026-11-29T12:50:00+00:00", "cause": "node17 broke", "step": 9, "rank": 1}
    (folder / "failure.json").write_text(json.dumps(failure))
    return folder


def test_events_of_all_files_are_in_order(tmp_path: Path) -> None:
    folder = eventful(tmp_path / "run")
    page = run_page.page_of([folder])
    events = page.figures["runs"][0]["events"]
    assert [(one["kind"], one["step"]) for one in events] == [
        ("start", None), ("end", None), ("start", None), ("save", 100), ("warning", None),
        ("stall", 7), ("failure", 9), ("end", None)]  # fmt: skip
    assert events[5]["text"] == "rank 1 waits"
    said = " ".join(checked(page.text).texts)
    assert "node17 broke" in said and "step-100" in said and "<script>x</script>" in said
    hidden = run_page.page_of([folder], redacted=True)
    assert "node17" not in hidden.text and "node17" not in json.dumps(hidden.figures)
    assert "step-100" in hidden.text  # no host, user or path


def test_the_timeline_has_a_bar_for_each_start_and_a_mark_for_each_event(tmp_path: Path) -> None:
    text = run_page.page_of([eventful(tmp_path / "run")]).text
    drawn = text.partition("timeline of the run")[2].partition("</svg>")[0]
    # 640 - 96 - 12 units are the three hours from the first start to the last end
    assert 'x="96.0" y="8" width="88.7"' in drawn and 'x="450.7" y="8" width="177.3"' in drawn
    assert drawn.count('width="4"') == 4  # save, warning, stall, failure


SACCT = """\
17|2026-11-29T09:00:00|2026-11-29T08:00:00|2026-11-29T09:10:00|1800|2
17|2026-11-29T10:00:00|2026-11-29T10:00:00|2026-11-29T10:01:00|3600|2
18|2026-11-29T09:00:00|2026-11-29T08:00:00|2026-11-29T09:10:00|99999|64
19|Unknown|2026-11-29T08:00:00|Unknown|0|0
20+0|None|2026-11-29T08:00:00|2026-11-29T08:00:30|3600|1
20+1|2026-11-29T08:00:00|2026-11-29T08:00:00|2026-11-29T08:00:30|3600|3
21|2026-11-29T09:00:00|2026-11-29T08:00:00|2026-11-29T09:10:00|3600
|||||
x|y
"""


@pytest.mark.parametrize(
    ("job", "hours", "queue"),
    [("17", 3.0, 660.0), ("20", 4.0, 60.0), ("19", 2.5, None), ("21", 2.5, None)],
    ids=["requeued", "heterogeneous", "pending", "cut off"],
)
def test_node_hours_and_queue_wait(
    job: str, hours: float, queue: float | None, tmp_path: Path
) -> None:
    """Those of the job, also of its earlier starts; else of the clock: 2 x 1 h + 1 x 0.5 h."""
    place = "SLURM_HET_JOB_ID" if job == "20" else "SLURM_JOB_ID"
    (tmp_path / "m.json").write_text(json.dumps({**STARTS, "environment": {place: job}}))
    manifest = FileFacts(tmp_path / "m.json", [])
    usage = job_accounting.usage_of(manifest, None, job_accounting.rows_of_sacct(SACCT))
    assert usage is not None
    assert (usage.node_hours, usage.queue_wait_s) == (pytest.approx(hours), queue)
    assert ("sacct" in usage.source) == (queue is not None)


@pytest.mark.parametrize("job", ["17; rm -rf /", "-x", "١٧", "9" * 40, ""])
def test_what_is_no_job_is_not_asked_for(job: str, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(json.dumps({"environment": {"SLURM_JOB_ID": job}}))
    assert job_accounting.job_id(FileFacts(tmp_path / "m.json", [])) == ""


def test_sacct_is_asked_once_for_all_runs(tmp_path: Path, monkeypatch: Any) -> None:
    tool = tmp_path / "bin" / "sacct"
    tool.parent.mkdir()
    tool.write_text(
        f'#!/bin/sh\necho "$SLURM_TIME_FORMAT $@" >> "$0.asked"\ncat <<END\n{SACCT}END\n'
    )
    tool.chmod(0o755)
    folders = [
        eventful(tmp_path / job, environment={"SLURM_JOB_ID": job}) for job in ("17", "18", "n")
    ]
    monkeypatch.setenv("PATH", str(tool.parent), prepend=os.pathsep)
    page = run_page.page_of(folders, asks_slurm=True)
    usages = [run["usage"] for run in page.figures["runs"]]
    assert [round(one["node_hours"], 1) for one in usages] == [3.0, 1777.8, 2.5]
    (asked,) = Path(f"{tool}.asked").read_text().splitlines()
    assert asked.startswith("standard --jobs 17,18 ") and "--duplicates" in asked
    assert "time in the queue" in page.text
    run_page.page_of(folders)  # a page of a running job asks for nothing
    assert len(Path(f"{tool}.asked").read_text().splitlines()) == 1
    tool.write_text("#!/bin/sh\nexit 1\n")
    again = run_page.page_of(folders, asks_slurm=True).figures["runs"][0]["usage"]
    assert again["source"] == "nodes x time of the run"
