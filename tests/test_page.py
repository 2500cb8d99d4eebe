"""The page of runs: self-contained, escaped, small; what it says of planted faults; live."""

from __future__ import annotations

import base64
import html.parser
import json
import os
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcflow.cli import main as cli
from hpcflow.plan.ir.program import Cluster
from hpcflow.report import page_charts, run_limits, run_page, run_view, wait_heat_map
from hpcflow.report.html_elements import data_script, element
from hpcflow.report.measured_steps import rows_of_paces
from hpcflow.report.plan_file import write_plan
from hpcflow.report.run_limits import Joint
from hpcflow.report.server_limits import Servers
from tests.comm.threads import until
from tests.plan.transformer import transformer_plan
from tests.test_report import write

ROOT = Path(__file__).parents[1]
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x1b[31m\u202e"
VOID = {"meta", "img", "input", "br", "rect", "path", "line", "circle"}


class Checker(html.parser.HTMLParser):
    """Finds elements that are not closed, and what a page would load or run."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.texts.append(data)


def checked(text: str) -> Checker:
    """The page, after checks that hold for every page."""
    checker = Checker()
    checker.feed(text)
    assert not checker.open
    for tag, attributes in checker.found:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        for name in ("src", "href"):
            value = attributes.get(name)
            assert value is None or value.startswith("data:image/png;base64,"), value
    assert len([tag for tag, _ in checker.found if tag == "script"]) == 1 + text.count(
        'type="application/json"'
    )
    return checker


def paces(folder: Path, works: list[float], waits: list[float], rows: int = 20) -> None:
    """paces.csv with constant work and waiting of each worker."""
    lines = ["seconds,step,worker,steps,work,wait,samples"]
    for k in range(1, rows + 1):
        for worker, (work, wait) in enumerate(zip(works, waits, strict=True)):
            lines.append(f"{k / 2},{k},{worker},{k},{work},{wait},16")
    (folder / "paces.csv").write_text("\n".join(lines) + "\n")


def large_run(place: Path, part: int = 1) -> Path:
    """The directory of a run of 1,024 ranks and 10,000 steps, with a plan of 5,000 operations.

    `part` divides the ranks, the rows of metrics and the layers of the plan.
    """
    ranks = 1024 // part
    folder = Path(write(place, ranks, 65536, 1e6, rows=range(1, 10_000 // part + 1)))
    rng = np.random.default_rng(1)
    lines = ["seconds,step,worker,steps,work,wait,samples"]
    for k in range(40):
        lines += [f"{k * 25},{k * 250},{w},{k * 250},{work:.5f},{0.2 - work:.5f},64"
                  for w, work in enumerate(rng.uniform(0.05, 0.15, ranks))]  # fmt: skip
    (folder / "paces.csv").write_text("\n".join(lines) + "\n")
    write_plan(folder, transformer_plan(20 // part + 1, Cluster(ranks - 4, 4)))
    result = json.loads((folder / "result.json").read_text())
    result |= {"hosts": [f"n{i // 8}" for i in range(ranks)], "work_seconds": [1000.0] * ranks}
    result |= {"wait_seconds": [1000.0] * ranks, "input_wait_seconds": [0.0] * ranks}
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def page_and_calls(folder: Path) -> tuple[str, int]:
    """The page of a run, and the number of functions that were called for it."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        return run_page.page_of([folder]).text, calls
    finally:
        sys.setprofile(None)


def test_a_page_of_one_run(tmp_path: Path) -> None:
    folder = Path(write(tmp_path / "run", 4, 64, 1000.0))
    paces(folder, [0.1, 0.1, 0.3, 0.1], [0.2, 0.2, 0.0, 0.2])
    page = tmp_path / "page.html"
    assert cli.main(["report", str(folder), "--html", str(page)]) == 0
    text = page.read_text()
    checker = checked(text)
    said = " ".join(checker.texts)
    for words in ("digits.py", "finished", "1,000", "loss"):
        assert words in said or words in text
    assert text.count("<figure") == 4  # loss, rate, heat map, seconds by worker
    assert (
        "<b>12.5&nbsp;s</b>" in text and "<b>collective, 4&nbsp;ranks on 4&nbsp;nodes</b>" in text
    )
    assert "<p>There is no plan.json: <code>hpcflow run</code> writes it" in text


DAMAGED = [
    ("paces.csv", "seconds,step,worker,steps,work,wait\n1,1,1e18,1,1,1\n2,2,0,1,nan,1\n"),
    ("paces.csv", "seconds,step,worker,steps,work,wait\n1,1,-1,1,1,1\n1,inf,0,1,1,1\n"),
    ("paces.csv", "seconds,step,worker,steps,work,wait\n1,1,0,1,0,0\n1,1,1,1,0,0\n"),
    ("paces.csv", "seconds,step,worker,steps,work,wait\n1,1,0,1,1,1\n1,1,9,1,5,1\n"),
    (
        "paces.csv",
        "seconds,step,work,wait,server\n1,1,1,1,-1\n1,1,1,1,1e18\n1,1,1,1,0.5\n1,1,1,1,\n",
    ),
    ("paces.csv", "seconds,step,work,wait,server\n1,1,0,0,0\n2,2,nan,1,0\n3,3,1,1,4\n"),
    ("result.json", '{"ranks": 2, "seconds": 3, "server_work_seconds": [1, "x"]}'),
    ("profile.json", '{"ranks": [{"ops": 5}]}'),
    ("profile.json", '{"ranks": [{"ops": [{"kind": "kernels", "calls": 1e999}]}]}'),
    ("profile.json", "[1]"),
    ("result.json", '{"ranks": 2, "replicas": 1000000000000000000, "seconds": 1}'),
    ("result.json", '{"ranks": 2, "seconds": 3, "work_seconds": [1, 9], "wait_seconds": [8, 0]}'),
    ("result.json", '{"ranks": 2, "seconds": 3, "saves": {"held_seconds": 1e400}}'),
    ("metrics.csv", "seconds,step,loss\n1,1,nan\n2,9007199254740993,inf\n"),
]


@pytest.mark.parametrize(("name", "text"), DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_files_break_no_page(name: str, text: str, tmp_path: Path) -> None:
    folder = Path(write(tmp_path / "run", 2, 64, 1000.0))
    (folder / name).write_text(text)
    page = run_page.page_of([folder])
    checked(page.text)
    json.dumps(page.figures, allow_nan=False)


def test_a_pipe_in_place_of_a_log_does_not_block(tmp_path: Path) -> None:
    folder = Path(write(tmp_path / "run", 2, 64, 1000.0))
    (folder / "failure.json").write_text('{"rank": 1, "cause": "x"}')
    os.mkfifo(folder / "rank-1.log")
    checked(run_page.page_of([folder]).text)


def test_a_page_that_cannot_be_made_changes_no_exit_code(tmp_path: Path) -> None:
    script, folder = tmp_path / "train.py", tmp_path / "run"
    planted = "from hpcflow.report import run_page\nrun_page.page_of = lambda *a, **k: 1 / 0\n"
    script.write_text(planted + TRAIN + "\nsys.exit(7)\n")
    command = [sys.executable, "-m", "hpcflow", "run", "--run-dir", str(folder), str(script)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 7 and "ZeroDivisionError" not in done.stderr


def test_seconds_of_a_running_job_follow_from_its_paces(tmp_path: Path) -> None:
    """Rows have the means of a few steps each, and earlier starts do not count."""
    folder = Path(write(tmp_path / "run", 2, 64, 1000.0, finished=False))
    lines = ["seconds,step,worker,steps,work,wait,samples", "9,900,0,5,7,7,1", "9,900,1,5,7,7,1"]
    for step in (10, 20, 40):
        lines += [f"{step / 10},{step},0,5,0.01,0.09,1", f"{step / 10},{step},1,5,0.1,0,1"]
    (folder / "paces.csv").write_text("\n".join(lines) + "\n")
    (view,) = run_view.views_of([folder], is_over=False)
    assert view.run.state == "running"
    np.testing.assert_allclose(view.work, [0.4, 4.0])
    np.testing.assert_allclose(view.waits, [3.6, 0.0])


def test_texts_of_files_are_escaped(tmp_path: Path) -> None:
    more = {"said": {HOSTILE: HOSTILE}, "manifest": {"script": f"/x/{HOSTILE}", "git": {
        "commit": HOSTILE}, "command": ["python", HOSTILE], "folder": HOSTILE,
        "settings": {HOSTILE: HOSTILE}, "end": HOSTILE}}  # fmt: skip
    folder = Path(write(tmp_path / "run", 2, 64, 1000.0, **more))
    rows = (folder / "metrics.csv").read_text().replace("loss", '"<b onclick=x>"')
    (folder / "metrics.csv").write_text(rows)
    failure = {"rank": 1, "cause": HOSTILE, "host": HOSTILE, "kind": HOSTILE, "next": HOSTILE}
    (folder / "failure.json").write_text(json.dumps(failure))
    (folder / "rank-1.log").write_text(f"first\n{HOSTILE}\x00\x07</pre>\n")
    text = run_page.page_of([folder]).text
    checker = checked(text)
    assert {tag for tag, _ in checker.found}.isdisjoint({"b onclick=x"})
    assert "<script>alert" not in text and "\x1b" not in text and "\u202e" not in text
    assert "alert(1)" in " ".join(checker.texts)  # it is shown, as a text


def test_json_in_a_page_cannot_end_its_element() -> None:
    text = data_script({"name": "</script><script>alert(1)//", "amp": "&lt;"})
    assert text.count("</script>") == 1 and text.startswith('<script type="application/json">')
    assert json.loads(text[len('<script type="application/json">') : -len("</script>")]) == {
        "name": "</script><script>alert(1)//", "amp": "&lt;"}  # fmt: skip
    assert element("p", "<a>", title='"x"') == '<p title="&quot;x&quot;">&lt;a&gt;</p>'


def test_a_redacted_page_names_no_host_user_or_path(tmp_path: Path) -> None:
    secret = "node17.cluster.example"
    straggler = {"worker": 1, "rank": 1, "host": secret, "factor": 3.0}
    said = {
        "host": secret,
        "accuracy": 0.5,
        "hosts": [secret] * 2,
        "stragglers": [straggler],
        "warnings": {f"of {secret}": "1"},
    }
    said |= {"work_seconds": [1.0, 9.0], "wait_seconds": [8.0, 0.0]}
    started = {"folder": "/home/alice/x", "command": ["python", "/home/alice/x/train.py"]}
    folder = Path(write(tmp_path / "alice", 2, 64, 1.0, said=said, manifest=started))
    failure = {"rank": 1, "cause": f"died on {secret}", "host": secret, "kind": "death"}
    (folder / "failure.json").write_text(json.dumps(failure))
    open_page = run_page.page_of([folder]).text
    assert secret in open_page and "alice" in open_page
    hidden = run_page.page_of([folder], redacted=True)
    for word in (secret, "alice", "/home"):
        assert word not in hidden.text and word not in json.dumps(hidden.figures)
    assert "slow worker" in hidden.text


def pixels(uri: str) -> np.ndarray:
    """The palette indices of a PNG of the page, by a decoder of its own."""
    data = base64.b64decode(uri.partition(",")[2])
    at, packed, size = 8, b"", (0, 0)
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        (crc,) = struct.unpack(">I", data[at + 8 + length : at + 12 + length])
        assert crc == zlib.crc32(kind + body)
        size = struct.unpack(">II", body[:8]) if kind == b"IHDR" else size
        packed += body if kind == b"IDAT" else b""
        at += 12 + length
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(size[1], size[0] + 1)
    assert not rows[:, 0].any()
    return rows[:, 1:]


def test_the_heat_map_shows_who_was_waited_for(tmp_path: Path) -> None:
    folder = Path(write(tmp_path / "run", 4, 64, 1000.0))
    paces(folder, [0.1, 0.1, 0.3, 0.1], [0.2, 0.2, 0.0, 0.2])
    found = wait_heat_map.heat_map(rows_of_paces(folder / "paces.csv"))
    assert found is not None and found.seconds == 10.0
    cells = pixels(wait_heat_map.png_uri(found.waiting, found.input))
    assert (cells[2] == 0).all() and (cells[[0, 1, 3]] == 16 * 10).all()  # 2/3 of 15 shades
    assert found.joint.common == 0.0
    assert "(worker 2)" in run_page.page_of([folder]).text


def test_the_map_ends_with_the_run_and_its_figures_are_those_of_the_bars(tmp_path: Path) -> None:
    """Times without a row are not known; short rows weigh less than long ones."""
    said = {"seconds": 16.0, "work_seconds": [12.0, 4.0], "wait_seconds": [4.0, 12.0]}
    folder = Path(write(tmp_path / "run", 2, 64, 1000.0, said=said, waits=[8.0, 0.0]))
    lines = ["seconds,step,worker,steps,work,wait,input,samples"]
    for end, steps, *shares in ((8, 4, 0.75, 0), (10, 2, 0, 0.5), (12, 2, 0.5, 0), (14, 2, 1, 0)):
        for worker in (0, 1):  # steps of a second
            wait, fed = shares if worker == 0 else (0.75, 0.0)
            lines.append(f"{end},{end},{worker},{steps},{1 - wait},{wait},{fed},1")
    (folder / "paces.csv").write_text("\n".join(lines) + "\n")
    (view,) = run_view.views_of([folder], is_over=True)
    found = view.map
    assert found is not None and found.seconds == 16.0  # in four cells
    np.testing.assert_allclose(found.waiting[0], [np.nan, 0.75, 0.25, 1.0])
    np.testing.assert_allclose(found.waiting[1], [np.nan, 0.75, 0.75, 0.75])
    np.testing.assert_allclose(found.input[0], [np.nan, 0.0, 0.25, 0.0])
    assert found.joint == pytest.approx((4 * 1.75, 4 * (0.25 + 0.125)))
    text = run_page.page_of([folder]).text
    assert "from 25% of its time (worker 0) to 75% (worker 1)" in text
    assert ">16&nbsp;s</span>" in text and "not recorded" in text
    assert text.count('class="heat"') == 2 and ">waiting for input</li>" in text
    assert "work 4 s, ranks 4 s, input 8 s" in text


def test_workers_that_wait_for_each_other_in_turn_blame_no_network(tmp_path: Path) -> None:
    """Worker 0 is late in the first half, worker 1 in the second; nobody waits with the other."""
    said = {"work_seconds": [6.2, 6.3], "wait_seconds": [6.2, 6.2]}
    folder = Path(write(tmp_path / "run", 2, 64, 1000.0, said=said, waits=[0.0, 0.0]))
    lines = ["seconds,step,worker,steps,work,wait,samples"]
    for k in range(1, 26):
        late = int(k > 12)
        for worker in (0, 1):
            own, wait = (1, 0) if worker == late else (0, 1)
            lines.append(f"{k / 2},{k},{worker},1,{own * 0.5},{wait * 0.5},1")
    (folder / "paces.csv").write_text("\n".join(lines) + "\n")
    (view,) = run_view.views_of([folder], is_over=True)
    (limit,) = view.limits
    assert limit.resource == "unequal steps" and limit.seconds == pytest.approx(6.25, abs=0.3)
    rows = (folder / "paces.csv").read_text().replace(",0.5,0,", ",0.25,0.25,")
    (folder / "paces.csv").write_text(rows.replace(",0.0,0.5,", ",0.25,0.25,").replace(
        ",0.5,0.0,", ",0.25,0.25,"))  # fmt: skip
    (view,) = run_view.views_of([folder], is_over=True)
    (limit,) = view.limits  # now both wait at the same time
    assert limit.resource == "messages" and limit.text.endswith("the network")


def test_what_is_left_stands_last_and_a_long_start_is_named(tmp_path: Path) -> None:
    compiled = [{"rank": 0, "plan_seconds": 3.0, "kernel_seconds": 5.0}, {"kernel_seconds": "x"}]
    said = {"work_seconds": [4.0, 4.5, 9.0], "wait_seconds": [8.0, 7.5, 3.0]}
    said |= {"seconds_to_first_step": 20.0, "compile": compiled}
    folder = Path(write(tmp_path / "run", 3, 64, 900.0, said=said, waits=[0.0] * 3))
    text = run_page.page_of([folder]).text
    heads = re.findall(r"<li><b>([a-z ]+): </b>", text)
    assert heads == ["start", "slow worker", "messages", "the rest"]
    words = " ".join("".join(checked(text).texts).split())
    assert "computing 4.5 s (36%), the median of 3 workers" in words
    assert "plans took at most 3 s of a rank and kernels 5 s" in words and "hpcflow cache" in words
    assert "<b>12.5&nbsp;s</b>" in text and ">steps</span>" in text
    (view,) = run_view.views_of([folder], is_over=True)
    assert [one.resource for one in view.limits] == ["slow worker", "messages"]
    assert view.limit_lines[0] == "run: limited by slow worker"
    assert view.limit_lines[1].startswith("  start: ")
    assert "There is no plan.json" in words
    short = run_limits.start_limit(1000.0, 20.0, compiled)
    slow = run_limits.start_limit(100.0, 20.0, [{"plan_seconds": 0.1, "kernel_seconds": 0.1}])
    assert short is None and slow is not None and "hpcflow cache" not in slow.remedy


def test_bars_have_whole_names_one_scale_and_grey_idle_time(tmp_path: Path) -> None:
    host = "a-rather-long-name-of-a-node.cluster.example.org"
    said = {"hosts": [host] * 3, "work_seconds": [1.0, 2.0], "wait_seconds": [3.0, 8.0]}
    said |= {"server_work_seconds": [1.0], "server_wait_seconds": [4.0]}
    folder = write(tmp_path / "run", 3, 64, 900.0, servers=1, mode="ps", said=said, waits=[0.0] * 2)
    text = run_page.page_of([folder]).text
    (chart,) = re.findall(r'<svg class="bars".*?</svg>', text)
    assert f"<title>worker 1 (rank 2 on {host})</title>" in chart
    assert "work 1 s, idle 4 s" in chart and ">steps of each worker</span>" in text
    found = re.findall(r'<rect x="([\d.]+)" y="\d+" width="([\d.]+)"[^>]*class="bar (\w+)"', chart)
    width = {(k // 4, look): float(size) for k, (_, size, look) in enumerate(found)}
    assert width[2, "other"] == pytest.approx(4 * width[2, "c0"], abs=0.2)
    assert width[1, "c1"] == pytest.approx(2 * width[2, "other"], abs=0.2)  # 8 s and 4 s
    for x, name in re.findall(r'<text x="([\d.]+)" y="\d+" class="bar-name">([^<]+)</text>', chart):
        assert 8 * len(name) <= float(x)  # it ends there, and has room for its characters


def test_the_page_of_a_large_run_is_small_and_its_work_grows_linearly(tmp_path: Path) -> None:
    """1,024 ranks and 10,000 steps, with as many rows as such a run records; and a quarter."""
    page_and_calls(large_run(tmp_path / "first", part=16))  # imports what pages need
    _, few = page_and_calls(large_run(tmp_path / "quarter", part=4))
    text, many = page_and_calls(large_run(tmp_path / "whole"))
    checked(text)
    assert len(text.encode()) < 1 << 20 and "layer_20" in text
    assert few > 100_000 and many < 4.2 * few


def test_servers_are_told_with_the_bytes_per_second_of_their_ports(tmp_path: Path) -> None:
    one = {"received": 1000, "sent": 500}
    traffic = {"servers": [{"task": "/job:ps/task:0", "predicted": one, "measured": one}]}
    said = {"traffic": traffic, "hosts": ["n0", "n1", "n2"], "wait_seconds": [10.0, 10.0]}
    said |= {"work_seconds": [1.0, 1.0]}
    folder = write(tmp_path / "run", 3, 64, 900.0, servers=1, said=said)
    (view,) = run_view.views_of([folder])
    # two workers made 100 steps each in 12.5 s
    rates = "received 16 kB/s and sent 8 kB/s"
    assert view.servers == ["/job:ps/task:0 (rank 0 on n0)"]
    assert view.server_rates == [f" {rates}"]
    assert view.workers == ["worker 0 (rank 1 on n1)", "worker 1 (rank 2 on n2)"]
    (limit,) = [one for one in view.limits if one.resource == "messages"]
    assert rates in limit.text and "all 2 workers send" in limit.text
    (hidden,) = run_view.views_of([folder], redacted=True)
    assert hidden.servers == ["/job:ps/task:0 (rank 0)"] and hidden.server_rates == [f" {rates}"]


@pytest.mark.parametrize(
    ("inputs", "work", "waits", "servers", "resource", "words"),
    [
        ([0, 0, 0], [20, 21, 63], [43, 42, 0.5], [], "slow worker", "w2 is slow"),
        ([0, 0, 42], [20, 21, 63], [43, 42, 0.5], [], "input", "w2 waited 42 s for its input"),
        ([30, 31, 29], [50, 51, 50], [1, 1, 1], [], "input", "the workers waited 30"),
        ([0, 0, 0], [20, 21, 20], [43, 42, 43], [], "messages", "sums over the ranks"),
        ([0, 0, 0], [20, 21, 20], [43, 42, 43], ["/job:ps/task:0"], "messages", "/job:ps/task:0"),
        ([0, 0, 0], [62, 63, 62], [1, 1, 1], [], None, ""),
    ],
    ids=str,
)
def test_what_limits_a_run_is_named(
    inputs: Any, work: Any, waits: Any, servers: Any, resource: str | None, words: str
) -> None:
    names = ["w0", "w1", "w2"]
    found = run_limits.limits(64.0, inputs, work, waits, names, {}, Servers(servers))
    assert [one.resource for one in found[:1]] == ([resource] if resource else [])
    assert words in "".join(one.text for one in found[:1])
    if words.startswith("w2"):  # the run is longer by what w2 takes above the others
        assert found[0].seconds == pytest.approx(63 - 20.5)
        assert len(found) == 1 and "would take about 21.5 s, not 64 s" in found[0].text


def test_input_of_workers_in_turn_has_an_estimate_without_any(tmp_path: Path) -> None:
    """Worker 1 waited 28 s for input and 7 s for worker 0, of which 1 s had no such cause."""
    inputs, work, waits = [18.0, 28.0], [18.5, 28.5], [17.0, 7.0]
    (one,) = run_limits.limits(
        36.0, inputs, work, waits, ["w0", "w1"], {}, Servers(), Joint(1.0, 9.0)
    )
    assert one.resource == "input" and one.seconds == 10.0  # and 1 s of messages is too short
    assert "w1 waited 28 s for its input data, the other one 18 s (" in one.text
    assert "as the other one, the run would take about 26 s, not 36 s, and without" in one.text
    assert one.text.endswith("without any waiting for input about 2 s")
    said = {"seconds": 36.0, "work_seconds": work, "wait_seconds": waits}
    folder = write(tmp_path / "run", 2, 64, 900.0, said=said, waits=inputs)
    (view,) = run_view.views_of([folder], is_over=True)
    assert view.limited_by == "input" and view.computing == pytest.approx(0.5)


def test_saves_that_hold_training_are_named() -> None:
    found = run_limits.limits(60.0, [0.0], [40.0], [0.0], ["w0"], {"held_seconds": 18.0}, Servers())
    assert [(one.resource, one.seconds) for one in found] == [("saving", 18.0)]


def test_page_and_report_name_the_same_limit_and_the_setting(tmp_path: Path, capsys: Any) -> None:
    """21% are lost to checkpoints that a sweep has added: computing is most, in both."""
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    manifest = {"settings": {"default_checkpoints": str(tmp_path / "run" / "checkpoints")}}
    said = {"seconds": 0.73, "work_seconds": [0.5], "wait_seconds": [0.0]}
    said |= {"saves": {"held_seconds": 0.153}}
    more: dict[str, Any] = {"manifest": manifest, "said": said, "waits": [0.0]}
    made = Path(write(tmp_path / "made", 1, 64, 900.0, **more))
    for file in made.iterdir():
        file.rename(tmp_path / "run" / file.name)
    assert cli.main(["report", str(tmp_path / "run"), "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "run: limited by computing\n  saving: training waited 153 ms (21%)" in told
    assert "--set default_checkpoints=" in told and "save_every" not in told
    (view,) = run_view.views_of([tmp_path / "run"])
    assert view.limited_by == "computing"


def test_curves_keep_their_extremes_when_they_are_thinned() -> None:
    ys = np.sin(np.arange(50_000) / 50)
    ys[31_234], ys[1_111] = 40.0, -40.0
    text = page_charts.line_chart(
        "loss", [page_charts.Series("loss", range(50_000), ys.tolist())], "steps", "loss"
    )
    data = json.loads(re.search(r'json">(.*?)</script>', text)[1])  # type: ignore[index]
    xs, values = data["series"][0]
    assert len(xs) <= 1.2 * page_charts.MOST_POINTS and xs == sorted(xs)
    assert max(values) == 40.0 and min(values) == -40.0 and (xs[0], xs[-1]) == (0, 49_999)


@pytest.mark.parametrize("ys", [[float("nan")] * 3, [], [float("inf"), 1.0, 2.0], [1e308, 1, 2]])
def test_curves_of_no_numbers_break_no_page(ys: list[float]) -> None:
    text = page_charts.line_chart("x", [page_charts.Series("x", range(len(ys)), ys)], "s", "x")
    assert "nan" not in text.lower() and "inf" not in text.lower()


def test_ticks_are_round_and_within() -> None:
    for low, high in [(0, 1), (0, 7), (-3, 12), (1e-7, 3e-7), (99.5, 100.5), (0, 1e9)]:
        found = page_charts.ticks(low, high)
        assert 2 <= len(found) <= 6, (low, high, found)
        assert all(low - 1e-12 <= t <= high + 1e-9 * abs(high) for t in found)


def test_several_runs_are_compared(tmp_path: Path) -> None:
    folders = [write(tmp_path / f"n{n}", n, 64, 900.0 * n, manifest={
        "command": ["x", "/home/u/digits.py", f"--rate={n}"]}) for n in (1, 2, 4)]  # fmt: skip
    page, figures = tmp_path / "p.html", tmp_path / "p.json"
    assert cli.main(["report", *folders, "--html", str(page), "--json", str(figures)]) == 0
    checker = checked(page.read_text())
    said = " ".join(checker.texts)
    assert "strong scaling" in said and "--rate" in said and "100%" in said
    data = json.loads(figures.read_text())
    assert [point["workers"] for point in data["scaling"][0]["points"]] == [1, 2, 4]
    assert [run["samples_per_second"] for run in data["runs"]] == [900.0, 1800.0, 3600.0]


def test_efficiencies_have_whiskers_where_runs_are_repeated(tmp_path: Path) -> None:
    rates = {"a": (1, 1000.0), "b": (2, 1500.0), "c": (2, 1800.0)}
    folders = [write(tmp_path / name, n, 64, rate) for name, (n, rate) in rates.items()]
    page = run_page.page_of(folders)
    checked(page.text)
    (whisker,) = re.findall(r'd="([^"]*)" class="dot whisker c0"', page.text)
    (low, high) = map(float, re.search(r"M[\d.]+ ([\d.]+)V([\d.]+)", whisker).groups())  # type: ignore[union-attr]
    hundred = float(
        re.search(
            r'd="M[\d.]+ ([\d.]+)L[^"]*" class="curve c1 dashed"',
            page.text.split(">efficiency<")[1],
        )[1]
    )  # type: ignore[index]
    assert low > high > hundred  # 75 % is below 90 %, which is below 100 %
    point = page.figures["scaling"][0]["points"][1]
    assert (point["efficiency_low"], point["efficiency_high"]) == (0.75, 0.9)
    once = run_page.page_of(folders[:2]).text
    assert "whisker" not in once.partition("</style>")[2]


def test_wrong_arguments(tmp_path: Path, capsys: Any) -> None:
    run = write(tmp_path / "run", 1, 64, 1.0)
    assert cli.main(["report", run, "--redact"]) == 2
    assert cli.main(["report", str(tmp_path / "none"), "--html", str(tmp_path / "p")]) == 1
    (tmp_path / "file").write_text("")
    assert cli.main(["report", run, "--html", str(tmp_path / "file" / "p.html")]) == 1
    assert "no run in" in capsys.readouterr().err


TRAIN = """
import os, sys, time
import numpy as np
import hpcflow as hf
x = hf.placeholder(hf.float32, [None, 2])
w = hf.Variable(hf.zeros([2, 1]))
loss = hf.reduce_mean(hf.square(hf.matmul(x, w) - 1.0))
train = hf.train.GradientDescentOptimizer(0.01).minimize(loss)
data = hf.data.Dataset({x: np.ones((64, 2), "float32")}, batch=16)
with hf.train.TrainingSession() as sess, hf.train.Progress(data, 2) as progress:
    for batch in data.epochs(2):
        sess.step(train, batch)
        progress.update(batch, loss=1.0)
    sess.wait()
    if "fail" in sys.argv:
        raise ValueError("planted")
    sess.result()
"""


@pytest.mark.parametrize(
    ("words", "state"), [([], "finished"), (["fail"], "failed")], ids=["finished", "failed"]
)
@pytest.mark.parametrize("ranks", [[], ["-n", "2"]], ids=["single", "two"])
def test_a_run_leaves_its_page(
    ranks: list[str], words: list[str], state: str, tmp_path: Path
) -> None:
    script, folder = tmp_path / "train.py", tmp_path / "run"
    script.write_text(TRAIN)
    command = [sys.executable, "-m", "hpcflow", "run", *ranks, "--run-dir", str(folder)]
    done = subprocess.run(
        [*command, str(script), *words], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert (done.returncode == 0) == (not words), done.stderr
    text = (folder / "report.html").read_text()
    checked(text)
    assert f'class="state{" bad" if words else ""}">{state}' in text.replace("<b ", "")
    assert not list(folder.glob(".report*"))
    (folder / "report.html").unlink()
    more = [*command, "--set", "page=0", str(script)]
    subprocess.run(more, cwd=ROOT, capture_output=True, timeout=100)
    assert not (folder / "report.html").exists()


def test_a_page_of_a_running_job_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpcflow.report import live_page
    from hpcflow.report.live_page import NAME, LivePage

    monkeypatch.setattr(live_page, "MOST_SHARE", 1.0)
    manifest = {"steps_in_all": 40, "start": "2026-11-29T12:00:00+00:00"}
    folder = Path(write(tmp_path / "run", 2, 64, 1000.0, finished=False, manifest=manifest))
    page = LivePage(str(folder), every_s=0.05)
    until((folder / NAME).exists)
    text = (folder / NAME).read_text()
    checked(text)
    assert ">running<" in text and 'http-equiv="refresh"' in text
    assert "<span>time left</span><b>3&nbsp;s</b>" in text  # 30 steps of 0.1 s
    (folder / NAME).unlink()
    until((folder / NAME).exists)
    page.close()
    assert 'http-equiv="refresh"' not in (folder / NAME).read_text()
