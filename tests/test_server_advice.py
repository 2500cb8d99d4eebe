"""The line about servers after a run: what more, fewer or otherwise divided ones would have gained.

Runs are made by replays of real plans, and what is advised is compared with the replay of the plan
that has the better value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import hpcflow as hf
from hpcflow.cli import main as cli
from hpcflow.cli.plan import plans_of
from hpcflow.cli.run import advice_line
from hpcflow.graph.static_shape import Spec
from hpcflow.placement.durations import Seconds
from hpcflow.placement.job_replay import JobSettings, JobTimes, ReplicaClass, replay_job
from hpcflow.placement.network import Network
from hpcflow.plan.cost.replay_of_plan import model_seconds, own_seconds, template_of
from hpcflow.plan.ir.program import Node, Plan
from hpcflow.report.advised_run import Advice
from hpcflow.report.plan_file import read_plan, write_plan
from hpcflow.report.setting_advice import advice_of
from hpcflow.settings import Settings
from tests.advice_after_runs import (
    check_page_shows_advice,
    check_spoilt_run_has_no_advice,
    stderr_of_run,
)
from tests.test_report import write

SCRIPT = """
import sys
import numpy as np
import hpcflow as hf

sizes, steps = [int(word) for word in sys.argv[1].split(",")], int(sys.argv[2])
x = hf.placeholder(hf.float32, [None])
ws = []
for i, size in enumerate(sizes):
    with hf.device("/job:ps/task:0" if "pinned" in sys.argv else None):
        ws.append(hf.Variable(np.ones((size // 100, 100), "f4"), name=f"w{i}"))
loss = hf.add_n([hf.reduce_sum(hf.square(w)) for w in ws]) * hf.reduce_mean(x)
train = hf.train.AdamOptimizer(1e-3).minimize(loss)
data = hf.data.Dataset({x: np.ones(64, "f4")}, batch=16)
with hf.train.TrainingSession() as session:
    for batch in data.epochs(steps):
        session.step(train, batch)
        if session.steps == steps:
            break
    session.wait()
    session.result()
"""
FOUR, SIXTEEN = ",".join(["200000"] * 4), ",".join(["40000"] * 16)
WORKERS = 4


class Job:
    """A script with some workers; operations take the model's time by these factors."""

    def __init__(
        self, script: Path, words: Sequence[str], worker: float, server: float, workers: int
    ) -> None:
        self.script, self.words, self.workers = script, list(words), workers
        self.worker, self.server = worker, server

    def plan(self, chosen: Settings) -> Plan:
        with hf.Graph().as_default():
            plans, _, code = plans_of(
                str(self.script), self.words, self.workers + chosen.ps, chosen
            )
        assert code == 0
        return plans[-1].plan

    def seconds(self, node: Node, inputs: Sequence[Spec]) -> Seconds:
        is_server = node.device.startswith("/job:ps/")
        value = model_seconds(node, inputs).median * (self.server if is_server else self.worker)
        return Seconds(value, value, value)

    def times(self, plan: Plan, latency: float = 5e-6) -> JobTimes:
        network = Network(latency=latency)
        template = template_of(plan, network, self.seconds)
        settings = JobSettings(sigma=0.02, groups=16, steps=30)
        return replay_job(template, network, [ReplicaClass(self.workers)], settings)


def folder_of(place: Path, job: Job, chosen: Settings, latency: float = 5e-6) -> Path:
    """The folder of a run of the job, as its replay tells."""
    plan = job.plan(chosen)
    times, folder = job.times(plan, latency), place / "run"
    step, work = times.quantile(0.5), own_seconds(plan, job.seconds).median
    moved: dict[str, list[int]] = {}
    ways = [{"received": 0, "sent": 0} for _ in range(chosen.ps)]
    for share in (share for message in plan.messages for share in message.shares):
        row = moved.setdefault(share.variable, [0, 0])
        row[0], row[1] = row[0] + share.nbytes, row[1] + 1
        ways[share.server][share.direction] += share.nbytes
    servers = [
        {"task": f"/job:ps/task:{i}", "predicted": way, "measured": way}
        for i, way in enumerate(ways)
    ]
    variables = {name: {"bytes": a, "messages": float(b)} for name, (a, b) in moved.items() if name}
    traffic = {"servers": servers, "variables": variables}
    memory = [{"variables": 10 << 20}] * chosen.ps + [{}] * job.workers
    told = {name: str(value) for name, value in vars(chosen).items()}
    manifest = {"mode": "ps", "settings": told, "folder": str(place), "crowded": []}
    said = {"traffic": traffic, "memory": memory}
    write(
        folder, job.workers + chosen.ps, 64, 900.0, servers=chosen.ps, mode="ps", manifest=manifest,
        said=said,
    )  # fmt: skip
    rows = ["seconds,step,worker,steps,work,wait,samples,server"]
    shares = [times.busy[f"/job:ps/task:{i}/cpu:0"] for i in range(chosen.ps)]
    for i in range(12):
        rows += [f"{i},{i},{w},4,{work},{step - work},32," for w in range(job.workers)]
        rows += [f"{i},{i},,,{share},{1 - share},,{s}" for s, share in enumerate(shares)]
    (folder / "paces.csv").write_text("\n".join(rows) + "\n")
    write_plan(folder, plan)
    return folder


Make = Callable[..., tuple[Path, Job]]


@pytest.fixture
def finished(tmp_path: Path) -> Make:
    """A function that makes the folder of a run, and returns it with its job."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def make(
        sizes: str = FOUR,
        worker: float = 1.0,
        server: float = 1.0,
        words: Sequence[str] = (),
        latency: float = 5e-6,
        workers: int = WORKERS,
        place: str = "",
        **settings: Any,
    ) -> tuple[Path, Job]:
        job = Job(script, [sizes, "10", *words], worker, server, workers)
        return folder_of(tmp_path / place, job, Settings(**settings), latency), job

    return make


def with_better(job: Job, chosen: Settings) -> float:
    """The step by the replay of the plan with other settings."""
    return job.times(job.plan(chosen)).quantile(0.5)


def ps_advice(folder: Path) -> Advice:
    """The advice of a run, which is about its servers."""
    advice = advice_of(folder)
    assert advice is not None and advice.setting == "ps" and advice.ranks is not None
    return advice


@pytest.mark.parametrize("sync", ["", "all", "backup:1", "stale:2"])
def test_where_servers_are_the_limit_more_would_help(finished: Make, sync: str) -> None:
    """It promises no more than the replay of the plan with more servers gains, but something."""
    folder, job = finished(server=40.0, ps=1, sync=sync)
    advice = ps_advice(folder)
    assert (advice.given, advice.better, advice.ranks) == ("1", "2", (5, 6))
    true = with_better(job, Settings(ps=2, sync=sync))
    assert 0.98 * true < advice.predicted < 0.8 * advice.measured
    line = advice_line(str(folder))
    assert line.startswith("ps=1 was set by hand: the model predicts ")
    assert line.endswith(
        f" a step with ps=2, on 6 ranks instead of 5 (hpcflow predict --compare {folder})"
    )


@pytest.mark.parametrize("sync", ["", "all"])
def test_behind_a_worker_alone_a_server_hides_nothing(finished: Make, sync: str) -> None:
    """Of several workers one may wait for a message while the server serves the others."""
    folder, job = finished(server=40.0, workers=1, ps=1, sync=sync)
    advice = ps_advice(folder)
    true = with_better(job, Settings(ps=2, sync=sync))
    assert 0.98 * true < advice.predicted < 1.1 * true


def test_more_servers_help_by_the_variables_that_they_can_share(finished: Make) -> None:
    """One of two variables has all but a tenth of the bytes, and stays on one server."""
    folder, _ = finished(sizes="450000,50000", server=40.0, ps=1)
    assert advice_of(folder) is None
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["settings"]["shard_bytes"] = "1000000"  # then each of several servers has a part
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert ps_advice(folder).better == "2"


def test_more_ranks_are_not_advised_for_less_than_they_cost(finished: Make) -> None:
    """With another server for one worker a step must take two thirds of the time, or less.

    The second one gains a fifth.
    """
    usual = own_seconds(finished(ps=1)[1].plan(Settings(ps=1))).median
    for share, is_worth_it in ((0.1, True), (0.35, False)):  # of a step: work of the worker
        worker = share / (1 - share) * 0.0514 / usual  # seconds of the server
        place = f"{share}"
        folder, _ = finished(server=40.0, worker=worker, workers=1, ps=1, place=place)
        advice = advice_of(folder)
        assert (advice is not None) == is_worth_it
        if advice is not None:
            assert advice.predicted * 3 <= advice.measured * 2


@pytest.mark.parametrize(
    ("factors", "settings"),
    [
        ({"worker": 40.0, "server": 4.0}, {"ps": 1}),  # the workers work
        ({"worker": 40.0, "server": 4.0}, {"ps": 1, "sync": "all"}),
        ({"latency": 0.1}, {"ps": 1}),  # they wait for messages
        ({"latency": 0.1}, {"ps": 2, "sync": "all"}),
        ({"sizes": "100,100,100,100"}, {"ps": 1}),  # what a step needs is not divided
        ({"server": 40.0, "words": ["pinned"]}, {"ps": 1}),
        ({"server": 40.0}, {"ps": 1, "prefetch": True}),
    ],
)
def test_no_more_servers_where_they_are_not_the_limit_or_not_known(
    finished: Make, factors: dict[str, Any], settings: dict[str, Any]
) -> None:
    folder, _ = finished(**factors, **settings)
    assert advice_of(folder) is None and advice_line(str(folder)) == ""


@pytest.mark.parametrize(("sync", "enough"), [("", 1), ("all", 2)])
def test_servers_that_have_little_to_do_are_too_many(
    finished: Make, sync: str, enough: int
) -> None:
    """Workers of sync=all wait for the slowest, which might also be waiting for a port."""
    folder, job = finished(worker=200.0, server=0.1, ps=4, sync=sync)
    advice = ps_advice(folder)
    assert (advice.given, advice.better, advice.ranks) == ("4", str(enough), (8, 4 + enough))
    assert advice.measured <= advice.predicted <= 1.02 * advice.measured
    assert with_better(job, Settings(ps=enough, sync=sync)) < 1.02 * advice.measured
    assert f"with ps={enough}, on {4 + enough} ranks instead of 8" in advice_line(str(folder))


def test_fewer_servers_hold_no_more_than_any_rank_could(finished: Make) -> None:
    folder, _ = finished(worker=200.0, server=0.1, ps=4)
    result = json.loads((folder / "result.json").read_text())
    for nbytes, better in ((200 << 20, "1"), (500 << 20, "2"), (1 << 30, "")):
        result["memory"] = [{"variables": nbytes}] * 4 + [{}] * WORKERS
        # roles of the made run have the servers first
        (folder / "result.json").write_text(json.dumps(result))
        advice = advice_of(folder)
        assert ("" if advice is None else advice.better) == better
    del result["memory"]
    (folder / "result.json").write_text(json.dumps(result))
    assert advice_of(folder) is None


def test_waiting_for_messages_may_be_the_ports_of_servers(finished: Make) -> None:
    """Fewer servers would have more bytes to carry, over a network that nobody has described."""
    assert advice_of(finished(worker=200.0, server=0.1, latency=0.05, ps=4)[0]) is None


def test_a_large_shard_leaves_the_variable_on_one_server(finished: Make) -> None:
    """32 MB are on one of two servers if pieces may have 1 GB, and by default on both."""
    folder, job = finished(sizes="8000000,10000", server=4.0, ps=2, shard_bytes=1 << 30)
    advice = advice_of(folder)
    assert advice is not None
    assert (advice.setting, advice.given, advice.better) == (
        "shard_bytes", str(1 << 30), str(16 << 20)
    )  # fmt: skip
    true = with_better(job, Settings(ps=2))
    assert 0.98 * true < advice.predicted < 0.8 * advice.measured
    assert "with the default 16777216 (hpcflow predict" in advice_line(str(folder))


def _manifest(folder: Path, **more: Any) -> None:
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | more))


def _settings(folder: Path, **more: str) -> None:
    settings = json.loads((folder / "manifest.json").read_text())["settings"]
    _manifest(folder, settings=settings | more)


def _result(folder: Path, **more: Any) -> None:
    file = folder / "result.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | more))


def _plan(folder: Path, **more: Any) -> None:
    file = folder / "plan.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | more))


def _without_servers(folder: Path) -> None:
    rows = (folder / "paces.csv").read_text().splitlines()
    (folder / "paces.csv").write_text("\n".join(row for row in rows if row[-1] == ",") + "\n")


SPOILT: dict[str, Callable[[Path], None]] = {
    "with more ranks than cores": lambda folder: _manifest(folder, crowded=["n0"]),
    "of an older version": lambda folder: _manifest(folder, crowded=None),
    "with a rule of the script": lambda folder: _settings(folder, sync="mine:2"),
    "with another rule than known": lambda folder: _settings(folder, sync="backup:9" + "9" * 99),
    "placed by a file": lambda folder: _settings(folder, placement="result.json"),
    "without a size of shards": lambda folder: _settings(folder, shard_bytes="0"),
    "without traffic": lambda folder: _result(folder, traffic=None),
    "with other traffic": lambda folder: _result(folder, traffic={"servers": [], "variables": {}}),
    "without loads of servers": _without_servers,
    "with an older plan": lambda folder: _plan(folder, variables=[]),
    "with a damaged plan": lambda folder: _plan(folder, variables=[["w0", -1, 0, 0, 7]]),
    "without workers": lambda folder: _plan(folder, workers=0),
    "with other servers": lambda folder: _plan(folder, servers=10**9),
    "with moved variables": lambda folder: _plan(folder, variables=[["w0", 0, 2000, 800000, 0]]),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_run_that_cannot_be_judged_has_no_line_and_no_error(
    finished: Make, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = finished(server=40.0, ps=1)
    check_spoilt_run_has_no_advice(folder, SPOILT[how], capsys)


def test_the_plan_file_tells_the_variables_of_servers(finished: Make) -> None:
    """Slots and variables of workers are left out; pieces have the name of their variable."""
    folder, _ = finished(sizes="8000000,10000", ps=2)
    found = read_plan(folder / "plan.json")
    assert found is not None
    names = [(one.name, one.rows, one.nbytes, one.by_load) for one in found.variables]
    half = ("w0", 40_000, 16_000_000, True)
    assert names == [half, half, ("w1", 100, 40_000, True)]
    assert sorted(one.server for one in found.variables[:2]) == [0, 1]


def test_the_report_and_the_page_show_it(
    finished: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = finished(server=40.0, ps=1)
    assert cli.main(["report", str(folder)]) == 0
    told = capsys.readouterr().out
    assert told.count("settings: ps=1 was set by hand") == 1
    assert "next  --ps 2 with 6 ranks" in told
    check_page_shows_advice(folder, tmp_path)


@pytest.mark.slow
def test_after_a_run_with_a_slow_server_the_launcher_prints_one_line(tmp_path: Path) -> None:
    """Each segment of the only server takes 100 times as long."""
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(name: str, *words: str) -> str:
        script = ["train.py", ",".join(["100000"] * 4), "40"]
        return stderr_of_run(tmp_path, 0, "--ps=1", *words, f"--run-dir={name}", *script)

    told = run("slow", "--inject=slow:rank=1x100@step=1")
    assert told.count("was set by hand") == 1
    line = told.strip().splitlines()[-1]
    assert line.startswith("hpcflow: ps=1 was set by hand: the model predicts ")
    assert line.endswith("with ps=2, on 3 ranks instead of 2 (hpcflow predict --compare slow)")
    assert "was set by hand: the model" in (tmp_path / "slow" / "report.html").read_text()
    # a server that stands still on a busy machine looks slow
    usual = (run(f"usual{number}", "--set=page=0") for number in range(3))
    assert any("was set by hand" not in text for text in usual)
