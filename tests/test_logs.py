"""Logs: equal lines folded, who speaks at which level, and files on request or on failure."""

from __future__ import annotations

import logging
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hpcflow.launch import launcher_detection
from hpcflow.platform import rank_logging

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    for handler in rank_logging.logger.handlers:
        handler.close()


def finish_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    for handler in rank_logging.logger.handlers:
        handler.close()
    return capsys.readouterr().err.splitlines()


def test_equal_lines_are_one_with_their_count(capsys: pytest.CaptureFixture[str]) -> None:
    rank_logging.set_up_logging(3, 8)
    for _ in range(1022):
        rank_logging.logger.warning("the disk is slow")
    rank_logging.logger.warning("another")
    assert finish_lines(capsys) == [
        "hpcflow [3/8] the disk is slow",
        "hpcflow [3/8] another",
        "hpcflow [3/8] the disk is slow  (x 1,022)",
    ]
    assert rank_logging.warning_counts() == {"the disk is slow": 1022, "another": 1}


def test_after_the_window_a_line_is_told_anew(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(rank_logging.time, "monotonic", lambda: clock[0])
    rank_logging.set_up_logging(0, 1)
    for now in (0, 1, 2, 11, 12):
        clock[0] = float(now)
        rank_logging.logger.info("slow")
    assert finish_lines(capsys) == [
        "hpcflow slow",
        "hpcflow slow  (x 3)",
        "hpcflow slow",
        "hpcflow slow  (x 2)",
    ]


@pytest.mark.parametrize(("rank", "said"), [(0, ["info", "warning"]), (1, ["warning"])])
def test_rank_0_speaks_at_info_others_at_warning(
    rank: int, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    rank_logging.set_up_logging(rank, 2)
    rank_logging.logger.debug("debug")
    rank_logging.logger.info("info")
    rank_logging.logger.warning("warning")
    assert [line.split()[-1] for line in finish_lines(capsys)] == said


def test_a_rank_that_fails_writes_its_last_lines(tmp_path: pathlib.Path) -> None:
    rank_logging.set_up_logging(5, 8, str(tmp_path / "run"))
    for number in range(300):
        rank_logging.logger.debug("line %d", number)
    assert not (tmp_path / "run").exists()
    rank_logging.write_last_lines("ValueError: no\n")
    lines = (tmp_path / "run" / "rank-5.log").read_text().splitlines()
    assert len(lines) == rank_logging.MAX_RECENT_LINES + 1
    assert lines[0].endswith("DEBUG line 100") and lines[-1] == "ValueError: no"


def test_on_request_every_line_is_in_the_file(tmp_path: pathlib.Path) -> None:
    rank_logging.set_up_logging(5, 8, str(tmp_path), log_files=True)
    for number in range(300):
        rank_logging.logger.debug("line %d", number)
    rank_logging.write_last_lines("ValueError: no\n")
    lines = (tmp_path / "rank-5.log").read_text().splitlines()
    assert len(lines) == 301 and lines[-1] == "ValueError: no"


def test_without_a_run_directory_a_failure_writes_no_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rank_logging.set_up_logging(0, 1)
    rank_logging.write_last_lines("ValueError: no")
    assert not list(tmp_path.iterdir())


def test_warnings_of_all_ranks_are_told_once() -> None:
    told = [{"slow": 1} for _ in range(1024)]
    told[17] = {"slow": 1, "odd": 2}
    told[3] = {}
    assert rank_logging.merge_warnings(told) == {
        "slow": "x 1,023, ranks 0-2, 4-1023",
        "odd": "x 2, rank 17",
    }


def boards(folder: pathlib.Path, ranks: int, nodes: int) -> list[rank_logging.SharedLineBoard]:
    """A board for each rank, in a folder for each node, and one folder above them."""
    above = f"{folder}/all" if nodes > 1 else None
    return [
        rank_logging.SharedLineBoard(
            f"{folder}/{r % nodes}", r, rank_logging.SharedLineBoard(above, r) if above else None
        )
        for r in range(ranks)
    ]


@pytest.mark.parametrize("nodes", [1, 16])
def test_a_thousand_ranks_that_say_the_same_are_told_once(
    tmp_path: pathlib.Path, nodes: int
) -> None:
    made = boards(tmp_path, 1024, nodes)
    speakers = [board for r, board in enumerate(made) if r not in (5, 900)]
    assert sum(board.is_first("slow", 0.0) for board in speakers) == 1
    assert made[7].add_repetitions("slow", 3)
    assert made[900].is_first("odd", 1.0), "another line is its own"
    assert not [line for board in made for line in board.due_lines(rank_logging.FOLD_S - 1)], (
        "too early"
    )
    late = rank_logging.FOLD_S + rank_logging.LET_NODES_TELL_S
    told = [
        line
        for now in (rank_logging.FOLD_S, late)
        for board in made
        for line in board.due_lines(now)
    ]
    said = [r for r in range(1024) if r not in (5, 900)]
    assert told == [("slow", 1025, said)], "what one rank said once needs no second line"
    assert sum(board.is_first("slow", 99.0) for board in made) == 1, "later it is told anew"
    for board in made * 2:
        list(board.due_lines(float("inf")))
    assert not any(path.is_file() for path in tmp_path.rglob("*")), "nothing is left"


def test_a_board_that_cannot_be_written_silences_nobody(tmp_path: pathlib.Path) -> None:
    (tmp_path / "0").write_text("a file")
    assert all(board.is_first("slow", 0.0) for board in boards(tmp_path, 3, 1))


@pytest.mark.slow
@pytest.mark.skipif(
    launcher_detection.detect_launcher() is not None, reason="a job cannot start jobs"
)
def test_ranks_of_a_job_warn_once_and_each_file_has_all(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "warns.py"
    script.write_text(
        "import hpcflow as hf\nfrom hpcflow.platform.rank_logging import logger\n"
        "context = hf.Session().context\n"
        "for _ in range(3):\n    logger.warning('the disk is slow')\n"
        "context.barrier()\n"
    )
    run = [sys.executable, "-m", "hpcflow", "run", "-n", "3", "--run-dir", str(tmp_path / "run")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*run, "--set", "log_files=1", str(script)],
        env=env,
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "the disk is slow" in line]
    assert re.fullmatch(r"hpcflow \[\d/3\] the disk is slow", said[0])
    assert said[1:] == ["hpcflow the disk is slow  (x 9, ranks 0-2)"]
    for rank in range(3):
        assert (tmp_path / "run" / f"rank-{rank}.log").read_text().count("the disk is slow") == 3


def test_a_handler_set_up_twice_prints_once(capsys: pytest.CaptureFixture[str]) -> None:
    rank_logging.set_up_logging(0, 1)
    rank_logging.set_up_logging(0, 1)
    rank_logging.logger.log(logging.WARNING, "one")
    assert finish_lines(capsys) == ["hpcflow one"]


@pytest.mark.slow
@pytest.mark.skipif(
    launcher_detection.detect_launcher() is not None, reason="a job cannot start jobs"
)
def test_the_rank_that_raised_leaves_its_log(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(
        "import time\nimport hpcflow as hf\nfrom hpcflow.platform.rank_logging import logger\n"
        "context = hf.Session().context\nlogger.debug('before it')\n"
        "if context.rank == 1:\n    raise ValueError('no such luck')\ntime.sleep(200)\n"
    )
    run = [sys.executable, "-m", "hpcflow", "run", "-n", "2", "--run-dir", str(tmp_path / "run")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*run, str(script)], env=env, capture_output=True, text=True, timeout=220)
    assert done.returncode != 0
    left = sorted(path.name for path in (tmp_path / "run").glob("[!.]*"))
    assert left == ["failure.json", "rank-1.log"]
    text = (tmp_path / "run" / "rank-1.log").read_text()
    assert "DEBUG before it" in text and "ValueError: no such luck" in text


SERVED = """
import hpcflow as hf

x = hf.placeholder(hf.float32, [None])
w = hf.Variable(hf.zeros([1]))
train = hf.train.GradientDescentOptimizer(0.1).minimize(hf.reduce_mean(hf.square(x - w)))
with hf.train.TrainingSession() as sess:
    sess.step(train, {x: [1.0]})
"""


@pytest.mark.slow
@pytest.mark.skipif(
    launcher_detection.detect_launcher() is not None, reason="a job cannot start jobs"
)
def test_the_chief_is_heard_where_rank_0_serves(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(SERVED)
    serve = '[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 0 ] && export HPCFLOW_SERVE=1'
    line = f"{serve}; exec {sys.executable} -m hpcflow run train.py"
    start = launcher_detection.start_command(3, ["sh", "-c", line])
    environ = {**start.env, "PYTHONPATH": str(ROOT), "HPCFLOW_DEFAULT_CHECKPOINTS": "saved"}
    done = subprocess.run(
        start.argv, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^hpcflow \[0/3\] ps mode", done.stderr, re.M), done.stderr
    lines = re.findall(r"^hpcflow \[(\d)/3\] no checkpoint in saved", done.stderr, re.M)
    assert lines == ["1"] and "[2/3]" not in done.stderr, done.stderr
    assert re.search(r"^hpcflow \[1/3\] saved step-", done.stderr, re.M), done.stderr
